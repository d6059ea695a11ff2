"""The verifier of `code_engineering`: judges collected files, never the box of the agent.

Files are data and are compared here. Code of the agent runs in a fresh box, apart from the
judge: it is sent inputs and sends back values. What is right never enters a box, so there is
nothing in one to read, to print or to override; exit codes and printed claims count for nothing.
"""

import json
from collections.abc import Mapping
from typing import Any

from limosa.base.interfaces import ExecResult, SandboxProvider, Verdict
from limosa.base.task import Task
from limosa.domains.code_repair import make_cases

CHECK_TIMEOUT_S = 5.0
MAX_DEPTH = 8

# Run in the fresh box. `-I` keeps environment, user site and the work directory off the path
# until the standard modules are loaded; the last line of output holds the values.
RUNNER = """
import importlib, json, sys
sys.dont_write_bytecode = True
cases = json.load(sys.stdin)
sys.path.insert(0, "")
values = []
for module, function, given in cases:
    try:
        values.append([getattr(importlib.import_module(module), function)(*given)])
    except BaseException:
        values.append([])
print()
print(json.dumps(values, default=repr))
"""


def compare_files(task: Task, files: Mapping[str, bytes]) -> Verdict:
    """Full marks where every expected file is as it should be and every other original is gone."""
    expected: Mapping[str, str] = task.data["expected"]
    gone = [path for path in task.data["files"] if path not in expected]
    right = [_lines_of(files.get(path)) == _lines_of(t.encode()) for path, t in expected.items()]
    right += [path not in files for path in gone]
    return _to_verdict({"files": sum(right) / len(right)})


async def run_hidden_tests(
    task: Task, files: Mapping[str, bytes], sandboxes: SandboxProvider, image: str
) -> Verdict:
    """Full marks where every hidden case gives the right value and the test file is untouched.

    Raises: SandboxError where the fresh box fails; what the code does in it is the agent's.
    """
    cases = make_cases(task.data["parts"], task.seed)
    sandbox = await sandboxes.create(image)
    try:
        await sandbox.put({path: data for path, data in files.items() if _is_project(path)})
        stdin = json.dumps([call for call, _ in cases]).encode()
        argv = ["python3", "-I", "-c", RUNNER]
        result = await sandbox.exec(argv, stdin=stdin, timeout_s=CHECK_TIMEOUT_S)
    finally:
        await sandbox.kill()
    values = _read_values(result, len(cases))
    right = [_is_same(got, [want]) for got, (_, want) in zip(values, cases, strict=True)]
    kept = files.get("test.py") == task.data["files"]["test.py"].encode()
    return _to_verdict({"cases": sum(right) / len(right), "test_kept": float(kept)})


def _to_verdict(components: Mapping[str, float]) -> Verdict:
    solved = all(value == 1.0 for value in components.values())
    return Verdict(solved, float(solved), components)


def _lines_of(data: bytes | None) -> list[str] | None:
    """Lines without trailing blanks, so that a final newline or a padded count is no matter."""
    if data is None:
        return None
    return [line.rstrip() for line in data.decode(errors="replace").strip().splitlines()]


def _is_project(path: str) -> bool:
    """Python source goes to the fresh box; byte-code, data and abysses of folders stay behind."""
    return path.endswith(".py") and path.count("/") < MAX_DEPTH


def _read_values(result: ExecResult, count: int) -> list[Any]:
    """The values of the last line; anything else is as good as no value at all."""
    nothing: list[Any] = [None] * count
    lines = result.output.strip().splitlines()
    if result.timed_out or not lines:
        return nothing
    try:
        values = json.loads(lines[-1])
    except (ValueError, RecursionError):
        return nothing
    return values if isinstance(values, list) and len(values) == count else nothing


def _is_same(got: Any, want: Any) -> bool:
    """Equal in value and type: True is not 1, and 4.0 is not 4."""
    try:
        return json.dumps(got, sort_keys=True) == json.dumps(want, sort_keys=True)
    except (ValueError, RecursionError):
        return False
