import os
import signal
import subprocess
import sys
import time

import pytest

from limosa.base.errors import UserError
from limosa.base.interfaces import EventLog
from limosa.base.trajectory import Outcome, ToolEvent, Trajectory
from limosa.store.run import (
    RunFolder,
    iterate_trajectories,
    read_events,
    read_report,
    read_state,
)

CONFIG = "domains:\n  - name: code_engineering\n"

WRITER = """
import sys
from pathlib import Path
from limosa.store.run import RunFolder
run = RunFolder.open(Path(sys.argv[1]))
print("locked", flush=True)
number = 0
while True:
    run.append("tick", number=number, text="x" * 1000)
    number += 1
"""


def make_trajectory(**changes):
    values = {
        "id": "e1",
        "group_id": "g1",
        "domain": "d",
        "stage": "easy",
        "task_hash": "h",
        "task_seed": 7,
        "environment_version": "v",
        "token_ids": (1, 2, 3),
        "sampled": (0, 0, 1),
        "logprobs": (0.0, 0.0, -0.5),
        "versions": (-1, -1, 4),
        "prompt_tokens": 2,
        "temperature": 1.0,
        "outcome": Outcome.SOLVED,
        "reward": 1.0,
        "events": (ToolEvent(0, "bash", {"command": "ls"}, "a.txt", False, 0.1),),
    }
    return Trajectory(**{**values, **changes})


def test_a_run_writes_and_reads_what_it_was_given(tmp_path):
    trajectory = make_trajectory()
    with RunFolder.create(tmp_path / "runs", "first", CONFIG, clock=lambda: 12.5) as run:
        log: EventLog = run
        log.append("step", version=1, metrics={"loss": 0.25})
        log.append_trajectory(trajectory, phase="train")
        run.write_report({"wall_s": 1.0})
        assert (run.path / "config.yaml").read_text() == CONFIG
        path = run.path
    assert read_events(path).lines == (
        {"time": 12.5, "kind": "step", "version": 1, "metrics": {"loss": 0.25}},
    )
    assert list(iterate_trajectories(path)) == [("train", trajectory)]
    assert (path / "report.json").read_text() == '{\n "wall_s": 1.0\n}\n'


def test_an_existing_run_is_never_overwritten(tmp_path):
    RunFolder.create(tmp_path, "first", CONFIG).close()
    before = {p.name: p.read_bytes() for p in (tmp_path / "first").iterdir() if p.is_file()}
    with pytest.raises(UserError, match=r"exists already\n.*--resume"):
        RunFolder.create(tmp_path, "first", "other: 1\n")
    after = {p.name: p.read_bytes() for p in (tmp_path / "first").iterdir() if p.is_file()}
    assert after == before


@pytest.mark.parametrize("name", ["", "../escape", "a/b", ".hidden", "a\nb"])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="folder name"):
        RunFolder.create(tmp_path, name, CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_opening_what_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a run"):
        RunFolder.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="hint"):
        RunFolder.create(tmp_path / "file" / "runs", "first", CONFIG)


def test_a_second_writer_is_refused_until_the_first_closes(tmp_path):
    first = RunFolder.create(tmp_path, "first", CONFIG)
    with pytest.raises(UserError, match=f"process {os.getpid()} is writing"):
        RunFolder.open(first.path)
    first.close()
    RunFolder.open(first.path).close()


def test_kill_9_frees_the_lock_and_loses_no_whole_line(tmp_path):
    path = tmp_path / "first"
    RunFolder.create(tmp_path, "first", CONFIG).close()
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    with pytest.raises(UserError, match=f"process {process.pid} is writing"):
        RunFolder.open(path)
    deadline = time.monotonic() + 10
    while (path / "events.jsonl").stat().st_size < 100_000 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    with RunFolder.open(path) as run:
        run.append("resumed")
    lines = read_events(path).lines
    ticks = [line["number"] for line in lines if line["kind"] == "tick"]
    assert len(ticks) >= 50
    assert ticks == list(range(len(ticks)))
    assert lines[-1]["kind"] == "resumed"


def test_torn_lines_are_cut_and_recorded_on_opening(tmp_path):
    with RunFolder.create(tmp_path, "first", CONFIG) as run:
        run.append("step", version=1)
        path = run.path
    for name, torn in (("events.jsonl", b'{"time": 3, "ki'), ("trajectories.jsonl", b"{")):
        with (path / name).open("ab") as file:
            file.write(torn)
    assert read_events(path).torn_bytes == 15
    with RunFolder.open(path):
        pass
    read = read_events(path)
    assert read.torn_bytes == 0
    assert [(e["kind"], e.get("file"), e.get("cut_bytes")) for e in read.lines] == [
        ("step", None, None),
        ("torn_line", "events.jsonl", 15),
        ("torn_line", "trajectories.jsonl", 1),
    ]
    assert list(iterate_trajectories(path)) == []


def test_a_checkpoint_counts_only_once_published(tmp_path):
    with RunFolder.create(tmp_path, "first", CONFIG) as run:
        latest = run.path / "checkpoints" / "latest"
        (run.prepare_checkpoint(10) / "weights").write_text("ten")
        assert not latest.exists()
        assert run.publish_checkpoint(10) == run.path / "checkpoints" / "step-10"
        (run.prepare_checkpoint(20) / "weights").write_text("torn")
        assert latest.resolve() == (run.path / "checkpoints" / "step-10").resolve()
        assert list(run.prepare_checkpoint(20).iterdir()) == []
        (run.prepare_checkpoint(20) / "weights").write_text("twenty")
        run.publish_checkpoint(20)
        assert (latest / "weights").read_text() == "twenty"


def test_publishing_a_step_again_replaces_it(tmp_path):
    with RunFolder.create(tmp_path, "first", CONFIG) as run:
        for text in ("old", "new"):
            (run.prepare_checkpoint(5) / "weights").write_text(text)
            run.publish_checkpoint(5)
        checkpoints = run.path / "checkpoints"
        assert (checkpoints / "latest" / "weights").read_text() == "new"
        assert sorted(p.name for p in checkpoints.iterdir()) == ["latest", "step-5"]


def test_opening_undoes_a_publication_that_was_cut_short(tmp_path):
    with RunFolder.create(tmp_path, "first", CONFIG) as run:
        for step in (9, 10):
            (run.prepare_checkpoint(step) / "weights").write_text(f"old {step}")
            run.publish_checkpoint(step)
        checkpoints = run.path / "checkpoints"
        (checkpoints / "step-10").rename(checkpoints / ".step-10.replaced")
        (checkpoints / ".step-9.replaced").mkdir()  # here only the clearing away was left
    with RunFolder.open(run.path):
        assert (checkpoints / "latest").readlink().name == "step-10"
    assert (checkpoints / "latest" / "weights").read_text() == "old 10"
    assert sorted(p.name for p in checkpoints.iterdir()) == ["latest", "step-10", "step-9"]
    assert [(e["kind"], e["step"]) for e in read_events(run.path).lines] == [
        ("checkpoint_put_back", 10)
    ]


@pytest.mark.parametrize("text", ["", "{", '{"version": 1', "[1]", "7", b"\xff\xfe{}"])
def test_damaged_state_is_a_user_error_that_names_the_file(tmp_path, text):
    with RunFolder.create(tmp_path, "first", CONFIG) as run:
        data = text if isinstance(text, bytes) else text.encode()
        (run.path / "state.json").write_bytes(data)
        with pytest.raises(UserError, match=r"first/state\.json .*\nhint: .*limosa train"):
            read_state(run.path)


def test_a_report_that_cannot_be_read_is_none(tmp_path):
    with RunFolder.create(tmp_path, "first", CONFIG) as run:
        assert read_report(run.path) is None
        run.write_report({"name": "first"})
        assert read_report(run.path) == {"name": "first"}
        (run.path / "report.json").write_text('{"name"')
        assert read_report(run.path) is None


def test_state_is_replaced_whole(tmp_path):
    with RunFolder.create(tmp_path, "first", CONFIG) as run:
        assert read_state(run.path) is None
        run.write_state({"step": 1})
        run.write_state({"step": 2, "seeds": [1, 2]})
        assert read_state(run.path) == {"step": 2, "seeds": [1, 2]}


def test_a_phase_unknown_is_our_own_mistake(tmp_path):
    with RunFolder.create(tmp_path, "first", CONFIG) as run, pytest.raises(AssertionError):
        run.append_trajectory(make_trajectory(), phase="test")
