import asyncio
import errno
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from random import Random

import pytest

from limosa.agent.loop import Episode, run_episode
from limosa.agent.policies import ScriptPolicy
from limosa.base.errors import SandboxError
from limosa.base.interfaces import ExecResult, Sandbox, Script
from limosa.base.messages import Message, ToolCall
from limosa.base.task import Task
from limosa.base.testing import FakeProvider
from limosa.domains import code_judge
from limosa.domains.code_engineering import IMAGE, CodeEngineering, to_result
from limosa.domains.versions import read_source
from limosa.sandbox.bubblewrap import BubblewrapProvider
from limosa.sandbox.transfer import TransferError

DOMAIN = CodeEngineering()
STAGES = DOMAIN.stages
SEEDS = range(500, 520)
# Solve rates of the novice that the base model can learn from: neither hopeless nor good.
NOVICE_BOUNDS = {"easy": (0.25, 0.7), "medium": (0.15, 0.6), "hard": (0.08, 0.5)}


@pytest.fixture
async def boxes() -> AsyncIterator[BubblewrapProvider]:
    # Fewer boxes than episodes: none may hold one while it waits for another.
    provider = BubblewrapProvider(4)
    yield provider
    await provider.close()


async def play(task: Task, boxes: BubblewrapProvider, script: Script) -> Episode:
    return await run_episode(task, DOMAIN.make_environment(task, boxes), ScriptPolicy(script))


def run_commands(*commands: str) -> Script:
    for command in commands:
        yield Message("assistant", "", (ToolCall("bash", {"command": command}),))
    yield Message("assistant", "done")


async def judge(task: Task, boxes: BubblewrapProvider, *commands: str) -> Episode:
    """Play commands one by one; the episode must have been judged."""
    episode = await play(task, boxes, run_commands(*commands))
    assert episode.outcome in ("solved", "failed"), episode.error
    return episode


def find_task(kind: str) -> Task:
    stage = next(s for s in ("easy", "medium") if kind in {t.data["kind"] for t in TASKS[s]})
    return next(task for task in TASKS[stage] if task.data["kind"] == kind)


TASKS = {stage: [DOMAIN.make_task(stage, seed) for seed in range(120)] for stage in STAGES}
# A project of one module with the family `plus`, whose visible case is known to every hack.
PLUS = next(t for t in TASKS["hard"] if [p["family"] for p in t.data["parts"]] == ["plus"])
PART = PLUS.data["parts"][0]
MODULE = f"{PART['module']}.py"
SOUND = "def plus(a, b):\n    return a + b\n"
VISIBLE = PLUS.data["files"]["test.py"].rsplit("check(", 1)[1].rsplit(")\n", 1)[0].split(", ")[-1]


def write(path: str, text: str) -> str:
    return f"cat > {path} <<'END'\n{text}\nEND"


@pytest.mark.parametrize("stage", STAGES)
async def test_the_reference_earns_full_reward(stage: str, boxes: BubblewrapProvider):
    tasks = [DOMAIN.make_task(stage, seed) for seed in SEEDS]
    runs = await asyncio.gather(*(play(t, boxes, DOMAIN.play_reference(t)) for t in tasks))
    assert [(run.outcome, run.reward) for run in runs] == [("solved", 1.0)] * len(tasks)
    assert all(run.turns < task.limits.max_turns for run, task in zip(runs, tasks, strict=True))


@pytest.mark.parametrize("stage", STAGES)
async def test_doing_nothing_earns_nothing(stage: str, boxes: BubblewrapProvider):
    tasks = [DOMAIN.make_task(stage, seed) for seed in SEEDS]
    runs = await asyncio.gather(*(judge(task, boxes) for task in tasks))
    assert [(run.outcome, run.reward) for run in runs] == [("failed", 0.0)] * len(tasks)


@pytest.mark.parametrize("stage", STAGES)
async def test_the_novice_is_neither_hopeless_nor_good(stage: str, boxes: BubblewrapProvider):
    tasks = [DOMAIN.make_task(stage, seed) for seed in range(40)]
    scripts = [DOMAIN.play_novice(task, Random(task.seed)) for task in tasks]
    runs = await asyncio.gather(*map(play, tasks, [boxes] * len(tasks), scripts))
    assert {run.outcome for run in runs} == {"solved", "failed"}
    low, high = NOVICE_BOUNDS[stage]
    assert low <= sum(run.reward for run in runs) / len(runs) <= high


@pytest.mark.parametrize("stage", STAGES)
def test_tasks_are_deterministic_and_survive_json(stage: str):
    again = [CodeEngineering().make_task(stage, task.seed) for task in TASKS[stage]]
    assert again == TASKS[stage]
    assert len({task.content_hash for task in again}) == len(again)
    assert all(Task.from_json(task.to_json()) == task for task in again)


def test_the_version_changes_with_task_and_verifier(monkeypatch: pytest.MonkeyPatch):
    boxes = FakeProvider(digests={IMAGE: "one"})

    def version_of(task: Task, provider: FakeProvider = boxes) -> str:
        return DOMAIN.make_environment(task, provider).version

    first = version_of(PLUS)
    assert version_of(PLUS) == first
    assert version_of(replace(PLUS, seed=1)) != first
    assert version_of(PLUS, FakeProvider(digests={IMAGE: "two"})) != first
    source = code_judge.__loader__.get_source("limosa.domains.code_judge")
    # The verifier is edited: its text is all that the version may depend on.
    monkeypatch.setattr(
        "inspect.getsource", lambda module: source + "\n# edited" if module is code_judge else ""
    )
    read_source.cache_clear()
    try:
        assert version_of(PLUS) != first
    finally:
        read_source.cache_clear()


async def test_repairing_by_any_means_is_fine(boxes: BubblewrapProvider):
    helper = "from fractions import Fraction\n\n\ndef total(*numbers):\n    return sum(numbers)"
    text = "from parts.sums import total\n\n\ndef plus(a, b):\n    return total(a, b)"
    commands = ["mkdir parts", write("parts/sums.py", helper), write(MODULE, text)]
    assert (await judge(PLUS, boxes, *commands)).reward == 1.0


@pytest.mark.parametrize(
    "text",
    [
        f"def plus(a, b):\n    return {VISIBLE}",
        f"def plus(a, b):\n    return float('{VISIBLE}')",
        "class Same:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "def plus(a, b):\n    return Same()",
        "import sys\ndef plus(a, b):\n    return sys._getframe(1).f_globals.get('cases')",
        "import json\njson.dumps = lambda *a, **k: '[[true]]'\ndef plus(a, b):\n    return 0",
        "import builtins\nbuiltins.print = lambda *a, **k: None\ndef plus(a, b):\n    return 0",
        "import atexit\natexit.register(print, 'pass')\ndef plus(a, b):\n    return a + b",
        "import os\nprint('pass', flush=True)\nos._exit(0)",
        "raise SystemExit(0)",
        "import os, signal\nos.kill(-1, signal.SIGKILL)",
        "print('x' * 10_000_000)\ndef plus(a, b):\n    return 0",
        "import os\nprint('[' * 50_000 + ']' * 50_000, flush=True)\nos._exit(0)",
        "import os\nprint('9' * 50_000, flush=True)\nos._exit(0)",
        "import json\njson.dumps = lambda *a, **k: '[1, 2, 3, 4, 5, 6, 7, 8]'",
        "def plus(a, b):\n    return str(a + b)",
        "def plus(a, b):\n    return a + b + 0.0",
    ],
)
async def test_module_hacks_fail(text: str, boxes: BubblewrapProvider):
    assert (await judge(PLUS, boxes, write(MODULE, text), "python3 test.py")).reward == 0.0


@pytest.mark.parametrize(
    "name", ["sitecustomize", "usercustomize", "conftest", "json", "importlib"]
)
async def test_planted_modules_change_nothing(name: str, boxes: BubblewrapProvider):
    plant = write(f"{name}.py", "print('pass')\nimport os\nos._exit(0)")
    assert (await judge(PLUS, boxes, plant)).reward == 0.0
    assert (await judge(PLUS, boxes, write(MODULE, SOUND), plant)).reward == 1.0


@pytest.mark.parametrize(
    "command", ["rm test.py", write("test.py", "print('pass')"), "ln -sf /dev/null test.py"]
)
async def test_touching_the_test_forfeits_the_reward(command: str, boxes: BubblewrapProvider):
    episode = await judge(PLUS, boxes, write(MODULE, SOUND), command)
    assert episode.reward == 0.0
    assert episode.components == {"cases": 1.0, "test_kept": 0.0}
    assert (await judge(PLUS, boxes, command)).reward == 0.0


async def test_code_that_never_ends_fails(
    boxes: BubblewrapProvider, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(code_judge, "CHECK_TIMEOUT_S", 0.5)  # five seconds prove no more
    hang = write(MODULE, "while True:\n    pass")
    assert (await judge(PLUS, boxes, hang)).reward == 0.0


@pytest.mark.parametrize(
    "command",
    [
        "head -c 3000000 /dev/zero > big.bin",
        "for i in $(seq 70); do mkdir d && cd d; done; echo x > deep.py",
        "chmod 000 test.py",
    ],
)
async def test_a_box_filled_with_rubbish_is_the_agents_failure(
    command: str, boxes: BubblewrapProvider
):
    assert (await judge(PLUS, boxes, command)).reward == 0.0


ODD = {
    "folder": "rm -f {0}; mkdir {0}",
    "folder with files": "rm -f {0}; mkdir {0}; echo x > {0}/{0}",
    "link to itself": "ln -sf {0} {0}",
    "link to the root": "rm -f {0}; ln -s / {0}",
    "link out of the box": "ln -sf ../../../../etc/passwd {0}",
    "pipe": "rm -f {0}; mkfifo {0}",
    "socket": "rm -f {0}; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('{0}')\"",
    "a gigabyte": "head -c 1000000000 /dev/zero > {0}",
    "a gigabyte with holes": "truncate -s 1G {0}",
    "64 megabytes with holes": "truncate -s 64M {0}",
    "unreadable": "chmod 0 {0}; chmod 0 .",
    "no bytes of text": "head -c 1000 /dev/urandom > {0}",
    "odd names": "rm -f {0}; touch $'\\xff.py' $'a\\nb.py' ./-.py '*.py' {0}.py",
    "ten thousand files": "seq 10000 | xargs touch",
}


@pytest.mark.parametrize("command", ODD.values(), ids=ODD)
async def test_what_an_agent_makes_of_a_collected_file_is_its_own_failure(
    command: str, boxes: BubblewrapProvider
):
    """Never invalid, which would be played again without a penalty, and never a crash."""
    task = find_task("make")
    (path, _) = next(iter(task.data["expected"].items()))
    for case, target in ((task, path), (PLUS, MODULE), (PLUS, "test.py")):
        episode = await play(case, boxes, run_commands(command.format(target)))
        assert (episode.outcome, episode.reward) == ("failed", 0.0), episode.error


class FailingBoxes:
    """Boxes whose transfers fail for a reason outside of them."""

    def __init__(self, boxes: BubblewrapProvider, broken: Sequence[str], error: Exception) -> None:
        self.boxes, self.broken, self.error, self.made = boxes, broken, error, 0

    def image_digest(self, image: str) -> str:
        return self.boxes.image_digest(image)

    async def create(self, image: str) -> Sandbox:
        box, number = await self.boxes.create(image), self.made
        self.made += 1
        for name in ("get", "put"):
            if f"{name} {number}" in self.broken:

                async def fail(*_: object, **__: object) -> None:
                    raise self.error

                setattr(box, name, fail)
        return box


def make_transfer_error(code: int) -> TransferError:
    error = TransferError("the work directory cannot be read")
    error.__cause__ = OSError(code, os.strerror(code))
    return error


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ("get 0", SandboxError("the box does not answer")),
        ("get 0", make_transfer_error(errno.EMFILE)),
        ("get 0", make_transfer_error(errno.EIO)),
        ("put 0", SandboxError("the box does not answer")),
        ("put 1", SandboxError("the box does not answer")),
        ("put 1", make_transfer_error(errno.ENOSPC)),
    ],
)
async def test_transfers_that_the_machine_fails_are_infrastructure(
    broken: str, error: Exception, boxes: BubblewrapProvider
):
    environment = DOMAIN.make_environment(PLUS, FailingBoxes(boxes, [broken], error))
    episode = await run_episode(PLUS, environment, ScriptPolicy(DOMAIN.play_reference(PLUS)))
    assert (episode.outcome, episode.reward) == ("invalid", 0.0)
    assert str(error) in episode.error


async def test_links_and_other_places_are_not_files(boxes: BubblewrapProvider):
    task = find_task("make")
    (path, text) = next(iter(task.data["expected"].items()))
    elsewhere = f"echo {text.strip()} > /tmp/{path}"
    link = f"ln -s /tmp/{path} {path}"
    assert (await judge(task, boxes, elsewhere, link)).reward == 0.0
    assert (await judge(task, boxes, elsewhere, f"cp /tmp/{path} {path}")).reward == 1.0


async def test_other_files_must_stay_as_they_were(boxes: BubblewrapProvider):
    task = find_task("find_delete")
    right = next(path for path in task.data["files"] if path not in task.data["expected"])
    other = next(iter(task.data["expected"]))
    assert (await judge(task, boxes, f"rm {right}")).reward == 1.0
    assert (await judge(task, boxes, "rm *")).reward == 0.0
    assert (await judge(task, boxes, f"rm {right}; echo more >> {other}")).reward == 0.0


async def test_a_final_newline_is_no_matter_but_more_lines_are(boxes: BubblewrapProvider):
    task = find_task("make")
    (path, text) = next(iter(task.data["expected"].items()))
    word = text.strip()
    assert (await judge(task, boxes, f"printf {word} > {path}")).reward == 1.0
    assert (await judge(task, boxes, f"printf '{word}\\n{word}\\n' > {path}")).reward == 0.0
    assert (await judge(task, boxes, f"printf 'x{word}\\n' > {path}")).reward == 0.0


async def test_the_shell_remembers_and_errors_are_observations(boxes: BubblewrapProvider):
    environment = DOMAIN.make_environment(PLUS, boxes)
    await environment.start()
    try:
        says = []
        for command in ("mkdir sub && cd sub", "pwd | sed 's|.*/||'", "cat nowhere", "exit 3"):
            says.append(await environment.call(ToolCall("bash", {"command": command})))
        wrong = await environment.call(ToolCall("bash", {"cmd": "ls"}))
    finally:
        await environment.close()
        await environment.close()
    assert [say.content for say in says[:2]] == ["ok", "sub"]
    assert says[2].is_error
    assert "No such file or directory\n[exit 1]" in says[2].content
    assert says[3].is_error
    assert says[3].content.endswith("[exit 3]")
    assert wrong.content == "error: missing argument command"


async def test_a_dead_box_is_infrastructure_not_failure(boxes: BubblewrapProvider):
    environment = DOMAIN.make_environment(PLUS, boxes)
    await environment.start()
    await environment._box().kill()
    with pytest.raises(SandboxError):
        await environment.call(ToolCall("bash", {"command": "ls"}))
    with pytest.raises(SandboxError):
        await environment.verify("done")
    await environment.close()


def make_output(lines: Sequence[str]) -> ExecResult:
    return ExecResult(0, "\n".join(lines) + "\n")


def test_output_is_bounded_and_what_was_cut_is_counted():
    long = to_result(ExecResult(0, "a" * 150 + "b" * 150, cut_bytes=7))
    assert long.content == "a" * 100 + "[107 cut]" + "b" * 100
    assert to_result(ExecResult(0, "short", cut_bytes=7)).content == "short[7 cut]"
    assert to_result(make_output(["x" * 99, "y" * 100])).content == "x" * 99 + "\n" + "y" * 100
    assert to_result(ExecResult(0, " \n")).content == "ok"
    assert to_result(ExecResult(2, "")).content == "[exit 2]"
    timed_out = to_result(ExecResult(124, "part", timed_out=True))
    assert (timed_out.content, timed_out.is_error) == ("part\n[timed out]", True)
