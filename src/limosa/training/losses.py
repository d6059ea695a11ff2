"""Policy losses by name: a term for each sampled token, and how the terms become one number.

`learner.py` calls these on the flat tokens of a micro-batch; weights are worked out over the whole
batch, so micro-batches never change the result. Advantages come from `advantages.py`. Left out:
dual clip (the importance cap bounds the same term) and sequence-level masks.

Legend: T sampled tokens of whole sequences, S sequences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_mean", "constant"]

# One token that the sampler all but excluded would make a ratio infinite, and its product with a
# factor of 0 would spoil the whole update. Far outside of any clip and cap.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What a loss sees. Shapes: all (T,); `sequence_T` numbers the sequence of each token.

    `behaviour_T` are the log-probabilities that the sampler recorded; only `logprobs_T` carries a
    gradient.
    """

    logprobs_T: Tensor
    behaviour_T: Tensor
    advantages_T: Tensor
    sequence_T: Tensor


@dataclass(frozen=True, slots=True)
class LossTerms:
    """A loss for each token, and whether the clip took its gradient. Shapes: (T,) each."""

    losses_T: Tensor
    clipped_T: Tensor


@dataclass(frozen=True, slots=True)
class Clip:
    """The trusted range of the ratio: from 1 - low to 1 + high."""

    low: float = 0.2
    high: float = 0.28


def clip_token_ratio(tokens: SampledTokens, clip: Clip) -> LossTerms:
    """The clipped surrogate of each token's ratio.

    Source: PPO (arXiv 1707.06347), equation 7; separate bounds: DAPO (arXiv 2503.14476),
    equation 10.
    """
    ratio_T = _bound(tokens.logprobs_T - tokens.behaviour_T).exp()
    return _clip_surrogate(ratio_T, tokens.advantages_T, clip)


def clip_sequence_ratio(tokens: SampledTokens, clip: Clip) -> LossTerms:
    """The clipped surrogate of each sequence's geometric-mean ratio, given to all its tokens.

    Source: GSPO (arXiv 2507.18071), equations 5 to 7.
    """
    log_ratio_T = tokens.logprobs_T - tokens.behaviour_T
    count = int(tokens.sequence_T.max()) + 1
    lengths_S = torch.bincount(tokens.sequence_T, minlength=count)
    sums_S = log_ratio_T.new_zeros(count).index_add(0, tokens.sequence_T, log_ratio_T)
    ratio_T = _bound(sums_S / lengths_S.clamp(min=1)).exp()[tokens.sequence_T]
    return _clip_surrogate(ratio_T, tokens.advantages_T, clip)


def truncate_token_ratio(tokens: SampledTokens, clip: Clip) -> LossTerms:
    """REINFORCE weighted by the ratio, truncated from above and without a gradient of its own.

    Source: CISPO, MiniMax-M1 (arXiv 2506.13585), equations 4 and 5; no lower bound, as there.
    """
    ratio_T = _bound(tokens.logprobs_T.detach() - tokens.behaviour_T).exp()
    bound = 1.0 + clip.high
    losses_T = -ratio_T.clamp(max=bound) * tokens.advantages_T * tokens.logprobs_T
    return LossTerms(losses_T, ratio_T > bound)


def _bound(log_ratio_T: Tensor) -> Tensor:
    return log_ratio_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _clip_surrogate(ratio_T: Tensor, advantages_T: Tensor, clip: Clip) -> LossTerms:
    plain_T = -ratio_T * advantages_T
    bounded_T = -ratio_T.clamp(1.0 - clip.low, 1.0 + clip.high) * advantages_T
    return LossTerms(torch.maximum(plain_T, bounded_T), (bounded_T > plain_T).detach())


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A named loss: what each token contributes, and what is averaged over.

    `holds_importance` where the terms bound each token's importance themselves, so that
    `truncate_importance` must not do it once more.
    """

    terms: Callable[[SampledTokens, Clip], LossTerms]
    aggregation: Aggregation
    holds_importance: bool = False


# grpo: arXiv 2402.03300; dapo: arXiv 2503.14476; dr_grpo: arXiv 2503.20783. All three honour both
# clip bounds; they differ in what is averaged over.
LOSSES: Mapping[str, PolicyLoss] = MappingProxyType(
    {
        "grpo": PolicyLoss(clip_token_ratio, "sequence_mean"),
        "dapo": PolicyLoss(clip_token_ratio, "token_mean"),
        "dr_grpo": PolicyLoss(clip_token_ratio, "constant"),
        "gspo": PolicyLoss(clip_sequence_ratio, "sequence_mean"),
        "cispo": PolicyLoss(truncate_token_ratio, "token_mean", holds_importance=True),
    }
)


def weigh_tokens(
    lengths: Sequence[int], aggregation: Aggregation, *, max_tokens: int
) -> list[float]:
    """The weight of a token in each sequence, so that the batch's loss is a plain weighted sum.

    `lengths` counts sampled tokens; sequences without any count for nothing. `max_tokens` divides
    under `constant` only.
    """
    sequences = sum(1 for n in lengths if n)
    assert sequences, "no sequence has a sampled token"
    if aggregation == "token_mean":
        return [1.0 / sum(lengths)] * len(lengths)
    if aggregation == "sequence_mean":
        return [1.0 / (sequences * n) if n else 0.0 for n in lengths]
    return [1.0 / (sequences * max_tokens)] * len(lengths)


def truncate_importance(
    logprobs_T: Tensor, behaviour_T: Tensor, cap: float
) -> tuple[Tensor, Tensor]:
    """Factor that holds each token's importance to `cap`, and that truncated importance itself.

    The surrogates above hold the ratio to the sampler's recorded log-probabilities, so the
    importance of a stale token is in them already; unbounded only where the advantage is negative
    and the ratio large. The factor min(1, cap / ratio) bounds it and is exactly 1 elsewhere. It is
    a token's own also under gspo, whose surrogate holds the ratio of the whole sequence.

    Source: truncated importance sampling, Ionides (2008); for token-level use in asynchronous
    training: Yao et al., "Your efficient RL framework secretly brings you off-policy RL
    training" (2025). We deviate in that the proximal policy is the behaviour policy: with one
    update a batch a third set of log-probabilities would cost a forward pass and equal the
    learner's own.
    """
    ratio_T = _bound(logprobs_T.detach() - behaviour_T).exp()
    return (cap / ratio_T).clamp(max=1.0), ratio_T.clamp(max=cap)


def estimate_kl(
    logprobs_T: Tensor, other_T: Tensor, estimator: Literal["k1", "k2", "k3"]
) -> Tensor:
    """Per-token estimate of the divergence KL(p || q) at tokens drawn from p = `logprobs_T`.

    k1 is unbiased and noisy, k2 biased and calm, k3 unbiased and never negative.
    Source: Schulman, "Approximating KL divergence" (2020).
    """
    log_ratio_T = other_T - logprobs_T
    if estimator == "k1":
        return -log_ratio_T
    if estimator == "k2":
        return 0.5 * log_ratio_T.square()
    return log_ratio_T.exp() - 1.0 - log_ratio_T
