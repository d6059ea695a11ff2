"""The embedded engine: samples for all live requests at once, and takes new weights in between.

Neighbours: `scheduler.py` decides, `attention.py` and `sampler.py` compute, `models/` is the
network. Implements `Generator` and `WeightSink`. Left out: serving over HTTP, speculation and
reduced precision. The caller chooses torch's number of threads.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from limosa.base.errors import EngineError
from limosa.base.interfaces import GenerateRequest, Generation
from limosa.inference.attention import StepAttention
from limosa.inference.batch import Batch
from limosa.inference.cache import KvCache
from limosa.inference.sampler import draw_uniforms, sample
from limosa.inference.scheduler import Live, Scheduler
from limosa.models.transformer import Transformer
from limosa.models.weights import checksum

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Update:
    weights: Mapping[str, Any]
    version: int
    future: "asyncio.Future[str]"


class Engine:
    """Continuous batching over a model of its own, which it owns from here on.

    Give it a copy where another owner exists: weights are replaced in place. `max_sequences`
    bounds the slots (live requests and idle conversations), `context_window` the tokens of each,
    `step_tokens` the prefill tokens of one step. Memory grows with what is used.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        max_sequences: int,
        context_window: int,
        version: int = 0,
        step_tokens: int = 1024,
    ) -> None:
        assert max_sequences > 0 and context_window > 1 and step_tokens > 0
        self._model = model.eval()
        self._device = model.output_weight.device
        self._cache = KvCache(model.config, self._device, context_window)
        self._scheduler = Scheduler(max_sequences, context_window, step_tokens)
        self._version = version
        self._updates: list[_Update] = []
        self._pump: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._closed = False

    @property
    def policy_version(self) -> int:
        """The version that the next token is sampled under."""
        return self._version

    async def generate(self, request: GenerateRequest) -> Generation:
        """Continue a prompt; cancelling frees the slot at once. Raises: EngineError."""
        self._check_open()
        vocabulary = self._model.config.vocab_size
        if any(not 0 <= token < vocabulary for token in request.prompt_ids):
            raise EngineError(f"a prompt id lies outside the vocabulary of {vocabulary}")
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        live = self._scheduler.submit(request, future)
        self._start()
        try:
            return await future
        finally:
            self._scheduler.cancel(live)

    def release(self, conversation: str) -> None:
        """Forget a conversation's keys and values; where it is generating, as soon as it ends."""
        self._scheduler.release(conversation)

    async def update_weights(self, weights: Mapping[str, Any], version: int) -> str:
        """Install weights in place between two steps; give the checksum of what is installed.

        Live requests go on, their keys and values computed anew under the new weights.
        Raises: EngineError, with nothing changed, where names or shapes do not fit.
        """
        self._check_open()
        self._check_weights(weights)
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._updates.append(_Update(weights, version, future))
        self._start()
        return await future

    def stats(self) -> dict[str, int]:
        """Totals since the start, and what is held now."""
        table = self._scheduler.table
        return {
            **asdict(self._scheduler.counts),
            "evictions": table.evictions,
            "live": self._scheduler.live,
            "slots": table.slots,
            "cache_bytes": self._cache.size_bytes,
        }

    async def close(self) -> None:
        """End the engine; requests on their way fail. A second call does nothing."""
        self._closed = True
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        if self._thread is not None:
            self._thread.shutdown(wait=True)  # at most one step
            self._thread = None
        self._fail(EngineError("the engine was closed"))

    def check_integrity(self) -> None:
        """Assert that no slot has leaked. Raises: AssertionError."""
        self._scheduler.check_integrity()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")

    def _check_weights(self, weights: Mapping[str, Any]) -> None:
        state = self._model.state_dict()
        odd = sorted(set(state) ^ set(weights))
        if odd:
            side = "missing" if odd[0] in state else "unknown"
            raise EngineError(f"weights do not fit: {odd[0]!r} is {side} ({len(odd)} in all)")
        for name, tensor in state.items():
            if weights[name].shape != tensor.shape:
                got, want = tuple(weights[name].shape), tuple(tensor.shape)
                raise EngineError(f"weights do not fit: {name} is {got}, expected {want}")

    def _start(self) -> None:
        """The pump runs while there is work, so an idle engine holds no task."""
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._updates or self._scheduler.has_work:
            try:
                if self._updates:
                    await self._install(self._updates.pop(0))
                    continue
                plan = self._scheduler.plan()
                ids, logprobs = await self._compute(partial(self._step, plan.batch))
                self._scheduler.apply(plan, ids, logprobs, self._version)
            except asyncio.CancelledError:
                # A step may have been planned and never run: what it counted is not there.
                self._scheduler.table.invalidate()
                raise
            except Exception as error:  # the boundary: whoever waits is told
                failure = EngineError(f"the engine failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._fail(failure)

    async def _compute(self, work: Callable[[], _T]) -> _T:
        """Run on the engine's thread: tools and sandboxes are served meanwhile."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="limosa-engine")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _install(self, update: _Update) -> None:
        self._scheduler.table.invalidate()
        try:
            digest = await self._compute(partial(self._load, update))
        except Exception as error:
            if not update.future.done():
                update.future.set_exception(EngineError(f"weights were not installed: {error}"))
            raise
        if not update.future.done():
            update.future.set_result(digest)

    def _load(self, update: _Update) -> str:
        state = self._model.state_dict()
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(update.weights[name])
        self._version = update.version
        return checksum(state)

    def _step(self, batch: Batch) -> tuple[list[int], list[float]]:
        with torch.inference_mode():
            self._cache.reserve(batch.slots, batch.length)
            for copy in batch.copies:
                self._cache.copy(copy)
            ids_N, positions_N = self._pack(batch)
            attention = StepAttention(batch, self._cache)
            hidden_ND = self._model(ids_N, positions_N, attention.attend)
            if not len(batch.rows_N):
                return [], []
            if len(batch.rows_N) != len(hidden_ND):
                rows_N = torch.from_numpy(batch.rows_N).to(self._device)
                hidden_ND = hidden_ND.index_select(0, rows_N)
            uniforms_N = draw_uniforms(batch.seeds_N, batch.indices_N)
            return sample(self._model.project(hidden_ND), batch.temperatures_N, uniforms_N)

    def _pack(self, batch: Batch) -> tuple[Tensor, Tensor]:
        ids = [batch.decode_ids_M, *(p.ids_P for p in batch.prefills)]
        positions = [batch.decode_starts_M]
        positions += [np.arange(p.start, p.start + len(p.ids_P)) for p in batch.prefills]
        device = self._device
        return (
            torch.from_numpy(np.concatenate(ids)).to(device),
            torch.from_numpy(np.concatenate(positions)).to(device),
        )

    def _fail(self, error: EngineError) -> None:
        """Tell every waiter, and start from an empty cache: what it held is not trusted."""
        lives: list[Live] = self._scheduler.drain()
        self._cache.clear()
        for live in lives:
            if not live.future.done():
                live.future.set_exception(error)
        for update in self._updates:
            if not update.future.done():
                update.future.set_exception(error)
        self._updates.clear()
