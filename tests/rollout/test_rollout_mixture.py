"""Mixture: the trained mix follows the ratios, also when groups are dropped unevenly."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from limosa.rollout.mixture import Mixture


@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=12), st.integers(0, 1000))
def test_trained_counts_stay_within_one_group_of_the_ratios(raw: list[float], seed: int) -> None:
    ratios = {f"d{i}": r / sum(raw) for i, r in enumerate(raw)}
    drop = {name: random.Random(f"{seed}/{name}").random() * 0.8 for name in ratios}
    rng = random.Random(seed)
    mixture, trained = Mixture(ratios), Counter[str]()
    while trained.total() < 200:
        name = mixture.take()
        if rng.random() < drop[name]:
            mixture.give_back(name)
        else:
            trained[name] += 1
    for name, ratio in ratios.items():
        assert abs(trained[name] - 200 * ratio) <= len(ratios)


def test_a_ratio_of_zero_is_never_drawn() -> None:
    mixture = Mixture({"a": 1.0, "b": 0.0})
    assert {mixture.take() for _ in range(20)} == {"a"}


def test_restored_counts_go_on_where_they_were() -> None:
    mixture = Mixture({"a": 0.5, "b": 0.5})
    mixture.restore({"a": 3, "gone": 9})
    assert [mixture.take() for _ in range(3)] == ["b", "b", "b"]
