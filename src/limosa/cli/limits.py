"""What one machine's run holds at most, and where a run file asks for more; no torch.

`session.py` sizes the engine by it; `check.py` and `train.py` tell the user.
"""

from limosa.base.config import DomainConfig, RlConfig, RunConfig
from limosa.base.task import Limits, make_seed
from limosa.domains.table import load_domain

# Episodes that the embedded engine generates for at once.
MAX_LIVE_EPISODES = 64
# Tasks of a stage looked at for its own limits, which may differ from task to task.
SAMPLED_TASKS = 16


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
    boxes, live = config.sandbox.max_boxes, MAX_LIVE_EPISODES if batch == "dynamic" else batch
    runs_code = any(load_domain(d.name).image is not None for d in config.domains)
    if runs_code and boxes < min(live, MAX_LIVE_EPISODES):
        notices.append(f"sandbox.max_boxes: {boxes}: at most {boxes} episodes are live at once")
    return [*notices, *_list_task_notices(config)]


def _list_task_notices(config: RunConfig) -> list[str]:
    """Settings that change nothing, for a run file may only tighten what the tasks allow."""
    notices, most_tokens = [], 0
    for index, settings in enumerate(config.domains):
        limits = _sample_limits(settings)
        turns = max(limit.max_turns for limit in limits)
        most_tokens = max(most_tokens, *(limit.max_new_tokens for limit in limits))
        if settings.max_steps is not None and settings.max_steps > turns:
            notices.append(
                f"domains.{index}.max_steps: {settings.max_steps:,} changes nothing: the tasks of "
                f"{settings.name} end after {turns} turns at most, and a run file only tightens"
            )
        if settings.env_image is not None and load_domain(settings.name).image is None:
            notices.append(
                f"domains.{index}.env_image: {settings.env_image} is not used: {settings.name} "
                "runs no code"
            )
    tokens = config.rl.max_new_tokens
    # Its default says nothing, and a resumed run's file holds every default.
    if tokens > most_tokens and tokens != RlConfig().max_new_tokens:
        notices.append(
            f"rl.max_new_tokens: {tokens:,} changes nothing: the tasks allow {most_tokens} tokens "
            "a turn at most, and a run file only tightens"
        )
    return notices


def _sample_limits(settings: DomainConfig) -> list[Limits]:
    domain = load_domain(settings.name)
    return [
        domain.make_task(stage, make_seed("train", number)).limits
        for stage in settings.curriculum or domain.stages
        for number in range(SAMPLED_TASKS)
    ]
