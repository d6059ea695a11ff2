"""Held-out evaluation before and after: runs, metrics with intervals, and the report."""
