"""`limosa train`: from a run file to a measured better model, in one folder.

Strings the phases of `cli/phases.py` together and keeps what a resumed run needs. Everything that
can be wrong with the input is found before the run's folder is made.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import click
import yaml

from limosa.base.config import RunConfig, list_notices, load_config
from limosa.base.errors import UserError
from limosa.cli.known import load_known_names
from limosa.cli.progress import Reporter


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--resume", type=click.Path(path_type=Path), help="Go on with the run in this folder."
)
@click.option("--out", default=Path("runs"), type=click.Path(path_type=Path), show_default=True)
@click.option("--name", help="The run's name; by default the file's name and the time.")
@click.option("--seed", type=click.IntRange(min=0), help="Instead of the file's seed.")
@click.option("--json", "as_json", is_flag=True, help="Print report.json on standard output.")
def train(
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
    if resume is not None and (seed is not None or name is not None):
        hint = "leave --seed and --name out: a resumed run keeps its own"
        raise UserError("--resume goes with neither --seed nor --name", hint=hint)
    reporter = Reporter()
    if resume is not None:
        config = load_config(resume / "config.yaml", load_known_names())
        folder_path = resume
    else:
        assert file is not None
        config = load_config(file, load_known_names())
        if seed is not None:
            config = config.model_copy(update={"seed": seed})
        folder_path = out / (name or f"{file.stem}-{time.strftime('%Y%m%d-%H%M%S')}")
        for notice in list_notices(config):
            reporter.note(f"notice: {notice}")
    report = _run(config, folder_path, reporter, is_new=resume is None)
    if as_json:
        click.echo(json.dumps(report))


def _run(config: RunConfig, path: Path, reporter: Reporter, *, is_new: bool) -> dict[str, Any]:
    # Imported here, so that a run file is judged before torch is loaded.
    from limosa.cli.training_run import run_all_phases
    from limosa.models.folder import resolve_model
    from limosa.store.run import RunFolder
    from limosa.tokens.chat import load_chat

    model = resolve_model(config.model)
    load_chat(model)
    if is_new:
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        folder = RunFolder.create(path.parent, path.name, text)
    else:
        folder = RunFolder.open(path)
    with folder, reporter.live():
        reporter.note(f"run {path}")
        try:
            return asyncio.run(run_all_phases(config, folder, reporter, model))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            reporter.note(
                f"everything of this run is in {path}; go on: limosa train --resume {path}"
            )
