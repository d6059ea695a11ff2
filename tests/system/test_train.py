"""The quickstart in small, as a user runs it: real boxes, the packaged model, both processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from limosa.base.trajectory import Outcome, Trajectory
from limosa.inference.engine import Engine
from limosa.models.folder import resolve_model
from limosa.models.weights import checksum, load_model
from limosa.store.run import iterate_trajectories, read_events, read_state

LIMOSA = str(Path(sys.executable).with_name("limosa"))
STEPS = 4
SMALL: dict[str, Any] = {
    "domains": [
        {"name": "code_engineering", "curriculum": ["easy"], "env_image": "sandbox-code:v3"},
        {"name": "long_horizon_agent", "curriculum": ["short_traj"], "max_steps": 20},
        {"name": "knowledge_research", "reward_normalization": "zscore"},
    ],
    "rl": {"steps": STEPS, "groups_per_step": 3, "group_size": 4, "checkpoint_every": 2},
    "evaluation": {"tasks_per_domain": 6},
    "quality": {"tasks_per_stage": 1},
}


def write_config(folder: Path, **changes: Any) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}), encoding="utf-8")
    return path


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [LIMOSA, "train", *arguments, "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("train")
    code, out, err = run(folder, str(write_config(folder)), "--name", "small")
    assert code == 0, err
    yield folder / "runs" / "small", json.loads(out)


def read_trajectories(path: Path, phase: str) -> list[Trajectory]:
    return [t for p, t in iterate_trajectories(path) if p == phase]


def test_the_report_says_what_is_promised(done: tuple[Path, dict[str, Any]]) -> None:
    path, report = done
    assert report == json.loads((path / "report.json").read_text())
    assert report["wall_s"] > 0
    assert report["policy_version"] == STEPS
    assert Path(report["checkpoint"]).name == f"step-{STEPS}"
    assert set(report["domains"]) == {d["name"] for d in SMALL["domains"]}
    for part in [report["overall"], *report["domains"].values()]:
        for moment in ("before", "after"):
            low, high = part[f"ci_{moment}"]
            assert 0 <= low <= part[f"success_{moment}"] <= high <= 1
        assert set(part["trajectories"]) == {o.value for o in Outcome}
    assert all(d["n"] == 6 for d in report["domains"].values())
    assert report["overall"]["n"] == 18


def test_the_folder_holds_everything(done: tuple[Path, dict[str, Any]]) -> None:
    path, _ = done
    config = yaml.safe_load((path / "config.yaml").read_text())
    assert config["rl"]["steps"] == STEPS and config["rl"]["loss"] == "dapo"
    html = (path / "report.html").read_text()
    assert "<svg" in html and "http://" not in html.replace("http://www.w3.org", "")
    kinds = [e["kind"] for e in read_events(path).lines]
    assert kinds.count("step") == STEPS and kinds.count("checkpoint") >= 2


def test_every_update_logs_what_matters(done: tuple[Path, dict[str, Any]]) -> None:
    path, _ = done
    steps = [e["metrics"] for e in read_events(path).lines if e["kind"] == "step"]
    trained = [m for m in steps if m["tokens_sampled"] > 0]
    assert trained, "no update had a signal"
    for name in ("grad_norm", "entropy", "kl_k1", "clip_fraction", "staleness_mean"):
        assert all(name in m for m in trained), name
    rewards = {key for m in steps for key in m if key.startswith("reward/")}
    assert rewards == {f"reward/{d['name']}" for d in SMALL["domains"]}


def test_every_token_has_its_version_and_none_is_too_old(
    done: tuple[Path, dict[str, Any]],
) -> None:
    path, _ = done
    by_id = {t.id: t for t in read_trajectories(path, "train")}
    steps = [e for e in read_events(path).lines if e["kind"] == "step"]
    for event in steps:
        for trajectory in (by_id[name] for name in event["trained"]):
            assert trajectory.is_valid
            assert event["step"] - 1 - trajectory.oldest_version <= 2
            pairs = zip(trajectory.sampled, trajectory.versions, strict=True)
            assert all((version >= 0) == bool(sampled) for sampled, version in pairs)
    assert max(t.oldest_version for t in by_id.values()) >= 1, "no new weights reached the sampler"


def test_training_and_held_out_tasks_are_disjoint(done: tuple[Path, dict[str, Any]]) -> None:
    path, _ = done
    before = {t.task_hash for t in read_trajectories(path, "eval_before")}
    after = {t.task_hash for t in read_trajectories(path, "eval_after")}
    assert before == after and len(before) == 18
    assert not before & {t.task_hash for t in read_trajectories(path, "train")}


def test_the_checkpoint_is_what_was_pushed_last(done: tuple[Path, dict[str, Any]]) -> None:
    path, report = done
    steps = [e for e in read_events(path).lines if e["kind"] == "step"]
    saved = load_model(Path(report["checkpoint"])).state_dict()
    assert checksum(saved) == steps[-1]["checksum"]
    start = load_model(resolve_model("limosa-base")).state_dict()
    assert checksum(saved) != checksum(start)


async def test_transformers_loads_the_checkpoint_and_says_the_same(
    done: tuple[Path, dict[str, Any]],
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from limosa.base.interfaces import GenerateRequest

    path, report = done
    checkpoint = report["checkpoint"]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    assert tokenizer.chat_template
    engine = Engine(load_model(Path(checkpoint)), max_sequences=4, context_window=512)
    try:
        for trajectory in read_trajectories(path, "eval_after")[::6]:
            prompt = list(trajectory.token_ids[: trajectory.prompt_tokens])
            ids = model.generate(
                torch.tensor([prompt]), max_new_tokens=24, do_sample=False, pad_token_id=0
            )
            request = GenerateRequest(
                prompt, "c", "g", 24, 0.0, 0, frozenset([tokenizer.eos_token_id])
            )
            generation = await engine.generate(request)
            assert list(generation.token_ids) == ids[0, len(prompt) :].tolist()
    finally:
        await engine.close()


def test_recomputed_log_probabilities_agree_with_the_sampled(
    done: tuple[Path, dict[str, Any]],
) -> None:
    from limosa.models.transformer import attend_causally

    path, report = done
    model = load_model(Path(report["checkpoint"]))
    episodes = read_trajectories(path, "eval_after")
    with torch.inference_mode():
        for trajectory in episodes:
            ids = torch.tensor(trajectory.token_ids)
            hidden = model(ids, torch.arange(len(ids)), attend_causally)
            logprobs = torch.log_softmax(model.project(hidden) / trajectory.temperature, -1)
            picked = logprobs[:-1].gather(1, ids[1:, None]).squeeze(1)
            mask = torch.tensor(trajectory.sampled[1:], dtype=torch.bool)
            recorded = torch.tensor(trajectory.logprobs[1:])
            assert (picked - recorded)[mask].abs().max() < 1e-4


def test_ctrl_c_leaves_a_checkpoint_and_resume_goes_on(tmp_path: Path) -> None:
    long = {**SMALL["rl"], "steps": 30, "checkpoint_every": 100}
    process = start(tmp_path, str(write_config(tmp_path, rl=long)), "--name", "stopped")
    path = tmp_path / "runs" / "stopped"
    wait_for_steps(path, 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    state = read_state(path)
    assert state is not None and 2 <= state["version"] < 30
    assert (path / "checkpoints" / f"step-{state['version']}" / "model.safetensors").is_file()
    # The rest is shortened in the resolved file, so that the test ends soon.
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["rl"]["steps"] = state["version"] + 2
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    code, out, err = run(tmp_path, "--resume", str(path))
    assert code == 0, err
    assert json.loads(out)["policy_version"] == state["version"] + 2
    steps = [e["step"] for e in read_events(path).lines if e["kind"] == "step"]
    assert steps == list(range(1, state["version"] + 3))
    ids = [t.id for t in read_trajectories(path, "train")]
    assert len(set(ids)) == len(ids), "a group played again after the resume took its old id"
    assert any(".r1/" in name for name in ids)
    # A finished run has nothing left to do.
    events = (path / "events.jsonl").read_bytes()
    code, again, err = run(tmp_path, "--resume", str(path))
    assert (code, json.loads(again)) == (0, json.loads(out)), err
    assert "the run is finished" in err and (path / "events.jsonl").read_bytes() == events


def test_killed_sandboxes_enter_nothing(tmp_path: Path) -> None:
    rl = {**SMALL["rl"], "steps": 6}
    process = start(tmp_path, str(write_config(tmp_path, rl=rl)), "--name", "killed")
    path = tmp_path / "runs" / "killed"
    wait_for_steps(path, 1, process)
    killed = 0
    while process.poll() is None:
        for box in list_boxes(process.pid)[:1]:
            os.kill(box, signal.SIGKILL)
            killed += 1
        done_steps = [e for e in read_events(path).lines if e["kind"] == "step"]
        if len(done_steps) >= 4:
            break
        time.sleep(0.15)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert killed >= 3
    episodes = {t.id: t for t in read_trajectories(path, "train")}
    invalid = {name for name, t in episodes.items() if not t.is_valid}
    assert invalid, "no episode met a killed box"
    assert all("SandboxError" in episodes[name].error for name in invalid)
    rejected = [e for e in read_events(path).lines if e["kind"] == "task_rejected"]
    assert not rejected, "a killed box is nothing against a task"
    steps = [e for e in read_events(path).lines if e["kind"] == "step"]
    trained = {name for e in steps for name in e["trained"]}
    assert trained and not trained & invalid
    # Retried: an attempt after the first was valid and trained on, in place of the killed one.
    assert any(name.rsplit("/", 1)[1] != "0" for name in trained)
    assert set(count_groups(episodes[name] for name in trained).values()) <= {2, 3, 4}
    report = json.loads((path / "report.json").read_text())
    assert report["trajectories_by_phase"]["train"]["invalid"] >= len(invalid)
    assert report["overall"]["n"] == 18


@pytest.mark.parametrize(
    ("changes", "needles"),
    [
        ({"modle": "x"}, ["modle", "model"]),
        ({"model": "no/such/folder"}, ["no/such/folder", "limosa-base"]),
        ({"domains": [{"name": "chess"}]}, ["chess", "code_engineering"]),
        (
            {"domains": [{"name": "code_engineering", "env_image": "ubuntu"}]},
            ["ubuntu", "sandbox-code:v3"],
        ),
        ({"domains": [{"name": "code_engineering", "sampling_ratio": -1}]}, ["sampling_ratio"]),
        ({"domains": [{"name": "code_engineering", "sampling_ratio": 0}]}, ["sampling_ratio"]),
        (
            {"domains": [{"name": "code_engineering", "reward_normalization": "tanh"}]},
            ["tanh", "zscore"],
        ),
    ],
)
def test_bad_input_is_one_clear_error_and_nothing_is_written(
    tmp_path: Path, changes: Mapping[str, Any], needles: list[str]
) -> None:
    code, out, err = run(tmp_path, str(write_config(tmp_path, **changes)))
    assert code == 2 and out == ""
    assert "Traceback" not in err and "hint: " in err
    assert all(needle in err for needle in needles), err
    assert [p.name for p in tmp_path.iterdir()] == ["small.yaml"]


def wait_for_steps(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s and process.poll() is None:
        if (path / "events.jsonl").is_file():
            kinds = [e["kind"] for e in read_events(path).lines]
            if kinds.count("step") >= count:
                return
        time.sleep(0.1)
    process.kill()
    raise AssertionError(f"no {count} updates: {process.communicate()[1]}")


def list_boxes(pid: int) -> list[int]:
    """The bwrap processes whose parent is `pid`."""
    boxes = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
            boxes += [c for c in children if "bwrap" in Path(f"/proc/{c}/comm").read_text()]
        except OSError:
            continue
    return boxes


def count_groups(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for trajectory in trajectories:
        sizes[trajectory.group_id] = sizes.get(trajectory.group_id, 0) + 1
    return sizes
