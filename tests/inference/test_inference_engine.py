"""The engine against transformers, against plain forwards, and against itself under pressure."""

import asyncio
import dataclasses
import random

import pytest
import torch
import transformers

from limosa.base.errors import EngineError
from limosa.base.interfaces import GenerateRequest
from limosa.inference.engine import Engine
from limosa.models.config import TransformerConfig
from limosa.models.transformer import attend_causally, make_model
from limosa.models.weights import checksum

CONFIG = TransformerConfig(
    vocab_size=61,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    initializer_range=0.3,
)


def make_engine(seed=0, config=CONFIG, **changes):
    options = {"max_sequences": 8, "context_window": 256, **changes}
    return Engine(make_model(config, seed), **options)


def make_request(prompt, conversation="c", **changes):
    defaults = {
        "group": "g",
        "max_new_tokens": 12,
        "temperature": 1.0,
        "seed": 7,
        "stop_ids": frozenset(),
    }
    return GenerateRequest(prompt_ids=prompt, conversation=conversation, **{**defaults, **changes})


def make_prompt(seed, length):
    rng = random.Random(seed)
    return [rng.randrange(61) for _ in range(length)]


async def wait_until(condition):
    while not condition():  # noqa: ASYNC110  (progress has no event)
        await asyncio.sleep(0.001)


def check_logprobs(model, prompt, generation, temperature):
    """Every log-probability against one plain forward over the whole sequence."""
    ids_N = torch.tensor([*prompt, *generation.token_ids])
    with torch.no_grad():
        hidden_ND = model(ids_N, torch.arange(len(ids_N)), attend_causally)
        logits_NV = model.project(hidden_ND) / (temperature or 1.0)
    logprobs_N = logits_NV.log_softmax(-1)[len(prompt) - 1 : -1]
    want_N = logprobs_N.gather(1, ids_N[len(prompt) :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(generation.logprobs), want_N, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
async def test_greedy_equals_transformers(tmp_path, family):
    value = {**CONFIG.to_hf(), "model_type": family}
    config = TransformerConfig.from_hf(value)
    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }
    model = make_model(config, 5)
    reference = classes[family][1](classes[family][0](**config.to_hf())).eval()
    reference.load_state_dict({**model.state_dict()}, strict=False)
    prompts = [make_prompt(seed, 5 + 11 * seed) for seed in range(4)]
    engine = Engine(model, max_sequences=4, context_window=256)
    requests = [
        make_request(p, f"c{i}", temperature=0.0, max_new_tokens=20) for i, p in enumerate(prompts)
    ]
    results = await asyncio.gather(*(engine.generate(r) for r in requests))
    for prompt, result in zip(prompts, results, strict=True):
        ids = reference.generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None
        )
        assert list(result.token_ids) == ids[0, len(prompt) :].tolist()
        check_logprobs(model, prompt, result, 0.0)
    await engine.close()


async def play(engine, model, name, turns, temperature, group="g"):
    """A conversation of several turns whose every log-probability is checked."""
    rng = random.Random(name)
    prompt = make_prompt(group, 40)
    sampled = []
    for turn in range(turns):
        request = make_request(
            prompt,
            name,
            group=group,
            temperature=temperature,
            seed=rng.randrange(1 << 40),
            max_new_tokens=rng.randrange(1, 20),
            stop_ids=frozenset({3}),
        )
        result = await engine.generate(request)
        check_logprobs(model, prompt, result, temperature)
        assert (result.finish_reason == "stop") is (result.token_ids[-1] == 3)
        assert len(result.token_ids) <= request.max_new_tokens
        sampled.append(result.token_ids)
        prompt = [*prompt, *result.token_ids, *make_prompt((name, turn).__repr__(), 7)]
        await asyncio.sleep(rng.random() * 0.002)
    engine.release(name)
    return sampled


@pytest.mark.parametrize("slots", [16, 3])
async def test_mixed_batch_logprobs_equal_a_full_forward(slots):
    engine, model = make_engine(max_sequences=slots, step_tokens=33), make_model(CONFIG, 0)
    temperatures = [1.0, 0.7, 0.0, 1.3]
    plays = [
        play(engine, model, f"c{i}", 4, temperatures[i % 4], group=f"g{i // 4}") for i in range(12)
    ]
    await asyncio.gather(*plays)
    engine.check_integrity()
    stats = engine.stats()
    assert stats["live"] == 0 and stats["slots"] <= slots
    assert stats["cached_tokens"] > 0 and (stats["evictions"] > 0) is (slots == 3)
    await engine.close()


async def test_same_seed_gives_same_tokens_alone_and_in_a_batch():
    prompts = [make_prompt(i, 10 + 3 * i) for i in range(6)]
    requests = [make_request(p, f"c{i}", seed=100 + i) for i, p in enumerate(prompts)]
    alone = []
    for request in requests:
        engine = make_engine()
        alone.append(await engine.generate(request))
        await engine.close()
    engine = make_engine()
    together = await asyncio.gather(*(engine.generate(r) for r in requests))
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    others = [dataclasses.replace(r, seed=r.seed + 50, conversation="d") for r in requests]
    changed = [await engine.generate(r) for r in others]
    assert [r.token_ids for r in changed] != [r.token_ids for r in alone]
    await engine.close()


async def test_group_members_copy_the_shared_prompt():
    engine, model = make_engine(), make_model(CONFIG, 0)
    prompt = make_prompt(1, 90)
    requests = [make_request(prompt, f"c{i}", seed=i) for i in range(6)]
    results = await asyncio.gather(*(engine.generate(r) for r in requests))
    for result in results:
        check_logprobs(model, prompt, result, 1.0)
    stats = engine.stats()
    assert stats["prefill_tokens"] == 90
    assert stats["copied_tokens"] == stats["cached_tokens"] == 5 * 89
    assert len({r.token_ids for r in results}) > 1
    await engine.close()


async def test_a_new_turn_computes_only_new_tokens():
    engine, model = make_engine(), make_model(CONFIG, 0)
    prompt = make_prompt(1, 50)
    first = await engine.generate(make_request(prompt))
    before = engine.stats()["prefill_tokens"]
    prompt = [*prompt, *first.token_ids, *make_prompt(2, 9)]
    result = await engine.generate(make_request(prompt))
    check_logprobs(model, prompt, result, 1.0)
    assert engine.stats()["prefill_tokens"] - before == 1 + 9  # the last sampled token, the new
    # A history that was edited keeps what is equal and computes the rest.
    edited = [*prompt[:30], (prompt[30] + 1) % 61, *prompt[31:]]
    check_logprobs(model, edited, await engine.generate(make_request(edited)), 1.0)
    # The same prompt again needs its last token only.
    before = engine.stats()["prefill_tokens"]
    again = await engine.generate(make_request(edited))
    check_logprobs(model, edited, again, 1.0)
    assert engine.stats()["prefill_tokens"] == before
    await engine.close()


async def test_new_weights_leave_nothing_stale():
    engine = make_engine()
    prompt = make_prompt(1, 40)
    await engine.generate(make_request(prompt, "idle"))
    new = make_model(CONFIG, 9)
    digest = await engine.update_weights(new.state_dict(), 1)
    assert digest == checksum(new.state_dict()) and engine.policy_version == 1
    fresh = make_engine(seed=9)
    want = await fresh.generate(make_request(prompt, "idle"))
    got = await engine.generate(make_request(prompt, "idle"))
    assert got.token_ids == want.token_ids and got.versions == (1,) * 12
    assert got.logprobs == pytest.approx(want.logprobs, abs=1e-5)
    await engine.close()
    await fresh.close()


async def test_live_requests_go_on_under_new_weights():
    engine, models = make_engine(), [make_model(CONFIG, 0), make_model(CONFIG, 9)]
    prompts = [make_prompt(i, 20 + i) for i in range(5)]
    requests = [make_request(p, f"c{i}", max_new_tokens=150) for i, p in enumerate(prompts)]
    tasks = [asyncio.create_task(engine.generate(r)) for r in requests]
    await wait_until(lambda: engine.stats()["generated_tokens"] >= 100)
    await engine.update_weights(models[1].state_dict(), 1)
    results = await asyncio.gather(*tasks)
    for prompt, result in zip(prompts, results, strict=True):
        cut = result.versions.index(1)
        assert 0 < cut < 150 and result.versions == (0,) * cut + (1,) * (150 - cut)
        old = dataclasses.replace(
            result, token_ids=result.token_ids[:cut], logprobs=result.logprobs[:cut]
        )
        check_logprobs(models[0], prompt, old, 1.0)
        new = dataclasses.replace(
            result, token_ids=result.token_ids[cut:], logprobs=result.logprobs[cut:]
        )
        check_logprobs(models[1], [*prompt, *result.token_ids[:cut]], new, 1.0)
    await engine.close()


async def test_weights_that_do_not_fit_change_nothing():
    engine = make_engine()
    before = await engine.update_weights(make_model(CONFIG, 0).state_dict(), 1)
    state = make_model(CONFIG, 1).state_dict()
    with pytest.raises(EngineError, match=r"'model\.norm\.weight' is missing"):
        await engine.update_weights({n: t for n, t in state.items() if n != "model.norm.weight"}, 2)
    with pytest.raises(EngineError, match="expected"):
        await engine.update_weights({**state, "model.norm.weight": torch.ones(3)}, 2)
    assert engine.policy_version == 1
    assert await engine.update_weights(make_model(CONFIG, 0).state_dict(), 2) == before
    await engine.close()


async def test_two_slots_serve_six_conversations():
    engine, model = make_engine(max_sequences=2), make_model(CONFIG, 0)
    await asyncio.gather(*(play(engine, model, f"c{i}", 3, 1.0, f"g{i}") for i in range(6)))
    engine.check_integrity()
    assert engine.stats()["slots"] == 2
    await engine.close()


async def test_cancellation_frees_the_slot_at_once():
    engine, model = make_engine(max_sequences=1), make_model(CONFIG, 0)
    prompt = make_prompt(1, 30)
    long = asyncio.create_task(engine.generate(make_request(prompt, "a", max_new_tokens=200)))
    queued = asyncio.create_task(engine.generate(make_request(prompt, "b")))
    other = asyncio.create_task(engine.generate(make_request(prompt, "c")))
    await wait_until(lambda: engine.stats()["generated_tokens"] >= 3)
    long.cancel()
    queued.cancel()
    check_logprobs(model, prompt, await other, 1.0)
    assert engine.stats()["generated_tokens"] < 150
    assert long.cancelled() and queued.cancelled()
    engine.check_integrity()
    await engine.close()


async def test_requests_of_one_conversation_take_turns():
    engine, model = make_engine(), make_model(CONFIG, 0)
    prompts = [make_prompt(i, 20) for i in range(3)]
    results = await asyncio.gather(*(engine.generate(make_request(p, "same")) for p in prompts))
    for prompt, result in zip(prompts, results, strict=True):
        check_logprobs(model, prompt, result, 1.0)
    assert engine.stats()["slots"] and engine.stats()["live"] == 0
    await engine.close()


async def test_the_context_window_ends_a_generation():
    engine = make_engine(context_window=32)
    result = await engine.generate(make_request(make_prompt(1, 30), max_new_tokens=50))
    assert len(result.token_ids) == 2 and result.finish_reason == "length"
    engine.check_integrity()
    await engine.close()


@pytest.mark.parametrize(
    ("prompt", "changes", "word"),
    [
        ([], {}, "0 tokens"),
        ([1] * 256, {}, "256 tokens"),
        ([1, 61], {}, "vocabulary"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens 0"),
        ([1], {"temperature": float("nan")}, "temperature"),
    ],
)
async def test_impossible_requests_are_refused_alone(prompt, changes, word):
    engine = make_engine()
    good = asyncio.create_task(engine.generate(make_request([1, 2, 3], "good")))
    with pytest.raises(EngineError, match=word):
        await engine.generate(make_request(prompt, "bad", **changes))
    assert len((await good).token_ids) == 12
    engine.check_integrity()
    await engine.close()


async def test_diverged_weights_fail_every_waiter_and_the_engine_recovers():
    engine, model = make_engine(max_sequences=2), make_model(CONFIG, 0)
    prompt = make_prompt(1, 20)
    bad = {n: torch.full_like(t, torch.nan) for n, t in model.state_dict().items()}
    await engine.update_weights(bad, 1)
    requests = [make_request(prompt, f"c{i}") for i in range(5)]
    results = await asyncio.gather(*map(engine.generate, requests), return_exceptions=True)
    assert [type(r) for r in results] == [EngineError] * 5
    assert all("not finite" in str(r) for r in results)
    await engine.update_weights(model.state_dict(), 2)
    check_logprobs(model, prompt, await engine.generate(requests[0]), 1.0)
    engine.check_integrity()
    await engine.close()


async def test_close_tells_whoever_waits():
    engine = make_engine()
    task = asyncio.create_task(engine.generate(make_request([1, 2], max_new_tokens=200)))
    await wait_until(lambda: engine.stats()["steps"])
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await task
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(make_request([1, 2]))
    await engine.close()


@pytest.mark.parametrize("seed", range(3))
async def test_no_slot_leaks_under_random_use(seed):
    rng = random.Random(seed)
    model = make_model(CONFIG, 0)
    engine = make_engine(max_sequences=rng.choice([2, 5]), context_window=96, step_tokens=24)
    tasks = []
    for step in range(60):
        action = rng.random()
        name = f"c{rng.randrange(8)}"
        if action < 0.6:
            prompt = make_prompt(rng.randrange(3), rng.randrange(1, 60))
            request = make_request(prompt, name, seed=step, max_new_tokens=rng.randrange(1, 30))
            tasks.append((prompt, asyncio.create_task(engine.generate(request))))
        elif action < 0.75 and tasks:
            rng.choice(tasks)[1].cancel()
        elif action < 0.9:
            engine.release(name)
        else:
            await engine.update_weights(model.state_dict(), step)
        await asyncio.sleep(rng.choice([0, 0, 0.002]))
        engine.check_integrity()
    results = await asyncio.gather(*(t for _, t in tasks), return_exceptions=True)
    for (prompt, _), result in zip(tasks, results, strict=True):
        if not isinstance(result, asyncio.CancelledError):
            check_logprobs(model, prompt, result, 1.0)
    engine.check_integrity()
    for index in range(8):
        engine.release(f"c{index}")
    assert engine.stats()["live"] == 0
    await engine.close()


def test_an_interrupted_event_loop_leaves_an_exact_engine():
    engine, model = make_engine(), make_model(CONFIG, 0)
    prompt = make_prompt(1, 60)

    async def interrupt():
        tasks = []
        for index in range(4):
            request = make_request(prompt, f"c{index}", max_new_tokens=150)
            tasks.append(asyncio.create_task(engine.generate(request)))
        await wait_until(lambda: engine.stats()["steps"] > 1)

    async def go_on():
        check_logprobs(model, prompt, await engine.generate(make_request(prompt, "c1")), 1.0)
        engine.check_integrity()
        await engine.close()

    asyncio.run(interrupt())
    asyncio.run(go_on())
