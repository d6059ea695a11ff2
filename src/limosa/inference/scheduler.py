"""Continuous batching: which tokens of which requests the next step computes. No torch, no tasks.

Neighbours: `slots.py` keeps the slots, `engine.py` drives it: submit, then plan, compute, apply in
turns. All of it runs on one thread. Left out: priorities; requests are served in order of arrival.
"""

from asyncio import Future
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from limosa.base.errors import EngineError
from limosa.base.interfaces import GenerateRequest, Generation
from limosa.inference.batch import Batch, Copy, Ints, Prefill
from limosa.inference.sampler import fold_seed
from limosa.inference.slots import SlotTable, to_ids

# A shared prefix must be longer than this for a request to wait until another has computed it.
WORTH_WAITING_TOKENS = 16


@dataclass(eq=False, slots=True)
class Live:
    """A request on its way, with what it has sampled so far."""

    request: GenerateRequest
    future: "Future[Generation]"
    seed: int
    slot: int = -1
    keep: bool = True
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch and whose rows are sampled; `advances` is (slot, tokens) computed by the step."""

    batch: Batch
    sampled: tuple[Live, ...]
    advances: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Counts:
    """Totals since the start. `cached_tokens` of prompts were kept or copied, not computed."""

    generated_tokens: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    copied_tokens: int = 0
    steps: int = 0


class Scheduler:
    """Requests and slots. A step never mixes weights: the engine invalidates between steps."""

    def __init__(self, max_sequences: int, context_window: int, step_tokens: int) -> None:
        self.table = SlotTable(max_sequences, context_window)
        self.context_window = context_window
        self.step_tokens = step_tokens
        self.counts = Counts()
        self._waiting: list[Live] = []
        self._live: dict[str, Live] = {}  # by conversation, in order of admission

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self._waiting or self._live)

    @property
    def live(self) -> int:
        """Requests that hold a slot now."""
        return len(self._live)

    def submit(self, request: GenerateRequest, future: "Future[Generation]") -> Live:
        """Queue a request. Raises: EngineError for one that can never run."""
        tokens = len(request.prompt_ids)
        if not 0 < tokens < self.context_window:
            what = f"a prompt of {tokens} tokens leaves no room in {self.context_window}"
            raise EngineError(f"{what}; expected 1 to {self.context_window - 1}")
        if request.max_new_tokens < 1 or not request.temperature >= 0.0:
            what = f"max_new_tokens {request.max_new_tokens}, temperature {request.temperature}"
            raise EngineError(f"{what}: expected at least 1 and at least 0")
        live = Live(request, future, fold_seed(request.seed))
        self._waiting.append(live)
        return live

    def cancel(self, live: Live) -> None:
        """Forget a request and free its slot; nothing where it is over already."""
        conversation = live.request.conversation
        if live in self._waiting:
            self._waiting.remove(live)
        elif self._live.get(conversation) is live:
            del self._live[conversation]
            self.table.retire(conversation, keep=False)

    def release(self, conversation: str) -> None:
        """Forget a conversation, at the end of its request if one is live."""
        if conversation in self._live:
            self._live[conversation].keep = False
        else:
            self.table.release(conversation)

    def drain(self) -> list[Live]:
        """Give up every request, after a failure; all slots are free and empty."""
        lives = [*self._live.values(), *self._waiting]
        for live in lives:
            self.cancel(live)
        for conversation in self.table.idle_conversations:
            self.table.release(conversation)
        self.table.invalidate()
        return lives

    def plan(self) -> Plan:
        """Admit what fits, and choose the next step's tokens: every decode, prefills in order."""
        self._admit()
        decoding: list[Live] = []
        prefilling: list[Live] = []
        for live in self._live.values():
            pending = self.table.known_S[live.slot] - self.table.computed_S[live.slot]
            (decoding if pending == 1 else prefilling).append(live)
        copies, prefills, complete = self._plan_prefills(prefilling, decoding)
        decoding.sort(key=lambda live: live.slot)
        sampled = (*decoding, *complete)
        slots_M = to_ids([live.slot for live in decoding])
        starts_M = self.table.computed_S[slots_M]
        rows = list(range(len(decoding)))
        row = len(decoding)
        ready = {live.slot for live in complete}
        for prefill in prefills:
            row += len(prefill.ids_P)
            if prefill.slot in ready:
                rows.append(row - 1)
        assert row > 0, "work is left but nothing could be planned"
        batch = Batch(
            copies=tuple(copies),
            decode_slots_M=slots_M,
            decode_starts_M=starts_M,
            decode_ids_M=self.table.ids_ST[slots_M, starts_M],
            prefills=tuple(prefills),
            rows_N=to_ids(rows),
            seeds_N=np.array([live.seed for live in sampled], dtype=np.uint64),
            indices_N=to_ids([len(live.token_ids) for live in sampled]),
            temperatures_N=np.array([live.request.temperature for live in sampled], dtype=float),
            slots=self.table.slots,
            length=int(self.table.known_S.max()),
        )
        advances = [(live.slot, 1) for live in decoding]
        advances += [(prefill.slot, len(prefill.ids_P)) for prefill in prefills]
        return Plan(batch, sampled, tuple(advances))

    def apply(self, plan: Plan, ids: list[int], logprobs: list[float], version: int) -> None:
        """Take in what a step computed and sampled; finish what is finished."""
        for slot, tokens in plan.advances:
            self.table.computed_S[slot] += tokens
        self.counts.steps += 1
        self.counts.prefill_tokens += plan.batch.prefill_tokens
        for live, token_id, logprob in zip(plan.sampled, ids, logprobs, strict=True):
            conversation = live.request.conversation
            if self._live.get(conversation) is not live:
                continue  # cancelled while the step ran
            live.token_ids.append(token_id)
            live.logprobs.append(logprob)
            live.versions.append(version)
            self.table.extend(live.slot, token_id)
            self.counts.generated_tokens += 1
            reason = self._find_end(live, token_id)
            if reason is not None:
                del self._live[conversation]
                self.table.retire(conversation, keep=live.keep)
                _resolve(live, reason)

    def check_integrity(self) -> None:
        """Assert that requests and slots agree. Raises: AssertionError."""
        self.table.check_integrity({c: live.slot for c, live in self._live.items()})
        for conversation, live in self._live.items():
            assert live.request.conversation == conversation
            known = len(live.request.prompt_ids) + len(live.token_ids)
            assert self.table.known_S[live.slot] == known, "a slot lost count of its tokens"
            assert not live.future.done() or live.future.cancelled(), "a finished request is live"

    def _admit(self) -> None:
        waiting: list[Live] = []
        full = False
        for live in self._waiting:
            conversation = live.request.conversation
            slot = None
            if not full and conversation not in self._live:
                slot = self.table.take(conversation, to_ids(live.request.prompt_ids))
                full = slot is None
            if slot is None:
                waiting.append(live)
                continue
            live.slot = slot
            self._live[conversation] = live
            self.counts.cached_tokens += int(self.table.computed_S[slot])
        self._waiting = waiting

    def _plan_prefills(
        self, prefilling: list[Live], decoding: list[Live]
    ) -> tuple[list[Copy], list[Prefill], list[Live]]:
        """Copy what another slot has computed, wait for what one is computing, compute the rest.

        Those whom a copy leaves one token join `decoding`.
        """
        copies: list[Copy] = []
        prefills: list[Prefill] = []
        complete: list[Live] = []
        table, budget = self.table, self.step_tokens
        for live in prefilling:
            if budget == 0:
                break
            slot = live.slot
            known = int(table.known_S[slot])
            shared_S = table.match(table.ids_ST[slot, : known - 1])
            self._copy_prefix(live, shared_S, copies)
            start = int(table.computed_S[slot])
            if known - start == 1:
                decoding.append(live)
                continue
            coming = max((int(shared_S[p.slot]) for p in prefills), default=0)
            if coming > start + WORTH_WAITING_TOKENS:
                continue
            stop = min(known, start + budget)
            prefills.append(Prefill(slot, start, table.ids_ST[slot, start:stop].copy()))
            budget -= stop - start
            if stop == known:
                complete.append(live)
        return copies, prefills, complete

    def _copy_prefix(self, live: Live, shared_S: Ints, copies: list[Copy]) -> None:
        have_S = np.minimum(shared_S, self.table.computed_S)
        donor = int(have_S.argmax())
        start, stop = int(self.table.computed_S[live.slot]), int(have_S[donor])
        if stop > start and donor != live.slot:
            copies.append(Copy(donor, live.slot, start, stop))
            self.table.computed_S[live.slot] = stop
            self.counts.copied_tokens += stop - start
            if not live.token_ids:
                self.counts.cached_tokens += stop - start

    def _find_end(self, live: Live, token_id: int) -> Literal["stop", "length"] | None:
        if token_id in live.request.stop_ids:
            return "stop"
        known = int(self.table.known_S[live.slot])
        if len(live.token_ids) >= live.request.max_new_tokens or known >= self.context_window:
            return "length"
        return None


def _resolve(live: Live, reason: Literal["stop", "length"]) -> None:
    if not live.future.done():
        live.future.set_result(
            Generation(
                token_ids=tuple(live.token_ids),
                logprobs=tuple(live.logprobs),
                versions=tuple(live.versions),
                finish_reason=reason,
            )
        )
