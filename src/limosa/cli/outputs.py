"""Where commands write: judged before the work begins, and whole or absent after it.

Neighbours: `sft.py`, `models.py` and `demos.py` ask here. Left out: the folder of a run, which is
`store/run.py`'s matter.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from limosa.base.errors import UserError


def require_file(path: Path, option: str) -> None:
    """Refuse a path that is a folder. Raises: UserError."""
    if path.is_dir():
        what = f"{option} is {str(path)!r}, which is a folder, expected a file"
        raise UserError(what, hint=f"name a file in it, such as {path / 'demos.jsonl'}")


def require_folder(path: Path, option: str, *, marker: str | None = None) -> None:
    """Refuse a folder that could not be written, or that holds what is not ours to replace.

    A folder that holds something may be written over only where the file `marker` is in it.

    Raises: UserError.
    """
    hint = "give a folder that is new or empty"
    if path.exists() and not path.is_dir():
        raise UserError(f"{option} is {str(path)!r}, which is a file, expected a folder", hint=hint)
    if path.is_dir() and any(path.iterdir()) and not (marker and (path / marker).is_file()):
        what = f"{option} is {str(path)!r}, which is there already and is not empty"
        raise UserError(what, hint=f"{hint}, or remove what is there")
    nearest = next(p for p in (path, *path.absolute().parents) if os.access(p, os.F_OK))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        fault = "may not be written to" if nearest.is_dir() else "is a file"
        what = f"{option} is {str(path)!r}, which cannot be made: {str(nearest)!r} {fault}"
        raise UserError(what, hint="give a folder below one that you may write to")


@contextmanager
def write_beside(out: Path) -> Iterator[Path]:
    """A folder `.NAME.partial` to fill: it becomes `out` at the end, or goes where that fails."""
    target = out.resolve()
    partial = target.with_name(f".{target.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)  # of a command that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
