"""Run files and models through the command line: what is valid, and how faults are told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from limosa.models.folder import resolve_model

# The file of the design, verbatim.
DESIGN = (Path(__file__).parents[1] / "design.yaml").read_text(encoding="utf-8")
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
BASE = resolve_model("limosa-base")
ONE = "domains: [{name: code_engineering%s}]\n%s"

# A file, and what the error must say: the key, the value, what is accepted.
FAULTS = [
    (ONE % ("", "modle: x"), ["'modle'", "'x'", "known keys", "did you mean 'model'?"]),
    (ONE % ("", "rl: {stepz: 3}"), ["'rl.stepz'", "3", "did you mean 'steps'?"]),
    (
        ONE % (", sampling_ratio: -1", ""),
        ["domains.0.sampling_ratio", "-1", "greater than or equal to 0"],
    ),
    (
        ONE % (", sampling_ratio: 0", ""),
        ["domains.sampling_ratio", "zero", "[0.0]", "a positive ratio"],
    ),
    (
        "domains: [{name: code_enginering}]",
        ["domains.0.name", "'code_enginering'", "accepted:", "did you mean 'code_engineering'?"],
    ),
    (
        ONE % (", env_image: sandbox-code:v9", ""),
        [
            "domains.0.env_image",
            "'sandbox-code:v9'",
            "accepted:",
            "did you mean 'sandbox-code:v3'?",
        ],
    ),
    (
        ONE % (", reward_normalization: zcore", ""),
        ["domains.0.reward_normalization", "'zcore'", "accepted:", "'zscore'?"],
    ),
    (ONE % ("", "rl: {loss: ppo2}"), ["rl.loss", "'ppo2'", "accepted:", "dapo"]),
    ("domains: []", ["domains is []", "a list with at least 1 in it", "examples/quickstart.yaml"]),
    ("domains:", ["domains is None", "a list"]),
    ("", ["is empty", "a mapping"]),
]


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize(("text", "parts"), FAULTS)
def test_a_faulty_file_is_one_clear_error(limosa, tmp_path, command, text, parts) -> None:
    (tmp_path / "run.yaml").write_text(text)
    run = limosa(command, "run.yaml")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("error: run.yaml") and "\nhint: " in run.err
    for part in parts:
        assert part in run.err, run.err
    assert [f.name for f in tmp_path.iterdir()] == ["run.yaml"]


def _grow_tokenizer() -> str:
    value = json.loads((BASE / "tokenizer.json").read_text())
    token = {**value["added_tokens"][0], "special": False}
    value["added_tokens"] += [{**token, "id": 2048 + i, "content": f"<more{i}>"} for i in range(9)]
    return json.dumps(value)


MODEL_FAULTS = {
    "the architecture 'GPT2LMHeadModel' is not supported": {
        "config.json": '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}'
    },
    "config.json is not there": {"config.json": None},
    "neither model.safetensors nor": {"model.safetensors": None},
    "model.safetensors cannot be read": {
        "model.safetensors": (BASE / "model.safetensors").read_bytes()[:4096]
    },
    "holds no tokenizer.json": {"tokenizer.json": None},
    "tokenizer.json cannot be read": {"tokenizer.json": "{}"},
    "has no chat template": {"chat_template.jinja": None},
    "fails: ": {"chat_template.jinja": "{% for m in messages %}"},
    "the tokenizer has 2057 ids, the model 2048": {"tokenizer.json": _grow_tokenizer()},
}


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize("message", MODEL_FAULTS)
def test_a_model_that_cannot_serve_is_refused(
    limosa, make_model, tmp_path, command, message
) -> None:
    folder = make_model(MODEL_FAULTS[message])
    (tmp_path / "run.yaml").write_text(ONE % ("", f"model: {folder}"))
    run = limosa(command, "run.yaml")
    assert (run.code, run.out) == (2, "")
    assert message in run.err and "\nhint: " in run.err and "Traceback" not in run.err
    assert [f.name for f in tmp_path.iterdir()] == ["run.yaml"]


def test_an_unknown_model_names_the_packaged_ones(limosa, tmp_path) -> None:
    (tmp_path / "run.yaml").write_text(ONE % ("", "model: no/such"))
    run = limosa("check", "run.yaml")
    assert run.code == 2 and "'no/such'" in run.err and "limosa-base" in run.err


def test_the_designs_file_is_valid_as_it_stands(limosa, tmp_path) -> None:
    (tmp_path / "run.yaml").write_text(DESIGN)
    run = limosa("check", "run.yaml", "--json")
    assert run.code == 0, run.err
    value = json.loads(run.out)
    assert value["valid"] is True
    ratios, window = value["notices"]
    assert "sum to 0.8" in ratios and "code_engineering 0.4375" in ratios
    assert "1,000,000" in window and "2,048" in window and "limosa-base" in window
    assert run.err == f"notice: {ratios}\nnotice: {window}\n"
    assert value["config"]["rl"]["context_window"] == 1_000_000
    # What is printed is itself a valid file, defaults included.
    (tmp_path / "resolved.yaml").write_text(yaml.safe_dump(value["config"]))
    again = limosa("check", "resolved.yaml", "--json")
    assert json.loads(again.out)["config"] == value["config"]


def test_more_episodes_than_the_engine_holds_are_noticed(limosa, tmp_path) -> None:
    (tmp_path / "run.yaml").write_text(ONE % ("", "rl: {rollout_batch: 65}"))
    (notice,) = json.loads(limosa("check", "run.yaml", "--json").out)["notices"]
    assert "rl.rollout_batch" in notice and "65" in notice and "64" in notice
    (tmp_path / "run.yaml").write_text(ONE % ("", "rl: {rollout_batch: 64, context_window: 2048}"))
    run = limosa("check", "run.yaml")
    assert (run.code, run.err) == (0, "")
    assert run.out == "run.yaml is valid: 1 domain, model limosa-base\n"


def test_check_loads_no_torch() -> None:
    code = (
        "import sys\n"
        "from limosa.cli.main import main\n"
        f"sys.argv = ['limosa', 'check', {str(QUICKSTART)!r}]\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "print(sorted({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("[]\n"), run.stdout


def list_notices(limosa, tmp_path, text) -> list[str]:
    (tmp_path / "run.yaml").write_text(text)
    return json.loads(limosa("check", "run.yaml", "--json").out)["notices"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (ONE % (", max_steps: 15", ""), ["domains.0.max_steps: 15", "14 turns"]),
        (ONE % (", curriculum: [easy], max_steps: 7", ""), ["domains.0.max_steps: 7", "6 turns"]),
        (
            "domains: [{name: knowledge_research, env_image: 'sandbox-code:v3'}]",
            ["domains.0.env_image: sandbox-code:v3", "knowledge_research runs no code"],
        ),
        (ONE % ("", "rl: {max_new_tokens: 65}"), ["rl.max_new_tokens: 65", "64 tokens"]),
        (ONE % ("", "sandbox: {max_boxes: 63}"), ["sandbox.max_boxes: 63: at most 63 episodes"]),
        (
            ONE % ("", "rl: {rollout_batch: 8}\nsandbox: {max_boxes: 7}"),
            ["sandbox.max_boxes: 7"],
        ),
    ],
)
def test_what_a_setting_does_not_do_is_noticed(limosa, tmp_path, text, parts) -> None:
    (notice,) = list_notices(limosa, tmp_path, text)
    assert all(part in notice for part in parts), notice


@pytest.mark.parametrize(
    "text",
    [
        ONE % (", max_steps: 14", "rl: {max_new_tokens: 64}"),
        ONE % (", env_image: 'sandbox-code:v3'", "rl: {rollout_batch: 8}\nsandbox: {max_boxes: 8}"),
        "domains: [{name: knowledge_research, max_steps: 3}]\nsandbox: {max_boxes: 1}",
    ],
)
def test_a_setting_that_does_something_is_not_noticed(limosa, tmp_path, text) -> None:
    assert list_notices(limosa, tmp_path, text) == []
