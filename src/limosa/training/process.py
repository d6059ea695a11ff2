"""The learner in a child process, so that sampling and learning share a machine but no lock.

Groups go over a pipe as pickled plain values; weights come back through one file without a name
that both sides map into memory. The child's failure or death ends the waiting call at once as a
LearnerError. The parent alone decides on signals: the child heeds neither Ctrl-C nor SIGTERM, and
dies with its parent. Neighbours: `learner.py` does the work; `rl.py` awaits. Left out: several
learners.
"""

import asyncio
import atexit
import mmap
import multiprocessing
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from limosa.base.config import DomainConfig, RlConfig
from limosa.base.errors import LearnerError, UserError
from limosa.base.interfaces import StepStats
from limosa.base.trajectory import Group
from limosa.models.weights import checksum, load_model
from limosa.training.learner import RlLearner

CLOSE_TIMEOUT_S = 5.0
PARENT_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """What a child needs to begin; `restore` is a checkpoint to go on from.

    `threads` are torch's inside the child.
    """

    model: str
    rl: RlConfig
    domains: tuple[DomainConfig, ...]
    restore: str | None = None
    threads: int = 1


@dataclass(frozen=True, slots=True)
class _Failure:
    """A child's exception as text; `what` is set where it is the user's to mend."""

    text: str
    what: str = ""
    hint: str = ""


class LearnerProcess:
    """A learner behind a pipe; implements `base.interfaces.Learner`.

    The weights of a StepStats are views of the shared file: they are those of the named version
    until the next `step`. Make one with `start`.

    Left out: a time-out. An update takes as long as model and batch ask for, so a child that hangs
    without ending is waited for until somebody stops the run.
    """

    def __init__(self, spec: LearnerSpec) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve, args=(theirs, spec), name="limosa-learner", daemon=True
        )
        # Started by the first Process.start otherwise, which would unblock the signals once more.
        resource_tracker.ensure_running()
        # A blocked signal stays blocked in the child: until it ignores them itself, none ends it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # At exit multiprocessing asks with SIGTERM, which the child ignores, and then waits.
        atexit.register(self._process.kill)
        theirs.close()
        self._weights: Mapping[str, Tensor] = {}
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="limosa-learner")
        self._closed = False

    @classmethod
    async def start(cls, spec: LearnerSpec) -> tuple["LearnerProcess", StepStats]:
        """Spawn the child, and give it with the weights that it begins from.

        Raises: UserError for a model or checkpoint that does not load, LearnerError.
        """
        learner = cls(spec)
        try:
            with tempfile.TemporaryFile(prefix="limosa-learner-") as file:
                with suppress(OSError):  # the child has ended then, which the next line finds out
                    send_handle(learner._connection, file.fileno(), learner.process_id)
                layout, version, name = await learner._receive(None)
                learner._weights = _map_weights(file.fileno(), layout)
        except BaseException:
            await learner.close()
            raise
        return learner, StepStats(version, name, learner._weights, {})

    async def step(self, groups: Sequence[Group]) -> StepStats:
        """One update. Raises: LearnerError where the child failed or died."""
        version, name, metrics = await self._receive(("step", list(groups)))
        return StepStats(version, name, self._weights, metrics)

    async def save(self, path: str) -> None:
        """Write a checkpoint. Raises: LearnerError."""
        await self._receive(("save", path))

    async def close(self) -> None:
        """End the child and free the shared file; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._end)

    @property
    def process_id(self) -> int:
        """The child's process id."""
        assert self._process.pid is not None
        return self._process.pid

    async def _receive(self, request: tuple[str, Any] | None) -> Any:
        if self._closed:
            raise LearnerError("the learner is closed")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._exchange, request)

    def _exchange(self, request: tuple[str, Any] | None) -> Any:
        """Send, then wait for the answer or for the child's end, whichever comes first."""
        try:
            if request is not None:
                self._connection.send(request)
            wait([self._connection, self._process.sentinel])
            reply = self._connection.recv() if self._connection.poll() else None
        except (EOFError, OSError):
            reply = None
        if reply is None:
            self._process.join(CLOSE_TIMEOUT_S)
            code = self._process.exitcode
            raise LearnerError(f"the learner's process ended unasked (exit code {code})")
        if isinstance(reply, _Failure):
            if reply.what:
                raise UserError(reply.what, hint=reply.hint)
            raise LearnerError(f"the learner failed:\n{reply.text}")
        return reply

    def _end(self) -> None:
        # The child holds nothing that a kill could spoil: checkpoints are written by renaming.
        self._process.kill()
        self._process.join()
        atexit.unregister(self._process.kill)
        self._executor.shutdown(wait=True)
        self._connection.close()
        self._process.close()


def _serve(connection: Connection, spec: LearnerSpec) -> None:
    """The child: begin, then answer requests until the pipe closes."""
    for number in PARENT_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        torch.set_num_threads(spec.threads)
        weights_fd = recv_handle(connection)
        learner = _make_learner(spec)
        state = learner.model.state_dict()
        layout = [(name, tuple(t.shape)) for name, t in state.items()]
        shared = _map_weights(weights_fd, layout)
        os.close(weights_fd)
        _copy_weights(state, shared)
        connection.send((layout, learner.version, checksum(state)))
        while True:
            kind, value = connection.recv()
            if kind == "step":
                stats = learner.step(value)
                _copy_weights(stats.weights, shared)
                connection.send((stats.version, stats.checksum, dict(stats.metrics)))
            else:
                assert kind == "save", f"unknown request {kind!r}"
                learner.save(Path(value))
                connection.send("saved")
    except (EOFError, BrokenPipeError):
        return
    except UserError as error:
        connection.send(_Failure(str(error), error.what, error.hint))
    except OSError as error:  # a full disk, say: where in our code it struck tells nobody anything
        connection.send(_Failure(f"{type(error).__name__}: {error}"))
    except Exception:
        # The boundary of the process: the parent raises what is sent here.
        connection.send(_Failure(traceback.format_exc()))


def _make_learner(spec: LearnerSpec) -> RlLearner:
    folder = Path(spec.model)
    learner = RlLearner(load_model(folder), spec.rl, spec.domains, tokenizer_from=folder)
    if spec.restore is not None:
        learner.restore(Path(spec.restore))
    return learner


def _follow_parent() -> None:
    """End at once when the parent does, even in the middle of a step."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a learner's child has a parent"
    wait([parent.sentinel])
    os._exit(1)


def _map_weights(fd: int, layout: Sequence[tuple[str, Sequence[int]]]) -> dict[str, Tensor]:
    """Tensors of a layout over one open file of float32 that is shared; closing it is harmless."""
    sizes = [torch.Size(shape).numel() for _, shape in layout]
    size_bytes = sum(sizes) * torch.float32.itemsize
    os.ftruncate(fd, size_bytes)
    flat = torch.frombuffer(mmap.mmap(fd, size_bytes), dtype=torch.float32)
    parts = torch.split(flat, sizes)
    return {name: part.view(*shape) for (name, shape), part in zip(layout, parts, strict=True)}


def _copy_weights(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in source.items():
        target[name].copy_(tensor.detach())
