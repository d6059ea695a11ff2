"""The fakes keep the contracts that other rooms' tests rely on."""

import pytest

from limosa.base.errors import EngineError, SandboxError, UserError
from limosa.base.interfaces import (
    Environment,
    ExecResult,
    GenerateRequest,
    Generator,
    Sandbox,
    SandboxProvider,
)
from limosa.base.task import Task
from limosa.base.testing import FakeEnvironment, FakeGenerator, FakeProvider, FakeSandbox


def accept(*_: Generator | Sandbox | SandboxProvider | Environment) -> None:
    """Its call below is checked by the type checker: each fake fits its interface."""


def make_request(conversation: str, max_new_tokens: int = 8) -> GenerateRequest:
    return GenerateRequest((1,), conversation, "g", max_new_tokens, 1.0, 0, frozenset({9}))


def test_fakes_fit_the_interfaces() -> None:
    task = Task("toy", "easy", 0, "go", {"answer": ""})
    accept(FakeGenerator([]), FakeSandbox(), FakeProvider(), FakeEnvironment(task))


async def test_generator_stops_cuts_and_counts_turns_by_conversation() -> None:
    generator = FakeGenerator([[3, 9, 4], [5, 6, 7]], policy_version=2)
    stopped = await generator.generate(make_request("a"))
    other = await generator.generate(make_request("b"))
    cut = await generator.generate(make_request("a", max_new_tokens=2))
    assert (stopped.token_ids, stopped.finish_reason) == ((3, 9), "stop")
    assert other == stopped
    assert (cut.token_ids, cut.finish_reason, cut.versions) == ((5, 6), "length", (2, 2))
    with pytest.raises(EngineError):
        await generator.generate(make_request("a"))


async def test_sandbox_holds_files_answers_and_dies() -> None:
    provider = FakeProvider(answers={"ls": ExecResult(0, "a\n")})
    box = await provider.create("fake")
    await box.put({"a": b"1"})
    assert await box.get() == {"a": b"1"}
    assert (await box.shell("ls")).output == "a\n"
    assert (await box.exec(["cat", "b"])).exit_code == 127
    assert box.commands == ["ls", "cat b"]
    with pytest.raises(SandboxError):
        await box.get(max_bytes=0)
    await box.kill()
    for work in (box.get(), box.put({}), box.exec("ls"), box.shell("ls")):
        with pytest.raises(SandboxError):
            await work
    with pytest.raises(UserError):
        await provider.create("none")
