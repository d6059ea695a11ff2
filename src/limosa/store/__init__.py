"""What a run leaves on disk: configuration, events, trajectories, checkpoints, reports."""
