import itertools
import math
import random

import pytest

from limosa.evaluation.statistics import (
    bootstrap_mean_interval,
    estimate_pass_at_k,
    newcombe_interval,
    wilson_interval,
)

Z = 1.959963984540054


def solve_score_equation(successes, n, side):
    """Slow reference: bisect for the p whose normal score test just rejects the observed rate."""
    rate = successes / n
    inside, outside = rate, 0.0 if side < 0 else 1.0
    for _ in range(200):
        p = (inside + outside) / 2
        if abs(rate - p) <= Z * math.sqrt(p * (1 - p) / n):
            inside = p
        else:
            outside = p
    return inside


@pytest.mark.parametrize(("successes", "n"), [(1, 2), (3, 10), (29, 64), (63, 64), (1, 192)])
def test_wilson_agrees_with_the_inverted_score_test(successes, n):
    low, high = wilson_interval(successes, n)
    assert low == pytest.approx(solve_score_equation(successes, n, -1), abs=1e-9)
    assert high == pytest.approx(solve_score_equation(successes, n, 1), abs=1e-9)


def test_wilson_at_the_edges():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    low, high = wilson_interval(0, 10)
    assert (low, round(high, 4)) == (0.0, 0.2775)  # Newcombe (1998), table I style: 0/10
    low, high = wilson_interval(10, 10)
    assert (round(low, 4), high) == (0.7225, 1.0)
    assert wilson_interval(5, 10, confidence=0.5)[0] > wilson_interval(5, 10)[0]


@pytest.mark.parametrize("counts", [(3, 2), (-1, 4)])
def test_impossible_counts_are_our_own_mistake(counts):
    with pytest.raises(AssertionError):
        wilson_interval(*counts)


@pytest.mark.parametrize(
    ("after", "before", "expected"),
    [  # Newcombe (1998), Statistics in Medicine 17, 873-890, table II, method 10
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((10, 10), (0, 20), (0.6791, 1.0000)),
        ((10, 10), (0, 10), (0.6075, 1.0000)),
    ],
)
def test_newcombe_gives_the_published_examples(after, before, expected):
    assert newcombe_interval(before, after) == pytest.approx(expected, abs=5e-5)


def test_newcombe_is_antisymmetric_and_knows_nothing_without_trials():
    low, high = newcombe_interval((20, 64), (45, 64))
    assert newcombe_interval((45, 64), (20, 64)) == pytest.approx((-high, -low))
    assert newcombe_interval((0, 0), (45, 64)) == (-1.0, 1.0)


@pytest.mark.parametrize(("successes", "n", "k"), [(0, 4, 2), (1, 5, 3), (3, 6, 2), (5, 6, 3)])
def test_pass_at_k_is_the_share_of_subsets_with_a_success(successes, n, k):
    trials = [index < successes for index in range(n)]
    subsets = list(itertools.combinations(trials, k))
    share = sum(any(subset) for subset in subsets) / len(subsets)
    assert estimate_pass_at_k(successes, n, k) == pytest.approx(share, abs=1e-12)


def test_bootstrap_agrees_with_a_slow_resampling():
    rng = random.Random(5)
    values = [rng.random() ** 2 for _ in range(40)]
    means = sorted(sum(rng.choices(values, k=40)) / 40 for _ in range(4000))
    low, high = bootstrap_mean_interval(values, seed=1, resamples=4000)
    assert low == pytest.approx(means[100], abs=0.01)
    assert high == pytest.approx(means[3900], abs=0.01)
    assert bootstrap_mean_interval(values, seed=1, resamples=4000) == (low, high)
