"""The one loop that plays every episode: in training, in evaluation and in production.

Neighbours: `agent/policies.py` answers, an `Environment` acts and judges, `agent/record.py` makes
the trajectory. Retrying an invalid episode is the dispatcher's matter, not ours.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from limosa.agent.policies import OutOfRoom, Policy
from limosa.base.errors import EngineError, InfrastructureError, UserError, VerifierError
from limosa.base.interfaces import Environment, Verdict
from limosa.base.messages import MalformedCall, Message, ParsedReply, ToolCall, ToolResult
from limosa.base.task import Task
from limosa.base.trajectory import Outcome, ToolEvent

T = TypeVar("T")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long infrastructure may take before it counts as failed. Units: seconds.

    `reply_s` is long: a large model on a few cores, with many conversations beside this one, is
    slow and not broken. A reply's own bound is in tokens; `task.limits.timeout_s` bounds the tools.
    """

    start_s: float = 120.0
    reply_s: float = 600.0
    call_s: float = 60.0
    verify_s: float = 120.0
    close_s: float = 30.0


DEFAULT_PATIENCE = Patience()
NO_VERDICT = Verdict(solved=False, reward=0.0)
# What passes through from an environment as it is: failures already named, and bugs of ours.
NAMED = (InfrastructureError, AssertionError)


@dataclass(frozen=True, slots=True)
class Episode:
    """How one episode went. Units: `wall_s` in seconds.

    `messages` is the whole conversation: opening, assistant and tool messages. `error` says why
    an episode is invalid, and what ran out where it is truncated or timed out.
    """

    outcome: Outcome
    reward: float
    components: Mapping[str, float]
    events: tuple[ToolEvent, ...]
    turns: int
    wall_s: float
    error: str
    messages: tuple[Message, ...]
    environment_version: str


class OutOfPatience(InfrastructureError):
    """An environment's work reached its bound: of our patience, or for a call of the episode."""


@dataclass(slots=True)
class _Log:
    """What has happened so far; `spent_s` is the time that tool calls took."""

    messages: list[Message] = field(default_factory=list)
    events: list[ToolEvent] = field(default_factory=list)
    turns: int = 0
    spent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Ending:
    outcome: Outcome
    verdict: Verdict = NO_VERDICT
    error: str = ""


async def run_episode(
    task: Task, environment: Environment, policy: Policy, *, patience: Patience = DEFAULT_PATIENCE
) -> Episode:
    """Play one episode and close its environment, also where the caller cancels.

    Infrastructure trouble of any kind ends `invalid`, without a reward. An episode without a final
    answer is not verified: its reward is 0. What is raised is a bug of ours or the user's to mend.
    The episode's clock runs during tool calls only: a slow sampler is never the policy's failure.

    Raises: UserError from the environment's start (an unknown image, say), AssertionError.
    """
    clock = asyncio.get_running_loop().time
    started_s = clock()
    log = _Log()
    try:
        ending = await _play(task, environment, policy, log, patience, clock)
    except InfrastructureError as error:
        ending = _Ending(Outcome.INVALID, error=f"{type(error).__name__}: {error}")
    finally:
        try:
            policy.end()
        finally:
            close_error = await _close(environment, patience)
    if close_error:
        first = f"{ending.error}; " if ending.outcome is Outcome.INVALID else ""
        ending = _Ending(Outcome.INVALID, error=first + close_error)
    return Episode(
        outcome=ending.outcome,
        reward=ending.verdict.reward,
        components=dict(ending.verdict.components),
        events=tuple(log.events),
        turns=log.turns,
        wall_s=clock() - started_s,
        error=ending.error,
        messages=tuple(log.messages),
        environment_version=environment.version,
    )


async def _play(
    task: Task,
    environment: Environment,
    policy: Policy,
    log: _Log,
    patience: Patience,
    clock: Clock,
) -> _Ending:
    limits = task.limits
    opening = await _await_environment(
        environment.start(), patience.start_s, "environment start", passes=(*NAMED, UserError)
    )
    log.messages.extend(opening)
    policy.begin(opening, environment.tools)
    while True:
        try:
            reply = await _await_reply(policy, patience)
        except OutOfRoom as stop:
            if stop.reply is not None:
                log.turns += 1
                log.messages.append(_to_message(stop.reply))
            return _Ending(Outcome.TRUNCATED, error=stop.reason)
        log.turns += 1
        log.messages.append(_to_message(reply))
        if not reply.calls:
            return await _judge(environment, reply.content, patience)
        if log.turns >= limits.max_turns:  # nobody would read these results
            return _Ending(Outcome.TRUNCATED, error=f"no answer within {limits.max_turns} turns")
        results = []
        for call in reply.calls:
            result = await _run_call(environment, call, limits.timeout_s, log, patience, clock)
            if result is None:
                error = f"the tool calls took longer than {limits.timeout_s:g} s in all"
                return _Ending(Outcome.TIMED_OUT, error=error)
            results.append(result)
        policy.observe(results)


async def _await_reply(policy: Policy, patience: Patience) -> ParsedReply:
    """The next reply. One is bounded in tokens, so one that hangs is the engine's failure."""
    try:
        async with asyncio.timeout(patience.reply_s) as scope:
            return await policy.reply()
    except OSError as error:  # TimeoutError is one
        if scope.expired():
            raise EngineError(f"a reply took longer than {patience.reply_s:g} s") from error
        raise EngineError(f"the engine failed: {type(error).__name__}: {error}") from error


async def _run_call(
    environment: Environment,
    call: ToolCall | MalformedCall,
    timeout_s: float,
    log: _Log,
    patience: Patience,
    clock: Clock,
) -> ToolResult | None:
    """The result of one call, or None where the episode's time ran out before it came."""
    if isinstance(call, MalformedCall):
        result = ToolResult(f"error: {call.reason}", is_error=True)
        log.events.append(ToolEvent(log.turns, "", {"text": call.text}, result.content, True, 0.0))
        log.messages.append(Message("tool", result.content))
        return result
    started_s = clock()
    room_s = timeout_s - log.spent_s
    bound_s = min(room_s, patience.call_s)
    is_late = False
    try:
        result = await _await_environment(environment.call(call), bound_s, f"tool {call.name!r}")
    except OutOfPatience:
        if bound_s < room_s:
            raise
        is_late = True
        result = ToolResult("error: the episode's time ran out", is_error=True)
    wall_s = clock() - started_s
    log.spent_s += wall_s
    log.events.append(
        ToolEvent(log.turns, call.name, call.arguments, result.content, result.is_error, wall_s)
    )
    if is_late or log.spent_s >= timeout_s:  # the event tells which call it was; no policy reads it
        return None
    log.messages.append(Message("tool", result.content))
    return result


async def _judge(environment: Environment, answer: str, patience: Patience) -> _Ending:
    verdict = await _await_environment(environment.verify(answer), patience.verify_s, "verifier")
    is_sound = (
        isinstance(verdict, Verdict)
        and math.isfinite(verdict.reward)
        and 0.0 <= verdict.reward <= 1.0
        and verdict.solved == (verdict.reward == 1.0)
    )
    if not is_sound:
        raise VerifierError(
            f"the verifier gave {verdict!r}, expected a reward in [0, 1] that is 1 where solved"
        )
    return _Ending(Outcome.SOLVED if verdict.solved else Outcome.FAILED, verdict)


async def _await_environment(
    work: Awaitable[T], bound_s: float, what: str, passes: tuple[type[Exception], ...] = NAMED
) -> T:
    """Await an environment's work; whatever goes wrong in it is infrastructure, asserts aside."""
    try:
        async with asyncio.timeout(bound_s) as scope:
            return await work
    except passes:
        raise
    except Exception as error:
        if scope.expired():
            raise OutOfPatience(f"{what} took longer than {bound_s:g} s") from error
        raise InfrastructureError(f"{what} crashed: {type(error).__name__}: {error}") from error
    except asyncio.CancelledError as error:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        raise InfrastructureError(f"{what} was cancelled from within") from error


async def _close(environment: Environment, patience: Patience) -> str:
    """Close; give the error's text, for an error raised here would hide a cancellation.

    Shielded: a second cancellation of the episode does not leave a box behind.
    """
    closing = asyncio.ensure_future(environment.close())
    try:
        work = asyncio.shield(closing)
        await _await_environment(work, patience.close_s, "environment close")
    except InfrastructureError as error:
        closing.cancel()
        return f"{type(error).__name__}: {error}"
    return ""


def _to_message(reply: ParsedReply) -> Message:
    """The reply as a message; a malformed call stays in the content as it was written."""
    malformed = [call.text for call in reply.calls if isinstance(call, MalformedCall)]
    calls = tuple(call for call in reply.calls if isinstance(call, ToolCall))
    return Message("assistant", "".join([reply.content, *malformed]), calls)
