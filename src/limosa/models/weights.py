"""Weights in and out of Hugging Face folders, and the checksum that names a policy version.

Neighbours: `folder.py` finds and checks the files, `transformer.py` is what they fill. Left out:
optimiser state, which `training/` keeps beside a checkpoint.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from limosa.base.errors import ModelError
from limosa.models.folder import INDEX_FILE, SINGLE_FILE, check_folder, list_weight_files
from limosa.models.transformer import Transformer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
GENERATION_FILE = "generation_config.json"


def load_model(path: Path) -> Transformer:
    """The model of a Hugging Face folder in fp32. Raises: ModelError where files do not fit."""
    config = check_folder(path)
    with torch.device("meta"):
        model = Transformer(config)
    state = _read_tensors(path, {name: p.shape for name, p in model.state_dict().items()})
    model.load_state_dict(state, strict=True, assign=True)
    return model


def save_model(model: Transformer, path: Path, tokenizer_from: Path | None) -> None:
    """Write a folder that transformers loads: weights, shape, generation settings, tokenizer.

    `tokenizer_from` is the folder whose tokenizer and chat template go along; None writes none.
    Files that are there already are replaced one by one, each at once.
    """
    path.mkdir(parents=True, exist_ok=True)
    state = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    fresh = path / f"{SINGLE_FILE}.part"
    save_file(state, fresh, metadata={"format": "pt"})
    fresh.chmod(0o644)  # safetensors makes it private; a checkpoint is for others to read
    fresh.replace(path / SINGLE_FILE)
    (path / INDEX_FILE).unlink(missing_ok=True)
    _write_json(path / "config.json", model.config.to_hf())
    copied = TOKENIZER_FILES if tokenizer_from is not None else ()
    for name in copied:
        _copy_file(tokenizer_from, path, name)
    if not _copy_file(tokenizer_from, path, GENERATION_FILE):
        eos = model.config.eos_token_id
        settings = {
            "bos_token_id": model.config.bos_token_id,
            "eos_token_id": list(eos) if isinstance(eos, tuple) else eos,
            "pad_token_id": model.config.pad_token_id,
        }
        _write_json(path / GENERATION_FILE, {k: v for k, v in settings.items() if v is not None})


def checksum(state: Mapping[str, Tensor]) -> str:
    """Hex sha256 over names in order, dtypes, shapes and bytes of a state dictionary."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read_tensors(path: Path, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for file in list_weight_files(path):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  (not a mapping)
                    if name in shapes:
                        state[name] = tensors.get_tensor(name).to(torch.float32)
                    elif not _is_redundant(name):
                        hint = "the weights belong to another architecture than config.json says"
                        raise ModelError(f"{file}: unexpected tensor {name!r}", hint=hint)
        except SafetensorError as error:
            raise ModelError(f"{file} cannot be read: {error}", hint="fetch it again") from None
    for name, shape in shapes.items():
        if name not in state:
            hint = "fetch the complete model, or mend config.json"
            raise ModelError(f"{path}: the tensor {name!r} is missing", hint=hint)
        if state[name].shape != shape:
            what = f"{path}: {name} has shape {tuple(state[name].shape)}, expected {tuple(shape)}"
            raise ModelError(what, hint="config.json and the weights must be of one model")
    return state


def _is_redundant(name: str) -> bool:
    """A tied output matrix, or a rotary table of older versions: computed, not read."""
    return name == "lm_head.weight" or name.endswith("rotary_emb.inv_freq")


def _copy_file(source: Path | None, target: Path, name: str) -> bool:
    if source is None or not (source / name).is_file():
        return False
    if source.resolve() != target.resolve():
        shutil.copyfile(source / name, target / name)
    return True


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
