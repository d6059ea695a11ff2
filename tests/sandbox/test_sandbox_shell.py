import asyncio
import time

import pytest

from limosa.sandbox.bubblewrap import BubblewrapSandbox
from limosa.sandbox.shell import RESTART_NOTICE, parse_code


async def test_directory_variables_functions_and_jobs_survive(box: BubblewrapSandbox) -> None:
    await box.shell("mkdir -p a/b; cd a/b; X='two  words'; f() { echo f:$1; }; sleep 60 & J=$!")
    result = await box.shell('pwd; echo "$X"; f 1; kill -0 $J && echo running')
    assert result.output == "/work/a/b\ntwo  words\nf:1\nrunning\n"
    assert (await box.exec("pwd; echo X=$X")).output == "/work\nX=\n"


async def test_output_and_error_are_merged_in_order(box: BubblewrapSandbox) -> None:
    result = await box.shell("echo out; echo err >&2; (exit 4)")
    assert (result.exit_code, result.output) == (4, "out\nerr\n")


async def test_commands_of_many_lines_and_any_text(box: BubblewrapSandbox) -> None:
    result = await box.shell("cat <<'E'\n  ünï\t\"q\" $X `y`\n\nE\necho \\\n  joined")
    assert result.output == '  ünï\t"q" $X `y`\n\njoined\n'
    text = "x" * 200_000
    assert (await box.shell(f"Y={text}; echo ${{#Y}}")).output == "200000\n"
    assert (await box.shell("echo ok\ud800")).output == "ok?\n"
    assert (await box.shell("echo 'a\0b'")).exit_code == 2
    assert (await box.shell("if then")).exit_code != 0
    assert (await box.shell("")).exit_code == 0


HOSTILE = [
    ("exec 8>&-", 0, False),
    ("exec 9<&-", 0, False),
    ("exec 8</dev/null 9>/dev/null", 0, False),
    ("exec >&-", 0, False),
    ("exec >/tmp/lost 2>&1", 0, False),
    ("exec 0</dev/zero", 0, False),
    ("cat", 0, False),
    ("read line", 1, False),
    ("read -r -d '' -u 8 x", 1, False),
    ("printf '0000 0\\n%s 0\\nend 0\\n' \"$__limosa_n\" >&9", 1, False),
    ("__limosa_c=; unset -v __limosa_c IFS", 0, False),
    ("printf() { :; }; read() { return 1; }; eval() { :; }", 0, False),
    ("trap 'echo trapped' DEBUG ERR RETURN CHLD", 0, False),
    ("sleep 50 & sleep 50 & (setsid sleep 50 &)", 0, False),
    ("echo fake; echo 'end 0'; echo '1234 0'", 0, False),
    ("kill -STOP 1; kill -9 1; kill 1; kill -INT 1", 0, False),
    ("set -x", 0, False),
    ("alias echo=false; shopt -s expand_aliases; unalias -a", 0, False),
    ("exit 3", 3, True),
    ("return 5 2>/dev/null; exit 4", 4, True),
    ("kill $$", 143, True),
    ("kill -9 $$", 137, True),
    ("set -e; false", 1, True),
    ("exec true", 0, True),
    ("kill -9 -1", 0, False),
]


@pytest.mark.parametrize(("command", "exit_code", "ended"), HOSTILE)
async def test_hostile_commands_do_not_desynchronise(
    box: BubblewrapSandbox, command: str, exit_code: int, ended: bool
) -> None:
    await box.shell("X=1")
    result = await box.shell(command, timeout_s=5)
    assert not result.timed_out, result
    assert result.exit_code == exit_code, result
    assert result.output.endswith(RESTART_NOTICE) is ended
    result = await box.shell("set +x; alive=yes", timeout_s=5)
    for number in range(3):
        result = await box.shell(f"echo n{number} $X", timeout_s=5)
        assert f"n{number}" in result.output
        assert ("1" in result.output.replace(f"n{number}", "")) is not ended
    assert (await box.shell("(exit 6)", timeout_s=5)).exit_code == 6


STUCK = [
    ("sleep 60", False),
    ("sleep 60 & wait $!", False),
    ("sleep 60 | cat", False),
    ("(setsid sleep 60; sleep 60)", False),
    ("cat </dev/zero >/dev/null", False),
    ("exec sleep 60", True),
    ("while :; do :; done", True),
    ("while :; do sleep 1; done", True),
    ("set -n; echo", True),
    ("kill -STOP $$", True),
    ("exec 10>&- 11>&- 12>&- 13>&- 14>&-; sleep 60", True),
]


@pytest.mark.parametrize(("command", "ended"), STUCK)
async def test_time_out_kills_what_the_command_started(
    box: BubblewrapSandbox, command: str, ended: bool
) -> None:
    await box.shell("cd /tmp; X=kept; sleep 71 &")
    start_s = time.monotonic()
    result = await box.shell(f"echo said; {command}", timeout_s=0.3)
    assert time.monotonic() - start_s < 3
    assert (result.timed_out, result.exit_code) == (True, 124)
    assert result.output.startswith("said\n")
    if "10>&-" not in command:  # What bash has saved there is its own business.
        assert result.output.endswith(RESTART_NOTICE) is ended
        expected = "/work\n" if ended else "/tmp kept\n"
        assert (await box.shell("echo $PWD $X")).output == expected
    left = (await box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).output
    assert "sleep 60" not in left
    assert "sleep 71" in left


async def test_fifty_megabytes_pass_quickly(box: BubblewrapSandbox) -> None:
    start_s = time.monotonic()
    result = await box.shell("head -c 50000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert time.monotonic() - start_s < 5
    assert result.cut_bytes == 50_000_006 - len(result.output)
    assert (await box.shell("echo next")).output == "next\n"


async def test_an_endless_background_writer_holds_up_nothing(box: BubblewrapSandbox) -> None:
    await box.shell("yes & true")
    for _ in range(3):
        result = await box.shell("echo here", timeout_s=5)
        assert (result.exit_code, result.timed_out) == (0, False)
    await box.shell("kill %1; wait")
    await box.shell("true")
    assert (await box.shell("echo clean")).output == "clean\n"


async def test_a_cancelled_command_leaves_nothing_running(box: BubblewrapSandbox) -> None:
    await box.shell("X=1")
    task = asyncio.create_task(box.shell("(setsid sleep 61 &); sleep 61", timeout_s=60))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left = (await box.exec("sleep 0.05; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).output
    assert "sleep 61" not in left
    assert (await box.shell("echo new $X")).output == "new\n"


@pytest.mark.parametrize(
    ("word", "code"), [(b"0", 0), (b"137", 137), (b"", 137), (b"-1", 137), (b"9" * 5000, 137)]
)
def test_parse_code_survives_any_word(word: bytes, code: int) -> None:
    assert parse_code(word) == code
