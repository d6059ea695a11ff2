import random

import pytest
import torch

from limosa.base.trajectory import Group, Outcome, Trajectory
from limosa.models.config import TransformerConfig
from limosa.models.transformer import attend_causally, make_model
from limosa.models.weights import save_model

VOCABULARY = 50


def make_tiny(seed=0):
    config = TransformerConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.1,
    )
    return make_model(config, seed=seed)


@pytest.fixture
def tiny_model():
    return make_tiny()


@pytest.fixture
def tiny_folder(tmp_path):
    save_model(make_tiny(), tmp_path / "model", tokenizer_from=None)
    return tmp_path / "model"


@pytest.fixture
def play_group():
    """Samples a group from a model as the engine would: log-probabilities under temperature."""
    return sample_group


@torch.no_grad()
def sample_group(
    model, number, *, domain="maze", size=6, version=0, temperature=1.0, score=None, length=10
):
    rng = random.Random(number)
    generator = torch.Generator().manual_seed(number)
    prompt = [rng.randrange(VOCABULARY) for _ in range(8)]
    trajectories = []
    for row in range(size):
        ids, sampled, logprobs = list(prompt), [0] * 8, [0.0] * 8
        for place in range(length):
            if place == 4:  # a tool's result between two turns
                ids, sampled, logprobs = [*ids, 1, 2, 3], sampled + [0] * 3, logprobs + [0.0] * 3
            hidden = model(torch.tensor(ids), torch.arange(len(ids)), attend_causally)
            logp = (model.project(hidden[-1:])[0] / temperature).log_softmax(-1)
            token = int(torch.multinomial(logp.exp(), 1, generator=generator))
            ids.append(token)
            sampled.append(1)
            logprobs.append(float(logp[token]))
        reward = score(ids[8:]) if score else float(row % 2)
        trajectories.append(
            Trajectory(
                id=f"{number}-{row}",
                group_id=str(number),
                domain=domain,
                stage="easy",
                task_hash="",
                task_seed=number,
                environment_version="",
                token_ids=tuple(ids),
                sampled=tuple(sampled),
                logprobs=tuple(logprobs),
                versions=tuple(version if s else -1 for s in sampled),
                prompt_tokens=8,
                temperature=temperature,
                outcome=Outcome.SOLVED if reward else Outcome.FAILED,
                reward=reward,
            )
        )
    return Group(str(number), domain, "easy", tuple(trajectories))
