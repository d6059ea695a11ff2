"""The order of a run's phases and what a resumed run skips; whole runs stand in tests/system."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
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
