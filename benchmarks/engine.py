"""Speed of the embedded engine on random weights: decode, prefill, group prompts, updates.

python benchmarks/engine.py [--json] [--live 48] [--context 300] [--threads 1]
"""

import asyncio
import json
import platform
import time

import click
import torch

from limosa.base.interfaces import GenerateRequest
from limosa.inference.engine import Engine
from limosa.models.config import TransformerConfig
from limosa.models.transformer import make_model

CONFIG = TransformerConfig(
    vocab_size=2048,
    hidden_size=192,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=1024,
)


def make_request(name: str, prompt: list[int], tokens: int, group: str = "g") -> GenerateRequest:
    return GenerateRequest(
        prompt_ids=prompt,
        conversation=name,
        group=group,
        max_new_tokens=tokens,
        temperature=1.0,
        seed=hash(name) & 0xFFFF,
        stop_ids=frozenset(),
    )


def make_prompt(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, CONFIG.vocab_size, (length,), generator=generator).tolist()


async def measure_decode(live: int, context: int, tokens: int = 100) -> dict[str, float]:
    """All prompts are computed first and the cache has its size, so that only decoding is timed."""
    engine = Engine(make_model(CONFIG, 0), max_sequences=live, context_window=1024)
    await engine.generate(make_request("warm", make_prompt(live, context + tokens), 2))
    engine.release("warm")
    prompts = [make_prompt(i, context - tokens // 2) for i in range(live)]
    requests = [make_request(f"c{i}", p, 1) for i, p in enumerate(prompts)]
    earlier = engine.stats()["prefill_tokens"]
    begin = time.perf_counter()
    await asyncio.gather(*(engine.generate(r) for r in requests))
    prefill_s = time.perf_counter() - begin
    before = engine.stats()
    requests = [make_request(f"c{i}", p, tokens) for i, p in enumerate(prompts)]
    begin = time.perf_counter()
    await asyncio.gather(*(engine.generate(r) for r in requests))
    wall_s = time.perf_counter() - begin
    after = engine.stats()
    await engine.close()
    steps = after["steps"] - before["steps"]
    return {
        "decode_tokens_per_s": live * tokens / wall_s,
        "step_ms": 1e3 * wall_s / steps,
        "prefill_tokens_per_s": (before["prefill_tokens"] - earlier) / prefill_s,
    }


async def measure_episodes(slots: int, groups: int, size: int) -> dict[str, float]:
    """Groups of three-turn episodes with pauses for tools, as in reinforcement learning."""
    engine = Engine(make_model(CONFIG, 0), max_sequences=slots, context_window=1024)

    async def play(group: int, member: int) -> None:
        name, prompt = f"{group}.{member}", make_prompt(group, 200)
        for turn in range(3):
            result = await engine.generate(make_request(name, prompt, 30, str(group)))
            await asyncio.sleep(0.02)
            prompt = [*prompt, *result.token_ids, *make_prompt(turn, 20)]
        engine.release(name)

    begin = time.perf_counter()
    await asyncio.gather(*(play(g, m) for g in range(groups) for m in range(size)))
    wall_s = time.perf_counter() - begin
    stats = engine.stats()
    begin = time.perf_counter()
    await engine.update_weights(make_model(CONFIG, 1).state_dict(), 1)
    update_s = time.perf_counter() - begin
    await engine.close()
    return {
        "sampled_tokens_per_s": stats["generated_tokens"] / wall_s,
        "episodes_per_s": groups * size / wall_s,
        "prefilled_per_sampled": stats["prefill_tokens"] / stats["generated_tokens"],
        "cache_mib": stats["cache_bytes"] / 2**20,
        "update_ms": 1e3 * update_s,
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--live", default=48)
@click.option("--context", default=300)
@click.option("--threads", default=1)
@click.option("--rounds", default=3, help="The best of so many rounds is reported.")
def main(as_json: bool, live: int, context: int, threads: int, rounds: int) -> None:
    torch.set_num_threads(threads)
    decodes = [asyncio.run(measure_decode(live, context)) for _ in range(rounds)]
    episodes = [asyncio.run(measure_episodes(128, 16, 8)) for _ in range(rounds)]
    single = asyncio.run(measure_decode(1, context))
    result = {
        "live": live,
        "context": context,
        "threads": threads,
        "machine": platform.machine(),
        "torch": torch.__version__,
        "decode": max(decodes, key=lambda d: d["decode_tokens_per_s"]),
        "episodes": max(episodes, key=lambda d: d["sampled_tokens_per_s"]),
        "single": single,
    }
    print(json.dumps(result, indent=None if as_json else 2))


if __name__ == "__main__":
    main()
