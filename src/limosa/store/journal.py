"""Append-only JSON lines that survive `kill -9`: one object a line, flushed as it is written.

`store/run.py` keeps its events and trajectories in journals. A process that dies while it writes
leaves at most one torn last line; readers report it and the next writer cuts it. Lines reach the
operating system at once, not the disk: a power failure may lose the last seconds.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limosa.base.errors import UserError


@dataclass(frozen=True, slots=True)
class JournalRead:
    """The whole lines of a journal, and how many bytes of a torn last line were left out."""

    lines: tuple[dict[str, Any], ...]
    torn_bytes: int


class Journal:
    """A journal open for appending; the one writer is guarded by the run's lock."""

    def __init__(self, path: Path) -> None:
        self.cut_bytes = _cut_torn_line(path)
        self._file = path.open("ab", buffering=0)

    def append(self, value: Mapping[str, Any]) -> None:
        """Write one line with a single call of the operating system.

        Raises: OSError, such as for a full disk; the part of the line that was written is cut.
        """
        assert not self._file.closed, f"journal {self._file.name} is closed"
        data = to_json_text(value).encode() + b"\n"
        written = 0
        try:
            while written < len(data):  # a full disk or a signal may cut a write short
                written += self._file.write(data[written:])
        except OSError as error:
            if written:
                os.truncate(self._file.fileno(), os.fstat(self._file.fileno()).st_size - written)
            raise _name_file(error, self._file.name) from None

    def close(self) -> None:
        """Release the file; a second call does nothing."""
        self._file.close()


def read_journal(path: Path) -> JournalRead:
    """Read every whole line. Raises: UserError for a missing file or a damaged line."""
    torn: list[int] = []
    lines = tuple(iterate_journal(path, on_torn=torn.append))
    return JournalRead(lines, sum(torn))


def iterate_journal(
    path: Path, *, on_torn: Callable[[int], None] = lambda _: None
) -> Iterator[dict[str, Any]]:
    """Yield the lines one at a time, telling `on_torn` the bytes of a torn last line.

    Raises: UserError for a missing file, or a line before the last that is not JSON.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        hint = "give the folder of a run, such as runs/quickstart"
        raise UserError(f"cannot read {str(path)!r}: {error}", hint=hint) from None
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                on_torn(len(line))
                return
            try:
                yield json.loads(line)
            except ValueError as error:
                hint = "the file was changed or the disk failed; take the line out to go on"
                raise UserError(f"{path}:{number}: not a JSON line: {error}", hint=hint) from None


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a reader, or a crash, sees the old or the new text and no mixture."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise _name_file(error, path) from None


def _name_file(error: OSError, path: object) -> OSError:
    """The error with the file's path: a write that fails knows only a number."""
    return OSError(error.errno, error.strerror, str(path))


def to_json_text(value: Mapping[str, Any], *, indent: int | None = None) -> str:
    """Strict JSON: a float that JSON cannot say becomes the text "nan", "inf" or "-inf"."""
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(value, allow_nan=False, indent=indent, separators=separators)
    except ValueError:
        plain = _spell_out_floats(value)
        return json.dumps(plain, allow_nan=False, indent=indent, separators=separators)


def _spell_out_floats(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _spell_out_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell_out_floats(item) for item in value]
    return value


def _cut_torn_line(path: Path) -> int:
    """Cut what follows the last line end, so that the next line does not grow onto it."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65_536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        file.truncate(end)
    return size - end
