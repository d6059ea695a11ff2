"""The loop against fakes: every ending, and that no failure of infrastructure earns a reward."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

import pytest

from limosa.agent.loop import Episode, Patience, run_episode
from limosa.agent.policies import OutOfRoom, ScriptPolicy
from limosa.base.errors import EngineError, SandboxError, UserError
from limosa.base.interfaces import Script, Verdict
from limosa.base.messages import (
    MalformedCall,
    Message,
    ParsedReply,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from limosa.base.task import Limits, Task
from limosa.base.testing import FakeEnvironment
from limosa.base.trajectory import Outcome

ECHO = ToolCall("echo", {"text": "hi"})


def make_task(**limits: float) -> Task:
    bounds = Limits(**limits)  # type: ignore[arg-type]
    return Task("toy", "easy", 1, "say hi", {"answer": "hi"}, bounds)


class ListPolicy:
    """Replies from a list; an exception or an awaitable in it is raised or awaited."""

    def __init__(self, *replies: ParsedReply | Exception | Awaitable[object]) -> None:
        self.replies = list(replies)
        self.observed: list[Sequence[ToolResult]] = []
        self.ends = 0

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        self.opening = list(messages)

    async def reply(self) -> ParsedReply:
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, ParsedReply):
            return reply
        await reply
        raise AssertionError("a reply that hangs came back")

    def observe(self, results: Sequence[ToolResult]) -> None:
        self.observed.append(results)

    def end(self) -> None:
        self.ends += 1


def raising(error: BaseException) -> Callable[[], Awaitable[object]]:
    async def hook() -> None:
        raise error

    return hook


async def hang() -> None:
    await asyncio.Event().wait()


def assert_invalid(episode: Episode, text: str) -> None:
    assert episode.outcome is Outcome.INVALID
    assert episode.reward == 0.0
    assert dict(episode.components) == {}
    assert text in episode.error


async def test_solved_with_a_tool_call() -> None:
    task = make_task()
    environment = FakeEnvironment(task)
    policy = ListPolicy(ParsedReply("", (ECHO, ToolCall("nope", {}))), ParsedReply("hi"))
    episode = await run_episode(task, environment, policy)
    assert episode.outcome is Outcome.SOLVED
    assert (episode.reward, dict(episode.components)) == (1.0, {"right": 1.0})
    assert policy.observed == [
        [ToolResult("hi"), ToolResult("error: no tool 'nope'", is_error=True)]
    ]
    assert [(e.turn, e.tool, e.is_error) for e in episode.events] == [
        (1, "echo", False),
        (1, "nope", True),
    ]
    roles = [m.role for m in episode.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert episode.turns == 2
    assert episode.environment_version == environment.version
    assert (environment.closes, policy.ends) == (1, 1)


async def test_wrong_answer_fails() -> None:
    task = make_task()
    episode = await run_episode(task, FakeEnvironment(task), ListPolicy(ParsedReply("bye")))
    assert (episode.outcome, episode.reward) == (Outcome.FAILED, 0.0)


async def test_malformed_call_is_an_observation() -> None:
    task = make_task()
    environment = FakeEnvironment(task)
    bad = MalformedCall("<tool_call>{", "the call is not JSON")
    policy = ListPolicy(ParsedReply("", (bad,)), ParsedReply("hi"))
    episode = await run_episode(task, environment, policy)
    assert episode.outcome is Outcome.SOLVED
    assert policy.observed == [[ToolResult("error: the call is not JSON", is_error=True)]]
    assert environment.calls == []
    assert episode.events[0].is_error
    assert episode.messages[2].content == "<tool_call>{"


async def test_turns_run_out_without_verifying() -> None:
    task = make_task(max_turns=2)
    environment = FakeEnvironment(task, {"verify": raising(AssertionError("verified"))})
    replies = [ParsedReply("", (ECHO,))] * 3
    episode = await run_episode(task, environment, ListPolicy(*replies))
    assert (episode.outcome, episode.reward, episode.turns) == (Outcome.TRUNCATED, 0.0, 2)
    assert len(environment.calls) == 1
    assert "2 turns" in episode.error


async def test_out_of_room_keeps_what_was_said() -> None:
    task = make_task()
    policy = ListPolicy(OutOfRoom("no room", ParsedReply("I thin")))
    episode = await run_episode(task, FakeEnvironment(task), policy)
    assert (episode.outcome, episode.turns) == (Outcome.TRUNCATED, 1)
    assert episode.messages[-1] == Message("assistant", "I thin")


class SlowPolicy(ListPolicy):
    """A list whose every reply takes a while."""

    async def reply(self) -> ParsedReply:
        await asyncio.sleep(0.05)
        return await super().reply()


async def test_a_slow_model_is_never_timed_out() -> None:
    task = make_task(timeout_s=0.04)
    environment = FakeEnvironment(task, {"call": lambda: asyncio.sleep(0.005)})
    policy = SlowPolicy(*[ParsedReply("", (ECHO,))] * 3, ParsedReply("hi"))
    episode = await run_episode(task, environment, policy)
    assert (episode.outcome, episode.reward) == (Outcome.SOLVED, 1.0)
    assert episode.wall_s >= 0.2


async def test_tool_calls_that_take_too_long_together_are_timed_out() -> None:
    task = make_task(timeout_s=0.1)
    environment = FakeEnvironment(task, {"call": lambda: asyncio.sleep(0.06)})
    policy = ListPolicy(ParsedReply("", (ECHO, ECHO, ECHO)), ParsedReply("hi"))
    episode = await run_episode(task, environment, policy)
    assert (episode.outcome, episode.reward) == (Outcome.TIMED_OUT, 0.0)
    assert "longer than 0.1 s in all" in episode.error
    assert len(environment.calls) == 1  # the second was broken off, the third not begun
    assert [e.is_error for e in episode.events] == [False, True]
    assert policy.observed == []
    assert environment.closes == 1


async def test_a_call_that_hangs_while_there_is_time_is_infrastructure() -> None:
    task = make_task(timeout_s=0.05)
    environment = FakeEnvironment(task, {"call": hang})
    replies = (ParsedReply("", (ECHO,)), ParsedReply("hi"))
    invalid = await run_episode(
        task, environment, ListPolicy(*replies), patience=Patience(call_s=0.02)
    )
    assert_invalid(invalid, "took longer than 0.02 s")
    late = await run_episode(task, FakeEnvironment(task, {"call": hang}), ListPolicy(*replies))
    assert late.outcome is Outcome.TIMED_OUT


@pytest.mark.parametrize("step", ["start", "call", "verify", "close"])
@pytest.mark.parametrize("error", [SandboxError("dead"), RuntimeError("dead"), OSError("dead")])
async def test_failing_environment_is_invalid(step: str, error: Exception) -> None:
    task = make_task()
    environment = FakeEnvironment(task, {step: raising(error)})
    policy = ListPolicy(ParsedReply("", (ECHO,)), ParsedReply("hi"))
    episode = await run_episode(task, environment, policy)
    assert_invalid(episode, "dead")
    assert (environment.closes, policy.ends) == (1, 1)


@pytest.mark.parametrize("step", ["start", "call", "verify", "close"])
async def test_hanging_environment_is_invalid(step: str) -> None:
    task = make_task()
    environment = FakeEnvironment(task, {step: hang})
    policy = ListPolicy(ParsedReply("", (ECHO,)), ParsedReply("hi"))
    bound_s = 0.02
    patience = Patience(start_s=bound_s, call_s=bound_s, verify_s=bound_s, close_s=bound_s)
    episode = await run_episode(task, environment, policy, patience=patience)
    assert_invalid(episode, "took longer than 0.02 s")
    assert environment.closes == 1


async def test_both_failures_are_told() -> None:
    task = make_task()
    hooks = {"verify": raising(SandboxError("one")), "close": raising(SandboxError("two"))}
    episode = await run_episode(task, FakeEnvironment(task, hooks), ListPolicy(ParsedReply("hi")))
    assert_invalid(episode, "SandboxError: one; SandboxError: two")


async def test_failing_engine_is_invalid() -> None:
    task = make_task()
    for error in (EngineError("gone"), ConnectionError("gone"), TimeoutError("gone")):
        episode = await run_episode(task, FakeEnvironment(task), ListPolicy(error))
        assert_invalid(episode, "gone")


@pytest.mark.parametrize("timeout_s", [60.0, 0.01])
async def test_hanging_engine_is_invalid(timeout_s: float) -> None:
    task = make_task(timeout_s=timeout_s)
    patience = Patience(reply_s=0.02)
    episode = await run_episode(task, FakeEnvironment(task), ListPolicy(hang()), patience=patience)
    assert_invalid(episode, "a reply took longer than 0.02 s")


@pytest.mark.parametrize(
    "verdict",
    [
        None,
        Verdict(solved=True, reward=0.5),
        Verdict(solved=False, reward=1.0),
        Verdict(solved=False, reward=-0.1),
        Verdict(solved=False, reward=math.nan),
    ],
)
async def test_unsound_verdict_is_invalid(verdict: Verdict | None) -> None:
    class Unsound(FakeEnvironment):
        async def verify(self, answer: str) -> Verdict:
            return verdict  # type: ignore[return-value]

    task = make_task()
    episode = await run_episode(task, Unsound(task), ListPolicy(ParsedReply("hi")))
    assert_invalid(episode, "verifier gave")


async def test_environment_that_cancels_itself_is_invalid() -> None:
    task = make_task()
    environment = FakeEnvironment(task, {"call": raising(asyncio.CancelledError())})
    episode = await run_episode(task, environment, ListPolicy(ParsedReply("", (ECHO,))))
    assert_invalid(episode, "cancelled from within")


@pytest.mark.parametrize("close_error", [None, SandboxError("late")])
async def test_cancellation_closes_and_propagates(close_error: Exception | None) -> None:
    task = make_task()
    hooks = {"close": raising(close_error)} if close_error else {}
    environment = FakeEnvironment(task, hooks)
    policy = ListPolicy(hang())
    running = asyncio.create_task(run_episode(task, environment, policy))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (environment.closes, policy.ends) == (1, 1)


async def test_second_cancellation_does_not_stop_the_closing() -> None:
    task = make_task()
    closed = asyncio.Event()

    async def close_slowly() -> None:
        await asyncio.sleep(0.03)
        closed.set()

    environment = FakeEnvironment(task, {"close": close_slowly})
    running = asyncio.create_task(run_episode(task, environment, ListPolicy(hang())))
    await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(closed.wait(), 1.0)


async def test_users_and_our_own_mistakes_are_raised() -> None:
    task = make_task()
    for step, error in (("start", UserError("no image")), ("verify", AssertionError("bug"))):
        environment = FakeEnvironment(task, {step: raising(error)})
        with pytest.raises(type(error)):
            await run_episode(task, environment, ListPolicy(ParsedReply("hi")))
        assert environment.closes == 1
    # In a call the model may have provoked it, so it must not end the run.
    environment = FakeEnvironment(task, {"call": raising(UserError("odd"))})
    assert_invalid(
        await run_episode(task, environment, ListPolicy(ParsedReply("", (ECHO,)))), "odd"
    )


async def test_script_is_sent_the_results_and_closed() -> None:
    task = make_task()
    seen: list[list[ToolResult]] = []
    closed: list[bool] = []

    def play() -> Script:
        try:
            seen.append((yield Message("assistant", "", (ECHO,))))
            yield Message("assistant", seen[0][0].content)
        finally:
            closed.append(True)

    episode = await run_episode(task, FakeEnvironment(task), ScriptPolicy(play()))
    assert episode.outcome is Outcome.SOLVED
    assert seen == [[ToolResult("hi")]]
    assert closed == [True]


async def test_script_without_an_answer_is_truncated() -> None:
    def play() -> Script:
        yield Message("assistant", "", (ECHO,))

    task = make_task()
    episode = await run_episode(task, FakeEnvironment(task), ScriptPolicy(play()))
    assert (episode.outcome, episode.turns) == (Outcome.TRUNCATED, 1)
    assert "script ended" in episode.error
