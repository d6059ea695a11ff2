"""Log-probabilities of chosen tokens straight from hidden states, in cache-sized pieces.

The logits of a whole micro-batch never exist: at a vocabulary of thousands they would be by far
the largest array, and their backward pass the slowest step on a CPU. Neighbours: `learner.py` and
`sft.py` call it with the model's output matrix.

Legend: T predicted tokens, D hidden, V vocabulary, C tokens of a piece.
"""

from typing import Any, cast

import torch
from torch import Tensor

# Pieces of the logits hold about this many numbers: two megabytes of float32, a core's cache.
PIECE_ELEMENTS = 1 << 19


def compute_logprobs(
    hidden_TD: Tensor, weight_VD: Tensor, target_T: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target under softmax(hidden weight^T), and the entropy in nats.

    Both carry gradients. Under autocast the products run in its lower precision.
    Shapes: hidden (T, D), weight (V, D), target (T,) int64; gives (T,) and (T,).
    Source: recomputation per piece as in Cut Your Losses (arXiv 2411.09009), section 4.2.
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        hidden_TD, weight_VD = hidden_TD.to(dtype), weight_VD.to(dtype)
    with torch.autocast("cpu", enabled=False):
        outputs = _Projection.apply(hidden_TD, weight_VD, target_T)  # type: ignore[no-untyped-call]
    return cast("tuple[Tensor, Tensor]", outputs)


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_TD: Tensor, weight_VD: Tensor, target_T: Tensor
    ) -> tuple[Tensor, Tensor]:
        real = torch.float64 if hidden_TD.dtype is torch.float64 else torch.float32
        total_T, logprobs_T, entropy_T = hidden_TD.new_empty((3, len(target_T)), dtype=real)
        for piece in _cut(len(target_T), weight_VD.shape[0]):
            logits_CV = (hidden_TD[piece] @ weight_VD.t()).to(real)
            chosen_C = logits_CV.gather(1, target_T[piece, None]).squeeze(1)
            peak_C = logits_CV.amax(1)
            shifted_CV = logits_CV.sub_(peak_C[:, None])
            masses_CV = shifted_CV.exp()
            mass_C = masses_CV.sum(1)
            log_mass_C = mass_C.log()
            total_T[piece] = log_mass_C + peak_C
            logprobs_T[piece] = chosen_C - total_T[piece]
            entropy_T[piece] = log_mass_C - torch.linalg.vecdot(masses_CV, shifted_CV) / mass_C
        ctx.save_for_backward(hidden_TD, weight_VD, target_T, total_T, entropy_T)
        ctx.set_materialize_grads(False)
        return logprobs_T, entropy_T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        """With p the softmax: d logprob = onehot - p, d entropy = -p (log p + entropy)."""
        hidden_TD, weight_VD, target_T, total_T, entropy_T = ctx.saved_tensors
        logprob_grad_T, entropy_grad_T = grads
        hidden_grad_TD = torch.empty_like(hidden_TD)
        weight_grad_VD = torch.zeros_like(weight_VD, dtype=total_T.dtype)
        for piece in _cut(len(target_T), weight_VD.shape[0]):
            logp_CV = (hidden_TD[piece] @ weight_VD.t()).to(total_T.dtype)
            logp_CV.sub_(total_T[piece, None])
            scale_C1 = torch.zeros_like(total_T[piece, None])
            if entropy_grad_T is None:
                slope_CV = logp_CV.exp_()
            else:
                slope_CV = logp_CV.exp()
                weighted_CV = slope_CV * (logp_CV + entropy_T[piece, None])
                weighted_CV.mul_(-entropy_grad_T[piece, None])
            if logprob_grad_T is not None:
                scale_C1 = logprob_grad_T[piece, None]
            slope_CV.mul_(-scale_C1)
            slope_CV.scatter_add_(1, target_T[piece, None], scale_C1)
            if entropy_grad_T is not None:
                slope_CV.add_(weighted_CV)
            low_CV = slope_CV.to(hidden_TD.dtype)
            torch.mm(low_CV, weight_VD, out=hidden_grad_TD[piece])
            weight_grad_VD += low_CV.t() @ hidden_TD[piece]
        return hidden_grad_TD, weight_grad_VD.to(weight_VD.dtype), None


def _cut(tokens: int, vocabulary: int) -> list[slice]:
    size = max(1, PIECE_ELEMENTS // vocabulary)
    return [slice(first, min(first + size, tokens)) for first in range(0, tokens, size)]
