"""From logits to tokens, with log-probabilities under the distribution that was sampled from.

Neighbours: `engine.py` gives it the last row of each request. Left out: truncated sampling (top-p,
top-k), whose support the learner would have to reproduce.

Legend: N requests, V vocabulary.
"""

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from limosa.base.errors import EngineError

_GOLDEN = 0x9E3779B97F4A7C15


def draw_uniforms(
    seeds_N: npt.NDArray[np.uint64], indices_N: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """One number in (0, 1) for each seed and index, whatever else is in the batch.

    Shapes: (N,) each; `indices_N` counts the tokens a request has sampled.
    Source: Steele, Lea and Flood 2014, SplitMix64; its finaliser over seed, then seed and index.
    """
    steps_N = (indices_N.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    bits_N = _mix(_mix(seeds_N + np.uint64(_GOLDEN)) + steps_N)
    # 32 bits and a half: never 0, and far enough from 1 that u * total < total in fp64.
    return ((bits_N >> np.uint64(32)).astype(np.float64) + 0.5) / 2.0**32


def fold_seed(seed: int) -> int:
    """Any integer as 64 bits; those of 64 bits stay as they are."""
    if 0 <= seed < 1 << 64:
        return seed
    return int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:8], "little")


def sample(
    logits_NV: Tensor, temperatures_N: npt.NDArray[np.float64], uniforms_N: npt.NDArray[np.float64]
) -> tuple[list[int], list[float]]:
    """Draw by the inverse of the cumulative distribution; give ids and log-probabilities.

    Temperature 0 takes the likeliest token, its log-probability then being that of temperature 1.
    Raises: EngineError where a row is not finite.
    """
    greedy_N = temperatures_N == 0.0
    divisors_N = np.where(greedy_N, 1.0, temperatures_N)
    if (divisors_N != 1.0).any():
        logits_NV = logits_NV / torch.from_numpy(divisors_N).float()[:, None].to(logits_NV.device)
    probs_NV = logits_NV.softmax(-1)
    cumulative_NV = probs_NV.cumsum(-1, dtype=torch.float64)
    total_N1 = cumulative_NV[:, -1:]
    if not bool(torch.isfinite(total_N1).all()):
        raise EngineError("the model's logits are not finite: the weights have diverged")
    drawn_N1 = torch.from_numpy(uniforms_N)[:, None].to(total_N1.device) * total_N1
    ids_N1 = torch.searchsorted(cumulative_NV, drawn_N1, right=True)
    if greedy_N.any():
        best_N1 = probs_NV.argmax(-1, keepdim=True)
        chosen_N1 = torch.from_numpy(greedy_N)[:, None].to(best_N1.device)
        ids_N1 = torch.where(chosen_N1, best_N1, ids_N1)
    logprobs_N = probs_NV.gather(1, ids_N1)[:, 0].log()
    return ids_N1[:, 0].tolist(), logprobs_N.tolist()


def _mix(bits_N: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    bits_N = (bits_N ^ (bits_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits_N = (bits_N ^ (bits_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits_N ^ (bits_N >> np.uint64(31))
