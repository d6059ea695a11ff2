"""What a box refuses, so that nothing in it can kill the process that serves our calls."""

import errno
import struct

import pytest

from limosa.sandbox.limits import capabilities
from limosa.sandbox.seccomp import MACHINES, make_filter

ALLOWED, REFUSED, FOREIGN = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS


def judge(program: bytes, architecture: int, number: int, argument: int = 0) -> int:
    """What the kernel does with a call: an interpreter of the few instructions in use."""
    data = struct.pack("=IIQQ", number, architecture, 0, argument)
    lines = list(struct.iter_unpack("=HBBI", program))
    place = value = 0
    while True:
        code, if_true, if_false, constant = lines[place]
        place += 1
        if code == 0x06:
            return int(constant)
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, constant)
        else:
            holds = value == constant if code == 0x15 else bool(value & constant)
            place += if_true if holds else if_false


@pytest.mark.parametrize("name", MACHINES)
def test_the_program_refuses_what_is_listed_and_nothing_else(name: str) -> None:
    machine, program = MACHINES[name], make_filter(name)
    assert program is not None
    for number in range(500):
        expected = REFUSED if number in machine.refused else ALLOWED
        assert judge(program, machine.audit, number) == expected
        assert judge(program, 0x40000003, number) == FOREIGN
        assert judge(program, machine.audit, number | 0x40000000) == FOREIGN
    assert judge(program, machine.audit, machine.prlimit, argument=1) == REFUSED
    assert judge(program, machine.audit, machine.prlimit, argument=0) == ALLOWED


def test_an_unknown_machine_has_no_program() -> None:
    assert make_filter("riscv64") is None


ATTACKS = {
    # PTRACE_SEIZE with EXITKILL: the kernel would kill process 1 when the tracer ends.
    "seize": "ctypes.CDLL(None, use_errno=True).ptrace(0x4206, 1, 0, 0x100000)",
    "attach": "ctypes.CDLL(None, use_errno=True).ptrace(16, 1, 0, 0)",
    "limits": "resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_no_process_of_a_box_can_kill_its_first_one(provider, attack: str) -> None:
    box = await provider.create("sandbox-code:v3")
    try:
        script = f"import ctypes, resource\nprint({attack}, ctypes.get_errno())"
        tried = await box.exec(["python3", "-c", script])
        assert "-1 1" in tried.output or "PermissionError" in tried.output, tried.output
        assert (await box.exec(["echo", "alive"])).output == "alive\n"
        # A process's own limits, and those of its children, stay its own to set.
        assert (await box.exec("ulimit -n 64; ulimit -n")).output == "64\n"
    finally:
        await box.kill()


def test_the_capability_is_declared() -> None:
    assert capabilities()["other_processes"].enforced == (make_filter() is not None)
