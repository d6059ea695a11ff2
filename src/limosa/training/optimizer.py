"""AdamW as both kinds of training use it, and the learning-rate schedules.

Neighbours: `learner.py` and `sft.py`. Left out: other optimisers.
"""

import math

import torch
from torch import nn


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


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the rate of the next update."""
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
