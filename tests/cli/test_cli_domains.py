import json

from click.testing import CliRunner

from limosa.cli.main import cli
from limosa.domains.table import known_domains


def test_list_names_every_domain_with_its_stages() -> None:
    run = CliRunner().invoke(cli, ["domains", "list"])
    assert run.exit_code == 0
    lines = run.stdout.splitlines()
    assert len(lines) == len(known_domains())
    for line, (name, stages) in zip(lines, known_domains().items(), strict=True):
        assert line.startswith(name)
        assert ", ".join(stages) in line


def test_list_as_json() -> None:
    run = CliRunner().invoke(cli, ["domains", "list", "--json"])
    rows = json.loads(run.stdout)["domains"]
    assert {row["name"]: tuple(row["stages"]) for row in rows} == known_domains()
    images = {row["name"]: row["image"] for row in rows}
    assert images["code_engineering"] == "sandbox-code:v3"
    assert images["knowledge_research"] is None
