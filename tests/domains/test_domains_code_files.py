from random import Random

import pytest

from limosa.base.messages import ToolResult
from limosa.domains.code_files import (
    CHORES,
    RECOVER,
    SLIPS,
    list_kinds,
    make_chore,
    play_chore,
    play_chore_badly,
)

STAGES = ("easy", "medium")
SEEDS = range(400)


def make(stage: str, seed: int):
    return make_chore(stage, Random(f"{stage}/{seed}"))


def commands_of(script, content: str = "ok", is_error: bool = False) -> list[str]:
    """Play a script against one constant result."""
    commands = []
    message = next(script)
    while message.tool_calls:
        commands.append(message.tool_calls[0].arguments["command"])
        message = script.send([ToolResult(content, is_error)])
    return [*commands, message.content]


@pytest.mark.parametrize("stage", STAGES)
def test_every_kind_appears_and_doing_nothing_is_never_right(stage: str):
    kinds = set()
    for seed in SEEDS:
        _, data = make(stage, seed)
        kinds.add(data["kind"])
        assert data["files"] != data["expected"]
    assert kinds == set(list_kinds(stage))


@pytest.mark.parametrize("stage", STAGES)
def test_tasks_are_many_short_and_name_their_words_in_quotes(stage: str):
    tasks = [make(stage, seed) for seed in SEEDS]
    assert len({str(task) for task in tasks}) == len(tasks)
    made = [text for text, _ in tasks]
    assert len(set(made)) > 0.95 * len(made)
    assert max(len(text.split()) for text in made) <= 30
    assert all('"' in text and "{" not in text for text in made)


def test_tables_agree():
    assert set(SLIPS) == set(CHORES)
    assert all(rate <= 0.75 for rate in SLIPS.values())
    assert 0.25 <= RECOVER <= 0.75
    assert all(chore.right != chore.slip for chore in CHORES.values())


def test_the_reference_uses_what_it_found():
    data = {"kind": "set", "names": {"p": "amber", "k": "color", "w": "birch"}}
    script = play_chore(data)
    next(script)
    message = script.send([ToolResult("shape oval\ncolor cedar\n")])
    assert message.tool_calls[0].arguments["command"] == "sed -i 's/cedar/birch/' amber.txt"


def test_a_mistake_that_shows_is_mended_at_times():
    data = {"kind": "make_in", "names": {"p": "amber", "k": "x", "w": "birch", "d": "attic"}}
    bad, good = (
        "echo birch > attic/amber.txt",
        "mkdir attic && echo birch > attic/amber.txt",
    )
    runs = [commands_of(play_chore_badly(data, Random(s)), "no", True) for s in range(300)]
    assert {tuple(run) for run in runs} == {
        (good, "done"),
        (bad, "failed"),
        (bad, good, "done"),
    }
    share = sum(run == [bad, "failed"] for run in runs) / len(runs)
    assert abs(share - SLIPS["make_in"] * (1 - RECOVER)) < 0.1


def test_a_mistake_that_does_not_show_is_not_mended():
    data = {"kind": "append", "names": {"p": "amber", "k": "x", "w": "birch"}}
    runs = [commands_of(play_chore_badly(data, Random(s))) for s in range(100)]
    assert {len(run) for run in runs} == {2}
