"""What one machine's run holds at most, and where a run file asks for more; no torch.

`session.py` sizes the engine by it; `check.py` and `train.py` tell the user.
"""

from limosa.base.config import RunConfig

# Episodes that the embedded engine generates for at once.
MAX_LIVE_EPISODES = 64


def list_limit_notices(config: RunConfig, *, positions: int) -> list[str]:
    """What a run will have less of than its file says; `positions` are what the model knows."""
    notices = []
    window, batch = config.rl.context_window, config.rl.rollout_batch
    if window > positions:
        notices.append(
            f"rl.context_window: {window:,} tokens are cut to {positions:,}, the positions that "
            f"the model {config.model} knows"
        )
    if batch != "dynamic" and batch > MAX_LIVE_EPISODES:
        notices.append(
            f"rl.rollout_batch is {batch:,}; the engine generates for {MAX_LIVE_EPISODES} episodes "
            "at once, not more"
        )
    return notices
