import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from limosa.base.errors import InfrastructureError, UserError
from limosa.base.task import make_seed
from limosa.base.testing import FakeProvider
from limosa.cli.demos import Demo, Recipe, make_plan, play_demo
from limosa.cli.main import cli
from limosa.training.conversations import read_conversations

OPTIONS = ["--domain", "knowledge_research=6", "--domain", "code_engineering=3"]


def play(out: Path, *options: str) -> dict:
    run = CliRunner().invoke(cli, ["demos", *OPTIONS, "--out", str(out), "--json", *options])
    assert run.exit_code == 0, run.output
    return json.loads(run.stdout)


def test_reference_demonstrations_are_all_solved(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "demos.jsonl"
    summary = play(out, "--demonstrator", "reference")
    assert summary["demonstrations"] == 9
    for name, n in (("knowledge_research", 6), ("code_engineering", 3)):
        row = summary["domains"][name]
        assert (row["n"], row["solved"], row["success_ratio"]) == (n, n, 1.0)
    assert summary["domains"]["code_engineering"]["stages"].keys() == {"easy", "medium", "hard"}
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["domain"] for line in lines] == ["knowledge_research"] * 6 + [
        "code_engineering"
    ] * 3
    assert [line["stage"] for line in lines[:4]] == ["single_hop", "two_hop"] * 2
    assert lines[2]["seed"] == make_seed("demo", 1)
    assert all(line["solved"] for line in lines)
    assert {tool["name"] for tool in lines[0]["tools"]} == {"search", "open"}
    assert [m["role"] for m in lines[0]["messages"]][:3] == ["system", "user", "assistant"]
    assert list(tmp_path.rglob("*.part")) == []


def test_sft_reads_what_is_written(tmp_path: Path) -> None:
    play(tmp_path / "demos.jsonl")
    conversations = list(read_conversations(tmp_path / "demos.jsonl"))
    assert len(conversations) == 9
    assert all(c.tools and c.messages[-1].role == "assistant" for c in conversations)


def test_same_options_same_file_whatever_the_jobs(tmp_path: Path) -> None:
    one, many, other = (tmp_path / name for name in ("one", "many", "other"))
    play(one, "--jobs", "1")
    play(many, "--jobs", "5")
    play(other, "--seed", "1")
    assert one.read_bytes() == many.read_bytes()
    assert one.read_bytes() != other.read_bytes()


def test_plan_takes_stages_by_turns() -> None:
    plan = make_plan(["code_engineering=5"], ["code_engineering=hard,easy"], 7)
    assert plan == [
        Demo("code_engineering", "hard", 7),
        Demo("code_engineering", "easy", 7),
        Demo("code_engineering", "hard", 8),
        Demo("code_engineering", "easy", 8),
        Demo("code_engineering", "hard", 9),
    ]


@pytest.mark.parametrize(
    ("counts", "stages", "parts"),
    [
        (["code_engineering"], [], ["--domain", "'code_engineering'", "NAME=COUNT"]),
        (["code_engineering=many"], [], ["'many'", "whole number"]),
        (["code_engineering=0"], [], ["'0'", "whole number"]),
        (["code_engineering=1", "code_engineering=2"], [], ["twice"]),
        (["cooking=1"], [], ["'cooking'", "code_engineering"]),
        (["code_engineering=1"], ["code_engineering=hrad"], ["'hrad'", "easy", "'hard'?"]),
        (["code_engineering=1"], ["knowledge_research=two_hop"], ["knowledge_research", "--dom"]),
    ],
)
def test_wrong_options_say_what_is_accepted(
    counts: list[str], stages: list[str], parts: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        make_plan(counts, stages, 0)
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.hint


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = CliRunner().invoke(cli, ["demos", *OPTIONS, "--out", str(tmp_path / "file" / "x.jsonl")])
    assert isinstance(run.exception, UserError)
    assert "cannot write" in str(run.exception)


def test_an_output_that_is_a_folder_is_refused_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(*arguments: object) -> None:
        raise AssertionError("an episode was played")

    monkeypatch.setattr("limosa.cli.demos.play_demo", play)
    run = CliRunner().invoke(cli, ["demos", *OPTIONS, "--out", str(tmp_path)])
    assert isinstance(run.exception, UserError)
    assert "--out" in str(run.exception) and "is a folder" in str(run.exception)
    assert list(tmp_path.iterdir()) == []


async def test_broken_infrastructure_is_no_demonstration() -> None:
    class Dead(FakeProvider):
        async def create(self, image):
            box = await super().create(image)
            box.is_dead = True
            return box

    with pytest.raises(InfrastructureError, match="3 attempts failed"):
        await play_demo(
            Demo("code_engineering", "easy", 0),
            Recipe("novice", 0, 1),
            Dead({"sandbox-code:v3": "x"}),
        )
