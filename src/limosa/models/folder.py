"""Hugging Face folders and packaged models, checked before any work; no torch.

Neighbours: `weights.py` reads the tensors of what is checked here; `tokens/` checks the tokenizer
and its chat template. Left out: downloading, and formats other than safetensors.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from limosa.base.errors import ModelError
from limosa.models.config import TransformerConfig

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PACKAGED = Path(__file__).parent / "packaged"


def list_packaged() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(p.parent.name for p in PACKAGED.glob("*/config.json"))


def resolve_model(name_or_path: str | Path) -> Path:
    """The folder of a packaged model's name, or of a path. Raises: ModelError where neither is."""
    if str(name_or_path) in list_packaged():
        return PACKAGED / str(name_or_path)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path
    names = ", ".join(list_packaged()) or "none"
    hint = f"give a Hugging Face folder or a packaged model's name (packaged: {names})"
    kind = "is a file" if path.exists() else "does not exist"
    raise ModelError(f"the model {str(name_or_path)!r} {kind}, expected a folder", hint=hint)


def check_folder(path: Path) -> TransformerConfig:
    """Check that a folder holds a supported model with its weights, and give its shape.

    Raises: ModelError naming what is missing and how to get it.
    """
    if not path.is_dir():
        kind = "is a file" if path.exists() else "does not exist"
        hint = "give the path of a folder with config.json and safetensors"
        raise ModelError(f"the model folder {str(path)!r} {kind}", hint=hint)
    value = _read_json(path / "config.json")
    try:
        config = TransformerConfig.from_hf(value)
    except ModelError:
        raise
    except (TypeError, ValueError) as error:  # a value of the wrong kind
        hint = "the folder must hold a complete Hugging Face config.json"
        raise ModelError(f"{path / 'config.json'} cannot be read: {error}", hint=hint) from None
    for file in list_weight_files(path):
        _check_header(file)
    return config


def check_vocabulary(path: Path, ids: int, rows: int) -> None:
    """Refuse a tokenizer with more ids than the model has rows. Raises: ModelError."""
    if ids > rows:
        what = f"{path}: the tokenizer has {ids} ids, the model {rows}"
        raise ModelError(what, hint="give a tokenizer that belongs to the model")


def list_weight_files(path: Path) -> list[Path]:
    """The safetensors files of a folder, single or sharded. Raises: ModelError where one lacks."""
    if (path / SINGLE_FILE).is_file():
        return [path / SINGLE_FILE]
    if not (path / INDEX_FILE).is_file():
        hint = "convert the weights to safetensors; for .gguf see `limosa models import`"
        raise ModelError(f"{path}: neither {SINGLE_FILE} nor {INDEX_FILE} is there", hint=hint)
    names = _read_json(path / INDEX_FILE).get("weight_map")
    if not isinstance(names, dict) or not names:
        hint = "fetch the file again"
        raise ModelError(f"{path / INDEX_FILE}: weight_map is missing or empty", hint=hint)
    files = [path / name for name in sorted(set(names.values()))]
    missing = [f.name for f in files if not f.is_file()]
    if missing:
        what = f"{path}: {len(missing)} of {len(files)} weight files are missing: {missing[0]}"
        raise ModelError(what, hint="fetch the missing shards into the folder")
    return files


def _check_header(file: Path) -> None:
    """Refuse what is no safetensors file, or is cut short; reads no tensor."""
    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} cannot be read: {error}", hint="fetch it again") from None


def _read_json(path: Path) -> dict[str, Any]:
    hint = "the folder must be a complete Hugging Face model"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise ModelError(f"{path} is not there", hint=hint) from None
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}", hint=hint) from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ModelError(f"{path} holds {kind}, expected an object", hint=hint)
    return value
