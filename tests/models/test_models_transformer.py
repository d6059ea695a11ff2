"""Our decoder against transformers' on random weights of every family."""

import dataclasses

import pytest
import torch
import transformers

from limosa.base.errors import ModelError
from limosa.models.config import TransformerConfig
from limosa.models.transformer import Transformer, attend_causally, make_model

ROPES = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def _make_reference(family, **changes):
    sizes = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16 if family == "qwen3" else None,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        **changes,
    }
    if sizes["head_dim"] is None:
        del sizes["head_dim"]
    make_config, make_reference = CLASSES[family]
    torch.manual_seed(3)
    reference = make_reference(make_config(**sizes)).eval()
    for name, parameter in reference.named_parameters():  # biases and gains start trivial
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(parameter, 0.5, 0.3)
    return reference


def _check_equal(reference):
    config = TransformerConfig.from_hf(reference.config.to_dict())
    model = Transformer(config)
    state = {k: v for k, v in reference.state_dict().items() if k in model.state_dict()}
    model.load_state_dict(state, strict=True)
    ids_N = torch.arange(120) * 7 % 97
    with torch.no_grad():
        want_NV = reference(ids_N[None]).logits[0]
        got_NV = model.project(model(ids_N, torch.arange(120), attend_causally))
    assert want_NV.std() > 0.1
    torch.testing.assert_close(got_NV, want_NV, atol=1e-4, rtol=1e-4)
    return config


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", sorted(CLASSES))
def test_logits_equal_transformers(family, tied):
    config = _check_equal(_make_reference(family, tie_word_embeddings=tied))
    assert ("lm_head.weight" in Transformer(config).state_dict()) is not tied


@pytest.mark.parametrize("kind", sorted(ROPES))
def test_rope_schemes_equal_transformers(kind):
    _check_equal(_make_reference("llama", rope_parameters=ROPES[kind]))


def test_biases_of_llama_equal_transformers():
    config = _check_equal(_make_reference("llama", attention_bias=True, mlp_bias=True))
    assert config.o_bias and config.mlp_bias


@pytest.mark.parametrize("family", sorted(CLASSES))
def test_config_survives_the_round_trip(family):
    reference = _make_reference(family, rope_parameters=ROPES["llama3"])
    config = TransformerConfig.from_hf(reference.config.to_dict())
    assert TransformerConfig.from_hf(config.to_hf()) == config
    again = CLASSES[family][0](**config.to_hf())
    assert TransformerConfig.from_hf(again.to_dict()) == config


def test_rope_of_older_files_is_read():
    value = TransformerConfig(97, 48, 80, 2, 6, 2, 8).to_hf()
    del value["rope_parameters"]
    value["rope_theta"] = 12345.0
    value["rope_scaling"] = {"type": "linear", "factor": 2.0}
    rope = TransformerConfig.from_hf(value).rope
    assert rope == {"rope_type": "linear", "factor": 2.0, "rope_theta": 12345.0}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1.0}}, "longrope"),
        ({"use_sliding_window": True}, "sliding"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": 5}, "divide"),
    ],
)
def test_what_is_not_supported_is_told(change, word):
    value = {**TransformerConfig(97, 48, 80, 2, 6, 2, 8).to_hf(), **change}
    with pytest.raises(ModelError, match=word) as error:
        TransformerConfig.from_hf(value)
    assert error.value.hint


def test_random_weights_follow_the_seed():
    config = TransformerConfig(97, 48, 80, 2, 6, 2, 8)
    one, same, other = (make_model(config, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    assert one["model.layers.0.mlp.down_proj.weight"].std() < 0.6 * config.initializer_range


def test_gradients_reach_every_parameter():
    config = dataclasses.replace(TransformerConfig(97, 48, 80, 2, 6, 2, 8), qk_norm=True)
    model = make_model(config, 0)
    ids_N = torch.arange(20)
    model.project(model(ids_N, ids_N, attend_causally)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
