"""Named pipes between the host and a box, read without threads.

A FIFO in a folder that the box sees read-only gives each job pipes of its own: what a job leaves
running can neither hold up nor write into the output of the next. Used by `box.py` and `shell.py`.
Leaves out waiting: `box.py` waits, because only it knows when the box died.
"""

import os
from contextlib import suppress

READ_BYTES = 1 << 16
STATUS_BYTES = 4096
DRAIN_READS = 32
# Past this much output of one command nobody reads on: the writer blocks until its time-out,
# instead of keeping the event loop busy with bytes that are dropped.
FLOOD_BYTES = 128 << 20


def read_available(fd: int, size: int) -> bytes | None:
    """What is there now: bytes, b"" at the end of the stream, None where nothing is there yet."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return None


class Feed:
    """Bytes on their way into a non-blocking pipe."""

    def __init__(self, fd: int, data: bytes) -> None:
        self.fd = fd
        self._rest = data

    def write(self) -> bool:
        """Write what fits now; whether all is written."""
        with suppress(BlockingIOError):
            self._rest = self._rest[os.write(self.fd, self._rest) :]
        return not self._rest


class BoundedOutput:
    """Keeps the first bytes of a pipe's output and counts the rest."""

    def __init__(self, fd: int, bound_bytes: int) -> None:
        self.fd = fd
        self._bound = bound_bytes
        self._kept = bytearray()
        self.cut_bytes = 0

    def read(self) -> int | None:
        """Take what is there, once: the bytes taken, 0 at the end, None where nothing is there."""
        data = read_available(self.fd, READ_BYTES)
        if data is None:
            return None
        room = self._bound - len(self._kept)
        self._kept += data[:room]
        self.cut_bytes += max(0, len(data) - room)
        return len(data)

    def drain(self) -> None:
        """Take what the ended command left in the pipe, the largest pipe's capacity at most.

        More than that comes from something still running in the background.
        """
        for _ in range(DRAIN_READS):
            if not self.read():
                return

    def text(self) -> str:
        """The kept bytes as text; what is not UTF-8 becomes the replacement character."""
        return self._kept.decode(errors="replace")


class StatusLines:
    """Splits a status pipe into lines; what is no line within a bound is junk and dropped."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        self._rest = b""
        self.unread_lines: list[bytes] = []

    def read(self) -> list[bytes]:
        """The complete lines that are there now."""
        lines, self.unread_lines = self.unread_lines, []
        data = read_available(self.fd, STATUS_BYTES)
        if data is None:
            return lines
        if data == b"":
            self.ended = True
            return lines
        *new, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-STATUS_BYTES:]
        return lines + new

    def unread(self, line: bytes) -> None:
        """Give a line back, because who waited for it went away in the same moment."""
        self.unread_lines.append(line)


def close_fds(*fds: int) -> None:
    """Close descriptors, each at least tried."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)
