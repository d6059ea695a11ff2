"""Group baselines: the rewards of one group to the advantages of its trajectories. No torch.

Invalid trajectories never come here: `base.trajectory.Group` refuses them. A group whose rewards
are all equal teaches nothing and gets exact zeros.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

STD_EPSILON = 1e-6


def grpo(rewards: Sequence[float]) -> list[float]:
    """Rewards less their mean, over their sample standard deviation.

    Source: DeepSeekMath (arXiv 2402.03300), section 4.1.1; the epsilon and the n - 1 of the
    standard deviation are those of verl.
    """
    centred = mean(rewards)
    if not any(centred):
        return centred
    std = math.sqrt(sum(a * a for a in centred) / (len(centred) - 1))
    return [a / (std + STD_EPSILON) for a in centred]


def mean(rewards: Sequence[float]) -> list[float]:
    """Rewards less their mean, so that hard and easy tasks keep their scale.

    Source: Dr. GRPO (arXiv 2503.20783), section 3.2.
    """
    if _are_equal(rewards):
        return [0.0] * len(rewards)
    baseline = math.fsum(rewards) / len(rewards)
    return [r - baseline for r in rewards]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """Each reward less the mean of the others. Source: RLOO (arXiv 2402.14740), section 3.2."""
    n = len(rewards)
    return [a * n / (n - 1) if a else 0.0 for a in mean(rewards)]


def _are_equal(rewards: Sequence[float]) -> bool:
    assert rewards, "a group without trajectories has no baseline"
    return max(rewards) == min(rewards)


ADVANTAGES: Mapping[str, Callable[[Sequence[float]], list[float]]] = MappingProxyType(
    {"grpo": grpo, "mean": mean, "leave_one_out": leave_one_out}
)
