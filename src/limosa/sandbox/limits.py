"""What a box may use, and the honest list of which of these limits hold on this machine.

Used by `bubblewrap.py` (sizes of the writable file systems), `box.py` (rlimits of every process)
and the quality gate (which asks what is contained). Leaves out cgroups: memory and processes of a
whole box are not bounded here, only of each process.
"""

import os
import platform
from dataclasses import dataclass

from limosa.sandbox.seccomp import MACHINES


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one box. Units: in the names; `cpu_s` and `address_space_bytes` are per process."""

    cpu_s: int = 60
    file_bytes: int = 64 << 20
    address_space_bytes: int = 2 << 30
    processes: int = 256
    open_files: int = 1024
    work_bytes: int = 64 << 20
    tmp_bytes: int = 64 << 20
    output_bytes: int = 64 << 10
    put_bytes: int = 32 << 20
    transfer_files: int = 4096


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether one limit holds here, and what makes it hold or why it does not."""

    enforced: bool
    how: str


def counts_processes(*, user_id: int | None = None, kernel: str | None = None) -> bool:
    """Whether RLIMIT_NPROC bounds a box: never for root, and per namespace since Linux 5.14.

    On an older kernel the count is over all processes of the user, so that the limit would hit
    the user's own programs; there it is not set at all.
    """
    user = os.getuid() if user_id is None else user_id
    release = platform.release() if kernel is None else kernel
    numbers = release.split("-")[0].split(".")
    try:
        version = (int(numbers[0]), int(numbers[1]))
    except (ValueError, IndexError):
        return False
    return user != 0 and version >= (5, 14)


def to_ulimit(limits: Limits) -> str:
    """The bash builtin call that sets the rlimits, hard and soft, of every process of a job."""
    text = (
        f"ulimit -c 0 -t {limits.cpu_s} -f {limits.file_bytes // 1024} "
        f"-v {limits.address_space_bytes // 1024} -n {limits.open_files}"
    )
    return f"{text} -u {limits.processes}" if counts_processes() else text


def capabilities() -> dict[str, Capability]:
    """Which limit is enforced on this machine, and how; an unenforced one is said, not hidden."""
    processes = (
        Capability(True, "RLIMIT_NPROC, counted in the box's user namespace")
        if counts_processes()
        else Capability(False, "RLIMIT_NPROC does not count root's processes or on this kernel")
    )
    return {
        "cpu_s": Capability(True, "RLIMIT_CPU, per process; wall time by the call's time-out"),
        "file_bytes": Capability(True, "RLIMIT_FSIZE, per file"),
        "address_space_bytes": Capability(True, "RLIMIT_AS, per process, not per box"),
        "processes": processes,
        "open_files": Capability(True, "RLIMIT_NOFILE, per process"),
        "work_bytes": Capability(True, "sized tmpfs on the work directory; inodes are not bounded"),
        "tmp_bytes": Capability(True, "sized tmpfs on /tmp and, a quarter of it, on /dev/shm"),
        "output_bytes": Capability(True, "output over the bound is read, counted and dropped"),
        "put_bytes": Capability(True, "checked before a transfer"),
        "transfer_files": Capability(True, "checked during a transfer"),
        "memory_of_box": Capability(False, "needs a memory cgroup"),
        "network": Capability(True, "an empty network namespace"),
        "other_processes": Capability(
            platform.machine() in MACHINES, "seccomp refuses tracing and limits of another process"
        ),
    }
