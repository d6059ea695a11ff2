"""Rotary positions: the inverse frequencies of each scaling scheme.

Neighbours: `config.py` names the scheme, `transformer.py` rotates with what is computed here.
Left out: schemes whose frequencies depend on the length of the sequence (dynamic, longrope).

Legend: d head dimension, R = d / 2 rotated pairs.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from limosa.base.errors import ModelError


def compute_frequencies(rope: Mapping[str, Any], head_dim: int) -> tuple[Tensor, float]:
    """The inverse frequency of each pair, and the factor on cosine and sine.

    Shapes: frequencies (R,) in fp32. `rope` is Hugging Face's `rope_parameters`.
    Raises: ModelError for a scheme that is not known.
    Source: RoFormer (Su et al. 2021), section 3.4.2.
    """
    kind = rope.get("rope_type", "default")
    if kind not in _SCHEMES:
        hint = f"supported: {', '.join(_SCHEMES)}"
        raise ModelError(f"config.json: rope_type is {kind!r}, which is not supported", hint=hint)
    pairs_R = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies_R = 1.0 / (float(rope["rope_theta"]) ** pairs_R)
    return _SCHEMES[kind](rope, frequencies_R)


def _keep(rope: Mapping[str, Any], frequencies_R: Tensor) -> tuple[Tensor, float]:
    return frequencies_R, 1.0


def _interpolate(rope: Mapping[str, Any], frequencies_R: Tensor) -> tuple[Tensor, float]:
    """Source: Chen et al. 2023, position interpolation."""
    return frequencies_R / float(rope["factor"]), 1.0


def _scale_llama3(rope: Mapping[str, Any], frequencies_R: Tensor) -> tuple[Tensor, float]:
    """Long waves are interpolated, short ones kept, those between blended.

    Source: The Llama 3 Herd of Models, section 3.4, with the constants of its configuration file.
    """
    original = float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    waves_R = 2 * math.pi / frequencies_R
    keep_R = ((original / waves_R - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies_R * (keep_R + (1 - keep_R) / float(rope["factor"])), 1.0


def _scale_yarn(rope: Mapping[str, Any], frequencies_R: Tensor) -> tuple[Tensor, float]:
    """Blend interpolation and extrapolation by how often a pair turns in the original context.

    Source: YaRN (Peng et al. 2023), sections 3.2 and 3.4.
    """
    if "mscale" in rope or "mscale_all_dim" in rope:
        hint = "use a model whose yarn settings have no mscale"
        raise ModelError("config.json: yarn with mscale is not supported", hint=hint)
    factor, theta = float(rope["factor"]), float(rope["rope_theta"])
    original = float(rope["original_max_position_embeddings"])
    head_dim = 2 * len(frequencies_R)

    def find_pair(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = find_pair(float(rope.get("beta_fast") or 32.0))
    high = find_pair(float(rope.get("beta_slow") or 1.0))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = max(high - low, 1e-3)
    blend_R = ((torch.arange(len(frequencies_R)).float() - low) / span).clamp(0.0, 1.0)
    scaled_R = frequencies_R / factor * blend_R + frequencies_R * (1 - blend_R)
    attention = rope.get("attention_factor")
    if attention is None:
        attention = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return scaled_R, float(attention)


_Scheme = Callable[[Mapping[str, Any], Tensor], tuple[Tensor, float]]
_SCHEMES: Mapping[str, _Scheme] = {
    "default": _keep,
    "linear": _interpolate,
    "llama3": _scale_llama3,
    "yarn": _scale_yarn,
}
