"""Optimisers by name: who gets which parameters, and that each of them learns."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from limosa.models.config import TransformerConfig
from limosa.models.transformer import Transformer, attend_causally, make_model
from limosa.training.optimizer import OPTIMIZERS, compute_cosine, make_muon, set_learning_rate


@pytest.fixture
def model() -> Transformer:
    config = TransformerConfig.from_hf(
        {
            "model_type": "llama",
            "vocab_size": 40,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        }
    )
    return make_model(config, seed=0)


def compute_loss(model: Transformer) -> torch.Tensor:
    ids = torch.arange(30) % 7
    hidden = model(ids[:-1], torch.arange(29), attend_causally)
    return nn.functional.cross_entropy(model.project(hidden), ids[1:])


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_loss_falls(model: Transformer, name: str) -> None:
    optimizers = OPTIMIZERS[name](model, 0.01, (0.9, 0.95), 0.0)
    first = compute_loss(model).item()
    for _ in range(30):
        compute_loss(model).backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
    assert compute_loss(model).item() < 0.5 * first


def test_muon_takes_the_hidden_matrices_alone_and_nothing_is_left_out(model: Transformer) -> None:
    muon, adamw = make_muon(model, 0.01, (0.9, 0.95), 0.1)
    names = {id(p): name for name, p in model.named_parameters()}

    def list_names(optimizer: torch.optim.Optimizer) -> set[str]:
        return {names[id(p)] for group in optimizer.param_groups for p in group["params"]}

    assert list_names(muon) | list_names(adamw) == set(names.values())
    assert not list_names(muon) & list_names(adamw)
    assert "model.embed_tokens.weight" in list_names(adamw)
    assert all(name.endswith("proj.weight") for name in list_names(muon))


def test_one_learning_rate_reaches_every_group(model: Transformer) -> None:
    optimizers = make_muon(model, 0.01, (0.9, 0.95), 0.1)
    set_learning_rate(optimizers, 0.5)
    assert {group["lr"] for o in optimizers for group in o.param_groups} == {0.5}


def test_the_schedule_rises_then_falls_to_its_floor() -> None:
    factors = [
        compute_cosine(step, steps=100, warmup_steps=10, floor_ratio=0.1) for step in range(101)
    ]
    assert factors[0] == pytest.approx(0.1) and max(factors) == factors[10] == 1.0
    assert factors[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in pairwise(factors[10:]))
