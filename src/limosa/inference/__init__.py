"""The embedded inference engine: continuous batching over cached keys and values.

Floor 2: stands on `models`; knows nothing of training, domains or chat templates.
"""
