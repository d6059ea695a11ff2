"""Folders that may be written, and folders that appear whole or not at all."""

import os
from pathlib import Path

import pytest

from limosa.base.errors import UserError
from limosa.cli.outputs import require_file, require_folder, write_beside


def test_new_and_empty_folders_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_folder(tmp_path / "a" / "b", "--out")
    require_folder(tmp_path, "--out")
    require_file(tmp_path / "a.jsonl", "--out")
    monkeypatch.chdir(tmp_path)
    require_folder(Path("c"), "--out")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_needs_its_marker(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    for marker in (None, "sft.json"):
        with pytest.raises(UserError, match="not empty"):
            require_folder(tmp_path, "--out", marker=marker)
    (tmp_path / "sft.json").write_text("")
    require_folder(tmp_path, "--out", marker="sft.json")
    with pytest.raises(UserError, match="is a folder"):
        require_file(tmp_path, "--out")


def test_where_nothing_may_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may = os.access

    def refuse(path: Path, mode: int) -> bool:
        return may(path, mode) and not mode & os.W_OK

    # Patched: whoever runs the tests as root may write everywhere.
    monkeypatch.setattr(os, "access", refuse)
    with pytest.raises(UserError, match="may not be written to") as caught:
        require_folder(tmp_path / "a" / "b", "out")
    assert caught.value.hint and str(tmp_path) in caught.value.what


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    (tmp_path / "deep" / ".out.partial").mkdir(parents=True)
    (tmp_path / "deep" / ".out.partial" / "stale").write_text("")
    with write_beside(out) as folder:
        assert folder.name == ".out.partial" and folder.parent == out.parent
        (folder / "file").write_text("x")
        assert not out.exists()
    assert [f.name for f in out.iterdir()] == ["file"]
    assert [f.name for f in out.parent.iterdir()] == ["out"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), write_beside(tmp_path / "out") as folder:
        (folder / "half").write_text("")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
