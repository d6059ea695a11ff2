"""Bounded staleness by admission: a group is let in only when it can still be trained in time.

Nothing that was sampled is thrown away for its age. Two rules hold the bound (AReaL, section 5.1,
bounds the number of samples; the second rule is ours and makes the bound strict):
1. at most `(max_staleness + 1) * groups_per_step` groups are under way or waiting at once;
2. an update never overtakes a group that it would make too old: it waits for that group and takes
   it along, even where this makes the batch larger.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Ticket:
    """A group under way. `version` is the policy version when it was let in."""

    number: int
    version: int


class Admission:
    """Decides who may start and who must be waited for.

    Units: `max_staleness` in policy versions: a group let in at version v is trained in the update
    that starts from version v + max_staleness at the latest.
    """

    def __init__(self, *, max_staleness: int, groups_per_step: int, version: int = 0) -> None:
        self._max_staleness = max_staleness
        self._groups_per_step = groups_per_step
        self._version = version
        self._numbers = 0
        self._live: dict[int, Ticket] = {}
        self._training: dict[int, Ticket] = {}

    @property
    def version(self) -> int:
        """The learner's policy version."""
        return self._version

    @property
    def live_groups(self) -> int:
        """Groups under way, waiting, or in the update that is running."""
        return len(self._live) + len(self._training)

    def may_start(self) -> bool:
        """True while rule 1 leaves room."""
        return self.live_groups < (self._max_staleness + 1) * self._groups_per_step

    def start(self) -> Ticket:
        """Let a group in."""
        assert self.may_start(), "admission: no room; ask may_start first"
        ticket = Ticket(self._numbers, self._version)
        self._numbers += 1
        self._live[ticket.number] = ticket
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """The group will not be trained: its room is free at once."""
        del self._live[ticket.number]

    def train(self, ticket: Ticket) -> None:
        """The group is in the update that runs now: its room is free when the update is done.

        Freed any earlier, a newcomer would start from the old version and be one update too old.
        """
        self._training[ticket.number] = self._live.pop(ticket.number)

    def set_version(self, version: int) -> None:
        """The learner has made an update."""
        assert version >= self._version, f"version went back from {self._version} to {version}"
        self._version = version
        self._training.clear()

    def select(self, ready: Sequence[Ticket]) -> list[Ticket] | None:
        """The groups of the next update, oldest first; None while it must wait."""
        due = [t for t in self._live.values() if self._version - t.version >= self._max_staleness]
        known = {t.number for t in ready}
        if any(t.number not in known for t in due):
            return None
        count = max(len(due), self._groups_per_step)
        chosen = sorted(ready, key=lambda t: t.number)[:count]
        missing = {t.number for t in due} - {t.number for t in chosen}
        assert not missing, f"admission: due groups {missing} were not chosen"
        return chosen if len(chosen) >= self._groups_per_step else None
