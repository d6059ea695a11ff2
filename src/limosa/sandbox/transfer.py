"""Files into and out of a box's work directory, from the host, through a held directory.

No program of the box takes part. Every path component is opened relative to its parent and never
through a link, so that nothing which an agent left behind leads out of the work directory; FIFOs,
sockets and devices are not opened, other file systems not entered. Used by `bubblewrap.py`.
Leaves out file modes, except that a text starting with `#!` arrives executable.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress

from limosa.base.errors import SandboxError, UserError
from limosa.sandbox.limits import Limits

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
DEPTH = 64


class TransferError(SandboxError):
    """A transfer that the box's content forbids: too much, or a link where a folder must be.

    Unlike other sandbox errors it is the doing of whoever filled the box.
    """


def split_path(path: str) -> list[str]:
    """The components of a relative path. Raises: UserError where it leads elsewhere."""
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise UserError(
            f"{path!r} is not a plain path relative to the work directory",
            hint="use a form like 'src/main.py', without '..', '.' or a leading '/'",
        )
    if len(parts) > DEPTH:
        raise UserError(f"{path[:80]!r} has {len(parts)} levels", hint=f"use at most {DEPTH}")
    return parts


def put_files(work_fd: int, files: Mapping[str, bytes], limits: Limits) -> None:
    """Write files below a directory; what was at their places is replaced.

    Raises: UserError for a bad path or too much, TransferError where the box's content is in the
    way or its file system full.
    """
    split = {path: split_path(path) for path in files}
    size_bytes = sum(len(data) for data in files.values())
    if size_bytes > limits.put_bytes or len(files) > limits.transfer_files:
        raise UserError(
            f"{len(files)} files of {size_bytes} bytes are too much to put into a box",
            hint=f"at most {limits.transfer_files} files of {limits.put_bytes} bytes in all",
        )
    for path, data in files.items():
        *parents, name = split[path]
        try:
            folder_fd = open_folder(work_fd, parents)
            try:
                write_file(folder_fd, name, data)
            finally:
                os.close(folder_fd)
        except OSError as error:
            raise TransferError(f"{path!r} cannot be written: {error.strerror}") from error


def open_folder(work_fd: int, parts: list[str]) -> int:
    """Open a folder below a directory, making what is missing, following no link."""
    folder_fd = os.open(".", DIRECTORY_FLAGS, dir_fd=work_fd)
    for part in parts:
        try:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=folder_fd)
            child_fd = os.open(part, DIRECTORY_FLAGS, dir_fd=folder_fd)
        finally:
            os.close(folder_fd)
        folder_fd = child_fd
    return folder_fd


def write_file(folder_fd: int, name: str, data: bytes) -> None:
    """Write one file anew: an existing file, link or FIFO of the name is removed, not opened."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder_fd)
    fd = os.open(name, CREATE_FLAGS, 0o600, dir_fd=folder_fd)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fchmod(fd, 0o755 if data.startswith(b"#!") else 0o644)
    finally:
        os.close(fd)


def get_files(work_fd: int, limits: Limits, max_bytes: int) -> dict[str, bytes]:
    """The regular files below a directory by relative path, in the order of their paths.

    Raises: TransferError where there is more than the bounds allow, or what cannot be read.
    """
    files: dict[str, bytes] = {}
    room_bytes = max_bytes
    try:
        root_fd = os.open(".", DIRECTORY_FLAGS, dir_fd=work_fd)
        for path, fd in walk_files(root_fd, iter(range(limits.transfer_files))):
            data = read_file(fd, room_bytes)
            if data is None:
                raise TransferError(f"the work directory holds more than {max_bytes} bytes")
            room_bytes -= len(data)
            files[path] = data
    except OSError as error:
        raise TransferError(f"the work directory cannot be read: {error.strerror}") from error
    return dict(sorted(files.items()))


def walk_files(
    folder_fd: int, entries: Iterator[int], prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, int]]:
    """Open every regular file below a folder in turn, one at a time; closes all, the folder too.

    `entries` is used up by one for each entry of any kind. Raises: TransferError at its end.
    """
    try:
        if depth > DEPTH:
            raise TransferError(f"folders go deeper than {DEPTH} levels")
        device = os.fstat(folder_fd).st_dev
        with os.scandir(folder_fd) as listing:
            for entry in listing:
                if next(entries, None) is None:
                    raise TransferError("the work directory holds too many files")
                fd = open_entry(folder_fd, entry.name, device)
                if fd is None:
                    continue
                path = prefix + entry.name
                if stat.S_ISDIR(os.fstat(fd).st_mode):
                    yield from walk_files(fd, entries, f"{path}/", depth + 1)
                    continue
                try:
                    yield path, fd
                finally:
                    os.close(fd)
    finally:
        os.close(folder_fd)


def open_entry(folder_fd: int, name: str, device: int) -> int | None:
    """Open a regular file or folder of the same file system; None for all else and what is gone."""
    try:
        found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        if found.st_dev != device or not (
            stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
        ):
            return None
        fd = os.open(name, READ_FLAGS, dir_fd=folder_fd)
    except FileNotFoundError:
        return None
    # The entry may have been exchanged between the look and the opening.
    opened = os.fstat(fd)
    if stat.S_ISREG(opened.st_mode) or stat.S_ISDIR(opened.st_mode):
        return fd
    os.close(fd)
    return None


def read_file(fd: int, room_bytes: int) -> bytes | None:
    """The bytes of a file, None where there are more than `room_bytes`."""
    if os.fstat(fd).st_size > room_bytes:
        return None
    chunks: list[bytes] = []
    size_bytes = 0
    while chunk := os.read(fd, 1 << 16):
        chunks.append(chunk)
        size_bytes += len(chunk)
        if size_bytes > room_bytes:
            return None
    return b"".join(chunks)
