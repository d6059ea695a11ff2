import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.base.trajectory import Group, Outcome, ToolEvent, Trajectory


@st.composite
def make_trajectories(draw: st.DrawFn) -> Trajectory:
    length = draw(st.integers(0, 12))

    def draw_row(values: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(values, min_size=length, max_size=length)))

    events = st.builds(
        ToolEvent,
        turn=st.integers(1, 9),
        tool=st.text(),
        arguments=st.dictionaries(st.text(), st.text() | st.integers()),
        result=st.text(),
        is_error=st.booleans(),
        wall_s=st.floats(0, 10),
    )
    return Trajectory(
        id=draw(st.text()),
        group_id="g",
        domain="d",
        stage="s",
        task_hash="h",
        task_seed=draw(st.integers(0, 3_000_000_000)),
        environment_version="v",
        token_ids=draw_row(st.integers(0, 2047)),
        sampled=draw_row(st.integers(0, 1)),
        logprobs=draw_row(st.floats(-30, 0)),
        versions=draw_row(st.integers(-1, 50)),
        prompt_tokens=draw(st.integers(0, length)),
        temperature=draw(st.floats(0, 2)),
        outcome=draw(st.sampled_from(Outcome)),
        reward=draw(st.floats(0, 1)),
        components=draw(st.dictionaries(st.text(), st.floats(0, 1))),
        events=tuple(draw(st.lists(events, max_size=2))),
        turns=draw(st.integers(0, 9)),
        wall_s=draw(st.floats(0, 100)),
        error=draw(st.text()),
    )


PLAIN = Trajectory(
    id="t",
    group_id="g",
    domain="d",
    stage="s",
    task_hash="h",
    task_seed=1,
    environment_version="v",
    token_ids=(5, 6, 7, 8),
    sampled=(0, 1, 0, 1),
    logprobs=(0.0, -0.5, 0.0, -0.25),
    versions=(-1, 4, -1, 3),
    prompt_tokens=1,
    temperature=1.0,
    outcome=Outcome.SOLVED,
    reward=1.0,
)


@given(make_trajectories())
def test_a_trajectory_survives_json(trajectory: Trajectory) -> None:
    again = Trajectory.from_json(json.loads(json.dumps(trajectory.to_json())))
    assert again == trajectory
    assert isinstance(again.outcome, Outcome)


def test_ragged_arrays_are_our_bug() -> None:
    for name in ("token_ids", "sampled", "logprobs", "versions"):
        with pytest.raises(AssertionError, match="ragged"):
            replace(PLAIN, **{name: getattr(PLAIN, name)[:-1]})


def test_oldest_version_counts_sampled_tokens_only() -> None:
    assert PLAIN.oldest_version == 3
    assert replace(PLAIN, sampled=(0, 1, 0, 0)).oldest_version == 4
    assert replace(PLAIN, sampled=(0, 0, 0, 0)).oldest_version == -1


@pytest.mark.parametrize("outcome", Outcome)
def test_only_invalid_trajectories_stay_out_of_groups(outcome: Outcome) -> None:
    trajectory = replace(PLAIN, outcome=outcome)
    assert trajectory.is_valid == (outcome is not Outcome.INVALID)
    if trajectory.is_valid:
        assert Group("g", "d", "s", (PLAIN, trajectory)).trajectories[1] is trajectory
    else:
        with pytest.raises(AssertionError, match="invalid"):
            Group("g", "d", "s", (PLAIN, trajectory))
