"""The phases' own decisions, without an engine; whole runs stand in tests/system."""

import asyncio
import errno
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from limosa.base.config import DomainConfig, RunConfig
from limosa.base.errors import InfrastructureError, SandboxError, UserError
from limosa.base.task import Task, make_seed
from limosa.base.testing import FakeProvider, make_trajectory
from limosa.base.trajectory import Outcome, Trajectory
from limosa.cli.phases import (
    Progress,
    describe_update,
    find_first_index,
    make_dispatcher,
    make_task_gate,
    read_progress,
    run_evaluation,
    run_gate,
    save_checkpoint,
)
from limosa.cli.progress import Reporter
from limosa.cli.session import Session
from limosa.domains.table import load_domain
from limosa.models.folder import resolve_model
from limosa.sandbox.bubblewrap import BubblewrapProvider
from limosa.store.run import RunFolder, read_events
from limosa.tokens.chat import TemplateChat, load_chat

SEED = 7
FIRST = find_first_index(SEED)


class DeadBoxes(FakeProvider):
    """No box can be made."""

    async def create(self, image: str) -> Any:
        raise SandboxError("no box today")

    def image_digest(self, image: str) -> str:
        return "sha256:dead"


@pytest.fixture(scope="module")
def chat() -> TemplateChat:
    return load_chat(resolve_model("limosa-base"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path, "run", "") as run:
        yield run


def make_session(
    folder: RunFolder,
    chat: TemplateChat,
    *domains: DomainConfig,
    boxes: Any = None,
    window: int = 2048,
    quality: dict[str, Any] | None = None,
    reporter: Reporter | None = None,
    **sections: Any,
) -> Session:
    config = RunConfig.model_validate(
        {
            "domains": [d.model_dump() for d in domains],
            "seed": SEED,
            "quality": {"tasks_per_stage": 2, **(quality or {})},
            **sections,
        }
    )
    return Session(
        config=config,
        folder=folder,
        reporter=reporter or Reporter(Console(stderr=True, quiet=True)),
        domains={d.name: load_domain(d.name) for d in domains},
        sandboxes=boxes or cast(BubblewrapProvider, FakeProvider()),
        chat=chat,
        engine=cast(Any, None),  # the gate samples nothing
        start_checksum="",
        context_window=window,
    )


def read_kinds(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [e for e in read_events(folder.path).lines if e["kind"] == kind]


async def test_the_gate_proves_the_runs_first_tasks_and_training_trusts_it(
    folder: RunFolder, chat: TemplateChat
) -> None:
    session = make_session(folder, chat, DomainConfig(name="knowledge_research"))
    findings = await run_gate(session)
    seeds = [t.seed for t in findings[0].tasks if t.stage == "single_hop"]
    assert seeds == [make_seed("train", FIRST), make_seed("train", FIRST + 1)]
    gate = make_task_gate(session, findings)
    dispatched = session.make_task("knowledge_research", "single_hop", seeds[0])
    assert await gate.admit(dispatched)
    assert gate.findings == (), "a task that was proven before the run was proven again"
    assert read_kinds(folder, "task_rejected") == []


async def test_a_task_too_long_for_the_model_is_rejected_and_told_before_the_run_stops(
    folder: RunFolder, chat: TemplateChat
) -> None:
    boxes = BubblewrapProvider(max_boxes=4)
    agent = DomainConfig(name="long_horizon_agent")
    file = io.StringIO()
    reporter = Reporter(Console(file=file, width=80))
    try:
        session = make_session(folder, chat, agent, boxes=boxes, window=512, reporter=reporter)
        with pytest.raises(UserError, match=r"stage 'long_traj' of .*tokens, at most 512 fit"):
            await run_gate(session)
    finally:
        await boxes.close()
    rejected = read_kinds(folder, "task_rejected")
    assert [(e["stage"], e["seed"]) for e in rejected] == [
        ("long_traj", make_seed("train", FIRST + number)) for number in range(2)
    ]
    assert all(e["status"] == "unsound" for e in rejected)
    (line,) = [t for t in file.getvalue().splitlines() if "left out" in t]
    head = "quality gate: long_horizon_agent/long_traj: 2 of 2 tasks left out, the first because "
    assert line.startswith(f"{head}the reference solution earned 0, expected 1")
    assert len(line) <= len(head) + 160


async def test_boxes_that_cannot_be_made_are_not_the_domains_fault(
    folder: RunFolder, chat: TemplateChat
) -> None:
    agent = DomainConfig(name="long_horizon_agent", curriculum=("short_traj",))
    session = make_session(folder, chat, agent, boxes=DeadBoxes())
    with pytest.raises(InfrastructureError, match="SandboxError: no box today"):
        await run_gate(session)
    assert read_kinds(folder, "task_rejected") == []
    spoilt = read_kinds(folder, "check_spoilt")
    assert [(e["stage"], e["reason"]) for e in spoilt] == [
        ("short_traj", "SandboxError: no box today")
    ] * 2


def test_progress_survives_its_file(folder: RunFolder) -> None:
    assert read_progress(folder.path) is None
    progress = Progress(version=3, resumes=1, wall_s=2.5, done=["gate"], dispatcher={"pending": []})
    folder.write_state(progress.to_json())
    assert read_progress(folder.path) == progress
    assert not progress.is_complete


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"version": "3"}, "'version' is '3', expected int"),
        ({"done": {}}, "'done' is {}, expected list"),
        ({"dispatcher": 4}, "expected dict or NoneType"),
        ({"extra": 1}, "holds the key 'extra'"),
        ({"wall_s": ...}, "lacks the key 'wall_s'"),
    ],
)
def test_damaged_progress_is_one_clear_error(
    folder: RunFolder, changes: dict[str, Any], complaint: str
) -> None:
    state = {**Progress().to_json(), **changes}
    (folder.path / "state.json").write_text(
        json.dumps({k: v for k, v in state.items() if v is not ...})
    )
    with pytest.raises(UserError) as info:
        read_progress(folder.path)
    assert str(folder.path / "state.json") in str(info.value)
    assert complaint in info.value.what
    assert "limosa train" in info.value.hint


@pytest.mark.parametrize("state", [{}, {"pending": [1], "curricula": {}, "trained_groups": {}}])
async def test_a_damaged_dispatchers_state_is_told_too(
    folder: RunFolder, chat: TemplateChat, state: dict[str, Any]
) -> None:
    session = make_session(folder, chat, DomainConfig(name="knowledge_research"))
    with pytest.raises(UserError, match=r"state\.json holds no state of a dispatcher"):
        make_dispatcher(session, make_task_gate(session, ()), Progress(dispatcher=state))


@pytest.mark.parametrize(
    ("domain", "sections", "live"),
    [
        ("code_engineering", {}, 64),
        ("code_engineering", {"sandbox": {"max_boxes": 5}}, 5),
        ("code_engineering", {"rl": {"rollout_batch": 4}, "sandbox": {"max_boxes": 5}}, 4),
        ("knowledge_research", {"sandbox": {"max_boxes": 5}}, 64),
    ],
)
def test_no_more_episodes_live_than_boxes(
    folder: RunFolder, chat: TemplateChat, domain: str, sections: dict[str, Any], live: int
) -> None:
    session = make_session(folder, chat, DomainConfig(name=domain), **sections)
    assert session.max_live_episodes == live
    assert session.bound_by_boxes(8) == (5 if live < 64 else 8)


async def test_the_gate_asks_for_no_more_boxes_than_there_are(
    folder: RunFolder, chat: TemplateChat
) -> None:
    most = live = 0

    class Counting(DeadBoxes):
        async def create(self, image: str) -> Any:
            nonlocal most, live
            live += 1
            most = max(most, live)
            await asyncio.sleep(0.001)
            live -= 1
            raise SandboxError("no box today")

    agent = DomainConfig(name="long_horizon_agent", curriculum=("short_traj",))
    quality = {"tasks_per_stage": 8}
    session = make_session(
        folder, chat, agent, boxes=Counting(), quality=quality, sandbox={"max_boxes": 3}
    )
    with pytest.raises(InfrastructureError):
        await run_gate(session)
    assert most == 3


async def test_held_out_tasks_that_stay_invalid_are_told(
    folder: RunFolder, chat: TemplateChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(
        self: Session, task: Task, group: str, member: int, attempt: int, *, temperature: float
    ) -> Trajectory:
        is_spoilt = group.endswith("-1")
        return make_trajectory(task, group, group, Outcome.INVALID if is_spoilt else Outcome.FAILED)

    monkeypatch.setattr(Session, "play", play)  # there is no engine
    file = io.StringIO()
    reporter = Reporter(Console(file=file, width=80))
    session = make_session(
        folder,
        chat,
        DomainConfig(name="knowledge_research"),
        reporter=reporter,
        evaluation={"tasks_per_domain": 4},
    )
    await run_evaluation(session, "eval_before")
    said = "eval before: 1 of 4 held-out tasks stayed invalid and are left out of the numbers"
    assert file.getvalue().splitlines()[-1] == said


async def test_a_checkpoint_that_cannot_be_written_leaves_nothing(
    folder: RunFolder, chat: TemplateChat
) -> None:
    class FullDisk:
        async def save(self, path: str) -> None:
            (Path(path) / "model.safetensors").write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

    session = make_session(folder, chat, DomainConfig(name="knowledge_research"))
    progress = Progress(version=1)
    dispatcher = make_dispatcher(session, make_task_gate(session, ()), progress)
    learner = cast(Any, FullDisk())
    with pytest.raises(OSError, match="No space left"):
        await save_checkpoint(session, learner, dispatcher, progress, 2, save=lambda: None)
    assert list((folder.path / "checkpoints").iterdir()) == []
    assert progress.version == 1


def test_an_update_is_told_with_the_important_part_first() -> None:
    metrics = {"tokens_per_s": 4062.3, "reward/code": 0.5, "success/code": 0.1, "reward/maze": 0.75}
    assert describe_update(metrics) == "reward 0.62  4062 tok/s  code 0.50, maze 0.75"
    assert describe_update({"tokens_per_s": 4062.3, "loss": 1.0}) == "4062 tok/s"
