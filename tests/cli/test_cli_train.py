"""What `limosa train` settles before a run begins, and what it says at the end.

Whole runs stand in tests/system; here the phases are replaced, for they take minutes.
"""

import json
from pathlib import Path

import pytest

from limosa.base.errors import InfrastructureError
from limosa.cli.train import make_name
from limosa.store.run import RunFolder

FILE = "domains: [{name: knowledge_research}]\n"


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> dict:
    """Stands in for the phases: what they were called with, and what they shall raise."""
    seen: dict = {"error": None}

    async def run(config, folder, reporter, model):
        seen.update(config=config, path=folder.path, model=model)
        if seen["error"] is not None:
            raise seen["error"]
        return {"policy_version": 3}

    monkeypatch.setattr("limosa.cli.training_run.run_all_phases", run)
    return seen


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(FILE)
    return tmp_path / "run.yaml"


def list_files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_run_that_is_done_says_where_its_report_is(limosa, phases, file) -> None:
    run = limosa("train", "run.yaml", "--name", "one", "--seed", "7", "--json")
    assert run.code == 0, run.err
    assert json.loads(run.out) == {"policy_version": 3}
    assert "the report is in runs/one/report.html" in run.err
    assert "--resume" not in run.err
    assert phases["config"].seed == 7
    assert "seed: 7" in (file.parent / "runs" / "one" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("error", "code"), [(InfrastructureError("it broke"), 1), (KeyboardInterrupt(), 130)]
)
def test_a_run_that_is_not_done_says_how_to_go_on(limosa, phases, file, error, code) -> None:
    phases["error"] = error
    run = limosa("train", "run.yaml", "--name", "one")
    assert run.code == code
    assert "go on: limosa train --resume runs/one" in run.err
    assert "report.html" not in run.err
    phases["error"] = None
    resumed = limosa("train", "--resume", "runs/one")
    assert resumed.code == 0, resumed.err
    assert phases["path"] == Path("runs/one")
    assert "the report is in runs/one/report.html" in resumed.err


def test_a_path_with_spaces_is_quoted(limosa, phases, file) -> None:
    phases["error"] = KeyboardInterrupt()
    run = limosa("train", "run.yaml", "--out", "my runs", "--name", "one")
    assert "limosa train --resume 'my runs/one'" in run.err


def test_notices_are_told(limosa, phases, file) -> None:
    file.write_text(FILE.replace("}", ", sampling_ratio: 2}") + "rl: {context_window: 4096}\n")
    run = limosa("train", "run.yaml")
    assert run.err.count("notice: ") == 2
    assert "normalised" in run.err and "4,096" in run.err and "2,048" in run.err


def test_a_file_with_an_odd_name_makes_a_legal_run(limosa, phases, tmp_path) -> None:
    (tmp_path / "my übung (2).yaml").write_text(FILE)
    run = limosa("train", "my übung (2).yaml")
    assert run.code == 0, run.err
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("my-bung-2--") and " " not in folder.name


@pytest.mark.parametrize(
    ("name", "start"),
    [("a b.yaml", "a-b-2"), (".hidden.yaml", "hidden-2"), ("-x_1.y.yml", "x_1.y-2")],
)
def test_names_out_of_files(name: str, start: str) -> None:
    assert make_name(Path("some") / name).startswith(start)


def test_a_name_that_is_all_odd() -> None:
    assert make_name(Path("日本.yaml")).startswith("run-2")


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "/nowhere/x", "a b"])
def test_a_name_that_is_no_folders_is_refused(limosa, phases, file, name) -> None:
    run = limosa("train", "run.yaml", "--name", name)
    assert run.code == 2
    assert repr(name) in run.err and "\nhint: " in run.err
    assert list_files(file.parent) == ["run.yaml"]


def test_an_out_that_is_a_file_is_refused(limosa, phases, file) -> None:
    for out in ("run.yaml", "run.yaml/deeper"):
        run = limosa("train", "run.yaml", "--out", out, "--name", "x")
        assert run.code == 2 and "\nhint: " in run.err and out in run.err
    assert "is a file" in limosa("train", "run.yaml", "--out", "run.yaml").err
    assert list_files(file.parent) == ["run.yaml"]


def test_a_run_that_is_there_is_left_alone(limosa, phases, file) -> None:
    assert limosa("train", "run.yaml", "--name", "one").code == 0
    run = limosa("train", "run.yaml", "--name", "one")
    assert run.code == 2 and "exists already" in run.err


@pytest.mark.parametrize("target", ["nowhere", "run.yaml", "."])
def test_resuming_what_is_no_run(limosa, phases, file, target) -> None:
    run = limosa("train", "--resume", target)
    assert run.code == 2
    assert f"{str(Path(target))!r} is not a run: it has no config.yaml" in run.err
    assert "hint: give the folder that `limosa train` named" in run.err
    assert list_files(file.parent) == ["run.yaml"]


@pytest.mark.parametrize(
    "options", [("--out", "runs"), ("--name", "x"), ("--seed", "1"), ("--seed", "0")]
)
def test_resume_keeps_its_own_options(limosa, phases, tmp_path, options) -> None:
    with RunFolder.create(tmp_path, "one", FILE):
        pass
    run = limosa("train", "--resume", "one", *options)
    assert run.code == 2
    assert f"--resume does not go with {options[0]}" in run.err and "\nhint: " in run.err
    assert "path" not in phases


@pytest.mark.parametrize("arguments", [(), ("run.yaml", "--resume", "one")])
def test_either_a_file_or_a_run(limosa, arguments) -> None:
    run = limosa("train", *arguments)
    assert run.code == 2 and "either a run file or --resume" in run.err


def test_a_template_that_cannot_serve_is_found_before_the_folder_is_made(
    limosa, phases, make_model, file
) -> None:
    # Sound as a template, so only loading it whole finds the fault: it writes no replies.
    folder = make_model({"chat_template.jinja": "{{ messages[0].content }}"})
    file.write_text(f"{FILE}model: {folder}\n")
    run = limosa("train", "run.yaml")
    assert run.code == 2 and "does not write a reply" in run.err
    assert list_files(file.parent) == ["run.yaml"]
