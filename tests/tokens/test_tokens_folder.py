"""The light check agrees with loading the tokenizer whole."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from limosa.base.errors import ModelError
from limosa.models.folder import list_packaged, resolve_model
from limosa.tokens.chat import load_chat
from limosa.tokens.folder import check_tokenizer

NAMES = ("own", "qwen_like", "trimming", "thinking", "plain", "no_tool_role")


@pytest.mark.parametrize("name", NAMES)
def test_sound_folders_pass(make_folder: Callable[[str], Path], name: str) -> None:
    folder = make_folder(name)
    assert check_tokenizer(folder) == load_chat(folder).vocabulary_size


@pytest.mark.parametrize("name", list_packaged())
def test_packaged_models_pass(name: str) -> None:
    folder = resolve_model(name)
    assert check_tokenizer(folder) == load_chat(folder).vocabulary_size


@pytest.mark.parametrize(
    "value",
    [
        "{% for m in messages %}{% if m %}{% continue %}{% endif %}{% endfor %}",
        "{% generation %}{{ messages[0].content }}{%- endgeneration -%}",
        [{"name": "rag", "template": "{% no"}, {"name": "default", "template": "{{ messages }}"}],
    ],
)
def test_a_template_may_stand_in_the_settings(
    own_folder: Path, tmp_path: Path, value: object
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(own_folder, folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="has no chat template"):
        check_tokenizer(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": value}))
    assert check_tokenizer(folder) == load_chat(own_folder).vocabulary_size


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "not JSON", "tokenizer.json cannot be read"),
        ("chat_template.jinja", "{% for m in messages %}", "chat template in .* fails"),
    ],
)
def test_what_cannot_be_read_is_refused(
    own_folder: Path, tmp_path: Path, name: str, content: str, message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(own_folder, folder)
    (folder / name).write_text(content)
    with pytest.raises(ModelError, match=message) as caught:
        check_tokenizer(folder)
    assert caught.value.hint


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no folder"):
        check_tokenizer(tmp_path / "none")
    with pytest.raises(ModelError, match=r"holds no tokenizer\.json"):
        check_tokenizer(tmp_path)
