"""The boundary: exit statuses, wrong names, and readers that go away."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from limosa.base.errors import InfrastructureError, UserError
from limosa.cli.main import COMMANDS, cli

LIMOSA = Path(sys.executable).with_name("limosa")
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"


def test_a_wrong_command_is_told_the_nearest_one(limosa) -> None:
    run = limosa("trian", "run.yaml")
    assert (run.code, run.out) == (2, "")
    assert "'trian'" in run.err and "hint:" in run.err and "did you mean 'train'?" in run.err
    assert all(name in run.err for name in COMMANDS)


def test_a_name_like_no_command_lists_them(limosa) -> None:
    run = limosa("xyzzy")
    assert run.code == 2
    assert "did you mean" not in run.err and "demos" in run.err


def test_every_command_of_the_table_is_there() -> None:
    run = CliRunner().invoke(cli, ["--help"])
    assert run.exit_code == 0
    assert all(f"\n  {name} " in run.output for name in COMMANDS)
    assert "..." not in run.output.partition("Commands:")[2], "a summary is cut"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UserError("bad", hint="better"), 2, "error: bad\nhint: better\n"),
        (InfrastructureError("broke"), 1, "error: InfrastructureError: broke\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "runs/a/state.json"),
            1,
            "error: cannot write runs/a/state.json: No space left on device\nhint: make room, then "
            "go on with a run by limosa train --resume, or give the command again\n",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "x"),
            1,
            "error: PermissionError: [Errno 13] Permission denied: 'x'\n",
        ),
    ],
)
def test_errors_become_exit_statuses(limosa, monkeypatch, error, code, text) -> None:
    def fail(*arguments: object) -> None:
        raise error

    # Patched: no file makes a command fail in each of these ways.
    monkeypatch.setattr("limosa.cli.check.load_config", fail)
    run = limosa("check", "run.yaml")
    assert (run.code, run.out) == (code, "")
    assert run.err.endswith(text)


def test_a_wrong_option_is_the_users_to_mend(limosa) -> None:
    run = limosa("check", "run.yaml", "--jsno")
    assert run.code == 2 and "--jsno" in run.err


@pytest.mark.parametrize(
    "line",
    [
        "limosa train --help | head -1",
        f"limosa check {QUICKSTART} --json | true",
        "limosa domains list | true",
    ],
)
def test_a_reader_that_goes_away_ends_it_in_silence(line: str) -> None:
    # `true` may end before or after the writing; either way nothing may be said.
    shell = ["bash", "-c", line.replace("limosa", str(LIMOSA), 1)]
    run = subprocess.run(shell, capture_output=True, text=True, timeout=60)
    assert run.stderr == ""
