"""The model's policy through the loop: what is recorded is what was sampled, and bounds hold."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limosa.agent.loop import Episode, run_episode
from limosa.agent.policies import ModelPolicy, ScriptBudget, ScriptPolicy, derive_seed
from limosa.agent.record import to_trajectory
from limosa.base.interfaces import GenerateRequest, Generation, Script
from limosa.base.messages import MalformedCall, Message, ToolCall, ToolResult
from limosa.base.task import Limits, Task
from limosa.base.testing import FakeEnvironment, FakeGenerator
from limosa.base.trajectory import Outcome
from limosa.tokens.chat import TemplateChat, encode_conversation, load_chat
from limosa.tokens.tokenizer import train_tokenizer

ECHO = Message("assistant", "", (ToolCall("echo", {"text": "walnut"}),))
ANSWER = Message("assistant", "walnut")


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> TemplateChat:
    texts = ['{"text": "walnut"} echo the word, be brief'] * 20
    return load_chat(train_tokenizer(texts, 600, tmp_path_factory.mktemp("chat")))


def make_task(**limits: float) -> Task:
    bounds = Limits(**limits)  # type: ignore[arg-type]
    return Task("toy", "easy", 7, "say walnut", {"answer": "walnut"}, bounds)


def make_policy(
    chat: TemplateChat, task: Task, generator: FakeGenerator, *, context_window: int = 1024
) -> ModelPolicy:
    return ModelPolicy(
        generator,
        chat,
        task,
        conversation="c",
        group="g",
        temperature=0.7,
        seed=3,
        context_window=context_window,
    )


def spell(chat: TemplateChat, text: str) -> list[int]:
    """Ids, one a byte: decodes to `text`, and no tokenizer would give them."""
    vocabulary = chat.tokenizer.get_vocab()
    alphabet = {chat.decode([i]): i for i in vocabulary.values()}
    return [alphabet[letter] for letter in text]


def spell_reply(chat: TemplateChat, message: Message) -> list[int]:
    whole = chat.encode_reply(message)
    controls = set(chat.tokenizer.get_added_vocab().values())
    ids: list[int] = []
    for i in whole:
        ids += [i] if i in controls else spell(chat, chat.decode([i]))
    assert ids != whole
    assert chat.decode(ids) == chat.decode(whole)
    return ids


async def test_trained_ids_are_the_sampled_ids(chat: TemplateChat) -> None:
    """Odd tokenisations come back as sampled, and each prompt extends the last one exactly."""
    task = make_task()
    environment = FakeEnvironment(task)
    replies = [spell_reply(chat, ECHO), spell_reply(chat, ANSWER)]
    generator = FakeGenerator(replies, policy_version=4)
    policy = make_policy(chat, task, generator)
    episode = await run_episode(task, environment, policy)
    assert episode.outcome is Outcome.SOLVED
    trajectory = to_trajectory(episode, policy, task, trajectory_id="t", group_id="g")

    first, second = generator.requests
    opening = await FakeEnvironment(task).start()
    assert list(first.prompt_ids) == chat.encode_prompt(opening, environment.tools)
    results = chat.encode_results([ToolResult("walnut")], stopped=True)
    assert list(second.prompt_ids) == [*first.prompt_ids, *replies[0], *results]
    assert list(trajectory.token_ids) == [*second.prompt_ids, *replies[1]]
    sampled = [t for t, s in zip(trajectory.token_ids, trajectory.sampled, strict=True) if s]
    assert sampled == replies[0] + replies[1]
    # A tokenisation of the transcript would have given other ids for the same text.
    text = chat.decode(trajectory.token_ids)
    assert chat.tokenizer.encode(text) != list(trajectory.token_ids)
    assert text == chat.decode(encode_conversation(chat, episode.messages, environment.tools)[0])


@settings(deadline=None)
@given(data=st.data())
def test_any_sampled_ids_are_kept(chat: TemplateChat, data: st.DataObject) -> None:
    """Whatever ids an engine samples, they stand in the record with their own numbers."""
    ids = st.integers(0, chat.vocabulary_size - 1)
    opening, closing = chat.tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>"])
    reply = st.lists(ids | st.sampled_from([opening, closing, *chat.stop_ids]), max_size=12)
    replies = data.draw(st.lists(reply, min_size=4, max_size=4))
    task = make_task(max_turns=4, max_new_tokens=10, max_total_tokens=120)
    generator = FakeGenerator(replies, policy_version=2)
    policy = make_policy(chat, task, generator)
    episode = asyncio.run(run_episode(task, FakeEnvironment(task), policy))
    trajectory = to_trajectory(episode, policy, task, trajectory_id="t", group_id="g")
    assert trajectory.is_valid

    expected: list[int] = []
    for request, script in zip(generator.requests, replies, strict=False):
        assert list(request.prompt_ids)[: len(expected)] == expected
        assert len(request.prompt_ids) + request.max_new_tokens <= 120
        kept = script[: request.max_new_tokens]
        stop = next((i for i, t in enumerate(kept) if t in chat.stop_ids), len(kept))
        expected = [*request.prompt_ids, *kept[: stop + 1]]
    assert list(trajectory.token_ids) == expected
    for said, logprob, version in zip(
        trajectory.sampled, trajectory.logprobs, trajectory.versions, strict=True
    ):
        assert (logprob, version) == ((-0.5, 2) if said else (0.0, -1))
    if 1 in trajectory.sampled:
        assert trajectory.prompt_tokens == trajectory.sampled.index(1)


async def play(
    chat: TemplateChat, task: Task, generator: FakeGenerator, context_window: int = 1024
) -> tuple[Episode, ModelPolicy]:
    policy = make_policy(chat, task, generator, context_window=context_window)
    return await run_episode(task, FakeEnvironment(task), policy), policy


async def test_requests_carry_what_the_engine_needs(chat: TemplateChat) -> None:
    task = make_task(max_new_tokens=50)
    generator = FakeGenerator([chat.encode_reply(ECHO), chat.encode_reply(ANSWER)])
    await play(chat, task, generator)
    first, second = generator.requests
    assert (first.conversation, first.group, first.temperature) == ("c", "g", 0.7)
    assert first.stop_ids == chat.stop_ids
    assert first.max_new_tokens == 50
    assert (first.seed, second.seed) == (derive_seed(3, 0), derive_seed(3, 1))
    assert first.seed != second.seed
    assert generator.released == ["c"]


def test_seeds_of_neighbours_differ() -> None:
    seeds = {derive_seed(seed, turn) for seed in range(50) for turn in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**63 for seed in seeds)


async def test_malformed_call_is_answered(chat: TemplateChat) -> None:
    task = make_task()
    (tag,) = chat.tokenizer.convert_tokens_to_ids(["<tool_call>"])
    broken = [tag, *spell(chat, "walnut"), *chat.stop_ids]
    generator = FakeGenerator([broken, chat.encode_reply(ANSWER)])
    episode, _ = await play(chat, task, generator)
    assert episode.outcome is Outcome.SOLVED
    parsed = chat.parse_reply(broken).calls[0]
    assert isinstance(parsed, MalformedCall)
    assert episode.events[0].result == f"error: {parsed.reason}"
    prompt = chat.decode(list(generator.requests[1].prompt_ids))
    assert f"<|im_start|>tool\nerror: {parsed.reason}<|im_end|>" in prompt


@pytest.mark.parametrize("bound", ["window", "total"])
async def test_room_runs_out_between_turns(chat: TemplateChat, bound: str) -> None:
    reply = chat.encode_reply(ECHO)
    task = make_task()
    room = len(chat.encode_prompt(await FakeEnvironment(task).start(), FakeEnvironment(task).tools))
    room += len(reply) + 2
    if bound == "total":
        task = make_task(max_total_tokens=room)
    generator = FakeGenerator([reply] * 9)
    episode, policy = await play(chat, task, generator, room if bound == "window" else 1024)
    assert (episode.outcome, episode.reward, episode.turns) == (Outcome.TRUNCATED, 0.0, 1)
    assert f"{room} tokens" in episode.error
    assert len(policy.token_ids) == room - 2  # ends in what was sampled, not in unread results
    assert policy.sampled[-1] == 1


async def test_prompt_too_long_is_truncated_with_its_prompt(chat: TemplateChat) -> None:
    task = make_task(max_total_tokens=5)
    episode, policy = await play(chat, task, FakeGenerator([]))
    trajectory = to_trajectory(episode, policy, task, trajectory_id="t", group_id="g")
    assert trajectory.outcome is Outcome.TRUNCATED
    assert len(trajectory.token_ids) == trajectory.prompt_tokens > 5
    assert sum(trajectory.sampled) == 0


async def test_answer_that_does_not_end_is_truncated(chat: TemplateChat) -> None:
    task = make_task(max_new_tokens=3)
    episode, policy = await play(chat, task, FakeGenerator([spell(chat, "walnut")]))
    assert episode.outcome is Outcome.TRUNCATED
    assert episode.messages[-1] == Message("assistant", "wal")
    assert policy.sampled[-3:] == [1, 1, 1]


async def test_complete_call_that_was_cut_behind_it_is_run(chat: TemplateChat) -> None:
    reply = chat.encode_reply(ECHO)[:-1]
    task = make_task(max_new_tokens=len(reply))
    generator = FakeGenerator([reply, chat.encode_reply(ANSWER)])
    episode, policy = await play(chat, task, generator)
    assert episode.outcome is Outcome.SOLVED
    (stop_id,) = chat.stop_ids
    closed = (*generator.requests[0].prompt_ids, *reply, stop_id)
    assert generator.requests[1].prompt_ids[: len(closed)] == closed
    assert policy.sampled[len(closed) - 1] == 0  # the model did not say it, so nobody trains on it


async def test_ragged_generation_is_invalid(chat: TemplateChat) -> None:
    class Ragged(FakeGenerator):
        async def generate(self, request: GenerateRequest) -> Generation:
            return Generation((1, 2), (0.0,), (0, 0), "stop")

    task = make_task()
    episode, _ = await play(chat, task, Ragged([]))
    assert episode.outcome is Outcome.INVALID
    assert "2 tokens, 1 log-probabilities" in episode.error


async def test_trajectory_of_an_invalid_episode_says_why(chat: TemplateChat) -> None:
    task = make_task()
    episode, policy = await play(chat, task, FakeGenerator([]))
    trajectory = to_trajectory(episode, policy, task, trajectory_id="t", group_id="g")
    assert not trajectory.is_valid
    assert trajectory.error.startswith("EngineError: the script holds 0 replies")
    assert (trajectory.task_hash, trajectory.task_seed) == (task.content_hash, 7)
    assert trajectory.environment_version == "fake-environment"


def play_echo() -> Script:
    results = yield ECHO
    yield Message("assistant", results[0].content)


@pytest.mark.parametrize("short", [0, 1])
@pytest.mark.parametrize("bound", ["window", "total", "reply"])
async def test_a_script_has_the_room_that_a_model_has(
    chat: TemplateChat, bound: str, short: int
) -> None:
    """A script fits exactly where a model that says the same words does."""
    replies = [chat.encode_reply(ECHO), chat.encode_reply(ANSWER)]
    _, policy = await play(chat, make_task(), FakeGenerator(replies))
    # A call whose stop id is cut off is run all the same.
    total, longest = len(policy.token_ids), max(len(replies[0]) - 1, len(replies[1]))
    task = {
        "window": make_task(),
        "total": make_task(max_total_tokens=total - short),
        "reply": make_task(max_new_tokens=longest - short),
    }[bound]
    window = total - short if bound == "window" else 1024
    budget = ScriptBudget(chat, task, context_window=window)
    episode = await run_episode(task, FakeEnvironment(task), ScriptPolicy(play_echo(), budget))
    by_model, _ = await play(chat, task, FakeGenerator(replies), window)
    if not short:
        assert by_model.outcome is episode.outcome is Outcome.SOLVED
        return
    # The model's call is cut in its middle, or its answer before the end.
    assert by_model.events[0].is_error or by_model.outcome is Outcome.TRUNCATED
    assert (episode.outcome, episode.reward) == (Outcome.TRUNCATED, 0.0)
    needed = longest if bound == "reply" else total
    assert f"it needs {needed} tokens" in episode.error
    assert f"at most {needed - 1} fit" in episode.error
