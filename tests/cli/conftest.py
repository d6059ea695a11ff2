"""A command line as the shell runs it, in this process, and model folders to break."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from limosa.cli.main import main
from limosa.models.folder import resolve_model


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Finished]
MakeModel = Callable[..., Path]


@pytest.fixture
def limosa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Run:
    """Runs `limosa ARGUMENTS` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["limosa", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return run


@pytest.fixture
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """The packaged model in a folder of its own, with files replaced, or left out where None."""

    def make(files: dict[str, str | bytes | None]) -> Path:
        folder = tmp_path_factory.mktemp("model")
        for file in resolve_model("limosa-base").iterdir():
            if file.name not in files:
                (folder / file.name).symlink_to(file)
        for name, content in files.items():
            if content is not None:
                data = content.encode() if isinstance(content, str) else content
                (folder / name).write_bytes(data)
        return folder

    return make
