"""The set-up that a fresh machine runs, as far as it goes without a network."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "tools" / "make_environment.sh"


def run(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    # No other Python, virtualenv or uv is in reach: only the programs the script itself needs.
    path = folder / "bin"
    path.mkdir(exist_ok=True)
    for program in ("rm", "mktemp", "sed"):
        (path / program).unlink(missing_ok=True)
        (path / program).symlink_to(str(shutil.which(program)))
    return subprocess.run(
        ["/bin/sh", str(SCRIPT)],
        cwd=folder,
        env={"PATH": str(path), "PYTHON": python, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def write_python(folder: Path, body: str) -> str:
    script = folder / "fake python"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "a folder with spaces"
    path.mkdir()
    return path


def test_an_environment_is_made_once(folder: Path) -> None:
    first = run(folder, sys.executable)
    assert first.returncode == 0, first.stderr
    python = folder / ".venv" / "bin" / "python"
    assert subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0
    (folder / ".venv" / "mark").touch()
    assert run(folder, "/nonexistent").returncode == 0
    assert (folder / ".venv" / "mark").exists()


def test_an_old_python_is_named(folder: Path) -> None:
    old = run(folder, write_python(folder.parent, "exit 1"))
    assert old.returncode == 2
    assert "Python 3.11 or newer" in old.stderr and "hint:" in old.stderr
    assert not (folder / ".venv").exists()


def test_a_python_without_ensurepip_says_the_way_out(folder: Path) -> None:
    # Answers the question for its version and cannot do anything else.
    python = write_python(folder.parent, '[ "$1" = -c ] || { echo "no ensurepip"; exit 1; }')
    bare = run(folder, python)
    assert bare.returncode == 2
    assert "no ensurepip" in bare.stderr and "virtualenv" in bare.stderr
    assert not (folder / ".venv").exists()


def test_make_help_lists_the_commands() -> None:
    lines = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    assert {"quickstart", "test"} <= set(re.findall(r"^make ([a-z0-9-]+) ", lines, re.M))


def test_continuous_integration_runs_make_test() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert script.rstrip().endswith("exec make test") and "set -euo pipefail" in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
