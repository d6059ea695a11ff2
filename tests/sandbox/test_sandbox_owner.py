"""What becomes of boxes and their folder when their owner is interrupted or killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from limosa.sandbox.box import is_alive, is_killed, walk_processes
from limosa.sandbox.scratch import ScratchFolder, sweep_stale

OWNER = """
import asyncio, os, signal, sys, time
from pathlib import Path
from limosa.sandbox.bubblewrap import BubblewrapProvider

async def main(scratch, what):
    signal.signal(signal.SIGINT, lambda *_: None)
    provider = BubblewrapProvider(2, scratch=Path(scratch))
    box = await provider.create("sandbox-base:v1")
    await box.shell("sleep 70 & setsid sleep 70 & X=kept")
    print("ready", flush=True)
    if what == "interrupt":
        os.killpg(0, signal.SIGINT)
        time.sleep(0.3)
        print((await box.shell("echo $X")).output, (await box.exec("echo on")).output)
        await provider.close()
    elif what == "sleep":
        time.sleep(60)
    else:
        await asyncio.gather(*(churn(provider) for _ in range(2)))

async def churn(provider):
    while True:
        await (await provider.create("sandbox-base:v1")).kill()

asyncio.run(main(*sys.argv[1:]))
"""
StartOwner = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start_owner(tmp_path: Path) -> Iterator[StartOwner]:
    """Starts a program that has a box, as the leader of its group, and waits for the box."""
    started = []

    def start(what: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", OWNER, str(tmp_path), what]
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(owner)
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        return owner

    yield start
    for owner in started:
        owner.kill()
        owner.communicate()


def test_ctrl_c_for_the_whole_group_leaves_the_boxes_alone(
    start_owner: StartOwner, tmp_path: Path
) -> None:
    out, _ = start_owner("interrupt").communicate(timeout=30)
    assert out.split() == ["kept", "on"]
    assert list(tmp_path.iterdir()) == []


def test_boxes_die_with_a_killed_owner_and_the_next_removes_their_folder(
    start_owner: StartOwner, tmp_path: Path
) -> None:
    owner = start_owner("sleep")
    processes = walk_processes(owner.pid)
    assert len(processes) >= 5
    other = ScratchFolder(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2, "a live owner's folder was swept"
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    deadline_s = time.monotonic() + 5
    while any(map(is_alive, processes)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not [pid for pid in processes if is_alive(pid)]
    third = ScratchFolder(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([other.path, third.path])
    for folder in (other, third, third):
        folder.close()
    assert list(tmp_path.iterdir()) == []


def test_an_owner_killed_while_boxes_start_leaves_nothing_to_the_next(
    start_owner: StartOwner, tmp_path: Path
) -> None:
    for _ in range(6):
        owner = start_owner("churn")
        time.sleep(0.1)
        owner.kill()
        owner.wait()
        # What is tied to the owner ends first; the sweep is for the rest.
        time.sleep(0.1)
        ScratchFolder(tmp_path).close()
        deadline_s = time.monotonic() + 5
        while list_mounting(tmp_path) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert list_mounting(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def list_mounting(folder: Path) -> list[str]:
    """The bubblewrap processes whose command line names a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_bubblewrap = (process / "comm").read_text() == "bwrap\n"
            if is_bubblewrap and os.fsencode(folder) in (process / "cmdline").read_bytes():
                found.append(process.name)
    return found


def test_the_sweep_touches_nothing_that_is_not_stale(tmp_path: Path) -> None:
    without_lock = tmp_path / "limosa-boxes-old"
    elsewhere = tmp_path / "elsewhere"
    for folder in (without_lock, elsewhere):
        folder.mkdir()
    (elsewhere / "lock").touch()
    (tmp_path / "limosa-boxes-file").touch()
    (tmp_path / "limosa-boxes-link").symlink_to(elsewhere)
    ScratchFolder(tmp_path).close()
    assert len(list(tmp_path.iterdir())) == 4
    assert (elsewhere / "lock").exists()


def test_a_killed_process_is_known_from_the_sending_on() -> None:
    for _ in range(300):
        with subprocess.Popen(["sleep", "60"]) as process:
            assert not is_killed(process.pid) and is_alive(process.pid)
            process.kill()
            assert is_killed(process.pid) or not is_alive(process.pid)
        assert not is_killed(process.pid) and not is_alive(process.pid)


def test_the_sweep_opens_nothing_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "limosa-boxes-trap"
    trap.mkdir()
    os.mkfifo(trap / "lock")  # to open it would wait for ever
    # Standing in for a second user, whom a test cannot count on.
    monkeypatch.setattr(os, "getuid", lambda: trap.stat().st_uid + 1)
    sweep_stale(tmp_path)
    assert trap.is_dir()
