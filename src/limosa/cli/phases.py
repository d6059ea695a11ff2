"""The phases of `limosa train`: gate, evaluation, training, evaluation.

Each takes the `Session` and returns plain results; `cli/training_run.py` strings them together,
and `cli/session.py` owns what is live. What a resumed run needs is written at each checkpoint.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from limosa.base.errors import LearnerError
from limosa.base.interfaces import Learner, StepStats
from limosa.base.task import Task
from limosa.base.trajectory import Group, Trajectory
from limosa.cli.session import Session
from limosa.evaluation.run import evaluate
from limosa.evaluation.tasks import make_eval_tasks
from limosa.quality.finding import DomainFinding, Status, TaskFinding
from limosa.quality.gate import TaskGate, apply_gate, check_domain, make_gate_tasks
from limosa.rollout.admission import Admission
from limosa.rollout.curriculum import Curriculum
from limosa.rollout.dispatcher import Dispatcher, DispatchLimits
from limosa.rollout.mixture import Mixture
from limosa.store.run import make_state_error, read_state
from limosa.training.rl import run_rl

GATE_JOBS = 8
REASON_CHARACTERS = 160
LAST_PHASE = "eval_after"
# What a state file may hold for each field of `Progress`.
KINDS: Mapping[str, tuple[type, ...]] = {
    "version": (int,),
    "resumes": (int,),
    "wall_s": (int, float),
    "phases": (dict,),
    "findings": (list,),
    "dispatcher": (dict, type(None)),
    "done": (list,),
}


@dataclass(slots=True)
class Progress:
    """What a run has behind it; `to_json` is its state file.

    `resumes` counts how often the run was gone on with.
    """

    version: int = 0
    resumes: int = 0
    wall_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    dispatcher: dict[str, Any] | None = None
    done: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "version": self.version,
            "resumes": self.resumes,
            "wall_s": self.wall_s,
            "phases": self.phases,
            "findings": self.findings,
            "dispatcher": self.dispatcher,
            "done": self.done,
        }

    @property
    def is_complete(self) -> bool:
        """True where only the report may be missing."""
        return LAST_PHASE in self.done


def read_progress(run: Path) -> Progress | None:
    """What a run's state file says, or None where it has none. Raises: UserError for damage."""
    state = read_state(run)
    if state is None:
        return None
    odd = sorted(state.keys() ^ KINDS.keys())
    if odd:
        verb = "lacks" if odd[0] in KINDS else "holds"
        raise make_state_error(run, f"{verb} the key {odd[0]!r}, expected {', '.join(KINDS)}")
    for key, value in state.items():
        if not isinstance(value, KINDS[key]):
            expected = " or ".join(kind.__name__ for kind in KINDS[key])
            raise make_state_error(run, f"{key!r} is {value!r:.80}, expected {expected}")
    return Progress(**state)


def find_first_index(seed: int) -> int:
    """Where in the range of training tasks a run's own begin: a million apart for each seed."""
    return seed * 1_000_003 % 500_000_000


async def run_gate(session: Session) -> list[DomainFinding]:
    """Prove a sample of every domain and stage: the first of the run's own training tasks.

    Raises: UserError where a stage has no sound task, InfrastructureError where none could be
    checked. What was found out is in the run's events by then.
    """
    tasks = {
        name: make_gate_tasks(
            functools.partial(session.make_task, name),
            session.get_stages(name),
            session.config.quality.tasks_per_stage,
            first_index=find_first_index(session.config.seed),
        )
        for name in session.domains
    }
    total = sum(len(t) for t in tasks.values())
    findings = []
    with session.reporter.phase("quality gate", total, "tasks") as phase:

        def on_progress(finding: TaskFinding) -> None:
            log_finding(session, finding)
            phase.advance()

        for name, domain in session.domains.items():
            findings.append(
                await check_domain(
                    domain,
                    tasks[name],
                    session.sandboxes,
                    jobs=session.bound_by_boxes(GATE_JOBS),
                    play_script=session.play_script,
                    on_progress=on_progress,
                )
            )
    _tell_left_out(session, findings)
    apply_gate(findings, session.config.quality.max_unsound_ratio)
    return findings


def _tell_left_out(session: Session, findings: Sequence[DomainFinding]) -> None:
    """A line for each domain and stage with unsound tasks."""
    for finding in findings:
        for stage in dict.fromkeys(t.stage for t in finding.tasks):
            tasks = [t for t in finding.tasks if t.stage == stage]
            unsound = [t for t in tasks if t.status is Status.UNSOUND]
            if unsound:
                reason = " ".join(unsound[0].reason.split())
                if len(reason) > REASON_CHARACTERS:
                    reason = f"{reason[: REASON_CHARACTERS - 1]}…"
                session.reporter.note(
                    f"quality gate: {finding.domain}/{stage}: {len(unsound)} of {len(tasks)} tasks "
                    f"left out, the first because {reason}"
                )


def log_finding(session: Session, finding: TaskFinding) -> None:
    """Record a task that is left out, and apart from these one that could not be checked."""
    if finding.status is Status.UNSOUND:
        session.folder.append("task_rejected", **asdict(finding))
    elif finding.status is Status.INFRASTRUCTURE:
        session.folder.append(
            "check_spoilt",
            domain=finding.domain,
            stage=finding.stage,
            seed=finding.seed,
            reason=finding.reason,
        )


def make_task_gate(session: Session, known: Sequence[DomainFinding]) -> TaskGate:
    """The gate that each task passes before it is trained on; `known` are proven already."""
    return TaskGate(
        session.domains,
        session.sandboxes,
        play_script=session.play_script,
        on_rejected=functools.partial(log_finding, session),
        known=known,
    )


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

        results = await evaluate(
            tasks,
            play,
            jobs=session.max_live_episodes,
            on_result=on_result,
            on_retry=functools.partial(session.folder.append_trajectory, phase=name),
        )
    invalid = sum(not t.is_valid for t in results)
    if invalid:
        session.reporter.note(
            f"{name.replace('_', ' ')}: {invalid} of {len(results)} held-out tasks stayed invalid "
            "and are left out of the numbers"
        )
    return results


def make_dispatcher(session: Session, gate: TaskGate, progress: Progress) -> Dispatcher:
    """The actor of a run, at the state that `progress` holds. Raises: UserError for damage."""
    config = session.config
    most_groups = max(1, session.max_live_episodes // config.rl.group_size)
    dispatcher = Dispatcher(
        functools.partial(session.play, temperature=config.rl.temperature),
        session.make_task,
        gate.admit,
        mixture=Mixture(config.ratios),
        curricula={
            name: Curriculum(session.get_stages(name), first_index=find_first_index(config.seed))
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
            # One failure of engine or boxes spoils all that is live: that must not end a run.
            max_invalid_in_a_row=3 * max(64, session.max_live_episodes),
            max_spoilt_in_a_row=3 * max(8, most_groups),
        ),
        log=session.folder,
        session=progress.resumes,
    )
    if progress.dispatcher is not None:
        try:
            dispatcher.restore(progress.dispatcher)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"holds no state of a dispatcher: {type(error).__name__}: {error}"
            raise make_state_error(session.folder.path, what) from None
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
    bar = session.reporter.phase("training", config.rl.steps, "updates", done=progress.version)
    with bar as phase:
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
            phase.advance(detail=describe_update(metrics))
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
        try:
            await learner.save(str(staging))
            if not (staging / "config.json").is_file():
                raise LearnerError(f"the learner wrote no model into {staging}")
        except Exception:
            session.folder.discard_checkpoint(version)
            raise
        path = session.folder.publish_checkpoint(version)
        session.folder.append("checkpoint", step=version, path=str(path))
    progress.version, progress.dispatcher = version, dispatcher.to_state()
    save()


def _to_curves(rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean reward and success by domain over all episodes since the last update."""
    means = {f"reward/{name}": sum(r) / len(r) for name, r in rewards.items()}
    solved = {f"success/{name}": sum(x >= 1.0 for x in r) / len(r) for name, r in rewards.items()}
    return means | solved


def describe_update(metrics: Mapping[str, float]) -> str:
    """Mean reward over domains and the learner's rate first: a narrow terminal cuts the end."""
    rate = f"{metrics.get('tokens_per_s', 0.0):.0f} tok/s"
    rewards = {k.split("/")[1]: v for k, v in metrics.items() if k.startswith("reward/")}
    if not rewards:  # no episode ended since the last update
        return rate
    mean = sum(rewards.values()) / len(rewards)
    parts = ", ".join(f"{name} {reward:.2f}" for name, reward in rewards.items())
    return f"reward {mean:.2f}  {rate}  {parts}"
