"""File chores of `code_engineering`, stages easy and medium: one or two shell commands each.

A chore is a row of text templates over names, plus the files before and after. `code_engineering`
asks here for tasks and scripts; `code_judge` compares the files. Leaves out running anything.
"""

from collections.abc import Callable, Mapping
from collections.abc import Generator as PyGenerator
from dataclasses import dataclass
from random import Random
from typing import Any

from limosa.base.interfaces import Script
from limosa.base.messages import Message, ToolCall, ToolResult
from limosa.domains.words import WORDS

Files = dict[str, str]
Names = Mapping[str, str]
Setup = Callable[[Names, list[str]], tuple[Files, Files]]

# How often the novice makes the typical mistake of each chore.
SLIPS: Mapping[str, float] = {
    "make": 0.3,  # prints the line, forgets the redirection
    "make_in": 0.7,  # forgets mkdir
    "append": 0.65,  # > for >>
    "overwrite": 0.4,  # >> for >
    "copy": 0.4,  # mv for cp
    "rename": 0.6,  # cp for mv
    "delete_folder": 0.7,  # rm without -r
    "copy_in": 0.65,  # forgets mkdir, and so makes a file of the folder's name
    "set": 0.65,  # writes without looking, and loses the other lines
    "replace": 0.7,  # sed without -i
    "drop": 0.7,  # sed without -i
    "count": 0.65,  # the file's name beside the count
    "sort": 0.6,  # forgets the second half of the instruction
    "sort_same": 0.65,  # reads and writes one file, and so empties it
    "join": 0.6,  # forgets the second half of the instruction
    "unique": 0.65,  # keeps the repeats
    "find_rename": 0.7,  # guesses the first file instead of searching
    "find_delete": 0.7,  # guesses the first file instead of searching
}
# How often it mends a mistake that shows in the result, instead of finishing.
RECOVER = 0.3

EMPTY = "ok"


@dataclass(frozen=True, slots=True)
class Chore:
    """One kind of chore: `right` and `slip` are the commands, `{seen}` the file or word found."""

    stage: str
    instructions: tuple[str, ...]
    right: tuple[str, ...]
    slip: tuple[str, ...]
    setup: Setup


def list_kinds(stage: str) -> tuple[str, ...]:
    """The kinds of chore of a stage, in a fixed order."""
    return tuple(kind for kind, chore in CHORES.items() if chore.stage == stage)


def make_chore(stage: str, rng: Random) -> tuple[str, dict[str, Any]]:
    """Draw a chore: its instruction, and the task's data (kind, names, files before and after)."""
    kind = rng.choice(list_kinds(stage))
    chore = CHORES[kind]
    words = rng.sample(WORDS, 16)
    names = dict(zip(("p", "q", "r", "d", "k", "w", "x"), words, strict=False))
    spare = words[7 : 7 + rng.randint(3, 5)]
    before, after = chore.setup(names, spare)
    instruction = rng.choice(chore.instructions).format(**names)
    return instruction, {"kind": kind, "names": names, "files": before, "expected": after}


def play_chore(data: Mapping[str, Any]) -> Script:
    """The right commands, then the answer."""
    yield from _run(CHORES[data["kind"]].right, data["names"])
    yield Message("assistant", "done")


def play_chore_badly(data: Mapping[str, Any], rng: Random) -> Script:
    """The chore with its typical mistake at its rate, mended at times where the result shows it."""
    chore = CHORES[data["kind"]]
    if rng.random() >= SLIPS[data["kind"]]:
        yield from play_chore(data)
        return
    last = yield from _run(chore.slip, data["names"])
    if last.content != EMPTY and rng.random() < RECOVER:
        yield from play_chore(data)
        return
    yield Message("assistant", "failed" if last.is_error else "done")


def to_call(command: str) -> Message:
    """An assistant's message with one bash call."""
    return Message("assistant", "", (ToolCall("bash", {"command": command}),))


def _run(commands: tuple[str, ...], names: Names) -> PyGenerator[Message, list[ToolResult], Any]:
    """Play commands in turn; `{seen}` is what `_find_seen` finds in the result before."""
    seen, result = "", ToolResult(EMPTY)
    for command in commands:
        result = (yield to_call(command.format(**names, seen=seen)))[0]
        seen = _find_seen(result.content, names["k"])
    return result


def _find_seen(content: str, key: str) -> str:
    """The word after `key` where a line starts with it, else the first word."""
    words = content.split()
    return words[words.index(key) + 1] if key in words[:-1] else words[0] if words else ""


def _to_text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def _make(n: Names, s: list[str]) -> tuple[Files, Files]:
    return {}, {f"{n['p']}.txt": _to_text(n["w"])}


def _make_in(n: Names, s: list[str]) -> tuple[Files, Files]:
    return {}, {f"{n['d']}/{n['p']}.txt": _to_text(n["w"])}


def _append(n: Names, s: list[str]) -> tuple[Files, Files]:
    path = f"{n['p']}.txt"
    return {path: _to_text(s[0])}, {path: _to_text(s[0], n["w"])}


def _overwrite(n: Names, s: list[str]) -> tuple[Files, Files]:
    path = f"{n['p']}.txt"
    return {path: _to_text(s[0])}, {path: _to_text(n["w"])}


def _copy(n: Names, s: list[str]) -> tuple[Files, Files]:
    before = {f"{n['p']}.txt": _to_text(s[0])}
    return before, {**before, f"{n['q']}.txt": _to_text(s[0])}


def _rename(n: Names, s: list[str]) -> tuple[Files, Files]:
    return {f"{n['p']}.txt": _to_text(s[0])}, {f"{n['q']}.txt": _to_text(s[0])}


def _delete_folder(n: Names, s: list[str]) -> tuple[Files, Files]:
    kept = {f"{n['p']}.txt": _to_text(s[0])}
    return {**kept, f"{n['d']}/{n['q']}.txt": _to_text(s[1])}, kept


def _copy_in(n: Names, s: list[str]) -> tuple[Files, Files]:
    before = {f"{n['p']}.txt": _to_text(s[0])}
    return before, {**before, f"{n['d']}/{n['p']}.txt": _to_text(s[0])}


def _set(n: Names, s: list[str]) -> tuple[Files, Files]:
    path, other = f"{n['p']}.txt", f"{s[0]} {s[1]}"
    lines, done = [other, f"{n['k']} {s[2]}"], [other, f"{n['k']} {n['w']}"]
    if len(s) % 2:  # the key stands first or last, so that its place tells nothing
        lines.reverse()
        done.reverse()
    return {path: _to_text(*lines)}, {path: _to_text(*done)}


def _replace(n: Names, s: list[str]) -> tuple[Files, Files]:
    path, lines = f"{n['p']}.txt", (n["x"], s[0], n["x"])
    after = tuple(n["w"] if line == n["x"] else line for line in lines)
    return {path: _to_text(*lines)}, {path: _to_text(*after)}


def _drop(n: Names, s: list[str]) -> tuple[Files, Files]:
    path = f"{n['p']}.txt"
    return {path: _to_text(s[0], n["w"], s[1])}, {path: _to_text(s[0], s[1])}


def _count(n: Names, s: list[str]) -> tuple[Files, Files]:
    before = {f"{n['p']}.txt": _to_text(*s)}
    return before, {**before, f"{n['q']}.txt": _to_text(str(len(s)))}


def _sort(n: Names, s: list[str]) -> tuple[Files, Files]:
    return {f"{n['p']}.txt": _to_text(*_unsort(s))}, {f"{n['q']}.txt": _to_text(*sorted(s))}


def _sort_same(n: Names, s: list[str]) -> tuple[Files, Files]:
    path = f"{n['p']}.txt"
    return {path: _to_text(*_unsort(s))}, {path: _to_text(*sorted(s))}


def _join(n: Names, s: list[str]) -> tuple[Files, Files]:
    before = {f"{n['p']}.txt": _to_text(s[0]), f"{n['q']}.txt": _to_text(s[1])}
    return before, {f"{n['r']}.txt": _to_text(s[0], s[1])}


def _unique(n: Names, s: list[str]) -> tuple[Files, Files]:
    before = {f"{n['p']}.txt": _to_text(*s[:3], s[0])}
    return before, {**before, f"{n['q']}.txt": _to_text(*sorted(s[:3]))}


def _find_rename(n: Names, s: list[str]) -> tuple[Files, Files]:
    files = {f"{name}.txt": _to_text(word) for name, word in zip(s, s[1:] + s[:1], strict=True)}
    held = f"{s[-1]}.txt"
    kept = {path: text for path, text in files.items() if path != held}
    return {**kept, held: _to_text(n["w"])}, {**kept, f"{n['q']}.txt": _to_text(n["w"])}


def _find_delete(n: Names, s: list[str]) -> tuple[Files, Files]:
    before, after = _find_rename(n, s)
    return before, {path: text for path, text in after.items() if path in before}


def _unsort(words: list[str]) -> list[str]:
    """The words in an order that is not the sorted one: doing nothing must never be right."""
    return words if words != sorted(words) else words[::-1]


CHORES: Mapping[str, Chore] = {
    "make": Chore(
        "easy",
        (
            'Make the file "{p}.txt" with the line "{w}".',
            'Write the line "{w}" to a new file "{p}.txt".',
        ),
        ("echo {w} > {p}.txt",),
        ("echo {w}",),
        _make,
    ),
    "make_in": Chore(
        "easy",
        (
            'Make a new folder "{d}" and in it the file "{p}.txt" with the line "{w}".',
            'Write the line "{w}" to "{p}.txt" in a new folder "{d}".',
        ),
        ("mkdir {d} && echo {w} > {d}/{p}.txt",),
        ("echo {w} > {d}/{p}.txt",),
        _make_in,
    ),
    "append": Chore(
        "easy",
        (
            'Append the line "{w}" to "{p}.txt".',
            'Add the line "{w}" at the end of "{p}.txt".',
        ),
        ("echo {w} >> {p}.txt",),
        ("echo {w} > {p}.txt",),
        _append,
    ),
    "overwrite": Chore(
        "easy",
        (
            'Overwrite "{p}.txt" with the line "{w}".',
            'Replace everything in "{p}.txt" by the line "{w}".',
        ),
        ("echo {w} > {p}.txt",),
        ("echo {w} >> {p}.txt",),
        _overwrite,
    ),
    "copy": Chore(
        "easy",
        ('Copy "{p}.txt" to "{q}.txt".', 'Make a copy of "{p}.txt" named "{q}.txt".'),
        ("cp {p}.txt {q}.txt",),
        ("mv {p}.txt {q}.txt",),
        _copy,
    ),
    "rename": Chore(
        "easy",
        ('Rename "{p}.txt" to "{q}.txt".', 'Give "{p}.txt" the new name "{q}.txt".'),
        ("mv {p}.txt {q}.txt",),
        ("cp {p}.txt {q}.txt",),
        _rename,
    ),
    "delete_folder": Chore(
        "easy",
        ('Delete the folder "{d}", keep "{p}.txt".', 'Remove the folder "{d}" but not "{p}.txt".'),
        ("rm -r {d}",),
        ("rm {d}",),
        _delete_folder,
    ),
    "copy_in": Chore(
        "easy",
        (
            'Copy "{p}.txt" into a new folder "{d}".',
            'Make a new folder "{d}" and put a copy of "{p}.txt" in it.',
        ),
        ("mkdir {d} && cp {p}.txt {d}",),
        ("cp {p}.txt {d}",),
        _copy_in,
    ),
    "set": Chore(
        "medium",
        (
            'In "{p}.txt" set "{k}" to "{w}".',
            'Change the value of "{k}" in "{p}.txt" to "{w}".',
        ),
        ("cat {p}.txt", "sed -i 's/{seen}/{w}/' {p}.txt"),
        ("echo {k} {w} > {p}.txt",),
        _set,
    ),
    "replace": Chore(
        "medium",
        (
            'Replace the word "{x}" by "{w}" in "{p}.txt".',
            'In "{p}.txt" change every "{x}" to "{w}".',
        ),
        ("sed -i 's/{x}/{w}/' {p}.txt",),
        ("sed 's/{x}/{w}/' {p}.txt",),
        _replace,
    ),
    "drop": Chore(
        "medium",
        ('Delete the line "{w}" from "{p}.txt".', 'Take the line "{w}" out of "{p}.txt".'),
        ("sed -i '/{w}/d' {p}.txt",),
        ("sed '/{w}/d' {p}.txt",),
        _drop,
    ),
    "count": Chore(
        "medium",
        (
            'Count the lines of "{p}.txt" and write only the number to "{q}.txt".',
            'Write the number of lines of "{p}.txt" to "{q}.txt".',
        ),
        ("wc -l < {p}.txt > {q}.txt",),
        ("wc -l {p}.txt > {q}.txt",),
        _count,
    ),
    "sort": Chore(
        "medium",
        (
            'Sort the lines of "{p}.txt" into "{q}.txt", then delete "{p}.txt".',
            'Write the sorted lines of "{p}.txt" to "{q}.txt" and remove "{p}.txt".',
        ),
        ("sort {p}.txt > {q}.txt", "rm {p}.txt"),
        ("sort {p}.txt > {q}.txt",),
        _sort,
    ),
    "sort_same": Chore(
        "medium",
        ('Sort the lines of "{p}.txt" in place.', 'Put the lines of "{p}.txt" in order.'),
        ("sort -o {p}.txt {p}.txt",),
        ("sort {p}.txt > {p}.txt",),
        _sort_same,
    ),
    "join": Chore(
        "medium",
        (
            'Join "{p}.txt" and "{q}.txt" into "{r}.txt", then delete both.',
            'Write "{p}.txt" and then "{q}.txt" to "{r}.txt" and remove the two.',
        ),
        ("cat {p}.txt {q}.txt > {r}.txt", "rm {p}.txt {q}.txt"),
        ("cat {p}.txt {q}.txt > {r}.txt",),
        _join,
    ),
    "unique": Chore(
        "medium",
        (
            'Write the sorted lines of "{p}.txt" without repeats to "{q}.txt".',
            'Sort "{p}.txt" into "{q}.txt", each line once.',
        ),
        ("sort -u {p}.txt > {q}.txt",),
        ("sort {p}.txt > {q}.txt",),
        _unique,
    ),
    "find_rename": Chore(
        "medium",
        (
            'One file holds the word "{w}". Rename it to "{q}.txt".',
            'Find the file that contains "{w}" and rename it to "{q}.txt".',
        ),
        ("grep -l {w} *", "mv {seen} {q}.txt"),
        ("ls", "mv {seen} {q}.txt"),
        _find_rename,
    ),
    "find_delete": Chore(
        "medium",
        (
            'One file holds the word "{w}". Delete it.',
            'Find the file that contains "{w}" and delete it.',
        ),
        ("grep -l {w} *", "rm {seen}"),
        ("ls", "rm {seen}"),
        _find_delete,
    ),
}
