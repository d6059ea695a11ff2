"""One training run from its first phase to its report, resumable at every phase's end.

`cli/train.py` has checked the input and opened the folder; `cli/phases.py` does the phases. Here is
their order, what a resumed run skips, Ctrl-C, and the report.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from limosa.base.config import RunConfig
from limosa.base.errors import LearnerError, UserError
from limosa.base.interfaces import StepStats
from limosa.base.trajectory import Trajectory
from limosa.cli.phases import (
    LAST_PHASE,
    Progress,
    make_dispatcher,
    make_task_gate,
    read_progress,
    run_evaluation,
    run_gate,
    run_training,
)
from limosa.cli.progress import Reporter
from limosa.cli.session import Session, open_session
from limosa.evaluation.report import count_train_outcomes, make_report, write_html
from limosa.evaluation.table import print_table
from limosa.quality.finding import DomainFinding, Status
from limosa.store.run import (
    RunFolder,
    iterate_trajectories,
    read_events,
    read_report,
)
from limosa.training.process import LearnerProcess, LearnerSpec


class Interrupted(KeyboardInterrupt):
    """The user stopped the run; a checkpoint is written."""


@dataclass(slots=True)
class StopSignal:
    """Ctrl-C: the first asks training to stop after its update, the second stops at once."""

    reporter: Reporter
    asked: bool = False
    is_training: bool = False
    task: "asyncio.Task[Any] | None" = None

    def ask(self) -> None:
        """Called for each signal."""
        if self.is_training and not self.asked:
            self.asked = True
            self.reporter.note("stopping after this update; Ctrl-C again stops at once")
        elif self.task is not None:
            self.task.cancel()


async def run_all_phases(
    config: RunConfig, folder: RunFolder, reporter: Reporter, model: Path
) -> dict[str, Any]:
    """Run what is left of a run, and give its report.

    Raises: UserError, InfrastructureError, Interrupted where Ctrl-C stopped the training.
    """
    found = read_progress(folder.path)
    progress = found or Progress()
    report = read_report(folder.path) if progress.is_complete else None
    if report is not None:
        reporter.note("the run is finished: nothing is left to do, this is its report")
        return report
    # One thread here and one in the learner: two busy processes on two cores.
    torch.set_num_threads(1)
    started_s = time.monotonic() - progress.wall_s

    def save() -> None:
        progress.wall_s = time.monotonic() - started_s
        folder.write_state(progress.to_json())

    start = _find_start(folder.path, progress, model)
    if found is not None:
        # On disk before anything is played: ids of this session's groups hold the number.
        progress.resumes += 1
        save()
        folder.append("resumed", step=progress.version, number=progress.resumes)
    stop = StopSignal(reporter, task=asyncio.current_task())
    async with (
        _catch_signals(stop),
        _open_learner(config, model, start) as (learner, begun),
        open_session(config, folder, reporter, model=start, version=progress.version) as session,
    ):
        check_same_start(begun, session.start_checksum)
        run = TrainingRun(session, learner, progress, stop, save)
        await run.run_phases()
        progress.wall_s = time.monotonic() - started_s
        return run.write_report()


def check_same_start(begun: StepStats, sampler_checksum: str) -> None:
    """Compare what learner and sampler begin with. Raises: LearnerError where it differs."""
    if begun.checksum != sampler_checksum:
        raise LearnerError(
            f"learner and sampler begin with different weights: version {begun.version} has "
            f"checksum {begun.checksum[:12]} in the learner and {sampler_checksum[:12]} in the "
            "sampler, expected the same"
        )


def _find_start(run: Path, progress: Progress, model: Path) -> Path:
    """The folder of the weights to begin with. Raises: UserError where a checkpoint is gone."""
    if not progress.version:
        return model
    start = run / "checkpoints" / f"step-{progress.version}"
    if not start.is_dir():
        hint = f"put it back, or begin anew: limosa train {run / 'config.yaml'}"
        raise UserError(f"the checkpoint {start} that state.json names is missing", hint=hint)
    return start


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The phases in their order; one that is done is not done again."""

    session: Session
    learner: LearnerProcess
    progress: Progress
    stop: StopSignal
    save: Callable[[], None]
    # What this process proved itself; after a resume it is proven again where it is needed.
    known: list[DomainFinding] = field(default_factory=list)

    async def run_phases(self) -> None:
        """Gate, evaluation, training, evaluation. Raises: Interrupted."""
        await self._run_phase("gate", self._check_environments)
        await self._run_phase("eval_before", self._evaluate_before)
        await self._run_phase("train", self._train)
        if self.stop.asked:  # during the last update: the training is whole, the run is not
            raise Interrupted(f"stopped after update {self.progress.version}, the last")
        await self._run_phase(LAST_PHASE, self._evaluate_after)

    async def _run_phase(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        if name in self.progress.done:
            return
        started_s = time.monotonic()
        self.session.folder.append("phase_started", phase=name)
        await work()
        wall_s = time.monotonic() - started_s
        self.progress.phases[name] = self.progress.phases.get(name, 0.0) + wall_s
        self.progress.done.append(name)
        self.session.folder.append("phase_done", phase=name, wall_s=wall_s)
        self.save()

    async def _check_environments(self) -> None:
        self.known.extend(await run_gate(self.session))
        self._keep_findings(self.known, "gate")

    def _keep_findings(self, findings: Sequence[DomainFinding], phase: str) -> None:
        self.progress.findings += [{**f.to_json(), "phase": phase} for f in findings]

    async def _evaluate_before(self) -> None:
        await run_evaluation(self.session, "eval_before")

    async def _evaluate_after(self) -> None:
        await run_evaluation(self.session, LAST_PHASE)

    async def _train(self) -> None:
        gate = make_task_gate(self.session, self.known)
        dispatcher = make_dispatcher(self.session, gate, self.progress)
        self.stop.is_training = True
        try:
            await run_training(
                self.session,
                self.learner,
                dispatcher,
                self.progress,
                save=self.save,
                should_stop=lambda: self.stop.asked,
            )
        except BaseException:
            with suppress(OSError):  # what ended the training is the error to tell
                self._end_training(gate.findings)
            raise
        self._end_training(gate.findings)
        if self.stop.asked and self.progress.version < self.session.config.rl.steps:
            raise Interrupted(f"stopped after update {self.progress.version}")

    def _end_training(self, findings: Sequence[DomainFinding]) -> None:
        """Keep what the gate found out while training, and tell of it."""
        self.stop.is_training = False
        self._keep_findings(findings, "training")
        unsound = sum(f.count(Status.UNSOUND) for f in findings)
        if unsound:
            what = "1 task was" if unsound == 1 else f"{unsound} tasks were"
            self.session.reporter.note(
                f"training: {what} left out by the quality gate; the events task_rejected say why"
            )
        self.save()

    def write_report(self) -> dict[str, Any]:
        """report.json, report.html and the last table."""
        folder, config = self.session.folder, self.session.config
        checkpoint = folder.path / "checkpoints" / f"step-{self.progress.version}"
        episodes = _read_evaluations(folder.path)
        report = make_report(
            name=folder.path.name,
            config=config.model_dump(mode="json"),
            wall_s=self.progress.wall_s,
            policy_version=self.progress.version,
            checkpoint=str(checkpoint.resolve()),
            before=episodes["eval_before"],
            after=episodes["eval_after"],
            train_outcomes=count_train_outcomes(folder.path),
            steps=_read_steps(folder.path),
            phases=self.progress.phases,
            findings=self.progress.findings,
            decode=self.session.chat.decode,
        )
        folder.write_report(report)
        write_html(report, folder.path / "report.html")
        print_table(report, self.session.reporter.console)
        return report


def _read_evaluations(path: Path) -> dict[str, list[Trajectory]]:
    """The last trajectory of each held-out task: earlier attempts were invalid or interrupted."""
    last: dict[str, dict[str, Trajectory]] = {"eval_before": {}, "eval_after": {}}
    for phase, trajectory in iterate_trajectories(path):
        if phase in last:
            last[phase][trajectory.group_id] = trajectory
    return {phase: list(found.values()) for phase, found in last.items()}


def _read_steps(path: Path) -> list[dict[str, Any]]:
    """The metrics of each update; one done again after a resume counts as it was done last."""
    steps = {
        event["step"]: {"step": event["step"], **event["metrics"]}
        for event in read_events(path).lines
        if event["kind"] == "step"
    }
    return [steps[number] for number in sorted(steps)]


@asynccontextmanager
async def _catch_signals(stop: StopSignal) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.ask)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _open_learner(
    config: RunConfig, model: Path, start: Path
) -> AsyncIterator[tuple[LearnerProcess, StepStats]]:
    restore = str(start) if start != model else None
    spec = LearnerSpec(str(model), config.rl, config.domains, restore)
    learner, begun = await LearnerProcess.start(spec)
    try:
        yield learner, begun
    finally:
        await learner.close()
