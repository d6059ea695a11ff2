"""From a finished episode to a trajectory: the policy's ids as sampled, the episode's outcome.

Neighbours: `agent/loop.py` and `agent/policies.py` make what is joined here; `store/` writes it.
"""

from limosa.agent.loop import Episode
from limosa.agent.policies import ModelPolicy
from limosa.base.task import Task
from limosa.base.trajectory import Trajectory


def to_trajectory(
    episode: Episode, policy: ModelPolicy, task: Task, *, trajectory_id: str, group_id: str
) -> Trajectory:
    """The trajectory of an episode that `policy` played; any outcome."""
    return Trajectory(
        id=trajectory_id,
        group_id=group_id,
        domain=task.domain,
        stage=task.stage,
        task_hash=task.content_hash,
        task_seed=task.seed,
        environment_version=episode.environment_version,
        token_ids=tuple(policy.token_ids),
        sampled=tuple(policy.sampled),
        logprobs=tuple(policy.logprobs),
        versions=tuple(policy.versions),
        prompt_tokens=min(policy.prompt_tokens, len(policy.token_ids)),
        temperature=policy.temperature,
        outcome=episode.outcome,
        reward=episode.reward,
        components=dict(episode.components),
        events=episode.events,
        turns=episode.turns,
        wall_s=episode.wall_s,
        error=episode.error,
    )
