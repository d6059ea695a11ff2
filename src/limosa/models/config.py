"""The shape of a decoder, read from and written to a Hugging Face `config.json`; no torch.

Neighbours: `folder.py` checks a folder with it, `transformer.py` builds from it. Left out: every
key that does not change the computation of the families listed in `FAMILIES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from limosa.base.errors import ModelError

FAMILIES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """A decoder of the Llama family. `rope` is Hugging Face's `rope_parameters`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    model_type: str = "llama"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    initializer_range: float = 0.02
    rope: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0}
    )
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None

    @classmethod
    def from_hf(cls, value: Mapping[str, Any]) -> "TransformerConfig":
        """Read the content of a `config.json`. Raises: ModelError for what is not supported."""
        family = _read_family(value)
        heads = _read_int(value, "num_attention_heads")
        hidden = _read_int(value, "hidden_size")
        kv_heads = value.get("num_key_value_heads") or heads
        eos = value.get("eos_token_id")
        bias = bool(value.get("attention_bias", False))
        config = cls(
            model_type=family,
            vocab_size=_read_int(value, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_read_int(value, "intermediate_size"),
            num_hidden_layers=_read_int(value, "num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=int(kv_heads),
            head_dim=int(value.get("head_dim") or (128 if family == "qwen3" else hidden // heads)),
            max_position_embeddings=int(value.get("max_position_embeddings", 2048)),
            rms_norm_eps=float(value.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=bool(value.get("tie_word_embeddings", False)),
            qkv_bias=bias or family == "qwen2",
            o_bias=bias and family != "qwen2",
            mlp_bias=bool(value.get("mlp_bias", False)) and family == "llama",
            qk_norm=family == "qwen3",
            initializer_range=float(value.get("initializer_range", 0.02)),
            rope=_read_rope(value),
            bos_token_id=value.get("bos_token_id"),
            eos_token_id=tuple(eos) if isinstance(eos, list | tuple) else eos,
            pad_token_id=value.get("pad_token_id"),
        )
        _check_sizes(config)
        return config

    def to_hf(self) -> dict[str, Any]:
        """The content of a `config.json` that transformers loads as the same computation."""
        eos = self.eos_token_id
        value: dict[str, Any] = {
            "architectures": [FAMILIES[self.model_type]],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "initializer_range": self.initializer_range,
            "rope_parameters": dict(self.rope),
            # Readers older than transformers 5 look for these two.
            "rope_theta": self.rope["rope_theta"],
            "torch_dtype": "float32",
            "dtype": "float32",
            "bos_token_id": self.bos_token_id,
            "eos_token_id": list(eos) if isinstance(eos, tuple) else eos,
            "pad_token_id": self.pad_token_id,
        }
        if self.rope["rope_type"] != "default":
            value["rope_scaling"] = dict(self.rope)
        if self.model_type == "llama":
            value["attention_bias"] = self.qkv_bias
            value["mlp_bias"] = self.mlp_bias
        elif self.model_type == "qwen3":
            value["attention_bias"] = self.qkv_bias
        return value


def _read_family(value: Mapping[str, Any]) -> str:
    family = value.get("model_type")
    if family not in FAMILIES:
        names = value.get("architectures") or [family]
        hint = f"supported: {', '.join(FAMILIES.values())}"
        what = f"config.json: the architecture {names[0]!r} is not supported"
        raise ModelError(what, hint=hint)
    activation = value.get("hidden_act", "silu")
    if activation != "silu":
        what = f"config.json: hidden_act is {activation!r}, expected 'silu'"
        raise ModelError(what, hint="use a model of the Llama or Qwen family")
    if value.get("use_sliding_window") or "sliding_attention" in (value.get("layer_types") or ()):
        what = "config.json: sliding-window attention is not supported"
        raise ModelError(what, hint="set use_sliding_window to false if the model allows it")
    if value.get("quantization_config"):
        hint = "import the weights unquantised, see `limosa models import`"
        raise ModelError("config.json: quantised weights are not supported", hint=hint)
    return str(family)


def _read_int(value: Mapping[str, Any], key: str) -> int:
    number = value.get(key)
    if not isinstance(number, int) or number <= 0:
        what = f"config.json: {key} is {number!r}, expected a positive integer"
        raise ModelError(what, hint="the folder must hold a complete Hugging Face config.json")
    return number


def _read_rope(value: Mapping[str, Any]) -> dict[str, Any]:
    """Version 5 keeps all in `rope_parameters`; older files have `rope_theta`, `rope_scaling`."""
    rope = dict(value.get("rope_parameters") or value.get("rope_scaling") or {})
    kind = rope.pop("type", "default")
    rope.setdefault("rope_type", kind)
    rope.setdefault("rope_theta", float(value.get("rope_theta", 10000.0)))
    if rope["rope_type"] not in ROPE_TYPES:
        what = f"config.json: rope_type is {rope['rope_type']!r}, which is not supported"
        raise ModelError(what, hint=f"supported: {', '.join(ROPE_TYPES)}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        what = "config.json: partial rotary positions are not supported"
        raise ModelError(what, hint="use a model of the Llama or Qwen family")
    if rope["rope_type"] in {"llama3", "yarn"}:
        original = value.get("original_max_position_embeddings")
        original = original or value.get("max_position_embeddings", 2048)
        rope.setdefault("original_max_position_embeddings", original)
    return rope


def _check_sizes(config: TransformerConfig) -> None:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % kv_heads or config.head_dim % 2:
        what = (
            f"config.json: {heads} attention heads over {kv_heads} key heads of dimension "
            f"{config.head_dim} do not divide evenly"
        )
        raise ModelError(what, hint="heads must be a multiple of key heads, head_dim even")
