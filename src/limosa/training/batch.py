"""Groups to the flat arrays of one update: who gets which advantage, weight and temperature.

`learner.py` reads one entry a token from here; `packing.py` says in `source_T` which. Groups whose
advantages are all zero stay out of the arrays unless another loss term needs them.

Legend: S tokens of all live sequences, one after another.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from limosa.base.trajectory import Group, Trajectory
from limosa.training.losses import Aggregation, weigh_tokens
from limosa.training.packing import Branch
from limosa.training.rewards import RewardNormalizer


@dataclass(frozen=True, slots=True)
class RlBatch:
    """The live sequences of an update. Shapes: tensors (S,); only sampled tokens are read.

    `weight_S` sums over the batch's sampled tokens as the loss's aggregation says, times the
    domain's loss weight, so micro-batches add up exactly.
    """

    families: tuple[tuple[Branch, ...], ...]
    behaviour_S: Tensor
    version_S: Tensor
    advantage_S: Tensor
    weight_S: Tensor
    temperature_S: Tensor
    sequence_S: Tensor
    tokens: int


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How rewards become weights and advantages; `keep_flat` keeps groups without a signal."""

    advantage: Callable[[Sequence[float]], list[float]]
    aggregation: Aggregation
    loss_weights: Mapping[str, float]
    max_tokens: int
    keep_flat: bool


def make_batch(
    groups: Sequence[Group], rules: BatchRules, normalizer: RewardNormalizer
) -> RlBatch | None:
    """The arrays of an update; None where no group has anything to teach."""
    live: list[tuple[Trajectory, float, int]] = []
    for number, group in enumerate(groups):
        rewards = normalizer.normalize(group.domain, [t.reward for t in group.trajectories])
        advantages = rules.advantage(rewards)
        if rules.keep_flat or any(advantages):
            pairs = zip(group.trajectories, advantages, strict=True)
            live.extend((t, a, number) for t, a in pairs if any(t.sampled))
    if not live:
        return None
    lengths = [len(t.token_ids) for t, _, _ in live]
    sampled = [sum(t.sampled) for t, _, _ in live]
    weights = weigh_tokens(sampled, rules.aggregation, max_tokens=rules.max_tokens)
    scaled = [w * rules.loss_weights[t.domain] for w, (t, _, _) in zip(weights, live, strict=True)]

    def spread(values: Sequence[float]) -> Tensor:
        return torch.tensor(values).repeat_interleave(torch.tensor(lengths))

    return RlBatch(
        families=_make_families(live),
        behaviour_S=torch.tensor([x for t, _, _ in live for x in t.logprobs]),
        version_S=torch.tensor([x for t, _, _ in live for x in t.versions]),
        advantage_S=spread([a for _, a, _ in live]),
        weight_S=spread(scaled),
        temperature_S=spread([t.temperature for t, _, _ in live]),
        sequence_S=spread(range(len(live))),
        tokens=sum(lengths),
    )


def _make_families(
    live: Sequence[tuple[Trajectory, float, int]],
) -> tuple[tuple[Branch, ...], ...]:
    families: dict[int, list[Branch]] = {}
    start = 0
    for trajectory, _, number in live:
        assert trajectory.temperature > 0, f"{trajectory.id}: greedy tokens have no distribution"
        branch = Branch(trajectory.token_ids, trajectory.sampled, start)
        families.setdefault(number, []).append(branch)
        start += len(trajectory.token_ids)
    return tuple(tuple(family) for family in families.values())
