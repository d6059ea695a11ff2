"""The actor side of training: which task next, how many at once, how old a group may be.

Floor 3: knows the environments and the agent loop by a callable only, and never the learner.
"""
