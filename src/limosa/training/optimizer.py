"""The optimisers: AdamW for both kinds of training, Muon for pre-training, and the schedules.

Neighbours: `learner.py` and `sft.py`. Left out: other optimisers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import nn

MakeOptimizers = Callable[
    [nn.Module, float, tuple[float, float], float], list[torch.optim.Optimizer]
]


def make_adamw(
    model: nn.Module, learning_rate: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.AdamW:
    """AdamW whose decay spares gains and biases. Source: arXiv 1711.05101, algorithm 2."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)


def make_muon(
    model: nn.Module, learning_rate: float, betas: tuple[float, float], weight_decay: float
) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, AdamW for embeddings, output, gains and biases.

    Muon's update is scaled to the size of AdamW's, so one learning rate serves both.
    Source: Jordan et al., "Muon" (2024); the scale from Liu et al. (arXiv 2502.16982), equation 4.
    """
    hidden = {
        id(p): p
        for name, p in model.named_parameters()
        if p.dim() == 2 and "embed_tokens" not in name and "lm_head" not in name
    }
    others = [p for p in model.parameters() if id(p) not in hidden]
    muon = torch.optim.Muon(
        list(hidden.values()),
        lr=learning_rate,
        weight_decay=weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    adamw = torch.optim.AdamW(others, lr=learning_rate, betas=betas, weight_decay=0.0, fused=True)
    return [muon, adamw]


def _make_adamw_alone(
    model: nn.Module, learning_rate: float, betas: tuple[float, float], weight_decay: float
) -> list[torch.optim.Optimizer]:
    return [make_adamw(model, learning_rate, betas, weight_decay)]


OPTIMIZERS: Mapping[str, MakeOptimizers] = MappingProxyType(
    {"adamw": _make_adamw_alone, "muon": make_muon}
)


def set_learning_rate(optimizers: Sequence[torch.optim.Optimizer], learning_rate: float) -> None:
    """Set the rate of the next update."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


def compute_cosine(step: int, *, steps: int, warmup_steps: int, floor_ratio: float) -> float:
    """The factor on the learning rate: a linear rise, then half a cosine down to `floor_ratio`.

    Source: SGDR (arXiv 1608.03983), equation 5, without restarts.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return floor_ratio + (1.0 - floor_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress))
