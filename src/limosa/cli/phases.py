"""The phases of `limosa train`: gate, evaluation, training, evaluation.

Each takes the `Session` and returns plain results; `cli/train.py` strings them together and
`cli/session.py` owns what is live. What a resumed run needs is written at each checkpoint.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from limosa.base.errors import LearnerError
from limosa.base.interfaces import Learner, StepStats
from limosa.base.task import Task, make_seed
from limosa.base.trajectory import Group, Trajectory
from limosa.cli.session import Session
from limosa.evaluation.run import evaluate
from limosa.evaluation.tasks import make_eval_tasks
from limosa.quality.finding import DomainFinding
from limosa.quality.gate import TaskGate, apply_gate, check_domain
from limosa.rollout.admission import Admission
from limosa.rollout.curriculum import Curriculum
from limosa.rollout.dispatcher import Dispatcher, DispatchLimits
from limosa.rollout.mixture import Mixture
from limosa.training.rl import run_rl

GATE_JOBS = 8


@dataclass(slots=True)
class Progress:
    """What a run has behind it; `to_json` is its state file."""

    version: int = 0
    wall_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    dispatcher: dict[str, Any] | None = None
    done: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "version": self.version,
            "wall_s": self.wall_s,
            "phases": self.phases,
            "findings": self.findings,
            "dispatcher": self.dispatcher,
            "done": self.done,
        }


async def run_gate(session: Session) -> list[DomainFinding]:
    """Prove a sample of every domain and stage. Raises: UserError where a domain has no sound task.

    The sample is drawn from the range of the training tasks: the first of each stage.
    """
    count = session.config.quality.tasks_per_stage
    tasks = {
        name: [
            session.make_task(name, stage, make_seed("train", index))
            for stage in session.get_stages(name)
            for index in range(count)
        ]
        for name in session.domains
    }
    total = sum(len(t) for t in tasks.values())
    findings = []
    with session.reporter.phase("quality gate", total, "tasks") as phase:
        for name, domain in session.domains.items():
            findings.append(
                await check_domain(
                    domain,
                    tasks[name],
                    session.sandboxes,
                    jobs=GATE_JOBS,
                    on_progress=lambda finding: phase.advance(),
                )
            )
    apply_gate(findings, session.config.quality.max_unsound_ratio)
    return findings


async def run_evaluation(session: Session, name: str) -> list[Trajectory]:
    """Play the held-out tasks of every domain once; `name` is eval_before or eval_after."""
    config = session.config
    tasks = [
        session.bound_task(task)
        for domain_name, domain in session.domains.items()
        for task in make_eval_tasks(
            domain,
            session.get_stages(domain_name),
            config.evaluation.tasks_per_domain,
            config.seed,
        )
    ]
    solved = Counter[str]()
    attempts = Counter[int]()
    with session.reporter.phase(name.replace("_", " "), len(tasks), "episodes") as phase:

        async def play(task: Task, index: int) -> Trajectory:
            attempts[index] += 1
            return await session.play(
                task,
                f"{name}-{index}",
                0,
                attempts[index] - 1,
                temperature=config.evaluation.temperature,
            )

        def on_result(trajectory: Trajectory) -> None:
            session.folder.append_trajectory(trajectory, phase=name)
            solved[trajectory.outcome.value] += 1
            phase.advance(detail=f"solved {solved['solved'] / max(1, phase.done + 1):.0%}")

        return await evaluate(
            tasks,
            play,
            jobs=session.max_live_episodes,
            on_result=on_result,
            on_retry=functools.partial(session.folder.append_trajectory, phase=name),
        )


def make_dispatcher(session: Session, gate: TaskGate, progress: Progress) -> Dispatcher:
    """The actor of a run, at the state that `progress` holds."""
    config = session.config
    first_index = config.seed * 1_000_003 % 500_000_000
    dispatcher = Dispatcher(
        functools.partial(session.play, temperature=config.rl.temperature),
        session.make_task,
        gate.admit,
        mixture=Mixture(config.ratios),
        curricula={
            name: Curriculum(session.get_stages(name), first_index=first_index)
            for name in session.domains
        },
        admission=Admission(
            max_staleness=config.rl.max_staleness,
            groups_per_step=config.rl.groups_per_step,
            version=progress.version,
        ),
        limits=DispatchLimits(
            group_size=config.rl.group_size,
            groups_per_step=config.rl.groups_per_step,
            total_steps=config.rl.steps,
            max_live_episodes=session.max_live_episodes,
            # One failure of the engine spoils every live episode: that alone must not end a run.
            max_invalid_in_a_row=3 * max(64, session.max_live_episodes),
        ),
        log=session.folder,
    )
    if progress.dispatcher is not None:
        dispatcher.restore(progress.dispatcher)
    return dispatcher


async def run_training(
    session: Session,
    learner: Learner,
    dispatcher: Dispatcher,
    progress: Progress,
    *,
    save: Callable[[], None],
    should_stop: Callable[[], bool],
) -> None:
    """Reinforcement learning from `progress.version` to the last update, or until told to stop."""
    config = session.config
    bar = session.reporter.phase("training", config.rl.steps, "updates")
    with bar as phase:
        phase.advance(progress.version)
        reached = progress.version

        async def on_step(step: int, stats: StepStats, groups: Sequence[Group]) -> None:
            nonlocal reached
            reached = stats.version
            metrics = {**stats.metrics, **_to_curves(dispatcher.take_rewards())}
            session.folder.append(
                "step",
                step=step,
                checksum=stats.checksum,
                metrics=metrics,
                trained=[t.id for group in groups for t in group.trajectories],
                engine=session.engine.stats(),
                episodes=dict(dispatcher.counts.episodes),
                flat_groups=dict(dispatcher.counts.flat_groups),
                trained_groups=dict(dispatcher.counts.trained_groups),
                signal_groups=dict(dispatcher.counts.signal_groups),
            )
            phase.advance(detail=_describe(metrics))
            if stats.version % config.rl.checkpoint_every == 0:
                await save_checkpoint(session, learner, dispatcher, progress, reached, save=save)

        try:
            await run_rl(
                dispatcher,
                learner,
                [session.engine],
                steps=config.rl.steps,
                first_step=progress.version,
                on_step=on_step,
                should_stop=should_stop,
            )
        finally:
            await dispatcher.close()
    await save_checkpoint(session, learner, dispatcher, progress, reached, save=save)


async def save_checkpoint(
    session: Session,
    learner: Learner,
    dispatcher: Dispatcher,
    progress: Progress,
    version: int,
    *,
    save: Callable[[], None],
) -> None:
    """Write the learner's state and, when it is whole, the state that goes with it.

    `progress` names only what is on disk, so a run that dies at any moment can be resumed. A
    version that has its checkpoint is not written again: publishing twice could lose it.
    """
    if version > progress.version:
        staging = session.folder.prepare_checkpoint(version)
        await learner.save(str(staging))
        if not (staging / "config.json").is_file():
            raise LearnerError(f"the learner wrote no model into {staging}")
        path = session.folder.publish_checkpoint(version)
        session.folder.append("checkpoint", step=version, path=str(path))
    progress.version, progress.dispatcher = version, dispatcher.to_state()
    save()


def _to_curves(rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean reward and success by domain over all episodes since the last update."""
    means = {f"reward/{name}": sum(r) / len(r) for name, r in rewards.items()}
    solved = {f"success/{name}": sum(x >= 1.0 for x in r) / len(r) for name, r in rewards.items()}
    return means | solved


def _describe(metrics: Mapping[str, float]) -> str:
    rewards = [f"{k.split('/')[1]} {v:.2f}" for k, v in metrics.items() if k.startswith("reward/")]
    rate = metrics.get("tokens_per_s", 0.0)
    return f"reward {', '.join(rewards)}  {rate:.0f} tok/s learnt"
