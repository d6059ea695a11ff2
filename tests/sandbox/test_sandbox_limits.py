from dataclasses import fields, replace
from pathlib import Path

import pytest

from limosa.sandbox.bubblewrap import BubblewrapProvider
from limosa.sandbox.limits import Limits, capabilities, counts_processes, to_ulimit

SMALL = Limits(
    cpu_s=1,
    file_bytes=1 << 20,
    address_space_bytes=256 << 20,
    work_bytes=4 << 20,
    tmp_bytes=4 << 20,
    output_bytes=1000,
)


def test_capabilities_speak_of_every_limit() -> None:
    said = capabilities()
    assert {field.name for field in fields(Limits)} <= set(said)
    assert all(capability.how for capability in said.values())
    assert not said["memory_of_box"].enforced


@pytest.mark.parametrize(
    ("user_id", "kernel", "counted"),
    [
        (0, "6.1.0", False),
        (1000, "6.1.0-18-amd64", True),
        (1000, "5.14", True),
        (1000, "5.10.0-26-amd64", False),
        (1000, "odd", False),
    ],
)
def test_processes_are_counted_where_the_kernel_does(
    user_id: int, kernel: str, counted: bool
) -> None:
    assert counts_processes(user_id=user_id, kernel=kernel) is counted


def test_ulimit_names_the_process_limit_only_where_it_is_counted() -> None:
    assert ("-u 7" in to_ulimit(replace(SMALL, processes=7))) is capabilities()[
        "processes"
    ].enforced


@pytest.mark.parametrize(
    ("command", "exit_code", "said"),
    [
        ("head -c 2000000 /dev/zero >/work/big", 153, ""),
        (
            "for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero >/work/$i || exit 7; done",
            7,
            "space",
        ),
        ("for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero >/tmp/$i || exit 7; done", 7, "space"),
        ("for i in 1 2 3; do head -c 900000 /dev/zero >/dev/shm/$i || exit 7; done", 7, "space"),
        ("python3 -c 'bytearray(1 << 30)'", 1, "MemoryError"),
        ("while :; do :; done", 137, ""),
    ],
)
async def test_limits_hold(tmp_path: Path, command: str, exit_code: int, said: str) -> None:
    provider = BubblewrapProvider(1, limits=SMALL, scratch=tmp_path)
    try:
        box = await provider.create("sandbox-code:v3")
        result = await box.exec(command)
        assert (result.exit_code, result.timed_out) == (exit_code, False), result.output
        assert said in result.output
        assert (await box.exec("echo on")).output == "on\n"
    finally:
        await provider.close()


async def test_output_is_bounded_and_the_cut_is_counted(tmp_path: Path) -> None:
    provider = BubblewrapProvider(1, limits=SMALL, scratch=tmp_path)
    try:
        box = await provider.create("sandbox-base:v1")
        for run in (box.exec, box.shell):
            result = await run("head -c 5000 /dev/zero | tr '\\0' x; echo end")
            assert result.output == "x" * 1000
            assert result.cut_bytes == 5004 - 1000
    finally:
        await provider.close()
