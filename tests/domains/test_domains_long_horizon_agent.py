from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from limosa.agent.loop import Episode, run_episode
from limosa.agent.policies import ScriptPolicy
from limosa.base.errors import SandboxError, UserError
from limosa.base.interfaces import ExecResult, SandboxProvider, Script
from limosa.base.messages import Message, ToolCall
from limosa.base.task import Task, make_seed
from limosa.base.testing import FakeProvider
from limosa.base.trajectory import Outcome
from limosa.domains import long_horizon_agent
from limosa.domains.long_horizon_agent import FAULT_CALLS, LongHorizonAgent
from limosa.domains.words import WORDS
from limosa.sandbox.bubblewrap import BubblewrapProvider

DOMAIN = LongHorizonAgent()
IMAGE = "sandbox-base:v1"


@pytest.fixture
async def boxes() -> AsyncIterator[BubblewrapProvider]:
    provider = BubblewrapProvider(max_boxes=4)
    yield provider
    await provider.close()


def make_task(stage: str, index: int) -> Task:
    return DOMAIN.make_task(stage, make_seed("train", index))


def find_task(calls: int) -> Task:
    return next(t for t in (make_task("long_traj", i) for i in range(5000)) if to_calls(t) == calls)


def to_calls(task: Task) -> int:
    """Calls that the task needs, counted from what lies in the box."""
    faults: Mapping[str, str] = task.data["faults"]
    return len(task.data["path"]) + sum(FAULT_CALLS[kind] for kind in faults.values())


def make_chain(path: Sequence[str], faults: Mapping[str, str], stale: Mapping[str, str]) -> Task:
    data: dict[str, Any] = {"path": list(path), "word": "lemon", "faults": faults, "stale": stale}
    return replace(make_task("short_traj", 0), data=data)


async def play(task: Task, script: Script, boxes: SandboxProvider) -> Episode:
    return await run_episode(task, DOMAIN.make_environment(task, boxes), ScriptPolicy(script))


def play_calls(calls: Sequence[tuple[str, str]], answer: str) -> Script:
    for tool, station in calls:
        yield Message("assistant", "", (ToolCall(tool, {"station": station}),))
    yield Message("assistant", answer)


async def test_the_reference_earns_the_full_reward(boxes: SandboxProvider) -> None:
    for index in range(30):
        task = make_task("short_traj", index)
        episode = await play(task, DOMAIN.play_reference(task), boxes)
        assert (episode.outcome, episode.reward) == (Outcome.SOLVED, 1.0), episode
        assert len(episode.events) == to_calls(task)


@pytest.mark.parametrize("calls", [20, 100, 200])
async def test_the_reference_walks_long_chains_within_200_turns(
    calls: int, boxes: SandboxProvider
) -> None:
    task = find_task(calls)
    episode = await play(task, DOMAIN.play_reference(task), boxes)
    assert (episode.outcome, episode.reward) == (Outcome.SOLVED, 1.0), episode
    assert len(episode.events) == calls
    assert episode.turns <= task.limits.max_turns <= 200


async def test_doing_nothing_or_guessing_earns_nothing(boxes: SandboxProvider) -> None:
    rng = Random(1)
    for index in range(5):
        task = make_task("short_traj", index)
        for answer in ("", "failed", rng.choice(WORDS)):
            episode = await play(task, play_calls([], answer), boxes)
            assert (episode.outcome, episode.reward) == (Outcome.FAILED, 0.0)


async def test_the_word_without_the_walk_earns_nothing(boxes: SandboxProvider) -> None:
    chain = make_chain(["amber", "cedar", "otter", "raven"], {}, {})
    every = ["amber", "cedar", "otter", "raven"]
    walks = {
        "none": [],
        "one link missing": every[:3],
        "last alone": ["raven"],
        "one jumped": ["amber", "otter", "raven"],
        "backwards": every[::-1],
        "ahead, then in order": ["otter", *every],
    }
    for what, walk in walks.items():
        episode = await play(chain, play_calls([("read", s) for s in walk], "lemon"), boxes)
        assert episode.reward == 0.0, what
        assert episode.components["answer_right"] == 1.0
    again = ["amber", "amber", "cedar", "amber", "otter", "raven", "raven"]
    episode = await play(chain, play_calls([("read", s) for s in again], ' "Lemon". '), boxes)
    assert episode.reward == 1.0
    episode = await play(chain, play_calls([("read", s) for s in every], "raven"), boxes)
    assert episode.reward == 0.0


async def test_each_fault_shows_itself_and_can_be_overcome(boxes: SandboxProvider) -> None:
    faults = {"amber": "busy", "cedar": "stale", "otter": "locked", "raven": "stale"}
    chain = make_chain(
        ["amber", "cedar", "otter", "raven"], faults, {"cedar": "lime", "raven": "kiwi"}
    )
    steps = [
        (("read", "amber"), "error: busy, read again"),
        (("read", "amber"), 'next "cedar"'),
        (("read", "cedar"), 'stale: next "lime", read again'),
        (("read", "lime"), "error: no station"),
        (("read", "cedar"), 'next "otter"'),
        (("read", "otter"), "error: locked"),
        (("read", "otter"), "error: locked"),
        (("unlock", "otter"), "ok"),
        (("unlock", "otter"), "error: not locked"),
        (("read", "otter"), 'next "raven"'),
        (("read", "raven"), 'stale: word "kiwi", read again'),
        (("read", "raven"), 'word "lemon"'),
    ]
    script = play_calls([call for call, _ in steps], "lemon")
    episode = await play(replace(chain, limits=find_task(20).limits), script, boxes)
    assert [event.result for event in episode.events] == [text for _, text in steps]
    assert [event.is_error for event in episode.events] == [
        text.startswith("error") for _, text in steps
    ]
    assert episode.reward == 1.0


async def test_wrong_tool_use_is_an_observation_and_reaches_no_shell() -> None:
    environment = DOMAIN.make_environment(
        make_task("short_traj", 0), provider := FakeProvider({IMAGE: "sha256:x"})
    )
    await environment.start()
    for station in ("", "../at/amber", "amber; cat at/*", "$(ls)", "Amber", "amber\n", "a" * 99):
        result = await environment.call(ToolCall("read", {"station": station}))
        assert (result.content, result.is_error) == ("error: no station", True)
    for call in (
        ToolCall("read", {}),
        ToolCall("read", {"station": 3}),
        ToolCall("bash", {"command": "ls"}),
    ):
        assert (await environment.call(call)).is_error
    assert provider.boxes[0].commands == []
    await environment.close()
    await environment.close()
    assert provider.boxes[0].is_dead


async def test_a_dead_box_is_infrastructure_not_a_result(boxes: SandboxProvider) -> None:
    task = make_task("short_traj", 0)
    environment = DOMAIN.make_environment(task, boxes)
    await environment.start()
    assert environment._box is not None
    await environment._box.kill()
    with pytest.raises(SandboxError):
        await environment.call(ToolCall("read", {"station": task.data["path"][0]}))
    await environment.close()


@pytest.mark.parametrize(
    "answer", [ExecResult(1, ""), ExecResult(0, ""), ExecResult(0, "x", timed_out=True)]
)
async def test_a_box_that_answers_nonsense_is_infrastructure(
    answer: ExecResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The line is patched so that a fake box, which knows whole commands, can answer it.
    monkeypatch.setattr(long_horizon_agent, "_READ_LINE", "look {s}")
    provider = FakeProvider({IMAGE: "sha256:x"}, {"look amber": answer})
    environment = DOMAIN.make_environment(make_task("short_traj", 0), provider)
    await environment.start()
    with pytest.raises(SandboxError, match="could not reach station 'amber'"):
        await environment.call(ToolCall("read", {"station": "amber"}))


def test_tasks_are_determined_by_their_seed_and_differ() -> None:
    for stage, (low, high) in long_horizon_agent.CALLS.items():
        tasks = [make_task(stage, i) for i in range(300)]
        assert tasks == [
            LongHorizonAgent().make_task(stage, make_seed("train", i)) for i in range(300)
        ]
        assert len({t.content_hash for t in tasks}) == 300
        assert {low <= to_calls(t) <= high for t in tasks} == {True}
        assert all(t.data["faults"] for t in tasks)
    tasks = [make_task("short_traj", i) for i in range(300)]
    assert {to_calls(t) for t in tasks} == {5, 6, 7, 8}
    assert {k for t in tasks for k in t.data["faults"].values()} == set(FAULT_CALLS)
    assert Task.from_json(tasks[0].to_json()) == tasks[0]


def test_misleading_words_lie_off_the_path() -> None:
    for index in range(300):
        data = make_task("short_traj", index).data
        words = [*data["path"], data["word"], *data["stale"].values()]
        assert len(words) == len(set(words))
        assert {s for s, k in data["faults"].items() if k == "stale"} == set(data["stale"])


def test_an_unknown_stage_is_the_users_error() -> None:
    with pytest.raises(UserError, match=r"'endless'(.|\n)*short_traj, long_traj"):
        DOMAIN.make_task("endless", 0)


def test_the_version_binds_image_task_and_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(index: int, digest: str = "sha256:x") -> str:
        task = make_task("short_traj", index)
        return DOMAIN.make_environment(task, FakeProvider({IMAGE: digest})).version

    base = version(0)
    assert base == version(0)
    assert len({base, version(1), version(0, "sha256:y")}) == 3
    # Patching stands in for an edit of the verifier's file.
    monkeypatch.setattr(long_horizon_agent, "read_source", lambda *modules: "another verifier")
    assert version(0) != base


async def test_the_novice_succeeds_now_and_then(boxes: SandboxProvider) -> None:
    outcomes = []
    for index in range(200):
        task = DOMAIN.make_task("short_traj", make_seed("demo", index))
        episode = await play(task, DOMAIN.play_novice(task, Random(index)), boxes)
        outcomes.append(episode.outcome)
    assert set(outcomes) == {Outcome.SOLVED, Outcome.FAILED}
    assert 0.27 <= outcomes.count(Outcome.SOLVED) / 200 <= 0.47
