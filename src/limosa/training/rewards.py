"""Reward normalisation of each domain, by name, over running statistics. No torch.

Runs before the group baseline, so that domains whose rewards differ in scale weigh alike. The
statistics are part of a checkpoint. With the advantage `grpo` the scale cancels out again; it
matters with `mean` and `leave_one_out`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class RunningStats:
    """Count, mean, sum of squared deviations and extremes of all rewards seen so far."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, value: float) -> "RunningStats":
        """The statistics with one more value. Source: Welford (1962), Technometrics 4(3)."""
        count = self.count + 1
        delta = value - self.mean
        mean = self.mean + delta / count
        squares = self.squares + delta * (value - mean)
        return RunningStats(count, mean, squares, min(self.low, value), max(self.high, value))

    @property
    def std(self) -> float:
        """Population standard deviation; 0 before the second value."""
        return math.sqrt(self.squares / self.count) if self.count > 1 else 0.0


def keep(value: float, stats: RunningStats) -> float:
    """The reward as it is."""
    return value


def zscore(value: float, stats: RunningStats) -> float:
    """Standard deviations above the domain's running mean; 0 while all rewards are equal."""
    return (value - stats.mean) / stats.std if stats.std > 0 else 0.0


def minmax(value: float, stats: RunningStats) -> float:
    """Where the reward lies between the lowest and the highest seen; 0 while they are equal."""
    width = stats.high - stats.low
    return (value - stats.low) / width if width > 0 else 0.0


NORMALIZATIONS: Mapping[str, Callable[[float, RunningStats], float]] = MappingProxyType(
    {"none": keep, "zscore": zscore, "minmax": minmax}
)


class RewardNormalizer:
    """Normalises the rewards of every domain by that domain's rule and its own statistics."""

    def __init__(self, rules: Mapping[str, str]) -> None:
        self._rules = {domain: NORMALIZATIONS[name] for domain, name in rules.items()}
        self._stats = {domain: RunningStats() for domain in rules}

    def observe(self, domain: str, rewards: Sequence[float]) -> None:
        """Take rewards into the domain's statistics."""
        for reward in rewards:
            self._stats[domain] = self._stats[domain].add(reward)

    def normalize(self, domain: str, rewards: Sequence[float]) -> list[float]:
        """The rewards under the domain's rule and the statistics so far."""
        return [self._rules[domain](reward, self._stats[domain]) for reward in rewards]

    def to_json(self) -> dict[str, Any]:
        """The statistics as plain JSON values; the extremes of an unseen domain are left out."""
        return {name: asdict(stats) for name, stats in self._stats.items() if stats.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from statistics that `to_json` wrote; domains that are gone are ignored."""
        for name in self._stats:
            self._stats[name] = RunningStats(**state[name]) if name in state else RunningStats()
