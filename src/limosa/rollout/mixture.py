"""The mixture of domains, steered by what is really trained.

A closed loop on counts: the next group comes from the domain that lags furthest behind its share
of the groups trained or still under way. A group that is dropped (no signal, no valid trajectory)
gives its count back, so its own domain is asked again and the trained mix stays as configured.
Which task of the domain comes next is `curriculum.py`'s affair.
"""

from collections.abc import Mapping


class Mixture:
    """Picks domains by largest deficit; deterministic.

    Units: `ratios` are shares that sum to 1. Ties go to the domain named first.
    """

    def __init__(self, ratios: Mapping[str, float]) -> None:
        self._ratios = {name: ratio for name, ratio in ratios.items() if ratio > 0}
        self._counts = dict.fromkeys(self._ratios, 0)

    @property
    def counts(self) -> dict[str, int]:
        """Groups trained or under way, by domain."""
        return dict(self._counts)

    def take(self) -> str:
        """The domain of the next group, which now counts as under way."""
        total = sum(self._counts.values()) + 1
        name = max(self._ratios, key=lambda n: self._ratios[n] * total - self._counts[n])
        self._counts[name] += 1
        return name

    def give_back(self, name: str) -> None:
        """A group of the domain was dropped: it no longer counts."""
        assert self._counts[name] > 0, f"mixture: {name} has no group to give back"
        self._counts[name] -= 1

    def restore(self, counts: Mapping[str, int]) -> None:
        """Take up the counts of an earlier run; domains not in the ratios are ignored."""
        self._counts.update({n: counts.get(n, 0) for n in self._counts})
