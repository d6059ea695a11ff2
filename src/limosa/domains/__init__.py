"""Families of tasks: one file a domain, one line in `table.py`.

Floor 2, beside `agent` and `inference`, which it never imports; stands on `base` and, through
the interfaces there, on sandboxes. No torch.
"""
