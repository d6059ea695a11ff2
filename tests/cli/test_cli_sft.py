"""`limosa sft` on the packaged model, a few tokens at a time."""

import json
from pathlib import Path

import pytest

LINE = {
    "messages": [
        {"role": "user", "content": "What is here?"},
        {"role": "assistant", "content": "notes.txt"},
    ]
}
FILE = "model: limosa-base\ndata: demos.jsonl\nout: %s\nmax_steps: 1\nthreads: 1\n"


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> None:
    (tmp_path / "demos.jsonl").write_text(3 * (json.dumps(LINE) + "\n"))


def write_file(folder: Path, out: str = "tuned") -> None:
    (folder / "sft.yaml").write_text(FILE % out)


def test_a_model_comes_out_and_may_be_made_again(limosa, tmp_path) -> None:
    write_file(tmp_path, "models/tuned")
    first = limosa("sft", "sft.yaml", "--json")
    assert first.code == 0, first.err
    report = json.loads(first.out)
    assert report["steps"] == 1 and report["out"] == "models/tuned"
    out = tmp_path / "models" / "tuned"
    assert {"sft.json", "model.safetensors", "tokenizer.json"} <= {f.name for f in out.iterdir()}
    # An earlier result may be replaced, and the same file gives the same weights.
    second = limosa("sft", "sft.yaml", "--json")
    assert second.code == 0, second.err
    assert json.loads(second.out)["checksum"] == report["checksum"]


def test_an_empty_folder_will_do(limosa, tmp_path) -> None:
    write_file(tmp_path)
    (tmp_path / "tuned").mkdir()
    run = limosa("sft", "sft.yaml")
    assert run.code == 0, run.err
    assert run.out.startswith("tuned: 1 updates over ")


def _hold_a_model(out: Path) -> None:
    out.mkdir()
    (out / "config.json").write_text("{}")


@pytest.mark.parametrize(
    ("out", "prepare", "message"),
    [
        ("tuned", lambda out: out.write_text("kept"), "is a file"),
        ("tuned", _hold_a_model, "is there already and is not empty"),
        ("demos.jsonl/tuned", lambda out: None, "'demos.jsonl' is a file"),
    ],
)
def test_an_out_that_will_not_do_is_refused_before_the_training(
    limosa, tmp_path, out, prepare, message
) -> None:
    write_file(tmp_path, out)
    prepare(tmp_path / out)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    run = limosa("sft", "sft.yaml")
    assert (run.code, run.out) == (2, "")
    text = run.err.replace(f"{tmp_path}/", "")
    assert f"sft.yaml: out is '{out}'" in text and message in text and "\nhint: " in text
    assert "encoding" not in run.err, "work was begun"
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_faults_of_file_and_data(limosa, tmp_path) -> None:
    write_file(tmp_path)
    (tmp_path / "sft.yaml").write_text(FILE % "tuned" + "epoch: 2\n")
    run = limosa("sft", "sft.yaml")
    assert run.code == 2 and "'epoch'" in run.err and "did you mean 'epochs'?" in run.err
    write_file(tmp_path)
    (tmp_path / "demos.jsonl").unlink()
    run = limosa("sft", "sft.yaml")
    assert run.code == 2 and "demos.jsonl" in run.err
    assert not (tmp_path / "tuned").exists()


def test_a_tokenizer_of_another_model_is_refused(limosa, make_model, tmp_path) -> None:
    value = json.loads((make_model({}) / "config.json").read_text())
    folder = make_model({"config.json": json.dumps({**value, "vocab_size": 2000})})
    (tmp_path / "sft.yaml").write_text(
        (FILE % "tuned").replace("limosa-base", str(folder)) + "from_scratch: true\n"
    )
    run = limosa("sft", "sft.yaml")
    assert run.code == 2 and "the tokenizer has 2048 ids, the model 2000" in run.err
