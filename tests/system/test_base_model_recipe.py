"""The recipe of the packaged model, in small: the script and its two files, as a user runs them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from limosa.models.folder import check_folder

RECIPE = Path(__file__).parents[2] / "examples" / "base_model"
SMALL = {
    "PRETRAIN": "6",
    "INSTRUCT": "3",
    "VOCABULARY": "450",
    "WIDTH": "32",
    "LAYERS": "1",
    "HEADS": "2",
    "KV_HEADS": "1",
    "FFN": "48",
}


def test_the_recipe_makes_a_model_folder(tmp_path: Path) -> None:
    shutil.copytree(RECIPE, tmp_path / "examples" / "base_model")
    limosa = str(Path(sys.executable).with_name("limosa"))
    run = subprocess.run(
        ["bash", str(tmp_path / "examples" / "base_model" / "recipe.sh")],
        env={**os.environ, **SMALL, "LIMOSA": limosa, "OUT": "packaged/model"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    config = check_folder(tmp_path / "packaged" / "model")
    assert (config.hidden_size, config.num_hidden_layers) == (32, 1)
    assert (tmp_path / "packaged" / "model" / "chat_template.jinja").is_file()

    def seeds(name: str) -> set[tuple[str, str, int]]:
        lines = (tmp_path / "runs" / "base_model" / name).read_text().splitlines()
        values = [json.loads(line) for line in lines]
        return {(v["domain"], v["stage"], v["seed"]) for v in values}

    pretrain, instruct = seeds("pretrain.jsonl"), seeds("instruct.jsonl")
    assert len(pretrain) == 6 + 4 + 12 and len(instruct) == 3 + 2 + 6
    assert not pretrain & instruct
