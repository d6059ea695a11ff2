"""Intervals and estimators for success rates; pure functions of counts.

`evaluation/metrics.py` applies them. Nothing here knows trajectories. Tasks count as independent:
intervals clustered by task wait for several trials a task.

Axes: N values, R resamples.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

Interval = tuple[float, float]


def wilson_interval(successes: int, n: int, *, confidence: float = 0.95) -> Interval:
    """The score interval of a proportion; (0, 1) where there is no trial.

    Source: Wilson (1927), JASA 22(158); the form in Newcombe (1998), Statistics in Medicine 17,
    857-872, method 3 (no continuity correction).
    """
    _check_counts(successes, n)
    if n == 0:
        return (0.0, 1.0)
    z = _to_z(confidence)
    p = successes / n
    centre = 2 * n * p + z * z
    spread = z * math.sqrt(z * z + 4 * n * p * (1 - p))
    scale = 2 * (n + z * z)
    # Rounding must not leave 0 % or 100 % outside their own interval.
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == n else (centre + spread) / scale
    return (low, high)


def newcombe_interval(
    before: tuple[int, int], after: tuple[int, int], *, confidence: float = 0.95
) -> Interval:
    """The interval of `after - before`, each given as (successes, n), from their Wilson intervals.

    It treats the two as independent samples. Ours are the same tasks played twice, whose outcomes
    tend to agree, so that it is, if anything, too wide.
    Source: Newcombe (1998), Statistics in Medicine 17, 873-890, method 10.
    """
    if before[1] == 0 or after[1] == 0:
        return (-1.0, 1.0)
    p_before, p_after = before[0] / before[1], after[0] / after[1]
    low_before, high_before = wilson_interval(*before, confidence=confidence)
    low_after, high_after = wilson_interval(*after, confidence=confidence)
    change = p_after - p_before
    return (
        change - math.hypot(p_after - low_after, high_before - p_before),
        change + math.hypot(high_after - p_after, p_before - low_before),
    )


def estimate_pass_at_k(successes: int, n: int, k: int) -> float:
    """The unbiased estimate that at least one of k trials succeeds, from n trials of one task.

    Source: Chen et al. (2021), arXiv:2107.03374, section 2.1, equation 1.
    """
    _check_counts(successes, n)
    assert 1 <= k <= n, f"pass@{k} from {n} trials"
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def bootstrap_mean_interval(
    values: Sequence[float], *, seed: int, confidence: float = 0.95, resamples: int = 2000
) -> Interval:
    """The percentile interval of a mean.

    Source: Efron and Tibshirani (1993), An Introduction to the Bootstrap, section 13.3.
    """
    assert values, "the mean of no values has no interval"
    values_N = np.asarray(values, dtype=np.float64)
    draws_RN = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    means_R = values_N[draws_RN].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means_R, [tail, 1 - tail])
    return (float(low), float(high))


def _to_z(confidence: float) -> float:
    assert 0 < confidence < 1, f"confidence {confidence}"
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _check_counts(successes: int, n: int) -> None:
    assert 0 <= successes <= n, f"{successes} successes of {n}"
