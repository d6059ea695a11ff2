"""The order of a run's phases and what a resumed run skips; whole runs stand in tests/system."""

import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from limosa.base.config import DomainConfig, RunConfig
from limosa.base.errors import LearnerError, UserError
from limosa.base.interfaces import StepStats
from limosa.cli.phases import Progress
from limosa.cli.progress import Reporter
from limosa.cli.training_run import (
    Interrupted,
    StopSignal,
    TrainingRun,
    check_same_start,
    run_all_phases,
)
from limosa.quality.finding import DomainFinding, Status, TaskFinding
from limosa.store.run import RunFolder

CONFIG = RunConfig(domains=(DomainConfig(name="knowledge_research"),))
NOWHERE = Path("nowhere")  # loading it would be an error
TRAINED = Progress(version=5, done=["gate", "eval_before", "train"])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path, "run", "") as run:
        yield run


async def test_a_finished_run_gives_its_report_and_loads_nothing(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = dataclasses.replace(TRAINED, done=[*TRAINED.done, "eval_after"])
    folder.write_state(progress.to_json())
    folder.write_report({"name": "run", "wall_s": 1.5})
    before = {p.name: p.read_bytes() for p in folder.path.iterdir() if p.is_file()}
    report = await run_all_phases(CONFIG, folder, Reporter(), NOWHERE)
    assert report == {"name": "run", "wall_s": 1.5}
    assert "the run is finished" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in folder.path.iterdir() if p.is_file()} == before


async def test_a_checkpoint_that_is_gone_is_a_user_error(folder: RunFolder) -> None:
    folder.write_state(TRAINED.to_json())
    with pytest.raises(UserError, match=r"checkpoints/step-5 .*missing\nhint: "):
        await run_all_phases(CONFIG, folder, Reporter(Console(quiet=True)), NOWHERE)


async def test_ctrl_c_during_the_last_update_is_not_swallowed(folder: RunFolder) -> None:
    stop = StopSignal(Reporter(Console(quiet=True)), asked=True)
    nothing = cast(Any, None)  # the phases are behind the run, or must not be reached
    run = TrainingRun(nothing, nothing, TRAINED, stop, save=lambda: None)
    with pytest.raises(Interrupted, match="after update 5, the last"):
        await run.run_phases()
    assert TRAINED.done == ["gate", "eval_before", "train"]


def test_learner_and_sampler_must_begin_alike() -> None:
    begun = StepStats(version=4, checksum="a" * 64, weights={}, metrics={})
    check_same_start(begun, "a" * 64)
    with pytest.raises(LearnerError, match=r"version 4 has checksum aaaaaaaaaaaa .* bbbbbbbbbbbb"):
        check_same_start(begun, "b" * 64)


def make_training(
    monkeypatch: pytest.MonkeyPatch, folder: RunFolder, reporter: Reporter, **parts: Any
) -> TrainingRun:
    """A run whose training is `train`, and whose gate found `unsound` tasks meanwhile."""

    def find(number: int) -> TaskFinding:
        return TaskFinding("maze", "easy", number, "", Status.UNSOUND, 0.0, None, "bad", 1, 0.1)

    found = DomainFinding("maze", tuple(find(number) for number in range(parts["unsound"])))
    gate = SimpleNamespace(findings=(found,))
    # The parts that need an engine; they have tests of their own.
    monkeypatch.setattr("limosa.cli.training_run.make_task_gate", lambda *_: gate)
    monkeypatch.setattr("limosa.cli.training_run.make_dispatcher", lambda *_: None)
    monkeypatch.setattr("limosa.cli.training_run.run_training", parts["train"])
    session = cast(Any, SimpleNamespace(folder=folder, reporter=reporter, config=CONFIG))
    progress = Progress(done=["gate", "eval_before"])
    stop = StopSignal(reporter, asked=True)
    return TrainingRun(session, cast(Any, None), progress, stop, save=parts["save"])


async def test_a_state_that_cannot_be_written_does_not_hide_what_ended_the_training(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def train(*_: object, **__: object) -> None:
        raise LearnerError("the first")

    def save() -> None:
        raise OSError(28, "No space left on device")

    reporter = Reporter(Console(quiet=True))
    run = make_training(monkeypatch, folder, reporter, train=train, save=save, unsound=0)
    with pytest.raises(LearnerError, match="the first") as info:
        await run.run_phases()
    assert info.value.__context__ is None and not run.stop.is_training


@pytest.mark.parametrize(("unsound", "said"), [(0, ""), (1, "1 task was"), (3, "3 tasks were")])
async def test_tasks_left_out_while_training_are_told(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, unsound: int, said: str
) -> None:
    async def train(*_: object, **__: object) -> None:
        pass

    file = io.StringIO()
    reporter = Reporter(Console(file=file, width=80))
    run = make_training(
        monkeypatch, folder, reporter, train=train, save=lambda: None, unsound=unsound
    )
    with pytest.raises(Interrupted):  # nothing is played after the training
        await run.run_phases()
    line = f"training: {said} left out by the quality gate; the events task_rejected say why\n"
    assert file.getvalue() == (line if unsound else "")
