"""Folders: what transformers reads back, what is refused, and the checksum."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from limosa.base.errors import ModelError
from limosa.models.config import TransformerConfig
from limosa.models.folder import check_folder, check_vocabulary, list_packaged, resolve_model
from limosa.models.gguf import import_gguf
from limosa.models.transformer import attend_causally, make_model
from limosa.models.weights import checksum, load_model, save_model

CONFIG = TransformerConfig(
    97, 48, 80, 2, 6, 2, 8, bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.3
)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    save_model(make_model(CONFIG, 0), path, tokenizer_from=None)
    return path


def test_round_trip_keeps_every_bit(folder):
    model, loaded = make_model(CONFIG, 0), load_model(folder)
    assert loaded.config == CONFIG
    assert checksum(loaded.state_dict()) == checksum(model.state_dict())
    assert all(p.requires_grad for p in loaded.parameters())
    ids_N = torch.arange(9)
    with torch.no_grad():
        hidden = [m(ids_N, ids_N, attend_causally) for m in (model, loaded)]
    assert torch.equal(*hidden)


def test_transformers_loads_model_and_tokenizer(tmp_path):
    source = tmp_path / "source"
    plain = Tokenizer(WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="w2")
    fast.chat_template = "{{ messages[0].content }}"
    fast.save_pretrained(source)
    model = make_model(CONFIG, 0)
    save_model(model, tmp_path / "out", tokenizer_from=source)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert reference.generation_config.eos_token_id == 2
    assert tokenizer.encode("w5") == fast.encode("w5")
    assert tokenizer.chat_template == fast.chat_template
    ids_N = torch.arange(9)
    with torch.no_grad():
        want_NV = reference(ids_N[None]).logits[0]
        got_NV = model.project(model(ids_N, ids_N, attend_causally))
    torch.testing.assert_close(got_NV, want_NV, atol=1e-4, rtol=1e-4)


def test_sharded_weights_and_redundant_tensors_load(folder):
    state = load_file(folder / "model.safetensors")
    names = sorted(state)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        tensors = {n: state[n] for n in part}
        if file.startswith("b"):
            tensors["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
        save_file(tensors, folder / file)
    index = {"weight_map": {n: f for f, part in parts.items() for n in part}}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert checksum(load_model(folder).state_dict()) == checksum(state)
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"1 of 2 weight files are missing: b\.safetensors"):
        check_folder(folder)


def test_half_precision_files_load_as_fp32(folder):
    state = {n: t.bfloat16() for n, t in load_file(folder / "model.safetensors").items()}
    save_file(state, folder / "model.safetensors")
    loaded = load_model(folder).state_dict()
    assert {t.dtype for t in loaded.values()} == {torch.float32}
    assert all(torch.equal(loaded[n], state[n].float()) for n in loaded)


def _drop(folder, name):
    (folder / name).unlink()


def _change_tensor(folder, change):
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")


BROKEN = {
    "config.json is not there": lambda f: _drop(f, "config.json"),
    "neither model.safetensors": lambda f: _drop(f, "model.safetensors"),
    "not valid JSON": lambda f: (f / "config.json").write_text("{"),
    "GPT2": lambda f: (f / "config.json").write_text('{"architectures": ["GPT2"]}'),
    "cannot be read": lambda f: (f / "model.safetensors").write_bytes(b"x" * 40),
    "'model.norm.weight' is missing": lambda f: _change_tensor(
        f, lambda s: s.pop("model.norm.weight")
    ),
    "unexpected tensor 'other'": lambda f: _change_tensor(
        f, lambda s: s.update(other=torch.ones(1))
    ),
    r"has shape \(3,\), expected \(48,\)": lambda f: _change_tensor(
        f, lambda s: s.update({"model.norm.weight": torch.ones(3)})
    ),
}


def test_weights_cut_short_are_found_without_reading_them(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        check_folder(folder)


def test_a_value_of_the_wrong_kind_is_no_crash(folder):
    value = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**value, "max_position_embeddings": None}))
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        check_folder(folder)


def test_a_tokenizer_with_too_many_ids_is_refused(folder):
    check_vocabulary(folder, 97, 97)
    with pytest.raises(ModelError, match="98 ids, the model 97"):
        check_vocabulary(folder, 98, 97)


@pytest.mark.parametrize("message", sorted(BROKEN))
def test_broken_folders_are_refused(folder, message):
    BROKEN[message](folder)
    with pytest.raises(ModelError, match=message) as error:
        load_model(folder)
    assert error.value.hint


def test_names_and_paths_resolve(folder):
    assert resolve_model(str(folder)) == folder
    for name in list_packaged():
        check_folder(resolve_model(name))
    with pytest.raises(ModelError, match="no-such-model") as error:
        resolve_model("no-such-model")
    assert "packaged" in error.value.hint
    with pytest.raises(ModelError, match="is a file"):
        resolve_model(folder / "config.json")
    with pytest.raises(ModelError, match="does not exist"):
        check_folder(folder / "deeper")


def test_checksum_sees_names_types_shapes_and_bytes():
    base = {"a": torch.arange(6.0), "b": torch.zeros(2, dtype=torch.bfloat16)}
    variants = [
        base,
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"].view(2, 3), "b": base["b"]},
        {"a": base["a"].view(torch.int32), "b": base["b"]},
        {"a": base["a"] + 1e-6, "b": base["b"]},
    ]
    assert len({checksum(v) for v in variants}) == len(variants)
    strided = torch.stack([base["a"], base["a"]], 1)[:, 0]
    assert checksum({"b": base["b"], "a": strided}) == checksum(base)


def test_gguf_sources_are_checked_first(tmp_path):
    with pytest.raises(ModelError, match=r"neither a \.gguf file nor a known name"):
        import_gguf("no-such.gguf", tmp_path / "out")
    Path(tmp_path / "bad.gguf").write_bytes(b"not a gguf file")
    with pytest.raises(ModelError, match="cannot be read"):
        import_gguf(tmp_path / "bad.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
