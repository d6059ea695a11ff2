"""Our tokenizer: lossless, one token for what must be one, and plain transformers reads it."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from limosa.base.errors import UserError
from limosa.tokens.tokenizer import (
    SCAFFOLDS,
    SPECIAL_TOKENS,
    TAG_TOKENS,
    find_prose_words,
    train_tokenizer,
)

WORDS = ("walnut", "heron", "kettle", "zinc", "canyon")
texts = st.text() | st.lists(
    st.sampled_from([*SPECIAL_TOKENS, *TAG_TOKENS, *SCAFFOLDS, *WORDS, " ", "\n", "\t", "9", "é"])
).map("".join)


@pytest.fixture(scope="module")
def tokenizer(own_folder: Path) -> object:
    return AutoTokenizer.from_pretrained(own_folder)


@settings(deadline=None)
@given(texts)
def test_decoding_gives_the_text_back(tokenizer: object, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text  # type: ignore[attr-defined]


def encode(tokenizer: object, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer.encode(text)]  # type: ignore[attr-defined]


def test_a_name_is_one_token_wherever_it_stands(tokenizer: object) -> None:
    for word in WORDS:
        for text in ("{}", '"{}"', "/{}.txt", "\n{}\n", "echo {} > a", "x_{}", "cat a {}\\n{}"):
            count = text.count("{}")
            assert encode(tokenizer, text.replace("{}", word)).count(word) == count, text


def test_a_prose_word_takes_its_space_along(tokenizer: object) -> None:
    assert encode(tokenizer, ' the file "zinc.txt"') == [
        " the",
        " file",
        ' "',
        "zinc",
        ".",
        "txt",
        '"',
    ]


def test_fixed_parts_are_one_token_each(tokenizer: object) -> None:
    call = json.dumps({"name": "bash", "arguments": {"command": "echo"}})
    text = f"<|im_start|>assistant\n<tool_call>{call}</tool_call><|im_end|>"
    assert encode(tokenizer, text) == [
        "<|im_start|>assistant\n",
        "<tool_call>",
        '{"name": "',
        "bash",
        '", "arguments": {"',
        "command",
        '": "',
        "echo",
        '"}}',
        "</tool_call>",
        "<|im_end|>",
    ]
    for scaffold in SCAFFOLDS:
        assert encode(tokenizer, scaffold) == [scaffold]


def test_digits_and_line_breaks_stand_alone(tokenizer: object) -> None:
    assert encode(tokenizer, "127\n\n3") == ["1", "2", "7", "\n", "\n", "3"]


def test_find_prose_words() -> None:
    found = find_prose_words(['open the "zinc" of zinc', "see the top of the hill, the sea"])
    assert found == ["the", "of"]


def test_training_is_deterministic(own_folder: Path, own_texts: list[str], tmp_path: Path) -> None:
    again = train_tokenizer(own_texts, 700, tmp_path / "again")
    name = "tokenizer.json"
    assert (again / name).read_bytes() == (own_folder / name).read_bytes()
    assert len(AutoTokenizer.from_pretrained(again)) <= 700


def test_a_model_config_beside_it_changes_nothing(
    own_folder: Path, own_texts: list[str], tmp_path: Path
) -> None:
    for file in own_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours, beside = (AutoTokenizer.from_pretrained(f) for f in (own_folder, tmp_path))
    for text in own_texts:
        assert ours.encode(text) == beside.encode(text)


def test_too_small_a_vocabulary_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"vocabulary_size is 100(.|\n)*hint:"):
        train_tokenizer(["a"], 100, tmp_path)
    assert list(tmp_path.iterdir()) == []
