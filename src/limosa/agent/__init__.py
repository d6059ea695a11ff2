"""The agent: the one loop, who answers in it, and the record of what happened."""
