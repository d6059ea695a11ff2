import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.base.task import SPLIT_OFFSETS, Limits, Task, make_seed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
TASKS = st.builds(
    Task,
    domain=st.text(),
    stage=st.text(),
    seed=st.integers(0, 3_000_000_000),
    instruction=st.text(),
    data=st.dictionaries(st.text(), JSON),
    limits=st.builds(Limits, max_turns=st.integers(1, 200), timeout_s=st.floats(0.1, 1e4)),
)
INDEX = st.integers(0, 999_999_999)


@given(TASKS)
def test_a_task_survives_json_and_keeps_its_hash(task: Task) -> None:
    again = Task.from_json(json.loads(json.dumps(task.to_json())))
    assert again == task
    assert again.content_hash == task.content_hash


def test_the_hash_is_of_content_not_of_order() -> None:
    one = Task("d", "s", 1, "do", {"a": 1, "b": [2, 3]})
    assert one.content_hash == Task("d", "s", 1, "do", {"b": [2, 3], "a": 1}).content_hash
    # Fixed, so that a change of the canonical form does not pass unseen.
    digest = "0af9d3391ac269e32842ddd4638fd39c505478c59b142ec3298ddf425eb09e07"
    assert one.content_hash == digest


@pytest.mark.parametrize(
    "other",
    [
        Task("e", "s", 1, "do", {"a": 1}),
        Task("d", "t", 1, "do", {"a": 1}),
        Task("d", "s", 2, "do", {"a": 1}),
        Task("d", "s", 1, "do.", {"a": 1}),
        Task("d", "s", 1, "do", {"a": 2}),
        Task("d", "s", 1, "do", {"a": 1}, Limits(max_turns=3)),
    ],
)
def test_other_content_other_hash(other: Task) -> None:
    assert other.content_hash != Task("d", "s", 1, "do", {"a": 1}).content_hash


@given(INDEX, INDEX)
def test_seeds_of_splits_never_meet(one: int, two: int) -> None:
    seeds = [make_seed(split, index) for split in SPLIT_OFFSETS for index in (one, two)]
    assert len(set(seeds)) == (3 if one == two else 6)
    assert make_seed("train", one) < make_seed("eval", two) < make_seed("demo", one)


@pytest.mark.parametrize("index", [-1, 1_000_000_000])
def test_an_index_outside_its_split_is_our_bug(index: int) -> None:
    with pytest.raises(AssertionError, match="range"):
        make_seed("train", index)
