"""For every test: generated input is the same each time, and slow machines may be slow."""

from hypothesis import settings

settings.register_profile("limosa", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("limosa")
