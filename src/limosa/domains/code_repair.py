"""Repair projects of `code_engineering`, stage hard: one or two modules, each maybe with a bug.

A finite family: functions known by their names, seeded bugs of each, and constants that only the
failing test tells. `code_judge` takes its hidden cases from here; what a case should give is
worked out on the host and never enters a box. Leaves out running anything.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Generator as PyGenerator
from dataclasses import dataclass
from random import Random
from typing import Any

from limosa.base.interfaces import Script
from limosa.base.messages import Message, ToolResult
from limosa.domains.code_files import to_call
from limosa.domains.words import WORDS

# How often the novice slips at each decision.
SLIPS: Mapping[str, float] = {
    "skip_first_test": 0.2,  # opens the first module without having seen what fails
    "edit_blind": 0.2,  # edits without looking, at a default guess
    "wrong_fix": 0.55,  # puts another wrong fragment in place of the first
    "no_in_place": 0.2,  # sed without -i
    "skip_rerun": 0.5,  # finishes without running the tests again
    "give_up": 0.5,  # finishes although the tests still fail
}
MAX_ROUNDS = 3

PARAMETERS = (("a", "b", "c"), ("x", "y", "z"), ("m", "n", "k"), ("p", "q", "r"))
HIDDEN_CASES = 8
# Which modules of a project have a bug. Two bugs show one after the other: only who runs the tests
# again sees the second.
SHAPES = ((True,), (True,), (True, True), (True, True), (True, False), (False, True))

Args = list[Any]
TEST_HEAD = """import sys
sys.dont_write_bytecode = True


def check(name, function, given, right):
    try:
        got = function(*given)
    except Exception as error:
        got = error
    if got != right:
        sys.exit(f"fail: {name} gives {got}, not {right}")


"""


@dataclass(frozen=True, slots=True)
class Function:
    """One function of the family: body lines and bugs (right and wrong fragment) as templates.

    `telling` draws arguments on which every bug shows; `edges` are further hidden arguments.
    """

    signature: str
    body: tuple[str, ...]
    bugs: tuple[tuple[str, str], ...]
    solve: Callable[..., Any]
    telling: Callable[[Random], Args]
    edges: tuple[Args, ...] = ()


def _draw_pair(rng: Random) -> Args:
    return sorted(rng.sample(range(3, 10), 2), reverse=True)


def _draw_number(rng: Random) -> Args:
    return [rng.randint(3, 9)]


def _draw_even(rng: Random) -> Args:
    return [2 * rng.randint(2, 9)]


def _draw_items(rng: Random) -> Args:
    return [rng.sample(range(2, 10), 3)]


def _draw_lower(rng: Random) -> Args:
    return [rng.choice(WORDS)]


def _draw_upper(rng: Random) -> Args:
    return [rng.choice(WORDS).upper()]


def _draw_nothing(rng: Random) -> Args:
    return []


PAIRS: tuple[Args, ...] = ([0, 0], [1, 2], [-4, 7], [5, -2], [2, 2])
NUMBERS: tuple[Args, ...] = ([0], [1], [2], [-3], [10])
LISTS: tuple[Args, ...] = ([[4]], [[5, 5]], [[0, -1, 2, 7]])
CONSTANT = "constant"

FUNCTIONS: Mapping[str, Function] = {
    "plus": Function(
        "{a}, {b}",
        ("return {a} + {b}",),
        (
            ("{a} + {b}", "{a} - {b}"),
            ("{a} + {b}", "{a} * {b}"),
            ("{a} + {b}", "{a} + {c}"),
            ("return {a} + {b}", "{a} + {b}"),
        ),
        lambda a, b: a + b,
        _draw_pair,
        PAIRS,
    ),
    "minus": Function(
        "{a}, {b}",
        ("return {a} - {b}",),
        (("{a} - {b}", "{a} + {b}"), ("{a} - {b}", "{b} - {a}"), ("{a} - {b}", "{a} - {c}")),
        lambda a, b: a - b,
        _draw_pair,
        PAIRS,
    ),
    "times": Function(
        "{a}, {b}",
        ("return {a} * {b}",),
        (
            ("{a} * {b}", "{a} + {b}"),
            ("{a} * {b}", "{a} - {b}"),
            ("return {a} * {b}", "{a} * {b}"),
        ),
        lambda a, b: a * b,
        _draw_pair,
        PAIRS,
    ),
    "double": Function(
        "{a}",
        ("return {a} * 2",),
        (("{a} * 2", "{a} + 2"), ("{a} * 2", "{a} * 3"), ("{a} * 2", "{b} * 2")),
        lambda a: a * 2,
        _draw_number,
        NUMBERS,
    ),
    "square": Function(
        "{a}",
        ("return {a} * {a}",),
        (("{a} * {a}", "{a} + {a}"), ("{a} * {a}", "{a} * {b}")),
        lambda a: a * a,
        _draw_number,
        NUMBERS,
    ),
    "after": Function(
        "{a}",
        ("return {a} + 1",),
        (("{a} + 1", "{a} - 1"), ("{a} + 1", "{a} + 2"), ("return {a} + 1", "{a} + 1")),
        lambda a: a + 1,
        _draw_number,
        NUMBERS,
    ),
    "before": Function(
        "{a}",
        ("return {a} - 1",),
        (("{a} - 1", "{a} + 1"), ("{a} - 1", "{a} - 2")),
        lambda a: a - 1,
        _draw_number,
        NUMBERS,
    ),
    "larger": Function(
        "{a}, {b}",
        ("if {a} > {b}:", "    return {a}", "return {b}"),
        (("{a} > {b}", "{a} < {b}"), ("{a} > {b}", "{a} == {b}")),
        lambda a, b: max(a, b),
        _draw_pair,
        PAIRS,
    ),
    "smaller": Function(
        "{a}, {b}",
        ("if {a} > {b}:", "    return {b}", "return {a}"),
        (("{a} > {b}", "{a} < {b}"), ("{a} > {b}", "{a} == {b}")),
        lambda a, b: min(a, b),
        _draw_pair,
        PAIRS,
    ),
    "first": Function(
        "items",
        ("return items[0]",),
        (("items[0]", "items[1]"), ("items[0]", "items[-1]")),
        lambda items: items[0],
        _draw_items,
        LISTS,
    ),
    "last": Function(
        "items",
        ("return items[-1]",),
        (("items[-1]", "items[0]"), ("items[-1]", "items[-2]")),
        lambda items: items[-1],
        _draw_items,
        LISTS,
    ),
    "total": Function(
        "items",
        ("result = 0", "for item in items:", "    result += item", "return result"),
        (
            ("result = 0", "result = 1"),
            ("result += item", "result -= item"),
            ("return result", "return item"),
        ),
        lambda items: sum(items),
        _draw_items,
        (*LISTS, [[]]),
    ),
    "size": Function(
        "items",
        ("return len(items)",),
        (("len(items)", "len(items) - 1"), ("len(items)", "len(items) + 1")),
        lambda items: len(items),
        _draw_items,
        (*LISTS, [[]]),
    ),
    "upto": Function(
        "{a}",
        ("return list(range(1, {a} + 1))",),
        (("(1, {a} + 1)", "(1, {a})"), ("(1, {a} + 1)", "(0, {a} + 1)")),
        lambda a: list(range(1, a + 1)),
        _draw_number,
        ([1], [0]),
    ),
    "even": Function(
        "{a}",
        ("return {a} % 2 == 0",),
        (("% 2 == 0", "% 2 == 1"), ("% 2 == 0", "% 2 == 2")),
        lambda a: a % 2 == 0,
        _draw_even,
        NUMBERS,
    ),
    "upper": Function(
        "text",
        ("return text.upper()",),
        (("text.upper", "text.lower"), ("text.upper", "text.title")),
        lambda text: text.upper(),
        _draw_lower,
        (["Otter"], [""]),
    ),
    "lower": Function(
        "text",
        ("return text.lower()",),
        (("text.lower", "text.upper"), ("text.lower", "text.title")),
        lambda text: text.lower(),
        _draw_upper,
        (["Otter"], [""]),
    ),
    CONSTANT: Function("", ('return "{v}"',), (("{v}", "{u}"),), lambda: None, _draw_nothing),
}


def make_project(rng: Random) -> tuple[str, dict[str, Any]]:
    """Draw a project: its instruction, and the task's data (files, modules with their bugs)."""
    broken = rng.choice(SHAPES)
    size = len(broken)
    modules = rng.sample(WORDS, size)
    names = rng.sample([name for name in FUNCTIONS if name != CONSTANT], size)
    if rng.random() < 0.3:
        names[rng.randrange(size)] = CONSTANT
    parts = [_make_part(*row, rng) for row in zip(modules, names, broken, strict=True)]
    files = {f"{part['module']}.py": to_source(part) for part in parts}
    files["test.py"] = _to_test(parts, rng)
    listed = " and ".join(f'"{module}.py"' for module in modules)
    template = rng.choice(
        (
            'The test "test.py" fails. Repair {}.',
            'Repair {} so that "test.py" passes.',
            '"test.py" fails: find the bug in {} and repair it.',
        )
    )
    return template.format(listed), {"kind": "repair", "files": files, "parts": parts}


def to_source(part: Mapping[str, Any]) -> str:
    """A module's text, with its bug where it has one."""
    function = FUNCTIONS[part["family"]]
    names = part["names"]
    lines = [line.format(**names) for line in function.body]
    if part["wrong"]:
        lines = _spoil(lines, part["right"], part["wrong"])
    head = f"def {part['function']}({function.signature.format(**names)}):"
    return "\n".join([head, *(f"    {line}" for line in lines), ""])


def make_cases(parts: Sequence[Mapping[str, Any]], seed: int) -> list[tuple[list[Any], Any]]:
    """Hidden cases: ([module, function, arguments], what it should give), the same every time."""
    rng = Random(f"code_engineering/hidden/{seed}")
    cases = []
    for part in parts:
        function = FUNCTIONS[part["family"]]
        drawn = [function.telling(rng) for _ in range(HIDDEN_CASES - len(function.edges))]
        for given in [*function.edges, *drawn]:
            cases.append(([part["module"], part["function"], given], solve(part, given)))
    return cases


def solve(part: Mapping[str, Any], given: Args) -> Any:
    """What a sound function gives, worked out without running any text of the project."""
    if part["family"] == CONSTANT:
        return part["names"]["v"]
    return FUNCTIONS[part["family"]].solve(*given)


def to_fix(path: str, wrong: str, right: str, *, in_place: bool = True) -> str:
    """The sed line that puts `right` in place of `wrong`; what sed reads as special becomes a dot.

    Source: POSIX basic regular expressions, where . * [ ] ^ $ and the delimiter are special.
    """
    pattern = "".join("." if char in ".*[]^$/\\" else char for char in wrong)
    return f"sed {'-i ' if in_place else ''}'s/{pattern}/{right}/' {path}"


def play_repair(data: Mapping[str, Any]) -> Script:
    """Run the tests, look into the module that fails, repair, and go on until they pass."""
    parts = {part["module"]: part for part in data["parts"]}
    for _ in range(len(parts) + 1):
        failing = _find_failing((yield to_call("python3 test.py")), parts)
        if failing is None:
            break
        path = f"{failing['module']}.py"
        yield to_call(f"cat {path}")
        yield to_call(to_fix(path, failing["wrong"], failing["right"]))
    yield Message("assistant", "done")


def play_repair_badly(data: Mapping[str, Any], rng: Random) -> Script:
    """The repair with slips at every decision, at the rates of `SLIPS`."""
    parts = {part["module"]: part for part in data["parts"]}
    state = {part["module"]: part["wrong"] for part in data["parts"]}
    target: Mapping[str, Any] | None = data["parts"][0]
    is_informed = not _slips(rng, "skip_first_test")
    if is_informed:
        target = _find_failing((yield to_call("python3 test.py")), parts)
    answer = "done"
    for turn in range(MAX_ROUNDS):
        if target is None:
            break
        yield from _edit(target, state, rng, is_informed=is_informed, is_first=turn == 0)
        answer = "done"
        if _slips(rng, "skip_rerun"):
            break
        target = _find_failing((yield to_call("python3 test.py")), parts)
        is_informed = True
        answer = "done" if target is None else "failed"
        if target is not None and _slips(rng, "give_up"):
            break
    yield Message("assistant", answer)


def _edit(
    part: Mapping[str, Any],
    state: dict[str, str],
    rng: Random,
    *,
    is_informed: bool,
    is_first: bool,
) -> PyGenerator[Message, list[ToolResult], None]:
    """One round of the novice: look (or not) and edit; `state` keeps each module's fragment."""
    path, wrong = f"{part['module']}.py", state[part["module"]]
    if is_first and _slips(rng, "edit_blind"):
        yield to_call(to_fix(path, "a - b", "a + b"))
        state[part["module"]] = wrong.replace("a - b", "a + b")
        return
    yield to_call(f"cat {path}")
    is_guessing = part["family"] == CONSTANT and not is_informed
    if not wrong or wrong == part["right"] or is_guessing:
        return  # nothing to see in this module
    right = part["right"]
    if part["habit"] not in ("", wrong) and _slips(rng, "wrong_fix"):
        right = part["habit"]
    if _slips(rng, "no_in_place"):
        yield to_call(to_fix(path, wrong, right, in_place=False))
        return
    yield to_call(to_fix(path, wrong, right))
    state[part["module"]] = right


def _slips(rng: Random, decision: str) -> bool:
    return rng.random() < SLIPS[decision]


def _find_failing(
    results: Sequence[ToolResult], parts: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """The part that the test's output names, or None where it passes."""
    text = results[0].content
    if "fail: " not in text:
        return None
    return parts[text.split("fail: ")[1].split(".")[0]]


def _make_part(module: str, family: str, is_broken: bool, rng: Random) -> dict[str, Any]:
    function = FUNCTIONS[family]
    a, b, c = rng.choice(PARAMETERS)
    name, v, u = rng.sample(WORDS, 3)
    names = {"a": a, "b": b, "c": c, "v": v, "u": u}
    bugs = [(right.format(**names), wrong.format(**names)) for right, wrong in function.bugs]
    right, wrong = rng.choice(bugs) if is_broken else ("", "")
    # The wrong habit is one fixed other fragment for each bug, so it can be unlearnt.
    others = [fragment for where, fragment in bugs if where == right and fragment != wrong]
    return {
        "module": module,
        "function": name if family == CONSTANT else family,
        "family": family,
        "names": names,
        "right": right,
        "wrong": wrong,
        "habit": others[0] if others else "",
    }


def _spoil(lines: list[str], right: str, wrong: str) -> list[str]:
    spoilt = [line.replace(right, wrong) for line in lines]
    assert spoilt != lines, f"the bug {right!r} -> {wrong!r} changes nothing in {lines}"
    return spoilt


def _to_test(parts: Sequence[Mapping[str, Any]], rng: Random) -> str:
    imports = "".join(f"import {part['module']}\n" for part in parts)
    checks = ""
    for part in parts:
        given = FUNCTIONS[part["family"]].telling(rng)
        shown = f"{part['module']}.{part['function']}"
        label = f"{shown}({', '.join(map(repr, given))})"
        checks += f"check({label!r}, {shown}, {given!r}, {solve(part, given)!r})\n"
    return f'{TEST_HEAD}{imports}\n{checks}print("pass")\n'
