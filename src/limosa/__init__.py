"""Limosa: post-train an open-weight language model for long-horizon agent work.

The command line in `cli/` wires the rooms together; `base/` holds the words that all of them share.
"""

__version__ = "0.1.0"
