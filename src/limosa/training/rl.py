"""The loop of reinforcement learning: take groups, update, push the weights, prove the arrival.

Neighbours: the source (`rollout/`), the learner (`process.py`) and the sinks (`inference/`) come in
through the interfaces of `base/`. Left out: what a callback does with a step (events, progress,
checkpoints), and admission, which belongs to the source.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from limosa.base.errors import LearnerError
from limosa.base.interfaces import Learner, StepStats, TrajectorySource, WeightSink
from limosa.base.trajectory import Group

# on_step(number of steps done, what the update did, the groups it used)
OnStep = Callable[[int, StepStats, Sequence[Group]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RlResult:
    """Where the loop ended; `stopped` where it was asked to before its last step."""

    steps: int
    version: int | None
    stopped: bool


async def run_rl(
    source: TrajectorySource,
    learner: Learner,
    sinks: Sequence[WeightSink],
    *,
    steps: int,
    first_step: int = 0,
    on_step: OnStep,
    should_stop: Callable[[], bool],
) -> RlResult:
    """Run updates `first_step` to `steps`; `should_stop` is asked between updates.

    Raises: LearnerError where a sink holds other weights than were sent, and whatever the source,
    the learner or a sink raises.
    """
    version: int | None = None
    for step in range(first_step, steps):
        if should_stop():
            return RlResult(step, version, stopped=True)
        groups = await source.next_groups()
        stats = await learner.step(groups)
        await push_weights(stats, sinks)
        source.set_version(stats.version)
        version = stats.version
        await on_step(step + 1, stats, groups)
    return RlResult(max(first_step, steps), version, stopped=False)


async def push_weights(stats: StepStats, sinks: Sequence[WeightSink]) -> None:
    """Install weights in every sink. Raises: LearnerError where a checksum differs."""
    for sink in sinks:
        installed = await sink.update_weights(stats.weights, stats.version)
        if installed != stats.checksum:
            raise LearnerError(
                f"version {stats.version} did not arrive: {type(sink).__name__} holds weights with "
                f"checksum {installed[:12]}, expected {stats.checksum[:12]}"
            )
