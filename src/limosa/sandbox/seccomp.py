"""The system calls that a box refuses: those that reach from one process into another.

A box's first process serves our calls. Whoever may trace it, write to its memory or take its
limits away can kill it, and a box that died counts as a failure of infrastructure: a policy could
turn its failures into episodes that do not count. `box.py` hands the program to bubblewrap. Leaves
out what only hardens the host (mounts, namespaces, io_uring, bpf, keyctl, address families).

Source: Linux, Documentation/userspace-api/seccomp_filter.rst and include/uapi/linux/filter.h.
"""

import errno
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Classic BPF: load a word of `struct seccomp_data`, compare it with a constant, return.
LOAD, JUMP_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER_OFFSET, ARCHITECTURE_OFFSET, FIRST_ARGUMENT_OFFSET = 0, 4, 16
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
# Set in the number of each call of the x32 interface, which would evade a list of plain numbers.
X32_BIT = 0x40000000


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's name in audit records, and its numbers of the calls that are looked at."""

    audit: int
    refused: Sequence[int]
    prlimit: int


# refused: ptrace, process_vm_readv, process_vm_writev, kcmp, pidfd_getfd
MACHINES: Mapping[str, Machine] = {
    "x86_64": Machine(0xC000003E, (101, 310, 311, 312, 438), 302),
    "aarch64": Machine(0xC00000B7, (117, 270, 271, 272, 438), 261),
}


def make_filter(machine: str | None = None) -> bytes | None:
    """The program for a machine, by default this one; None where its numbers are not known.

    The calls listed fail with EPERM, and so does setting the limits of another process (prlimit64
    with a process id: a process's own is written 0). Calls of a foreign interface fail with ENOSYS.
    """
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    refused = [*known.refused]
    # From here to the three returns at the end: (code, constant, goes where if true, if false).
    lines: list[tuple[int, int, str, str]] = [
        (LOAD, ARCHITECTURE_OFFSET, "", ""),
        (JUMP_EQUAL, known.audit, "", "foreign"),
        (LOAD, NUMBER_OFFSET, "", ""),
        (JUMP_SET, X32_BIT, "foreign", ""),
        *((JUMP_EQUAL, number, "refuse", "") for number in refused),
        (JUMP_EQUAL, known.prlimit, "", "allow"),
        (LOAD, FIRST_ARGUMENT_OFFSET, "", ""),
        (JUMP_EQUAL, 0, "allow", "refuse"),
    ]
    ends = {"allow": ALLOW, "refuse": REFUSE | errno.EPERM, "foreign": REFUSE | errno.ENOSYS}
    places = {name: len(lines) + index for index, name in enumerate(ends)}
    program = b""
    for index, (code, constant, if_true, if_false) in enumerate(lines):
        jumps = [places[to] - index - 1 if to else 0 for to in (if_true, if_false)]
        program += struct.pack("=HBBI", code, *jumps, constant)
    return program + b"".join(struct.pack("=HBBI", RETURN, 0, 0, value) for value in ends.values())
