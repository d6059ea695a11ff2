import subprocess
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from limosa.domains.code_repair import (
    FUNCTIONS,
    SHAPES,
    make_cases,
    make_project,
    solve,
    to_fix,
    to_source,
)

SEEDS = range(900)


@pytest.fixture(scope="module")
def projects():
    return [make_project(Random(f"hard/{seed}")) for seed in SEEDS]


@pytest.fixture(scope="module")
def bugs(projects) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    """One broken part of every bug of every function that occurs."""
    found = {}
    for _, data in projects:
        for part in data["parts"]:
            if part["wrong"]:
                key = (part["family"], *to_template(part))
                found[key] = part
    return found


def to_template(part) -> tuple[str, str]:
    for right, wrong in FUNCTIONS[part["family"]].bugs:
        if (right.format(**part["names"]), wrong.format(**part["names"])) == (
            part["right"],
            part["wrong"],
        ):
            return right, wrong
    raise AssertionError(part)


def run_source(part, given):
    """The value of our own generated text; a failure counts as a value that is never right."""
    space: dict[str, Any] = {}
    exec(to_source(part), space)
    try:
        return space[part["function"]](*given)
    except Exception as error:
        return error


def test_every_bug_of_every_function_occurs(bugs):
    known = {(name, *bug) for name, function in FUNCTIONS.items() for bug in function.bugs}
    assert set(bugs) == known


def test_every_bug_shows_in_the_visible_and_in_the_hidden_cases(bugs):
    for part in bugs.values():
        for seed in range(20):
            given = FUNCTIONS[part["family"]].telling(Random(seed))
            assert run_source(part, given) != solve(part, given), part
            cases = make_cases([part], seed)
            assert any(run_source(part, call[2]) != want for call, want in cases), part


def test_sound_text_gives_what_the_judge_works_out(bugs):
    for part in bugs.values():
        sound = {**part, "wrong": ""}
        for call, want in make_cases([sound], 7):
            got = run_source(sound, call[2])
            assert (got, type(got)) == (want, type(want))


def test_sed_restores_the_sound_text(bugs):
    for part in bugs.values():
        command = to_fix("-", part["wrong"], part["right"]).replace("-i ", "")
        argv = ["bash", "-c", command.removesuffix(" -")]
        done = subprocess.run(argv, input=to_source(part).encode(), capture_output=True, check=True)
        assert done.stdout.decode() == to_source({**part, "wrong": ""})


def test_a_habit_is_a_wrong_fragment_that_sed_can_write(bugs):
    with_habit = [part for part in bugs.values() if part["habit"]]
    assert len(with_habit) > len(bugs) / 2
    for part in with_habit:
        assert part["habit"] not in (part["right"], part["wrong"])
        assert not set(part["habit"]) & set("/&\\")


def test_projects_are_small_varied_and_short_to_tell(projects):
    assert len({str(project) for project in projects}) == len(projects)
    texts = [text for text, _ in projects]
    assert len(set(texts)) > 0.8 * len(texts)
    assert max(len(text.split()) for text in texts) <= 30
    shapes = {tuple(bool(part["wrong"]) for part in data["parts"]) for _, data in projects}
    assert shapes == set(SHAPES)
    for _, data in projects:
        for part in data["parts"]:
            assert 2 <= len(data["files"][f"{part['module']}.py"].splitlines()) <= 5


def test_hidden_cases_are_more_than_the_visible_one_and_the_same_every_time(projects):
    for _, data in projects[:50]:
        cases = make_cases(data["parts"], 3)
        assert cases == make_cases(data["parts"], 3)
        assert cases != make_cases(data["parts"], 4) or any(
            part["family"] == "constant" for part in data["parts"]
        )
        assert len(cases) >= 8 * len(data["parts"])
