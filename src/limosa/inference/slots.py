"""The slots of the cache: who holds each, which tokens it knows, how many are computed. No torch.

Neighbours: `scheduler.py` asks it for slots; `cache.py` holds the tensors behind the numbers. Left
out: paging; a slot is one contiguous stretch.

Legend: S slots, T positions.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from limosa.inference.batch import Ints


class SlotTable:
    """Slots with their token ids. A slot is free, idle (a conversation's) or busy (a request's).

    Positions [0, computed) hold exact keys and values of `ids` under the current weights, also in
    free slots: they serve as donors until they are taken.
    """

    def __init__(self, max_slots: int, max_length: int) -> None:
        self.max_slots = max_slots
        self.max_length = max_length
        self.ids_ST: Ints = np.zeros((0, 0), dtype=np.int64)
        self.known_S: Ints = np.zeros(0, dtype=np.int64)
        self.computed_S: Ints = np.zeros(0, dtype=np.int64)
        self._slot_of: dict[str, int] = {}  # idle and busy; idle ones in order of last use
        self._busy: set[int] = set()
        self._free: set[int] = set()
        self.evictions = 0

    @property
    def slots(self) -> int:
        """Slots that exist so far."""
        return len(self.known_S)

    @property
    def length(self) -> int:
        """Positions that a slot has so far."""
        return int(self.ids_ST.shape[1])

    def take(self, conversation: str, ids_T: Ints) -> int | None:
        """A slot for a conversation's next request, now busy; None where all are busy.

        Its own slot if it has one, else a free one, else that of the conversation idle longest.
        """
        slot = self._slot_of.get(conversation)
        if slot is not None:
            assert slot not in self._busy, f"conversation {conversation!r} is busy already"
        elif (slot := self._find_free(ids_T)) is None:
            return None
        self._free.discard(slot)
        self._slot_of[conversation] = slot
        self._busy.add(slot)
        self._set_ids(slot, ids_T)
        return slot

    def extend(self, slot: int, token_id: int) -> None:
        """Append a sampled token to what a busy slot knows."""
        known = int(self.known_S[slot])
        self._reserve(known + 1)
        self.ids_ST[slot, known] = token_id
        self.known_S[slot] = known + 1

    def retire(self, conversation: str, *, keep: bool) -> None:
        """The request is over: the conversation idles with its slot, or gives it back."""
        slot = self._slot_of.pop(conversation)
        self._busy.remove(slot)
        if keep:
            self._slot_of[conversation] = slot  # last in order: used most recently
        else:
            self._free.add(slot)

    def release(self, conversation: str) -> None:
        """Free an idle conversation's slot; unknown and busy ones are left as they are."""
        slot = self._slot_of.get(conversation)
        if slot is not None and slot not in self._busy:
            del self._slot_of[conversation]
            self._free.add(slot)

    def invalidate(self) -> None:
        """Nothing that was computed holds any longer; the ids stay."""
        self.computed_S[:] = 0

    def match(self, ids_T: Ints) -> Ints:
        """How many leading ids each slot shares with `ids_T`, computed or not; (S,)."""
        width = min(len(ids_T), self.length)
        if width == 0:
            return np.zeros(self.slots, dtype=np.int64)
        differs_ST = self.ids_ST[:, :width] != ids_T[:width]
        first_S = np.where(differs_ST.any(1), differs_ST.argmax(1), width)
        shared_S: Ints = np.minimum(first_S, self.known_S)
        return shared_S

    def check_integrity(self, busy: Mapping[str, int]) -> None:
        """Assert that every slot is in one state and that `busy` are exactly the busy ones."""
        held = list(self._slot_of.values())
        assert len(set(held)) == len(held), f"a slot is held twice: {self._slot_of}"
        assert set(held) | self._free == set(range(self.slots)), "a slot has leaked"
        assert not set(held) & self._free, "a free slot is held"
        assert dict(busy) == {c: s for c, s in self._slot_of.items() if s in self._busy}
        assert len(self._busy) == len(busy), "a slot is busy for nobody"
        assert self.slots <= self.max_slots and self.length <= self.max_length
        assert (self.computed_S <= self.known_S).all(), "computed more than is known"

    @property
    def idle_conversations(self) -> list[str]:
        """Conversations that hold a slot between turns, the longest idle first."""
        return [c for c, s in self._slot_of.items() if s not in self._busy]

    def _find_free(self, ids_T: Ints) -> int | None:
        if self._free:
            # The free slot that shares most needs least copying; equal ones stay compact.
            shared_S = np.minimum(self.match(ids_T), self.computed_S)
            return min(self._free, key=lambda slot: (-int(shared_S[slot]), slot))
        if self.slots < self.max_slots:
            self._add_slots()
            return min(self._free)
        for conversation in self.idle_conversations[:1]:
            slot = self._slot_of.pop(conversation)
            self.evictions += 1
            return slot
        return None

    def _set_ids(self, slot: int, ids_T: Ints) -> None:
        self._reserve(len(ids_T))
        shared = int(self.match(ids_T)[slot])
        # The last token is always computed anew: its hidden state gives the next one.
        self.computed_S[slot] = min(shared, int(self.computed_S[slot]), len(ids_T) - 1)
        self.ids_ST[slot, : len(ids_T)] = ids_T
        self.known_S[slot] = len(ids_T)

    def _add_slots(self) -> None:
        more = min(max(self.slots, 4), self.max_slots - self.slots)
        self._free.update(range(self.slots, self.slots + more))
        self.ids_ST = np.pad(self.ids_ST, ((0, more), (0, 0)))
        self.known_S = np.pad(self.known_S, (0, more))
        self.computed_S = np.pad(self.computed_S, (0, more))

    def _reserve(self, length: int) -> None:
        if length > self.length:
            assert length <= self.max_length, f"{length} tokens in slots of {self.max_length}"
            target = min(max(length, 2 * self.length, 128), self.max_length)
            self.ids_ST = np.pad(self.ids_ST, ((0, 0), (0, target - self.length)))


def to_ids(values: npt.ArrayLike) -> Ints:
    """Token ids as the array that this folder works on."""
    return np.asarray(values, dtype=np.int64)
