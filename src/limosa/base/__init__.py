"""The shared words: messages, tasks, trajectories, errors, interfaces, configuration.

Floor 0: imports nothing of Limosa above it, no torch and no network.
"""
