"""Ctrl-C as a terminal sends it, to the whole group, and kill -9: what is left, and going on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from limosa.sandbox.box import is_alive, walk_processes
from limosa.store.run import iterate_trajectories, read_events, read_state

LIMOSA = str(Path(sys.executable).with_name("limosa"))
CONFIG: dict[str, Any] = {
    "domains": [
        {"name": "code_engineering", "curriculum": ["easy"]},
        {"name": "knowledge_research"},
    ],
    "rl": {"steps": 30, "groups_per_step": 2, "group_size": 4, "checkpoint_every": 2},
    "evaluation": {"tasks_per_domain": 2},
    "quality": {"tasks_per_stage": 1},
}


class Trainer:
    """`limosa train` as the leader of a group, with a folder of its own for temporary files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "runs" / "run"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.process: subprocess.Popen[str] | None = None
        self.seen: set[int] = set()

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        self.process = subprocess.Popen(
            [LIMOSA, "train", *arguments, "--json"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(self.temporary)},
        )
        return self.process

    def start_new(self, **rl: Any) -> "subprocess.Popen[str]":
        file = self.folder / "run.yaml"
        file.write_text(yaml.safe_dump({**CONFIG, "rl": {**CONFIG["rl"], **rl}}))
        return self.start(str(file), "--name", "run")

    def wait_for(self, kind: str, count: int) -> None:
        """Until the run has logged so many events of a kind and has a box; notes who belongs to it.

        A box, because what a signal does to boxes is what is looked at.
        """
        assert self.process is not None
        deadline_s = time.monotonic() + 120
        while time.monotonic() < deadline_s and self.process.poll() is None:
            if (self.path / "events.jsonl").is_file():
                kinds = [event["kind"] for event in read_events(self.path).lines]
                if kinds.count(kind) >= count and self.note_processes():
                    return
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f"no {count} of {kind}: {self.process.communicate()[1]}")

    def note_processes(self) -> bool:
        assert self.process is not None
        self.seen |= walk_processes(self.process.pid) | {self.process.pid}
        return any("bwrap" in read_text(f"/proc/{pid}/comm") for pid in self.seen)

    def list_left(self) -> list[str]:
        """The processes that are still there: those seen, and those that name the folder."""
        left = {pid for pid in self.seen if is_alive(pid)}
        mark = str(self.temporary)
        for folder in Path("/proc").glob("[0-9]*"):
            if any(mark in read_text(folder / name) for name in ("cmdline", "environ")):
                left.add(int(folder.name))
        return [f"{pid} {read_text(f'/proc/{pid}/cmdline')}" for pid in left if is_alive(pid)]

    def resume(self, steps: int) -> None:
        """Go on up to update `steps`, and see that the run ends as an uninterrupted one does."""
        # Shortened in the resolved file, so that the test ends soon.
        config = yaml.safe_load((self.path / "config.yaml").read_text())
        config["rl"]["steps"] = steps
        (self.path / "config.yaml").write_text(yaml.safe_dump(config))
        out, err = self.start("--resume", str(self.path)).communicate(timeout=120)
        assert self.process is not None and self.process.returncode == 0, err
        assert json.loads(out)["policy_version"] == steps
        done = {e["step"] for e in read_events(self.path).lines if e["kind"] == "step"}
        assert done >= set(range(1, steps + 1))
        wait_for_none(self.list_left)
        assert list(self.temporary.glob("limosa-*")) == []


def is_starting_box(line: str) -> bool:
    """Whether a process is process 1 of a box that bubblewrap has not made yet."""
    status = read_text(f"/proc/{line.split()[0]}/status")
    return "Name:\tbwrap\n" in status and "\t1\n" in status.partition("NSpid:")[2][:30]


def read_text(path: str | Path) -> str:
    try:
        return Path(path).read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def wait_for_none(list_left: Callable[[], list[str]]) -> None:
    deadline_s = time.monotonic() + 10
    while left := list_left():
        assert time.monotonic() < deadline_s, f"still there: {left}"
        time.sleep(0.05)


def read_version(path: Path) -> int:
    """The version of the state; its checkpoint is there and whole."""
    state = read_state(path)
    assert state is not None
    version = int(state["version"])
    folder = path / "checkpoints" / f"step-{version}"
    assert version == 0 or (folder / "model.safetensors").is_file()
    assert version == 0 or (folder / "learner.pt").is_file()
    return version


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    trainer = Trainer(tmp_path)
    yield trainer
    if trainer.process is not None and trainer.process.poll() is None:
        trainer.process.kill()
        trainer.process.communicate()


def test_ctrl_c_at_a_terminal_leaves_a_checkpoint_and_no_process(trainer: Trainer) -> None:
    process = trainer.start_new(checkpoint_every=100)
    trainer.wait_for("step", 2)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err, err
    version = read_version(trainer.path)
    assert 2 <= version < 30
    wait_for_none(trainer.list_left)
    assert list(trainer.temporary.glob("limosa-*")) == []
    # The signal ended no box that was up: the update was finished on what it had. One that is
    # being forked just then may not come to be; its episode is invalid and played again.
    errors = [t.error for _, t in iterate_trajectories(trainer.path) if not t.is_valid]
    assert [e for e in errors if "could not make the box" not in e] == []
    trainer.resume(version + 2)


def test_ctrl_c_twice_stops_at_once_and_can_be_resumed(trainer: Trainer) -> None:
    process = trainer.start_new()
    trainer.wait_for("step", 2)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.3)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    # To a shell both are 130: the second may come when the interpreter is nearly gone.
    assert process.returncode in (130, -signal.SIGINT), err
    wait_for_none(trainer.list_left)
    assert list(trainer.temporary.glob("limosa-*")) == []
    trainer.resume(read_version(trainer.path) + 2)


def test_kill_9_leaves_no_process_and_can_be_resumed(trainer: Trainer) -> None:
    process = trainer.start_new()
    trainer.wait_for("checkpoint", 1)
    process.kill()
    process.communicate(timeout=60)
    # What a killed run could not remove, the next one does: its folder, and a box that was just
    # starting, which waits for a bubblewrap that is dead and has run nothing yet.
    wait_for_none(lambda: [line for line in trainer.list_left() if not is_starting_box(line)])
    assert list(trainer.temporary.glob("limosa-learner-*")) == []
    assert len(list(trainer.temporary.glob("limosa-boxes-*"))) == 1
    trainer.resume(read_version(trainer.path) + 2)
