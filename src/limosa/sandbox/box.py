"""One bubblewrap process and the small supervisor that is process 1 inside it.

The supervisor reads lines from a pipe and runs each in a background subshell; all input and
output of such a job goes through files and FIFOs that the host makes in a folder which the box
sees read-only. As process 1 it survives every signal sent from within, and when it dies the kernel
ends all that runs in the box. `bubblewrap.py` builds boxes and runs commands, `shell.py` keeps the
persistent shell. Leaves out what a command means: here are only processes, lines and death.
"""

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

from limosa.base.errors import SandboxError
from limosa.sandbox.images import WORK_DIRECTORY
from limosa.sandbox.pipes import (
    FLOOD_BYTES,
    BoundedOutput,
    Feed,
    StatusLines,
    close_fds,
    read_available,
)

CONTROL_FOLDER = "/run/limosa"
READY = b"limosa-ready\n"
START_S = 20.0
PROBE_S = 10.0
KILL_PAUSES_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
EXITING_FLAG = 0x4  # PF_EXITING of Linux
KILL_BIT = 1 << (signal.SIGKILL - 1)
# `set -m` gives every job a process group of its own, so that `kill 0` stays within the job; the
# no-op traps keep signals sent to process 1 harmless and are reset in its children.
SUPERVISOR = f"""
set -m
trap : HUP INT QUIT TERM USR1 USR2 PIPE ALRM
D={CONTROL_FOLDER}
printf {READY.decode().strip()}'\\n'
exec >/dev/null 2>&1
while IFS= read -r line; do ( eval "$line" ) </dev/null & done
"""


def walk_processes(root: int) -> set[int]:
    """The living descendants of a process, as the host numbers them; zombies do not count."""
    found: set[int] = set()
    open_pids = [root]
    while open_pids:
        folder = f"/proc/{open_pids.pop()}/task"
        with suppress(OSError), os.scandir(folder) as threads:
            for thread in threads:
                children = [int(word) for word in read_kernel(f"{thread.path}/children").split()]
                open_pids += children
                found.update(child for child in children if is_alive(child))
    return found


def open_full_pipe(data: bytes) -> int:
    """The reading end of a pipe that holds `data`, which fits into it, and then ends."""
    read_fd, write_fd = os.pipe()
    os.write(write_fd, data)
    os.close(write_fd)
    return read_fd


def read_kernel(path: str) -> bytes:
    """A file of /proc. Every call on a box reads some, so without pathlib and buffers."""
    with FileIO(path) as file:
        return file.readall()


def is_alive(pid: int) -> bool:
    """Whether a process exists, is not a zombie, and is not on its way out.

    A killed one counts as alive until it has come to run since: see `is_killed`.
    """
    try:
        fields = read_kernel(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return False
    # A dead first thread says nothing of a process in which other threads go on.
    threads, flags = int(fields[17]), int(fields[6])
    return threads > 1 or (fields[0] not in (b"Z", b"X") and not flags & EXITING_FLAG)


def is_killed(pid: int) -> bool:
    """Whether SIGKILL was sent to a process, from the sending on; False once it is gone."""
    try:
        _, _, rest = read_kernel(f"/proc/{pid}/status").partition(b"\nShdPnd:")
    except OSError:
        return False
    return bool(int(rest.partition(b"\n")[0] or b"0", 16) & KILL_BIT)


class Box:
    """A live box: its process, its control pipe, and the news of its death."""

    def __init__(
        self, folder: Path, on_gone: Callable[["Box"], None], *, filter_program: bytes | None
    ) -> None:
        self.folder = folder
        self._filter = filter_program
        self.work_fd = -1
        self._on_gone = on_gone
        self._process: subprocess.Popen[bytes] | None = None
        self._init_pid = 0
        self._pidfds: dict[int, int] = {}
        self._control_fd = -1
        self._waiting: set[asyncio.Future[bytes | None]] = set()
        self._settling: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self._jobs = 0

    @property
    def pid(self) -> int:
        """The bubblewrap process on the host; killing it kills the box."""
        assert self._process is not None, "the box was never started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the box's first process runs and is not on its way out."""
        # In this order: what is no longer seen as killed is gone by the second look.
        pids = (self._init_pid, self.pid)
        return self._control_fd >= 0 and not any(map(is_killed, pids)) and all(map(is_alive, pids))

    async def start(
        self, command: Sequence[str], environment: Mapping[str, str], prelude: str
    ) -> None:
        """Start bubblewrap and wait until the supervisor answers. Raises: SandboxError."""
        news_fd, info_fd = self._spawn([*command, prelude + SUPERVISOR], environment)
        try:
            await self._await_ready(news_fd)
            self._enter(int(json.loads(os.read(info_fd, 4096))["child-pid"]))
        except (OSError, ValueError, KeyError) as error:
            raise SandboxError(f"the box could not be started: {error}") from error
        finally:
            close_fds(news_fd, info_fd)

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, int]:
        """Start the process; gives the pipes on which it says that it is ready and who it is."""
        control_fd, self._control_fd = os.pipe()
        news_fd, news_write_fd = os.pipe()
        info_fd, info_write_fd = os.pipe()
        theirs = [control_fd, news_write_fd, info_write_fd]
        os.set_blocking(self._control_fd, False)
        os.set_blocking(news_fd, False)
        program, *arguments = command
        arguments = ["--info-fd", str(info_write_fd), *arguments]
        try:
            if self._filter is not None:
                theirs.append(open_full_pipe(self._filter))
                arguments = ["--seccomp", str(theirs[-1]), *arguments]
            self._process = subprocess.Popen(
                [program, *arguments],
                stdin=control_fd,
                stdout=news_write_fd,
                stderr=news_write_fd,
                pass_fds=theirs[2:],
                env=environment,
                cwd="/",
                # Ctrl-C at a terminal goes to the group of the foreground: it is for us alone.
                start_new_session=True,
            )
            self._watch(self.pid)
        except OSError as error:
            close_fds(news_fd, info_fd)
            raise SandboxError(f"bubblewrap could not be started: {error}") from error
        finally:
            close_fds(*theirs)
        return news_fd, info_fd

    def _enter(self, init_pid: int) -> None:
        """Take hold of the box's first process and its work directory."""
        self._init_pid = init_pid
        self._watch(init_pid)
        # Without this file of the kernel nothing could be ended after a time-out.
        Path(f"/proc/{init_pid}/task/{init_pid}/children").read_bytes()
        path = f"/proc/{init_pid}/root{WORK_DIRECTORY}"
        self.work_fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    async def _await_ready(self, news_fd: int) -> None:
        """Wait for the supervisor's first line; what comes instead is bubblewrap's complaint."""
        said = bytearray()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def hear() -> None:
            data = read_available(news_fd, 4096)
            said.extend(data or b"")
            if not done.done() and (data == b"" or said.endswith(READY)):
                done.set_result(None)

        loop.add_reader(news_fd, hear)
        try:
            async with asyncio.timeout(START_S):
                await done
        except TimeoutError:
            raise SandboxError(f"the box did not start within {START_S:g} s") from None
        finally:
            loop.remove_reader(news_fd)
        if not said.endswith(READY):
            text = said.decode(errors="replace").strip()
            raise SandboxError(
                f"bubblewrap could not make the box: {text or 'it ended without a word'}\n"
                "hint: the kernel must allow user namespaces "
                "(sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)"
            )

    def _watch(self, pid: int) -> None:
        """Notice a process's end, through a descriptor that never means another process."""
        fd = os.pidfd_open(pid)
        self._pidfds[pid] = fd
        asyncio.get_running_loop().add_reader(fd, self._forget, pid)

    def _forget(self, pid: int) -> None:
        """A watched process ended: the box is dead; once both ended, nothing of it is left."""
        fd = self._pidfds.pop(pid)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        if self._process is not None and pid == self._process.pid:
            self._process.wait()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(SandboxError("the box died"))
        self.destroy()

    def destroy(self) -> None:
        """Kill the box now, without waiting; `gone` tells when nothing is left of it."""
        for pid in sorted(self._pidfds, key=lambda pid: pid != self._init_pid):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfds[pid], signal.SIGKILL)
        close_fds(*(fd for fd in (self._control_fd, self.work_fd) if fd >= 0))
        self._control_fd = self.work_fd = -1
        shutil.rmtree(self.folder, ignore_errors=True)
        if not self._pidfds and not self._gone.is_set():
            self._gone.set()
            self._on_gone(self)

    async def gone(self) -> None:
        """Wait, after `destroy`, until every process of the box has ended."""
        await self._gone.wait()

    def check(self) -> None:
        """Raises: SandboxError where the box is dead."""
        if not self.alive:
            self.destroy()
            raise SandboxError("the box is dead")

    def next_job(self) -> int:
        """A number for a job's files."""
        self._jobs += 1
        return self._jobs

    def send(self, line: str) -> None:
        """Have the supervisor run one line of bash in the background. Raises: SandboxError."""
        assert "\n" not in line and len(line) < 4096, f"not one short line: {line!r}"
        self.check()
        try:
            os.write(self._control_fd, line.encode() + b"\n")
        except OSError as error:
            self.destroy()
            raise SandboxError(f"the box takes no more commands: {error}") from error

    def write_file(self, name: str, data: bytes) -> None:
        """Put a file where the jobs of the box can read it. Raises: SandboxError."""
        try:
            (self.folder / name).write_bytes(data)
        except OSError as error:
            raise SandboxError(f"a box's file cannot be written: {error}") from error

    def open_fifo(self, name: str, *, write: bool = False) -> int:
        """Make a FIFO and open our end, non-blocking, so that the box's opening never blocks.

        Raises: SandboxError.
        """
        # A writer opens both ways: opening for writing alone fails where nobody reads yet.
        mode = os.O_RDWR if write else os.O_RDONLY
        try:
            os.mkfifo(self.folder / name, 0o600)
            return os.open(self.folder / name, mode | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxError(f"a box's pipe cannot be made: {error}") from error

    def remove_files(self, *names: str) -> None:
        """Remove files and FIFOs, as far as they are there; open ends stay usable."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    async def wait_status(
        self,
        status: StatusLines,
        accept: Callable[[bytes], bool],
        output: BoundedOutput | None = None,
        feed: Feed | None = None,
    ) -> bytes | None:
        """The first accepted status line, or None where the pipe ended; moves data meanwhile.

        Raises: SandboxError as soon as the box dies.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bytes | None] = loop.create_future()

        def hear() -> None:
            for line in status.read():
                if accept(line) and not done.done():
                    done.set_result(line)
            if status.ended and not done.done():
                done.set_result(None)

        def collect(output: BoundedOutput) -> None:
            if output.read() == 0 or output.cut_bytes > FLOOD_BYTES:
                loop.remove_reader(output.fd)

        def give(feed: Feed) -> None:
            if feed.write():
                loop.remove_writer(feed.fd)

        self._waiting.add(done)
        loop.add_reader(status.fd, hear)
        if output is not None:
            loop.add_reader(output.fd, collect, output)
        if feed is not None and not feed.write():
            loop.add_writer(feed.fd, give, feed)
        # Not otherwise: a pipe that nobody has opened yet looks like one that has ended.
        if status.unread_lines:
            hear()
        try:
            return await done
        except asyncio.CancelledError:
            if done.done() and not done.cancelled() and (line := done.result()):
                status.unread(line)
            raise
        finally:
            self._waiting.discard(done)
            loop.remove_reader(status.fd)
            if output is not None:
                loop.remove_reader(output.fd)
            if feed is not None:
                loop.remove_writer(feed.fd)

    async def probe(self) -> None:
        """Make sure that the supervisor still answers. Raises: SandboxError, the box being dead."""
        name = f"{self.next_job()}.st"
        self.check()
        fd = self.open_fifo(name)
        try:
            self.send(f"echo >$D/{name}")
            async with asyncio.timeout(PROBE_S):
                await self.wait_status(StatusLines(fd), lambda line: True)
        except TimeoutError:
            self.destroy()
            raise SandboxError(f"the box did not answer within {PROBE_S:g} s") from None
        finally:
            close_fds(fd)
            self.remove_files(name)

    def processes(self) -> set[int]:
        """The processes in the box, without the supervisor; none of a dead box."""
        fd = self._pidfds.get(self._init_pid)
        if fd is None:
            return set()
        found = walk_processes(self._init_pid)
        # Seen alive after the walk, process 1 was no other process of the same number in it.
        ended = select.poll()
        ended.register(fd, select.POLLIN)
        return set() if ended.poll(0) else found

    def kill(self, doomed: set[int]) -> None:
        """Kill processes, as far as they are in the box."""
        fds: dict[int, int] = {}
        for pid in doomed:
            with suppress(OSError):
                fds[pid] = os.pidfd_open(pid)
        # A number seen as ours after its descriptor was opened was ours at the opening.
        ours = self.processes() if fds else set()
        for pid, fd in fds.items():
            if pid in ours:
                with suppress(OSError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
        close_fds(*fds.values())

    def kill_since(self, before: set[int]) -> bool:
        """Kill what is not in `before`, once; whether there was anything."""
        doomed = self.processes() - before
        self.kill(doomed)
        return bool(doomed)

    async def end_since(self, before: set[int]) -> None:
        """Kill until only `before` is left; a sweep of the whole box ends what outruns that.

        Raises: SandboxError where even the sweep does not help; the box is then dead.
        """
        for pause_s in KILL_PAUSES_S:
            if not self.kill_since(before):
                return
            await asyncio.sleep(pause_s)
        # One system call of the box's own kernel view: signals all but process 1 and the caller.
        self.send("kill -9 -1")
        for pause_s in KILL_PAUSES_S * 3:
            await asyncio.sleep(pause_s)
            if not self.processes():
                return
        self.destroy()
        raise SandboxError("the box would not stop what it runs")

    def abandon_since(self, before: set[int]) -> None:
        """Like `end_since` where nothing can be awaited, as on cancellation: see `settle`."""
        self.kill_since(before)
        self._settling = asyncio.create_task(self._end_abandoned(before))

    async def _end_abandoned(self, before: set[int]) -> None:
        with suppress(SandboxError):  # The box is dead then, which every later call says.
            await self.end_since(before)

    async def settle(self) -> None:
        """Wait until what was abandoned has ended. Raises: SandboxError where the box is dead."""
        if self._settling is not None:
            await asyncio.wait([self._settling])
            self._settling = None
        self.check()
