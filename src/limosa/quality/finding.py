"""What the gate found out about tasks and domains: plain values, serialisable for the report.

`quality/gate.py` makes them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """`INFRASTRUCTURE`: the check itself failed, so that the task is neither proven nor refuted."""

    SOUND = "sound"
    UNSOUND = "unsound"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True, slots=True)
class TaskFinding:
    """The proof of one task. A reward is None where its trial gave none. Units: seconds."""

    domain: str
    stage: str
    seed: int
    task_hash: str
    status: Status
    reference_reward: float | None
    noop_reward: float | None
    reason: str
    environments: int
    wall_s: float

    @property
    def is_sound(self) -> bool:
        """True where both trials gave what they must."""
        return self.status is Status.SOUND


@dataclass(frozen=True, slots=True)
class DomainFinding:
    """The proofs of a domain's sample of tasks."""

    domain: str
    tasks: tuple[TaskFinding, ...]

    @property
    def rejected(self) -> tuple[TaskFinding, ...]:
        """The tasks to leave out, each with its evidence."""
        return tuple(t for t in self.tasks if not t.is_sound)

    @property
    def unsound_ratio(self) -> float:
        """The unsound among the tasks that could be checked; 0 where none could."""
        unsound, sound = self.count(Status.UNSOUND), self.count(Status.SOUND)
        return unsound / (unsound + sound) if unsound + sound else 0.0

    def count(self, status: Status) -> int:
        """How many tasks have a status."""
        return sum(t.status is status for t in self.tasks)

    def to_json(self) -> dict[str, Any]:
        """The finding as plain JSON values, the rejected tasks in full."""
        return {
            "domain": self.domain,
            "checked": len(self.tasks),
            **{status.value: self.count(status) for status in Status},
            "unsound_ratio": self.unsound_ratio,
            "environments": sum(t.environments for t in self.tasks),
            "wall_s": sum(t.wall_s for t in self.tasks),
            "stages": _count_stages(self.tasks),
            "rejected": [asdict(t) for t in self.rejected],
        }


def _count_stages(tasks: Sequence[TaskFinding]) -> dict[str, dict[str, int]]:
    stages = dict.fromkeys(t.stage for t in tasks)
    return {
        stage: {
            status.value: sum(t.stage == stage and t.status is status for t in tasks)
            for status in Status
        }
        for stage in stages
    }
