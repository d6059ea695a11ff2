from collections.abc import Sequence
from random import Random

import pytest

from limosa.agent.loop import Episode, run_episode
from limosa.agent.policies import ScriptPolicy
from limosa.base.errors import UserError
from limosa.base.interfaces import Script
from limosa.base.messages import Message, ToolCall
from limosa.base.task import Split, Task, make_seed
from limosa.base.testing import FakeProvider
from limosa.base.trajectory import Outcome
from limosa.domains import knowledge_research
from limosa.domains.atlas import load_corpus
from limosa.domains.knowledge_research import KnowledgeResearch

DOMAIN = KnowledgeResearch()
STAGES = ("single_hop", "two_hop")


def make_task(stage: str, index: int, split: Split = "train") -> Task:
    return DOMAIN.make_task(stage, make_seed(split, index))


async def play(task: Task, script: Script) -> Episode:
    environment = DOMAIN.make_environment(task, FakeProvider())
    return await run_episode(task, environment, ScriptPolicy(script))


def play_calls(calls: Sequence[tuple[str, dict[str, str]]], answer: str) -> Script:
    for name, arguments in calls:
        yield Message("assistant", "", (ToolCall(name, arguments),))
    yield Message("assistant", answer)


def to_hops(task: Task) -> list[tuple[str, str]]:
    return [(document, attribute) for document, attribute in task.data["hops"]]


@pytest.mark.parametrize("stage", STAGES)
async def test_the_reference_earns_the_full_reward(stage: str) -> None:
    splits: tuple[Split, ...] = ("train", "eval", "demo")
    for index in range(30):
        task = make_task(stage, index, splits[index % 3])
        episode = await play(task, DOMAIN.play_reference(task))
        assert episode.outcome is Outcome.SOLVED
        assert episode.reward == 1.0
        assert episode.turns <= (3 if stage == "single_hop" else 5)


@pytest.mark.parametrize("stage", STAGES)
async def test_doing_nothing_or_guessing_earns_nothing(stage: str) -> None:
    rng = Random(1)
    for index in range(30):
        task = make_task(stage, index)
        for answer in ("", "amber", rng.choice(load_corpus().documents).name):
            episode = await play(task, play_calls([], answer))
            assert (episode.outcome, episode.reward) == (Outcome.FAILED, 0.0)


@pytest.mark.parametrize("stage", STAGES)
async def test_the_right_answer_without_its_source_earns_nothing(stage: str) -> None:
    task = make_task(stage, 3)
    name = task.data["source"].split("/")[1]
    searched = [("search", {"query": name})]
    episode = await play(task, play_calls(searched, task.data["answer"]))
    assert episode.components == {"answer_right": 1.0, "source_opened": 0.0}
    assert (episode.outcome, episode.reward) == (Outcome.FAILED, 0.0)


async def test_another_document_than_the_source_does_not_count() -> None:
    task = make_task("two_hop", 0)
    first = task.data["hops"][0][0]
    calls = [("search", {"query": first.split("/")[1]}), ("open", {"document": first})]
    assert (await play(task, play_calls(calls, task.data["answer"]))).reward == 0.0


async def test_the_source_opened_with_a_wrong_answer_earns_nothing() -> None:
    task = make_task("single_hop", 0)
    source = task.data["source"]
    calls = [("search", {"query": source.split("/")[1]}), ("open", {"document": source})]
    wrong = [v for v in load_corpus().by_id[source].facts.values() if v != task.data["answer"]]
    for answer in (wrong[0], f"{task.data['answer']} {wrong[0]}"):
        assert (await play(task, play_calls(calls, answer))).reward == 0.0
    assert (await play(task, play_calls(calls, f' "{task.data["answer"].title()}".'))).reward == 1.0


async def test_only_what_a_search_has_shown_can_be_opened() -> None:
    task = make_task("single_hop", 0)
    script = play_calls([("open", {"document": task.data["source"]})], task.data["answer"])
    episode = await play(task, script)
    assert episode.events[0].is_error
    assert "not among the hits" in episode.events[0].result
    assert episode.reward == 0.0


async def test_wrong_tool_use_is_an_observation() -> None:
    task = make_task("single_hop", 0)
    calls = [
        ("search", {"query": "xylophone"}),
        ("search", {}),
        ("browse", {"query": "amber"}),
        ("open", {"document": "town/nowhere"}),
    ]
    episode = await play(task, play_calls(calls, "amber"))
    assert [event.is_error for event in episode.events] == [True] * 4
    assert all(event.result.startswith("error: ") for event in episode.events)
    assert episode.outcome is Outcome.FAILED


def test_tasks_are_determined_by_their_seed() -> None:
    for stage in STAGES:
        again = KnowledgeResearch()
        assert [make_task(stage, i) for i in range(20)] == [
            again.make_task(stage, make_seed("train", i)) for i in range(20)
        ]
        assert Task.from_json(make_task(stage, 0).to_json()) == make_task(stage, 0)


@pytest.mark.parametrize(("stage", "distinct"), [("single_hop", 1800), ("two_hop", 2500)])
def test_there_are_thousands_of_questions_and_none_is_held_out_and_trained(
    stage: str, distinct: int
) -> None:
    trained = [make_task(stage, i) for i in range(4000)]
    held_out = [make_task(stage, i, "eval") for i in range(400)]
    assert len({t.instruction for t in trained}) > distinct
    assert not {tuple(to_hops(t)) for t in trained} & {tuple(to_hops(t)) for t in held_out}


def test_every_answer_follows_from_the_corpus() -> None:
    corpus = load_corpus()
    for index in range(200):
        task = make_task("two_hop", index)
        (first, link), (second, asked) = to_hops(task)
        assert f'{link} "{second.split("/")[1]}"' in corpus.by_id[first].text
        assert f'{asked} "{task.data["answer"]}"' in corpus.by_id[second].text
        assert f'"{task.data["answer"]}"' not in corpus.by_id[first].text
        assert task.data["source"] == second
        assert f'{link} of the {first.split("/")[0]} "{first.split("/")[1]}"' in task.instruction


def test_an_unknown_stage_is_the_users_error() -> None:
    with pytest.raises(UserError, match=r"'three_hop'(.|\n)*single_hop, two_hop"):
        DOMAIN.make_task("three_hop", 0)


def test_the_version_binds_task_corpus_and_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(index: int) -> str:
        return DOMAIN.make_environment(make_task("single_hop", index), FakeProvider()).version

    base = version(0)
    assert base == version(0) != version(1)
    # Patching stands in for an edit of the verifier's file.
    monkeypatch.setattr(knowledge_research, "read_source", lambda *modules: "another verifier")
    assert version(0) != base


@pytest.mark.parametrize(("stage", "low", "high"), [("single_hop", 60, 80), ("two_hop", 30, 50)])
async def test_the_novice_succeeds_now_and_then(stage: str, low: int, high: int) -> None:
    solved = 0
    for index in range(200):
        task = make_task(stage, index, "demo")
        script = DOMAIN.play_novice(task, Random(index))
        episode = await play(task, script)
        assert episode.outcome in {Outcome.SOLVED, Outcome.FAILED}
        solved += episode.outcome is Outcome.SOLVED
    assert low <= solved / 2 <= high


async def test_the_novice_repeats_itself_for_equal_seeds() -> None:
    task = make_task("two_hop", 5)
    first, second = [await play(task, DOMAIN.play_novice(task, Random(4))) for _ in range(2)]
    assert first.messages == second.messages
