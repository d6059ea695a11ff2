"""`limosa train`: from a run file to a measured better model, in one folder.

Begins as `check.py` does, opens the run's folder, and leaves the phases to `training_run.py`.
Everything that can be wrong with the input is found before the folder is made.
"""

import asyncio
import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import click
import yaml
from click.core import ParameterSource

from limosa.base.config import RunConfig, load_config
from limosa.base.errors import UserError
from limosa.cli.check import check_model, list_all_notices
from limosa.cli.known import load_known_names
from limosa.cli.progress import Reporter
from limosa.models.folder import check_vocabulary
from limosa.store.run import RunFolder


@click.command(short_help="Train a model by reinforcement learning.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--resume", type=click.Path(path_type=Path), help="Go on with the run in this folder."
)
@click.option(
    "--out",
    default=Path("runs"),
    type=click.Path(path_type=Path),
    show_default=True,
    help="Where the run's folder goes.",
)
@click.option("--name", help="The run's name; by default the file's name and the time.")
@click.option("--seed", type=click.IntRange(min=0), help="Instead of the file's seed.")
@click.option("--json", "as_json", is_flag=True, help="Print report.json on standard output.")
@click.pass_context
def train(
    context: click.Context,
    file: Path | None,
    resume: Path | None,
    out: Path,
    name: str | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Train a model by reinforcement learning as the run FILE describes.

    \b
    Checks the environments, evaluates, trains, evaluates again, and writes a folder with the
    configuration, events, trajectories, a checkpoint, report.json and report.html. Ctrl-C stops
    with a checkpoint; --resume goes on.

    \b
    Examples:
      limosa train examples/quickstart.yaml
      limosa train examples/quickstart.yaml --seed 1 --json > report.json
      limosa train --resume runs/quickstart-20260101-120000
    """
    if (file is None) == (resume is None):
        hint = "limosa train examples/quickstart.yaml, or limosa train --resume runs/NAME"
        raise UserError("give either a run file or --resume with a run's folder", hint=hint)
    reporter = Reporter()
    if file is not None:
        if out.exists() and not out.is_dir():
            hint = "give the folder that holds the runs, such as runs"
            raise UserError(f"--out is {str(out)!r}, which is a file", hint=hint)
        config = load_config(file, load_known_names())
        if seed is not None:
            config = config.model_copy(update={"seed": seed})
        model = _load_model(config, reporter)
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        folder = RunFolder.create(out, make_name(file) if name is None else name, text)
    else:
        assert resume is not None
        _refuse_beside_resume(context)
        config = _load_resumed(resume)
        model = _load_model(config, reporter)
        folder = RunFolder.open(resume)
    report = _run(config, folder, reporter, model)
    if as_json:
        click.echo(json.dumps(report))


def make_name(file: Path) -> str:
    """A run's name from its file and the time; what a folder's name may not hold becomes '-'."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).lstrip("._-") or "run"
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _refuse_beside_resume(context: click.Context) -> None:
    names = ("out", "name", "seed")
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [f"--{name}" for name in names if sources[name] is not ParameterSource.DEFAULT]
    if given:
        hint = f"leave {' and '.join(given)} out: a resumed run keeps its own"
        raise UserError(f"--resume does not go with {' and '.join(given)}", hint=hint)


def _load_resumed(path: Path) -> RunConfig:
    if not (path / "config.yaml").is_file():
        RunFolder.open(path).close()  # says what a run is
    return load_config(path / "config.yaml", load_known_names())


def _load_model(config: RunConfig, reporter: Reporter) -> Path:
    """The model's folder, checked as far as can be without its weights; tells the notices."""
    path, shape = check_model(config.model)
    for notice in list_all_notices(config, shape):
        reporter.note(f"notice: {notice}")
    # Here, not above: a run file is judged before torch is loaded.
    from limosa.tokens.chat import load_chat

    check_vocabulary(path, load_chat(path).vocabulary_size, shape.vocab_size)
    return path


def _run(config: RunConfig, folder: RunFolder, reporter: Reporter, model: Path) -> dict[str, Any]:
    from limosa.cli.training_run import run_all_phases

    path, is_done = folder.path, False
    try:
        with folder, reporter.live():
            reporter.note(f"run {path}")
            report = asyncio.run(run_all_phases(config, folder, reporter, model))
            is_done = True
        return report
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        if is_done:
            reporter.note(f"the report is in {path / 'report.html'}")
        else:
            command = f"limosa train --resume {shlex.quote(str(path))}"
            reporter.note(f"everything so far is in {path}; go on: {command}")
