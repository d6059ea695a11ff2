"""The domain `code_engineering`: a terminal in a sandbox, from making a file to mending a project.

Tasks and scripts come from `code_files` (easy, medium) and `code_repair` (hard), verdicts from
`code_judge`; here are the domain and its environment. Leaves out the agent loop.
"""

import errno
import sys
from random import Random

from limosa.base.errors import UserError
from limosa.base.interfaces import ExecResult, Sandbox, SandboxProvider, Script, Verdict
from limosa.base.messages import Message, ToolCall, ToolResult
from limosa.base.task import Limits, Task
from limosa.domains import code_judge, code_repair
from limosa.domains.code_files import make_chore, play_chore, play_chore_badly
from limosa.domains.code_judge import CHECK_TIMEOUT_S, compare_files, run_hidden_tests
from limosa.domains.code_repair import make_project, play_repair, play_repair_badly
from limosa.domains.toolset import Toolset, make_spec
from limosa.domains.versions import environment_version, read_source
from limosa.sandbox.transfer import TransferError

SYSTEM = "You work in a terminal."
IMAGE = "sandbox-code:v3"
MAX_OUTPUT_CHARS = 200
MAX_FILES_BYTES = 1 << 20
TOOL_TIMEOUT_S = 5.0
# Errors of reading a box's files that no content of the box can bring about.
HOST_FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EBADF})
BASH = make_spec("bash", "Run a command.", command="string")
LIMITS = {
    "easy": Limits(max_turns=6, max_new_tokens=64, max_total_tokens=384, timeout_s=60.0),
    "medium": Limits(max_turns=8, max_new_tokens=64, max_total_tokens=512, timeout_s=60.0),
    "hard": Limits(max_turns=14, max_new_tokens=64, max_total_tokens=896, timeout_s=120.0),
}


class CodeEngineering:
    """The domain; stages from easiest to hardest."""

    name = "code_engineering"
    stages: tuple[str, ...] = ("easy", "medium", "hard")
    image: str | None = IMAGE

    def make_task(self, stage: str, seed: int) -> Task:
        """The task of a seed. Raises: UserError for a stage unknown."""
        if stage not in self.stages:
            hint = f"stages of {self.name}: {', '.join(self.stages)}"
            raise UserError(f"stage {stage!r} is not known", hint=hint)
        rng = Random(f"{self.name}/{stage}/{seed}")
        instruction, data = make_project(rng) if stage == "hard" else make_chore(stage, rng)
        return Task(self.name, stage, seed, instruction, data, LIMITS[stage])

    def make_environment(self, task: Task, sandboxes: SandboxProvider) -> "CodeEnvironment":
        """A fresh environment of a task; its box is made by `start`."""
        assert self.image is not None, "a terminal needs an image"
        return CodeEnvironment(task, sandboxes, self.image)

    def play_reference(self, task: Task) -> Script:
        """The reference solution."""
        return play_repair(task.data) if task.stage == "hard" else play_chore(task.data)

    def play_novice(self, task: Task, rng: Random) -> Script:
        """A demonstrator that slips at the rates named in `code_files` and `code_repair`."""
        if task.stage == "hard":
            return play_repair_badly(task.data, rng)
        return play_chore_badly(task.data, rng)


class CodeEnvironment:
    """One task in one box, with the one tool `bash`."""

    def __init__(self, task: Task, sandboxes: SandboxProvider, image: str) -> None:
        self._task = task
        self._image = image
        self._sandboxes = sandboxes
        self._sandbox: Sandbox | None = None
        self._toolset = Toolset([(BASH, self._run_bash)])
        self.tools = self._toolset.specs
        self.version = environment_version(
            sandboxes.image_digest(image),
            task,
            read_source(code_judge, code_repair, sys.modules[__name__]),
            {
                "network": False,
                "tool_timeout_s": TOOL_TIMEOUT_S,
                "check_timeout_s": CHECK_TIMEOUT_S,
                "max_output_chars": MAX_OUTPUT_CHARS,
                "max_files_bytes": MAX_FILES_BYTES,
            },
        )

    async def start(self) -> list[Message]:
        """Make the box and its files. Raises: SandboxError."""
        assert self._sandbox is None, "an environment starts once"
        self._sandbox = await self._sandboxes.create(self._image)
        files: dict[str, str] = self._task.data["files"]
        await self._sandbox.put({path: text.encode() for path, text in files.items()})
        return [Message("system", SYSTEM), Message("user", self._task.instruction)]

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call in the box. Raises: SandboxError where the box is dead."""
        return await self._toolset.call(call)

    async def verify(self, answer: str) -> Verdict:
        """Judge the collected files, and end the box; the answer's text counts for nothing.

        Raises: SandboxError.
        """
        try:
            files = await self._box().get(max_bytes=MAX_FILES_BYTES)
        except TransferError as error:
            # A box that still answers was filled past the bounds by the agent: that is a failure
            # of its own making. For a dead one, or a host out of means, it is not to blame.
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in HOST_FAULTS:
                raise
            await self._box().exec(["true"])
            return Verdict(False, 0.0, {"collected": 0.0})
        if self._task.stage != "hard":
            return compare_files(self._task, files)
        # The fresh box takes this one's place: episodes that held one box while waiting for a
        # second would wait for each other for ever where the provider's boxes are used up.
        await self._box().kill()
        return await run_hidden_tests(self._task, files, self._sandboxes, self._image)

    async def close(self) -> None:
        """End the box."""
        if self._sandbox is not None:
            await self._sandbox.kill()

    async def _run_bash(self, command: str) -> ToolResult:
        return to_result(await self._box().shell(command, timeout_s=TOOL_TIMEOUT_S))

    def _box(self) -> Sandbox:
        assert self._sandbox is not None, "start() comes first"
        return self._sandbox


def to_result(result: ExecResult) -> ToolResult:
    """What the model sees: bounded output, what was cut, and the exit code unless it is zero."""
    text = result.output.strip()
    excess = len(text) - MAX_OUTPUT_CHARS
    if excess > 0 or result.cut_bytes:
        # The end is worth more than the start: it is where errors stand.
        half = MAX_OUTPUT_CHARS // 2
        head, tail = (text[:half], text[-half:]) if excess > 0 else (text, "")
        text = f"{head}[{max(excess, 0) + result.cut_bytes} cut]{tail}"
    if result.timed_out:
        return ToolResult(f"{text}\n[timed out]".strip(), is_error=True)
    if result.exit_code != 0:
        return ToolResult(f"{text}\n[exit {result.exit_code}]".strip(), is_error=True)
    return ToolResult(text or "ok")
