"""`limosa check`: validate a run file without importing torch or starting anything."""

import json
from pathlib import Path

import click

from limosa.base.config import list_notices, load_config
from limosa.cli.known import load_known_names
from limosa.models.folder import resolve_model


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def check(file: Path, as_json: bool) -> None:
    """Validate a run FILE: keys, values, names, and the model's folder.

    \b
    Examples:
      limosa check examples/quickstart.yaml
      limosa check examples/quickstart.yaml --json
    """
    config = load_config(file, load_known_names())
    resolve_model(config.model)
    notices = list_notices(config)
    for notice in notices:
        click.echo(f"notice: {notice}", err=True)
    if as_json:
        resolved = config.model_dump(mode="json")
        click.echo(json.dumps({"valid": True, "notices": notices, "config": resolved}))
        return
    click.echo(f"{file} is valid: {len(config.domains)} domains, model {config.model}")
