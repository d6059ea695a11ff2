"""Tokens per second of forward and backward, for fine-tuning and for reinforcement learning.

    python benchmarks/learner.py [--threads 2] [--json]

Conversations have 150 to 400 tokens; `shared` of them are a prompt that a third have in common, as
the demonstrations of a domain have. Reinforcement learning is one update of 8 groups of 8.
"""

import argparse
import json
import time

import numpy as np
import torch

from limosa.base.config import DomainConfig, RlConfig
from limosa.base.trajectory import Group, Outcome, Trajectory
from limosa.models.config import TransformerConfig
from limosa.models.transformer import Transformer, make_model
from limosa.training.conversations import Example
from limosa.training.learner import RlLearner
from limosa.training.sft import Trainer, open_workers, plan_batches
from limosa.training.sft_config import SftConfig

VOCABULARY = 2000


def make_width(width: int) -> Transformer:
    config = TransformerConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 32 * 32,
        num_hidden_layers=4,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        head_dim=32,
    )
    return make_model(config, seed=0)


def make_examples(shared: int) -> list[Example]:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCABULARY, shared) for _ in range(3)]
    examples = []
    for number in range(220):
        rest = rng.integers(0, VOCABULARY, int(rng.integers(150, 400)) - shared)
        ids = np.concatenate((prompts[number % 3], rest)).astype(np.int32)
        trained = rng.random(len(ids)) < (0.5 if shared else 1.0)
        trained[: max(1, shared)] = False
        examples.append(Example(ids, trained))
    return examples


def measure_sft(width: int, precision: str, shared: int, threads: int) -> float:
    config = SftConfig.model_validate(
        {"model": "", "data": "", "out": "", "precision": precision, "threads": threads}
    )
    examples, model = make_examples(shared), make_width(width)
    batches = [[examples[i] for i in batch] for batch in plan_batches(examples, config)]
    with open_workers(threads) as workers:
        trainer = Trainer(config, model, len(batches), workers)
        trainer.update(0, batches[0])
        started = time.perf_counter()
        for step, batch in enumerate(batches[1:], 1):
            trainer.update(step, batch)
        wall_s = time.perf_counter() - started
    return sum(len(e) for batch in batches[1:] for e in batch) / wall_s


def make_group(number: int) -> Group:
    rng = np.random.default_rng(number)
    prompt = rng.integers(0, VOCABULARY, 120).tolist()
    trajectories = []
    for row in range(8):
        length = int(rng.integers(60, 250))
        sampled = (0,) * 120 + tuple(int(x) for x in rng.random(length) < 0.5)
        trajectory = Trajectory(
            id=f"{number}-{row}",
            group_id=str(number),
            domain="maze",
            stage="easy",
            task_hash="",
            task_seed=number,
            environment_version="",
            token_ids=(*prompt, *rng.integers(0, VOCABULARY, length).tolist()),
            sampled=sampled,
            logprobs=tuple(-7.0 * s for s in sampled),
            versions=tuple(s - 1 for s in sampled),
            prompt_tokens=120,
            temperature=1.0,
            outcome=Outcome.SOLVED if row % 2 else Outcome.FAILED,
            reward=float(row % 2),
        )
        trajectories.append(trajectory)
    return Group(str(number), "maze", "easy", tuple(trajectories))


def measure_rl(width: int) -> float:
    learner = RlLearner(
        make_width(width), RlConfig(), (DomainConfig(name="maze"),), tokenizer_from=None
    )
    groups = [make_group(number) for number in range(8)]
    learner.step(groups)
    return max(learner.step(groups).metrics["tokens_per_s"] for _ in range(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, float] = {}
    for width in (192, 256):
        for precision in ("float32", "bfloat16"):
            for shared in (0, 120):
                name = f"sft width {width} {precision} shared {shared} threads {options.threads}"
                results[name] = measure_sft(width, precision, shared, options.threads)
        results[f"rl width {width} float32 threads 1"] = measure_rl(width)
    if options.json:
        print(json.dumps(results))
        return
    for name, rate in results.items():
        print(f"{name:<55}{rate:>10,.0f} tok/s")


if __name__ == "__main__":
    main()
