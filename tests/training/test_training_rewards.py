import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.training.advantages import ADVANTAGES, grpo, leave_one_out, mean
from limosa.training.rewards import NORMALIZATIONS, RewardNormalizer

REWARDS = [0.0, 1.0, 0.25, 1.0]


def test_advantages_match_the_definitions():
    average, std = statistics.fmean(REWARDS), statistics.stdev(REWARDS)
    assert grpo(REWARDS) == pytest.approx([(r - average) / std for r in REWARDS], abs=1e-5)
    assert mean(REWARDS) == pytest.approx([r - average for r in REWARDS])
    others = [statistics.fmean(REWARDS[:i] + REWARDS[i + 1 :]) for i in range(4)]
    expected = [r - o for r, o in zip(REWARDS, others, strict=True)]
    assert leave_one_out(REWARDS) == pytest.approx(expected)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_a_group_of_equal_rewards_gets_exact_zeros(name):
    assert ADVANTAGES[name]([0.1] * 7) == [0.0] * 7


@pytest.mark.parametrize("name", ADVANTAGES)
@given(rewards=st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_advantages_sum_to_zero(name, rewards):
    assert sum(ADVANTAGES[name](rewards)) == pytest.approx(0, abs=1e-6)


@given(values=st.lists(st.floats(-5, 5), min_size=2, max_size=30))
def test_zscore_uses_the_domain_alone(values):
    normalizer = RewardNormalizer({"code": "zscore", "maze": "none"})
    normalizer.observe("maze", [100.0] * 3)
    normalizer.observe("code", values[:1])
    normalizer.observe("code", values[1:])
    std = statistics.pstdev(values)
    if std < 1e-6:
        return
    expected = [(v - statistics.fmean(values)) / std for v in values]
    assert normalizer.normalize("code", values) == pytest.approx(expected, abs=1e-5)
    assert normalizer.normalize("maze", [100.0]) == [100.0]


def test_equal_rewards_normalise_to_finite_numbers():
    for name in NORMALIZATIONS:
        normalizer = RewardNormalizer({"code": name})
        normalizer.observe("code", [0.5])
        assert abs(normalizer.normalize("code", [0.5])[0]) <= 0.5


def test_minmax_and_the_state_survive_json():
    normalizer = RewardNormalizer({"code": "minmax", "idle": "zscore"})
    normalizer.observe("code", [2.0, 4.0])
    again = RewardNormalizer({"code": "minmax", "idle": "zscore"})
    again.restore(json.loads(json.dumps(normalizer.to_json())))
    assert again.normalize("code", [3.0]) == [0.5]
    again.observe("idle", [1.0])
    assert again.normalize("idle", [1.0]) == [0.0]
