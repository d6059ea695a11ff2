"""Every checker of the house rules fails on a small source that breaks its rule, and only then."""

from collections.abc import Callable

import architecture as rules
import pytest
from test_architecture import find_command_faults, list_code

Checker = Callable[[rules.Source], list[str]]

BROKEN: list[tuple[Checker, str, str]] = [
    (rules.find_floor_breaches, "limosa.base.task", "from limosa.models.weights import load"),
    (rules.find_floor_breaches, "limosa.agent.loop", "import limosa.domains.table"),
    (rules.find_floor_breaches, "limosa.training.rl", "from limosa import inference"),
    (rules.find_floor_breaches, "limosa.training.rl", "from limosa.rollout import mixture"),
    (rules.find_floor_breaches, "limosa.store.run", "def f():\n    import limosa.cli.main"),
    (rules.find_floor_breaches, "limosa.agent.table", "T = {'a': 'limosa.harness.run:make'}"),
    (rules.find_floor_breaches, "limosa.agent.loop", "from .record import make"),
    (rules.find_floor_breaches, "limosa.attic.loop", "import json"),
    (rules.find_floor_breaches, "limosa.cli.main", "from limosa.attic import old"),
    (rules.find_missing_docstring, "limosa.base.task", "import json"),
    (rules.find_side_effects, "limosa.base.task", "import logging\nlogging.basicConfig()"),
    (rules.find_side_effects, "limosa.base.task", "for i in range(3): pass"),
    (rules.find_module_state, "limosa.base.task", "cache = {}"),
    (rules.find_module_state, "limosa.base.task", "seen: set[int] = set()"),
    (rules.find_module_state, "limosa.base.task", "import collections as c\nx = c.deque()"),
    (rules.find_module_state, "limosa.base.task", "N = 1\ndef f():\n    global N\n    N = 2"),
    (rules.find_module_state, "limosa.base.task", "T = {}\ndef f(k):\n    T[k] = 1"),
    (rules.find_module_state, "limosa.base.task", "T = []\ndef f(k):\n    T.append(k)"),
    (rules.find_module_state, "limosa.base.task", "T = [1]\nclass A:\n  def f(s):\n    del T[0]"),
    (rules.find_vague_names, "limosa.base.utils", ""),
    (rules.find_vague_names, "limosa.base.task", "class RunManager: pass"),
    (rules.find_vague_names, "limosa.base.task", "def _load_helper(): pass"),
    (rules.find_vague_names, "limosa.base.task", "class HTTPImpl: pass"),
]

SOUND: list[tuple[Checker, str, str]] = [
    (rules.find_floor_breaches, "limosa.cli.main", "from limosa.training.rl import step"),
    (rules.find_floor_breaches, "limosa.agent.loop", "from limosa.agent.record import make"),
    (rules.find_floor_breaches, "limosa.cli.main", "from limosa import __version__\nimport torch"),
    (rules.find_missing_docstring, "limosa.base.task", '"""A task."""'),
    (rules.find_side_effects, "limosa.base.task", '"""A task."""\nN = int("1")\ndef f(): g()'),
    (rules.find_side_effects, "limosa.cli.main", 'if __name__ == "__main__":\n    print(1)'),
    (rules.find_module_state, "limosa.base.task", "T = {1: 2}\n__all__ = ['T']\nNAMES = (1,)"),
    (rules.find_module_state, "limosa.base.task", "T = {1: 2}\ndef f(T):\n    T[1] = 3"),
    (rules.find_vague_names, "limosa.base.task", "def implode(): pass\nclass Utility: pass"),
]


@pytest.mark.parametrize(("checker", "name", "text"), BROKEN)
def test_checker_finds_the_breach(checker: Checker, name: str, text: str) -> None:
    assert len(checker(rules.parse(name, text))) == 1


@pytest.mark.parametrize(("checker", "name", "text"), SOUND)
def test_checker_lets_sound_sources_pass(checker: Checker, name: str, text: str) -> None:
    assert checker(rules.parse(name, text)) == []


def test_heavy_imports_are_found_where_they_hide() -> None:
    source = rules.parse("limosa.base.task", "def f():\n    from torch.nn import functional")
    assert rules.find_heavy_imports(source, rules.HEAVY) == ["limosa.base.task imports torch"]
    source = rules.parse("limosa.base.task", "import urllib.request\nimport json")
    assert rules.find_heavy_imports(source, rules.NETWORK) == ["limosa.base.task imports urllib"]
    assert rules.find_heavy_imports(source, rules.HEAVY) == []


def test_long_files_and_functions_are_found() -> None:
    body = "    x = 1\n"
    source = rules.parse("limosa.cli.run", "def run():\n" + body * 60)
    assert rules.find_long_parts(source, {}) == ["limosa.cli.run.run has 61 lines, at most 60"]
    assert rules.find_long_parts(source, {"limosa.cli.run.run": "the main loop"}) == []
    source = rules.parse("limosa.cli.run", "class A:\n  async def run(self):\n" + body * 120)
    name = "limosa.cli.run.A.run"
    assert rules.find_long_parts(source, {name: "it"}) == [f"{name} has 121 lines, at most 120"]
    source = rules.parse("limosa.cli.run", "def run():\n" + body * 59 + "x = 1\n" * 440)
    assert rules.find_long_parts(source, {}) == []
    source = rules.parse("limosa.cli.run", "x = 1\n" * 501)
    assert rules.find_long_parts(source, {}) == ["limosa.cli.run has 501 lines, at most 500"]


def test_deep_inheritance_is_found_across_modules() -> None:
    base = rules.parse("limosa.base.a", "class A(Protocol): pass\nclass B(A): pass")
    deep = rules.parse("limosa.base.b", "import limosa.base.a as a\nclass C(a.B[int]): pass")
    errors = rules.parse("limosa.base.c", "class E(Exception): pass\nclass F(E): pass")
    deeper = rules.parse("limosa.base.d", "class G(F): pass")
    assert rules.find_deep_inheritance([base, errors, deeper]) == []
    findings = rules.find_deep_inheritance([base, deep, errors, deeper])
    assert findings == ["C -> B -> A: 3 project classes, at most 2"]


@pytest.mark.parametrize(
    "line", ["limosa chekc x.yaml", "limosa check x.yaml --jsno", "limosa domains lst"]
)
def test_faulty_command_lines_are_found(line: str) -> None:
    assert len(find_command_faults(line)) == 1


@pytest.mark.parametrize(
    "line",
    ["limosa check x.yaml --json | head", "limosa --version", "limosa domains list  # --nothing"],
)
def test_sound_command_lines_pass(line: str) -> None:
    assert find_command_faults(line) == []


def test_code_is_read_from_pages() -> None:
    page = "Run `limosa check x`:\n```sh\n$ limosa train \\\n  a.yaml\n.venv/bin/limosa b\n```\nend"
    assert list_code(page) == ["limosa train a.yaml", "limosa b", "limosa check x"]
