"""Chains of 5 to 200 dependent tool calls in a sandbox, with faults that must be overcome.

Every station is a file in the box and names the next; the last holds a word. Faults lie in the
box too: a station that is busy once, one that first gives a stale value, one that is locked.
Success needs every link in order and the word. Leaves out any shell for the model: `read` and
`unlock` are all it has.
"""

import re
import sys
from collections.abc import Generator, Mapping
from itertools import pairwise
from random import Random
from typing import Any

from limosa.base.errors import SandboxError, UserError
from limosa.base.interfaces import Sandbox, SandboxProvider, Script, Verdict
from limosa.base.messages import Message, ToolCall, ToolResult
from limosa.base.task import Limits, Task
from limosa.domains import answers
from limosa.domains.answers import normalise_answer
from limosa.domains.toolset import Toolset, make_error, make_spec
from limosa.domains.versions import environment_version, read_source
from limosa.domains.words import WORDS

# Fewest and most tool calls that a reference needs.
CALLS: Mapping[str, tuple[int, int]] = {"short_traj": (5, 8), "long_traj": (20, 200)}
# Tool calls that each fault adds to a link.
FAULT_CALLS: Mapping[str, int] = {"busy": 1, "stale": 1, "locked": 2}
MIN_LINKS = 3
MAX_TURNS = 200
CALL_TOKENS = 48
PROMPT_TOKENS = 320

SYSTEM = "Read station after station. Answer with the last word."
TEMPLATES = (
    'Start at "{start}" and follow every station to the final word.',
    'Begin with "{start}". Each station names the next. Which word is last?',
    'From "{start}", read on until a station gives the word.',
)
GIVE_UP = "failed"

# How often the novice errs at each event. `busy_stops`: gives up where it should read again;
# `busy_strays`: goes back a station instead; `stale_believed`: takes the old value;
# `locked_reread`: reads a locked station again; `gives_up`: ends after its own mistake instead of
# mending it; `early`: answers with a station's name.
SLIPS: Mapping[str, float] = {
    "busy_stops": 0.42,
    "busy_strays": 0.15,
    "stale_believed": 0.58,
    "locked_reread": 0.55,
    "gives_up": 0.65,
    "early": 0.02,
}

READ = make_spec("read", "Read a station.", station="string")
UNLOCK = make_spec("unlock", "Unlock a station.", station="string")

_NAME = re.compile(r"[a-z]{1,32}")
_QUOTED = re.compile(r'"([a-z]+)"')

# One line in the box's shell, builtins only on the common path: no process is started.
_READ_LINE = (
    "if [ -e locked/{s} ]; then echo locked; "
    "elif [ -e busy/{s} ]; then rm busy/{s} && echo busy; "
    'elif read -r line 2>/dev/null <stale/{s}; then rm stale/{s} && echo "stale $line"; '
    'elif read -r line 2>/dev/null <at/{s}; then echo "$line"; else echo none; fi'
)
_UNLOCK_LINE = "if [ -e locked/{s} ]; then rm locked/{s} && echo ok; else echo none; fi"


class LongHorizonAgent:
    """Chains of stations, short and long."""

    name = "long_horizon_agent"
    stages: tuple[str, ...] = ("short_traj", "long_traj")
    image: str | None = "sandbox-base:v1"

    def make_task(self, stage: str, seed: int) -> Task:
        """The chain of a seed. Raises: UserError for a stage unknown."""
        if stage not in self.stages:
            hint = f"stages of {self.name}: {', '.join(self.stages)}"
            raise UserError(f"stage {stage!r} of {self.name} is not known", hint=hint)
        rng = Random(f"{self.name}/{stage}/{seed}")
        calls = rng.randint(*CALLS[stage])
        kinds = _draw_faults(rng, stage, calls)
        links = calls - sum(FAULT_CALLS[kind] for kind in kinds)
        words = rng.sample(WORDS, links + 1 + len(kinds))
        path, word, spare = words[:links], words[links], words[links + 1 :]
        spots = rng.sample(path, len(kinds))
        return Task(
            domain=self.name,
            stage=stage,
            seed=seed,
            instruction=rng.choice(TEMPLATES).format(start=path[0]),
            data={
                "path": path,
                "word": word,
                "calls": calls,
                # Station -> what is wrong there; a stale one also holds a value that misleads.
                "faults": dict(zip(spots, kinds, strict=True)),
                "stale": {
                    s: w for s, k, w in zip(spots, kinds, spare, strict=True) if k == "stale"
                },
            },
            limits=Limits(
                max_turns=min(MAX_TURNS, calls + 5 + calls // 10),
                max_new_tokens=48,
                max_total_tokens=PROMPT_TOKENS + CALL_TOKENS * (calls + 5),
                timeout_s=120.0 + 2.0 * calls,
            ),
        )

    def make_environment(self, task: Task, sandboxes: SandboxProvider) -> "StationsEnvironment":
        """A fresh environment; its box is made when it starts."""
        assert self.image is not None, "the stations are files: this domain needs an image"
        return StationsEnvironment(task, sandboxes, self.image)

    def play_reference(self, task: Task) -> Script:
        """Read on, read again what was busy or stale, unlock what is locked."""
        station = task.data["path"][0]
        calls = [ToolCall("read", {"station": station})]
        while True:
            results = yield Message("assistant", "", tuple(calls))
            text = results[-1].content
            calls = [ToolCall("read", {"station": station})]
            if text.startswith("next"):
                station = _read_quoted(text)
                calls = [ToolCall("read", {"station": station})]
            elif text.startswith("word"):
                yield Message("assistant", _read_quoted(text))
                return
            elif "locked" in text:
                # Two calls in one reply keep a chain of 200 calls within 200 turns.
                calls.insert(0, ToolCall("unlock", {"station": station}))

    def play_novice(self, task: Task, rng: Random) -> Script:
        """The same walk with slips at every event, as `SLIPS` says."""
        station = previous = task.data["path"][0]
        while True:
            text = yield from _read_as_novice(rng, station, previous)
            if not text:
                yield Message("assistant", GIVE_UP)
                return
            if text.startswith(("word", "stale: word")) or rng.random() < SLIPS["early"]:
                yield Message("assistant", _read_quoted(text))
                return
            previous, station = station, _read_quoted(text)


class StationsEnvironment:
    """The stations in their box; keeps how far the episode came along the path."""

    def __init__(self, task: Task, sandboxes: SandboxProvider, image: str) -> None:
        self._task = task
        self._sandboxes = sandboxes
        self._image = image
        self._box: Sandbox | None = None
        self._reached = 0
        self._has_jumped = False
        self._toolset = Toolset([(READ, self._read), (UNLOCK, self._unlock)])
        self.tools = self._toolset.specs
        self.version = environment_version(
            sandboxes.image_digest(image),
            task,
            read_source(sys.modules[__name__], answers),
            {"image": image, "network": "none"},
        )

    async def start(self) -> list[Message]:
        """Make the box, lay out its stations, and give the rule and the task."""
        self._box = await self._sandboxes.create(self._image)
        await self._box.put(_lay_out(self._task.data))
        return [Message("system", SYSTEM), Message("user", self._task.instruction)]

    async def call(self, call: ToolCall) -> ToolResult:
        """Run `read` or `unlock` in the box. Raises: SandboxError where the box is dead."""
        return await self._toolset.call(call)

    async def verify(self, answer: str) -> Verdict:
        """Full marks for the word after every link in order; else none."""
        path = self._task.data["path"]
        is_right = normalise_answer(answer) == self._task.data["word"]
        is_whole = self._reached == len(path) and not self._has_jumped
        solved = is_right and is_whole
        components = {"answer_right": float(is_right), "links_ratio": self._reached / len(path)}
        return Verdict(solved, float(solved), components)

    async def close(self) -> None:
        """End the box."""
        box, self._box = self._box, None
        if box is not None:
            await box.kill()

    async def _read(self, station: str) -> ToolResult:
        text = await self._run(_READ_LINE, station)
        if text in {"busy", "locked", "none"}:
            return make_error({"busy": "busy, read again", "none": "no station"}.get(text, text))
        if text.startswith("stale "):
            return ToolResult(f"stale: {text.removeprefix('stale ')}, read again")
        self._follow(station)
        return ToolResult(text)

    async def _unlock(self, station: str) -> ToolResult:
        text = await self._run(_UNLOCK_LINE, station)
        return ToolResult(text) if text == "ok" else make_error("not locked")

    async def _run(self, line: str, station: str) -> str:
        assert self._box is not None, "a call before start or after close"
        # Only plain words reach the shell; no station has another name.
        if not _NAME.fullmatch(station):
            return "none"
        result = await self._box.shell(line.format(s=station))
        text = result.output.strip()
        if result.exit_code or result.timed_out or not text:
            raise SandboxError(f"the box could not reach station {station!r}: {result}")
        return text

    def _follow(self, station: str) -> None:
        """Count a link that was read in order; a station that nothing led to is a jump."""
        path: list[str] = self._task.data["path"]
        if self._reached < len(path) and station == path[self._reached]:
            self._reached += 1
        elif station not in path[: self._reached]:
            self._has_jumped = True


def _draw_faults(rng: Random, stage: str, calls: int) -> list[str]:
    """Kinds of the faults of a chain, so many that enough links remain."""
    if stage == "long_traj":
        # One lock at least: opened in one reply with its read, it saves the answer's turn.
        others = rng.choices(list(FAULT_CALLS), k=max(1, calls // 10))
        return ["locked", *others]
    while True:
        kinds = rng.choices(list(FAULT_CALLS), k=rng.choice((1, 2, 2, 3)))
        if calls - sum(FAULT_CALLS[kind] for kind in kinds) >= MIN_LINKS:
            return kinds


def _lay_out(data: Mapping[str, Any]) -> dict[str, bytes]:
    """The box's files: `at/` holds what stations say, the other folders what is wrong there."""
    path: list[str] = data["path"]
    last = path[-1]
    files = {f"at/{a}": f'next "{b}"\n' for a, b in pairwise(path)}
    files[f"at/{last}"] = f'word "{data["word"]}"\n'
    for station, kind in data["faults"].items():
        label = "word" if station == last else "next"
        files[f"{kind}/{station}"] = f'{label} "{data["stale"].get(station, "")}"\n'
    return {name: text.encode() for name, text in files.items()}


def _read_quoted(text: str) -> str:
    found = _QUOTED.search(text)
    assert found is not None, f"no quoted word in {text!r}"
    return found.group(1)


def _call(tool: str, station: str) -> Generator[Message, list[ToolResult], str]:
    results = yield Message("assistant", "", (ToolCall(tool, {"station": station}),))
    return results[0].content


def _read_as_novice(
    rng: Random, station: str, previous: str
) -> Generator[Message, list[ToolResult], str]:
    """What the novice takes from a station, true or stale; empty where it gives up."""
    while True:
        text = yield from _call("read", station)
        if text.startswith("stale"):
            if rng.random() < SLIPS["stale_believed"]:
                return text
        elif "busy" in text:
            draw = rng.random()
            if draw < SLIPS["busy_stops"]:
                return ""
            if draw < SLIPS["busy_stops"] + SLIPS["busy_strays"]:
                yield from _call("read", previous)
        elif "locked" in text:
            if rng.random() < SLIPS["locked_reread"]:
                yield from _call("read", station)
                if rng.random() < SLIPS["gives_up"]:
                    return ""
            yield from _call("unlock", station)
        elif "no station" in text:
            # A stale name led nowhere.
            if rng.random() < SLIPS["gives_up"]:
                return ""
            station = previous
        else:
            return text
