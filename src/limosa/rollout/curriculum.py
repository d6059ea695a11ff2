"""Which stage of a domain comes next, and which task of that stage.

Stages open in the order of the run file. A stage opens when the one before it has been mastered,
or when its time has come: half of the run is shared out evenly over the openings, so a policy that
never masters an early stage still meets the last. Open stages take turns. Task seeds only count
upwards, so no training task comes twice. Adaptive difficulty is left to a later room.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from limosa.base.task import make_seed

MASTERED_RATIO = 0.6
WINDOW = 64


class Curriculum:
    """Stages and task seeds of one domain.

    Units: progress is the share of the run's updates that are done, 0 to 1.
    """

    def __init__(self, stages: Sequence[str], *, first_index: int = 0) -> None:
        assert stages, "a curriculum needs a stage"
        self.stages = tuple(stages)
        self._open = 1
        self._turn = 0
        self._index = first_index
        self._recent: dict[str, deque[bool]] = {s: deque(maxlen=WINDOW) for s in stages}

    @property
    def open_stages(self) -> tuple[str, ...]:
        """The stages that tasks are drawn from now."""
        return self.stages[: self._open]

    def take(self, progress: float) -> tuple[str, int]:
        """The stage and the seed of the next task."""
        self._open_stages(progress)
        stage = self.stages[self._turn % self._open]
        self._turn += 1
        self._index += 1
        return stage, make_seed("train", self._index - 1)

    def record(self, stage: str, solved: bool) -> None:
        """A valid trajectory of the stage ended."""
        self._recent[stage].append(solved)

    def to_state(self) -> dict[str, Any]:
        """Everything a resumed run needs, as JSON values."""
        recent = {stage: [int(s) for s in window] for stage, window in self._recent.items()}
        return {"open": self._open, "turn": self._turn, "index": self._index, "recent": recent}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state of an earlier run."""
        self._open, self._turn, self._index = state["open"], state["turn"], state["index"]
        for stage, window in state["recent"].items():
            self._recent[stage].extend(bool(s) for s in window)

    def _open_stages(self, progress: float) -> None:
        while self._open < len(self.stages):
            due = 0.5 * self._open / len(self.stages)
            if progress < due and not self._has_mastered(self.stages[self._open - 1]):
                return
            self._open += 1

    def _has_mastered(self, stage: str) -> bool:
        window = self._recent[stage]
        return len(window) == WINDOW and sum(window) >= MASTERED_RATIO * WINDOW
