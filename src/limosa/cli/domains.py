"""`limosa domains`: what can be trained on, read from the domains' own table; no torch."""

import json
from typing import Any

import click

from limosa.domains.table import known_domains, load_domain


@click.group()
def domains() -> None:
    """Show the domains that a run file may name."""


@domains.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def list_domains(as_json: bool) -> None:
    """List every domain with its stages and its environment image.

    \b
    Examples:
      limosa domains list
      limosa domains list --json
    """
    rows = [_describe(name) for name in known_domains()]
    if as_json:
        click.echo(json.dumps({"domains": rows}))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        image = row["image"] or "no sandbox"
        click.echo(f"{row['name']:<{width}}  {image:<16}  stages: {', '.join(row['stages'])}")


def _describe(name: str) -> dict[str, Any]:
    domain = load_domain(name)
    return {"name": name, "stages": list(domain.stages), "image": domain.image}
