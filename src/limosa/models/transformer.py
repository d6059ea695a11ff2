"""One decoder for Llama, Qwen2 and Qwen3, over packed tokens, with attention injected.

Neighbours: `weights.py` fills it; `inference/` and `training/` each bring their own `attend`.
Parameter names are exactly Hugging Face's, so state dictionaries and safetensors interchange.
Left out: caches, masks and batching, which belong to the strategy that attends.

Legend: N packed tokens of any number of sequences, D hidden, H query heads, K key and value
heads, d head dimension, V vocabulary, R = d / 2, F hidden of the MLP.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from limosa.models.config import TransformerConfig
from limosa.models.rope import compute_frequencies

# attend(layer, q_NHd, k_NKd, v_NKd) -> out_NHd, rotary positions already applied to q and k.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Norm(nn.Module):
    """Root-mean-square normalisation with a gain. Source: Zhang and Sennrich 2019."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Projections around an injected attention; grouped queries share keys and values."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = head_dim
        self.q_proj = nn.Linear(hidden, self.heads * head_dim, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * head_dim, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * head_dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(self.heads * head_dim, hidden, bias=config.o_bias)
        self.q_norm = Norm(head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = Norm(head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(
        self, x_ND: Tensor, cos_N1d: Tensor, sin_N1d: Tensor, layer: int, attend: Attend
    ) -> Tensor:
        """Project, rotate, attend, project back; gives (N, D)."""
        tokens = x_ND.shape[0]
        q_NHd = self.q_proj(x_ND).view(tokens, self.heads, self.head_dim)
        k_NKd = self.k_proj(x_ND).view(tokens, self.kv_heads, self.head_dim)
        v_NKd = self.v_proj(x_ND).view(tokens, self.kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q_NHd, k_NKd = self.q_norm(q_NHd), self.k_norm(k_NKd)
        q_NHd = _rotate(q_NHd, cos_N1d, sin_N1d)
        k_NKd = _rotate(k_NKd, cos_N1d, sin_N1d)
        out_NHd = attend(layer, q_NHd, k_NKd, v_NKd)
        return cast(Tensor, self.o_proj(out_NHd.reshape(tokens, -1)))


class Mlp(nn.Module):
    """Gated linear unit. Source: Shazeer 2020, SwiGLU."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=config.mlp_bias)
        self.up_proj = nn.Linear(hidden, inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner, hidden, bias=config.mlp_bias)

    def forward(self, x_ND: Tensor) -> Tensor:
        """Gives (N, D)."""
        gated_NF = functional.silu(self.gate_proj(x_ND)) * self.up_proj(x_ND)
        return cast(Tensor, self.down_proj(gated_NF))


class Layer(nn.Module):
    """One pre-norm block: attention, then the MLP, each added to the stream."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x_ND: Tensor, cos_N1d: Tensor, sin_N1d: Tensor, layer: int, attend: Attend
    ) -> Tensor:
        """Gives the stream after the block, (N, D)."""
        normed_ND = self.input_layernorm(x_ND)
        x_ND = x_ND + self.self_attn(normed_ND, cos_N1d, sin_N1d, layer, attend)
        return x_ND + cast(Tensor, self.mlp(self.post_attention_layernorm(x_ND)))


class Decoder(nn.Module):
    """Embedding, blocks and final norm; exists so that names begin with `model.`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)


class Transformer(nn.Module):
    """A causal language model whose attention is the caller's.

    With tied embeddings there is no `lm_head.weight`, in the module as in the file.
    """

    rope_R: Tensor

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        with torch.device("cpu"):
            rope_R, self.rope_scale = compute_frequencies(config.rope, config.head_dim)
        self.register_buffer("rope_R", rope_R, persistent=False)

    def forward(self, token_ids_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        """Hidden states after the final norm.

        Shapes: ids and positions (N,) int64, positions counted within each sequence; gives (N, D).
        """
        cos_N1d, sin_N1d = self._make_rotation(positions_N)
        x_ND = self.model.embed_tokens(token_ids_N)
        for index, layer in enumerate(self.model.layers):
            x_ND = layer(x_ND, cos_N1d, sin_N1d, index, attend)
        return cast(Tensor, self.model.norm(x_ND))

    def project(self, hidden_ND: Tensor) -> Tensor:
        """Logits (N, V); give only the rows whose logits are wanted."""
        return functional.linear(hidden_ND, self.output_weight)

    @property
    def output_weight(self) -> Tensor:
        """The matrix (V, D) of the output, which with tied embeddings is the embedding."""
        tied = self.config.tie_word_embeddings
        return self.model.embed_tokens.weight if tied else self.lm_head.weight

    def _make_rotation(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines, once for all layers: no table bounds the context."""
        angles_NR = positions_N[:, None].float() * self.rope_R
        cos_NR, sin_NR = angles_NR.cos(), angles_NR.sin()
        if self.rope_scale != 1.0:
            cos_NR, sin_NR = cos_NR * self.rope_scale, sin_NR * self.rope_scale
        cos_N1d = torch.cat((cos_NR, cos_NR), -1).unsqueeze(1)
        return cos_N1d, torch.cat((-sin_NR, sin_NR), -1).unsqueeze(1)


def _rotate(x_NHd: Tensor, cos_N1d: Tensor, sin_N1d: Tensor) -> Tensor:
    """Rotate the pairs (i, i + R): the halves swapped, times the signed sine, in three ops."""
    swapped_NHd = x_NHd.roll(x_NHd.shape[-1] // 2, -1)
    return torch.addcmul(x_NHd * cos_N1d, swapped_NHd, sin_N1d)


def attend_causally(layer: int, q_NHd: Tensor, k_NKd: Tensor, v_NKd: Tensor) -> Tensor:
    """Attention where the N tokens are one sequence: the plain strategy, and the reference."""
    out_HNd = functional.scaled_dot_product_attention(
        q_NHd.transpose(0, 1)[None],
        k_NKd.transpose(0, 1)[None],
        v_NKd.transpose(0, 1)[None],
        is_causal=True,
        enable_gqa=True,
    )[0]
    return out_HNd.transpose(0, 1)


def make_model(config: TransformerConfig, seed: int) -> Transformer:
    """Random weights for training from scratch; equal seeds give equal weights.

    Source: GPT-2's initialisation: normal of `initializer_range`, the two projections into the
    stream scaled by 1 / sqrt(2 * layers).
    """
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    into_stream = (2 * config.num_hidden_layers) ** -0.5
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                scaled = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = config.initializer_range * (into_stream if scaled else 1.0)
                parameter.normal_(0.0, std, generator=generator)
    return model
