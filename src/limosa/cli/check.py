"""`limosa check`: validate a run file without importing torch or starting anything.

`train.py` begins with the same checks, and then loads what is only looked at here.
"""

import json
from pathlib import Path

import click

from limosa.base.config import RunConfig, list_notices, load_config
from limosa.cli.known import load_known_names
from limosa.cli.limits import list_limit_notices
from limosa.models.config import TransformerConfig
from limosa.models.folder import check_folder, check_vocabulary, resolve_model
from limosa.tokens.folder import check_tokenizer


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def check(file: Path, as_json: bool) -> None:
    """Validate a run FILE: keys, values, names, and the model's folder.

    Notices on standard error say what a run will do otherwise than the file asks.

    \b
    Examples:
      limosa check examples/quickstart.yaml
      limosa check examples/quickstart.yaml --json
    """
    config = load_config(file, load_known_names())
    _, shape = check_model(config.model)
    notices = list_all_notices(config, shape)
    for notice in notices:
        click.echo(f"notice: {notice}", err=True)
    if as_json:
        resolved = config.model_dump(mode="json")
        click.echo(json.dumps({"valid": True, "notices": notices, "config": resolved}))
        return
    count = len(config.domains)
    click.echo(f"{file} is valid: {count} domain{'s' if count > 1 else ''}, model {config.model}")


def check_model(name_or_path: str) -> tuple[Path, TransformerConfig]:
    """The folder and the shape of a run's model, with its weights and tokenizer in place.

    Raises: ModelError for an unknown name, an architecture that is not supported, or files that
    are missing or do not belong together.
    """
    folder = resolve_model(name_or_path)
    shape = check_folder(folder)
    check_vocabulary(folder, check_tokenizer(folder), shape.vocab_size)
    return folder, shape


def list_all_notices(config: RunConfig, shape: TransformerConfig) -> list[str]:
    """What a run with this model will do otherwise than its file asks."""
    limits = list_limit_notices(config, positions=shape.max_position_embeddings)
    return [*list_notices(config), *limits]
