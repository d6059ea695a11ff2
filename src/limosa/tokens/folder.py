"""The tokenizer's files in a Hugging Face folder, checked without transformers and torch.

Neighbour: `chat.py` reads the same files whole, which takes seconds; a check of a run file is
content with this. Left out: whether the template's replies can be told apart, see `chat.py`.
"""

import json
import re
from pathlib import Path
from typing import Any

import jinja2

from limosa.base.errors import ModelError

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"

# A tag of transformers that marks what the assistant says; jinja2 alone does not know it.
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")


def check_tokenizer(folder: Path) -> int:
    """Check a fast tokenizer and the syntax of its chat template, and give the number of ids.

    Raises: ModelError naming what is missing or cannot be read.
    """
    file = find_tokenizer(folder)
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises a bare Exception
        hint = "fetch the file again, or save the tokenizer with transformers' save_pretrained"
        raise ModelError(f"{file} cannot be read: {error}", hint=hint) from None
    template = _find_template(folder)
    if template is None:
        raise make_template_error(folder)
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        environment.parse(_GENERATION.sub("", template))
    except jinja2.TemplateError as error:
        hint = "mend the template, or fetch the model's own again"
        raise ModelError(f"the chat template in {folder} fails: {error}", hint=hint) from None
    return int(tokenizer.get_vocab_size(with_added_tokens=True))


def find_tokenizer(folder: Path) -> Path:
    """The file of a fast tokenizer. Raises: ModelError where the folder or the file lacks."""
    if not folder.is_dir():
        raise ModelError(f"no folder {str(folder)!r}", hint="give a Hugging Face model folder")
    if not (folder / TOKENIZER_FILE).is_file():
        hint = f"put the model's {TOKENIZER_FILE} and {SETTINGS_FILE} there (fast tokenizers)"
        raise ModelError(f"{folder} holds no {TOKENIZER_FILE}", hint=hint)
    return folder / TOKENIZER_FILE


def make_template_error(folder: Path) -> ModelError:
    """What is said of a folder without a chat template."""
    hint = f"put a {TEMPLATE_FILE} there, or take an instruction-tuned model"
    return ModelError(f"the tokenizer in {folder} has no chat template", hint=hint)


def _find_template(folder: Path) -> str | None:
    """The template's text: a file of its own, or in the tokenizer's settings."""
    if (folder / TEMPLATE_FILE).is_file():
        return (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    try:
        settings = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        hint = "fetch the file again"
        raise ModelError(f"{folder / SETTINGS_FILE} is not JSON: {error}", hint=hint) from None
    value: Any = settings.get("chat_template") if isinstance(settings, dict) else None
    if isinstance(value, list):  # several by name
        named = {v.get("name"): v.get("template") for v in value if isinstance(v, dict)}
        value = named.get("default")
    return value if isinstance(value, str) and value else None
