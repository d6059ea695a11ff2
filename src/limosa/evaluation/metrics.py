"""What a set of trajectories amounts to: success with its interval, and how it was reached.

Invalid trajectories are counted and enter no other number. Neighbours: `evaluation/run.py` makes
the trajectories, `evaluation/report.py` pairs two evaluations and compares their summaries.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from limosa.base.trajectory import Outcome, Trajectory
from limosa.evaluation.statistics import Interval, wilson_interval


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers over the `n` valid trajectories. Means and ratios are None where they have no base.

    Units: `mean_output_tokens` counts sampled tokens an episode; `mean_wall_s` seconds.
    """

    n: int
    solved: int
    success: float | None
    ci: Interval
    outcomes: Mapping[str, int]
    invalid: int
    mean_reward: float | None
    mean_turns: float | None
    mean_tool_calls: float | None
    tool_error_ratio: float | None
    mean_output_tokens: float | None
    mean_wall_s: float | None

    def to_json(self) -> dict[str, Any]:
        """The summary as plain JSON values."""
        return {**asdict(self), "ci": list(self.ci)}


def summarise(trajectories: Iterable[Trajectory]) -> Summary:
    """The summary of trajectories of any domains."""
    everything = list(trajectories)
    valid = [t for t in everything if t.is_valid]
    n = len(valid)
    solved = sum(t.outcome is Outcome.SOLVED for t in valid)
    events = [event for t in valid for event in t.events]
    return Summary(
        n=n,
        solved=solved,
        success=_divide(solved, n),
        ci=wilson_interval(solved, n),
        outcomes=count_outcomes(t.outcome for t in everything),
        invalid=len(everything) - n,
        mean_reward=_divide(sum(t.reward for t in valid), n),
        mean_turns=_divide(sum(t.turns for t in valid), n),
        mean_tool_calls=_divide(len(events), n),
        tool_error_ratio=_divide(sum(e.is_error for e in events), len(events)),
        mean_output_tokens=_divide(sum(sum(t.sampled) for t in valid), n),
        mean_wall_s=_divide(sum(t.wall_s for t in valid), n),
    )


def count_outcomes(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How often each outcome came, zeros included."""
    counts = Counter(outcomes)
    return {outcome.value: counts[outcome] for outcome in Outcome}


def _divide(total: float, count: int) -> float | None:
    return total / count if count else None
