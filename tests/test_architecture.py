"""The house rules as tests, each with a proof that its checker can fail."""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import architecture as rules
import click
import pytest
from click.testing import CliRunner

from limosa.base.config import load_config
from limosa.cli.known import load_known_names
from limosa.cli.main import cli
from limosa.training.sft_config import load_sft_config

ROOT = Path(__file__).parent.parent
SOURCES = rules.read_sources(ROOT / "src", ROOT / "src" / "limosa")
OUTSIDE = [
    source
    for folder in ("tests", "benchmarks", "examples", "tools")
    for source in rules.read_sources(ROOT, ROOT / folder)
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Main loops that may reach 120 lines, each with the reason why it reads better whole.
MAIN_LOOPS: dict[str, str] = {}
# Floor-6 modules that must start fast: without torch, transformers or matplotlib.
LIGHT_COMMANDS = ("limosa.cli.main", "limosa.cli.known", "limosa.cli.check", "limosa.cli.domains")


def check(findings: list[str]) -> None:
    assert not findings, "\n" + "\n".join(findings)


# --- the project --------------------------------------------------------------------------------


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 20
    assert {s.folder for s in SOURCES} >= {"base", "models", "agent", "rollout", "quality", "cli"}


def test_imports_go_down_only() -> None:
    check([f for s in SOURCES for f in rules.find_floor_breaches(s)])


def test_base_knows_no_torch_and_no_network() -> None:
    heavy = rules.HEAVY | rules.NETWORK
    check([f for s in SOURCES if s.folder == "base" for f in rules.find_heavy_imports(s, heavy)])


def test_light_folders_never_import_torch() -> None:
    light = [s for s in SOURCES if s.folder in rules.LIGHT_FOLDERS]
    check([f for s in light for f in rules.find_heavy_imports(s, {"torch", "transformers"})])


def test_light_modules_load_without_torch() -> None:
    names = [s.name for s in SOURCES if s.folder in rules.LIGHT_FOLDERS] + list(LIGHT_COMMANDS)
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "print(sorted({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]", f"loaded with the light modules: {run.stdout}"


def test_files_and_functions_are_short() -> None:
    check([f for s in SOURCES + OUTSIDE for f in rules.find_long_parts(s, MAIN_LOOPS)])


def test_every_exception_is_still_needed() -> None:
    lengths = {n: rules.count_lines(f) for s in SOURCES for n, f in rules.walk_functions(s)}
    stale = [n for n in MAIN_LOOPS if lengths.get(n, 0) <= rules.MAX_FUNCTION_LINES]
    assert not stale, f"no longer over {rules.MAX_FUNCTION_LINES} lines: {stale}"


def test_inheritance_is_shallow() -> None:
    check(rules.find_deep_inheritance(SOURCES))


def test_names_say_something() -> None:
    check([f for s in SOURCES + OUTSIDE for f in rules.find_vague_names(s)])


def test_modules_say_their_role() -> None:
    check([f for s in SOURCES for f in rules.find_missing_docstring(s)])


def test_importing_does_nothing() -> None:
    check([f for s in SOURCES for f in rules.find_side_effects(s)])


def test_modules_keep_no_state() -> None:
    check([f for s in SOURCES for f in rules.find_module_state(s)])


def test_tests_mirror_the_source() -> None:
    folders = {p.parent.name for p in (ROOT / "tests").rglob("test_*.py")} - {"tests", "system"}
    assert folders <= set(rules.FLOORS), f"no folder of src/limosa: {folders - set(rules.FLOORS)}"
    names = Counter(p.name for p in (ROOT / "tests").rglob("*.py") if p.name != "conftest.py")
    assert [n for n, count in names.items() if count > 1] == []


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = [re.split(r"[<>=!~\[ ]", line)[0] for group in groups for line in group]
    decisions = "\n".join(p.read_text() for p in (ROOT / "docs" / "decisions").glob("*.md"))
    missing = [n for n in names if not re.search(rf"`{re.escape(n)}`", decisions, re.I)]
    assert names and not missing, f"name these in docs/decisions/ with a reason: {missing}"


def test_lock_pins_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = (ROOT / "requirements.lock").read_text(), (ROOT / "requirements-test.lock").read_text()
    pins = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for text in locked
        for line in text.splitlines()
        if "==" in line
    }
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = [re.split(r"[<>=!~\[ ]", line)[0].lower() for group in groups for line in group]
    assert [n for n in names if n not in pins] == [], "run `make lock`"
    assert "torch==2.13.0\n" in locked[0]
    assert not [p for p in pins if p.startswith(("nvidia", "triton", "cuda"))]


# --- commands, examples, documents --------------------------------------------------------------


def list_commands(group: click.Group, prefix: str = "limosa") -> dict[str, click.Command]:
    """Every command by its whole name, groups included."""
    context = click.Context(group)
    found: dict[str, click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{prefix} lists {name} and does not have it"
        found[f"{prefix} {name}"] = command
        if isinstance(command, click.Group):
            found |= list_commands(command, f"{prefix} {name}")
    return found


def find_command_faults(line: str) -> list[str]:
    """What is wrong with a command line as a document shows it: names and options only."""
    words = re.sub(r"\s(#|\||>|&&|2>).*", "", line).split()
    command: click.Command = cli
    options: set[str] = {"--help", "-h", "--version"}
    for word in words[1:]:
        if word.startswith("--"):
            name = word.partition("=")[0]
            if name not in options:
                return [f"{line!r}: no option {name}"]
        elif isinstance(command, click.Group):
            inner = command.get_command(click.Context(command), word)
            if inner is None:
                return [f"{line!r}: no command {word!r}"]
            command = inner
            opts = (o for p in command.params for o in (*p.opts, *p.secondary_opts))
            options = {"--help", "-h", *opts}
    return []


def list_code(text: str) -> list[str]:
    """Lines of fenced blocks and inline code of a Markdown page."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    lines = [line for block in fenced for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    return [re.sub(r"^\s*(\$ |\.venv/bin/)?", "", line) for line in lines + inline]


def test_every_command_helps_with_an_example() -> None:
    for name, command in list_commands(cli).items():
        run = CliRunner().invoke(cli, [*name.split()[1:], "--help"])
        assert run.exit_code == 0, f"{name} --help: {run.output}"
        if isinstance(command, click.Group):
            continue
        examples = re.findall(rf"^\s+({re.escape(name)} .*|{re.escape(name)})$", run.output, re.M)
        assert examples, f"{name} --help shows no example"
        check([fault for line in examples for fault in find_command_faults(line)])


def test_every_command_takes_json() -> None:
    plain = {n: c for n, c in list_commands(cli).items() if not isinstance(c, click.Group)}
    missing = [n for n, c in plain.items() if not any("--json" in p.opts for p in c.params)]
    assert plain and not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_documents_name_real_commands_and_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(), re.M))
    faults = []
    for line in list_code(text):
        if re.match(r"limosa\s", line):
            faults += find_command_faults(line)
        if match := re.match(r"make ([a-z][\w-]*)", line):
            faults += [] if match[1] in targets else [f"{line!r}: no target {match[1]!r}"]
        for path in re.findall(r"(?<![\w/.])(?:examples|docs|benchmarks|src)/[\w./-]*\w", line):
            faults += [] if (ROOT / path).exists() else [f"{line!r}: no file {path}"]
    for link in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", text):
        faults += [] if (page.parent / link).exists() else [f"the link {link} leads nowhere"]
    check(faults)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_every_example_file_is_valid(path: Path) -> None:
    if "domains:" in path.read_text():
        load_config(path, load_known_names())
    else:
        load_sft_config(path)
