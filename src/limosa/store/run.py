"""The folder of one run: the only place that knows which file holds what.

    config.yaml          the resolved configuration
    events.jsonl         the append-only event log
    trajectories.jsonl   every finished episode with its phase
    checkpoints/step-N   checkpoints; `checkpoints/latest` points to the newest whole one
    state.json           what the caller needs to resume
    report.json, report.html
    lock                 held by the process that writes the run

One process writes a run; anyone may read it with the functions at the end. What the events and the
state mean belongs to the callers.
"""

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from limosa.base.errors import UserError
from limosa.base.trajectory import Trajectory
from limosa.store.journal import (
    Journal,
    JournalRead,
    iterate_journal,
    read_journal,
    to_json_text,
    write_atomically,
)

PHASES = ("train", "eval_before", "eval_after")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REPLACED = re.compile(r"\.step-(\d+)\.replaced")


class RunFolder:
    """A run open for writing, locked; an `EventLog`. Made by `create` and `open`."""

    def __init__(self, path: Path, lock: IO[str], clock: Callable[[], float]) -> None:
        self.path = path
        self._lock = lock
        self._clock = clock
        self._events = Journal(path / "events.jsonl")
        self._trajectories = Journal(path / "trajectories.jsonl")

    @classmethod
    def create(
        cls, root: Path, name: str, config_yaml: str, *, clock: Callable[[], float] = time.time
    ) -> "RunFolder":
        """Make the folder of a new run. Raises: UserError where it exists or cannot be made."""
        if not _NAME.fullmatch(name):
            hint = "use letters, digits, '.', '_' and '-', beginning with a letter or digit"
            raise UserError(f"the run's name is {name!r}, which is not a folder name", hint=hint)
        path = root / name
        try:
            root.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError:
            hint = f"choose another name, or go on with it: limosa train --resume {path}"
            raise UserError(f"the run {str(path)!r} exists already", hint=hint) from None
        except OSError as error:
            hint = "give a folder that you may write to"
            raise UserError(f"cannot make the run {str(path)!r}: {error}", hint=hint) from None
        lock = _take_lock(path)
        (path / "checkpoints").mkdir()
        write_atomically(path / "config.yaml", config_yaml)
        return cls(path, lock, clock)

    @classmethod
    def open(cls, path: Path, *, clock: Callable[[], float] = time.time) -> "RunFolder":
        """Open an existing run to write on, mending and recording what a crash left half done.

        Raises: UserError where there is no run, or another process writes it.
        """
        if not (path / "config.yaml").is_file():
            hint = "give the folder that `limosa train` named, such as runs/quickstart"
            raise UserError(f"{str(path)!r} is not a run: it has no config.yaml", hint=hint)
        run = cls(path, _take_lock(path), clock)
        for file, journal in (("events", run._events), ("trajectories", run._trajectories)):
            if journal.cut_bytes:
                run.append("torn_line", file=f"{file}.jsonl", cut_bytes=journal.cut_bytes)
        for step in _put_back_replaced(path / "checkpoints"):
            run.append("checkpoint_put_back", step=step)
        return run

    def append(self, kind: str, **fields: Any) -> None:
        """Record one event with the time; `time` and `kind` are taken."""
        assert "time" not in fields, f"event {kind}: the field 'time' is the log's own"
        self._events.append({"time": self._clock(), "kind": kind, **fields})

    def append_trajectory(self, trajectory: Trajectory, *, phase: str) -> None:
        """Record one finished episode of any outcome, in one of `PHASES`."""
        assert phase in PHASES, f"phase {phase!r}, expected one of {PHASES}"
        self._trajectories.append({"phase": phase, **trajectory.to_json()})

    def prepare_checkpoint(self, step: int) -> Path:
        """An empty folder to write a checkpoint into; it counts only once published."""
        staging = self.path / "checkpoints" / f".step-{step}.partial"
        if staging.exists():
            shutil.rmtree(staging)
        staging.mkdir(parents=True)
        return staging

    def discard_checkpoint(self, step: int) -> None:
        """Clear away a prepared checkpoint that could not be written, and so its room."""
        shutil.rmtree(self.path / "checkpoints" / f".step-{step}.partial", ignore_errors=True)

    def publish_checkpoint(self, step: int) -> Path:
        """Give the prepared checkpoint its place and point `latest` to it, each in one rename."""
        root = self.path / "checkpoints"
        staging, target = root / f".step-{step}.partial", root / f"step-{step}"
        assert staging.is_dir(), f"checkpoint {step} was not prepared"
        replaced = root / f".step-{step}.replaced"
        if target.exists():
            target.rename(replaced)
        staging.rename(target)
        if replaced.exists():
            shutil.rmtree(replaced)
        pointer = root / ".latest.partial"
        pointer.unlink(missing_ok=True)
        pointer.symlink_to(target.name)
        pointer.replace(root / "latest")
        return target

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Replace the resume data atomically."""
        write_atomically(self.path / "state.json", to_json_text(state, indent=1))

    def write_report(self, report: Mapping[str, Any]) -> Path:
        """Replace report.json atomically and give its path."""
        path = self.path / "report.json"
        write_atomically(path, to_json_text(report, indent=1) + "\n")
        return path

    def close(self) -> None:
        """Close the files and free the lock; a second call does nothing."""
        self._events.close()
        self._trajectories.close()
        self._lock.close()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_events(run: Path) -> JournalRead:
    """A run's events, oldest first, with the torn bytes told. Raises: UserError."""
    return read_journal(run / "events.jsonl")


def iterate_trajectories(
    run: Path, *, on_torn: Callable[[int], None] = lambda _: None
) -> Iterator[tuple[str, Trajectory]]:
    """Yield (phase, trajectory) one at a time, so that a long run fits in memory."""
    for line in iterate_journal(run / "trajectories.jsonl", on_torn=on_torn):
        phase = line.pop("phase")
        yield phase, Trajectory.from_json(line)


def read_state(run: Path) -> dict[str, Any] | None:
    """The resume data, or None where the run wrote none. Raises: UserError where it is damaged."""
    path = run / "state.json"
    try:
        state = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise make_state_error(run, f"is not JSON: {error}") from None
    if not isinstance(state, dict):
        raise make_state_error(run, f"holds {type(state).__name__}, expected an object")
    return state


def make_state_error(run: Path, what: str) -> UserError:
    """The error for resume data that nobody can go on from."""
    hint = f"put a copy of the file back, or begin anew: limosa train {run / 'config.yaml'}"
    return UserError(f"{run / 'state.json'} {what}", hint=hint)


def read_report(run: Path) -> dict[str, Any] | None:
    """The report, or None where there is none that can be read: it can be made again."""
    try:
        report = json.loads((run / "report.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def _put_back_replaced(root: Path) -> list[int]:
    """Undo a publication that a crash cut short; give the steps that got their checkpoint back.

    Between the two renames of `publish_checkpoint` the only whole checkpoint of a step is the one
    being replaced.
    """
    steps = []
    for replaced in sorted(root.glob(".step-*.replaced")):
        found = _REPLACED.fullmatch(replaced.name)
        if found is None:
            continue
        target = root / f"step-{found[1]}"
        if target.exists():  # the crash came after: only the clearing away was left
            shutil.rmtree(replaced)
        else:
            replaced.rename(target)
            steps.append(int(found[1]))
    return steps


def _take_lock(path: Path) -> IO[str]:
    """Hold the run's lock until the file is closed or the process dies, however it dies."""
    file = (path / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        hint = "wait for that process or end it; a run has one writer"
        raise UserError(f"process {owner} is writing the run {str(path)!r}", hint=hint) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
