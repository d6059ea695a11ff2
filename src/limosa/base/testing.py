"""Fakes of the interfaces in `base/interfaces.py`: small, in memory, honest about the contract.

For tests of one room without the others. Nothing in `src` uses them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from limosa.base.errors import EngineError, SandboxError, UserError
from limosa.base.interfaces import ExecResult, GenerateRequest, Generation, Verdict
from limosa.base.messages import Message, ToolCall, ToolResult, ToolSpec
from limosa.base.task import Task
from limosa.base.trajectory import Outcome, Trajectory


@dataclass(slots=True)
class FakeGenerator:
    """Plays scripted token ids: one entry of `replies` a turn of each conversation.

    A callable reads the request instead. A reply is cut at `max_new_tokens` and at its first stop
    id, as a real engine does; past the script it raises EngineError.
    """

    replies: Sequence[Sequence[int]] | Callable[[GenerateRequest], Sequence[int]]
    policy_version: int = 0
    logprob: float = -0.5
    requests: list[GenerateRequest] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    async def generate(self, request: GenerateRequest) -> Generation:
        """The next scripted reply of the conversation. Raises: EngineError past the script."""
        turn = sum(r.conversation == request.conversation for r in self.requests)
        self.requests.append(request)
        if callable(self.replies):
            ids = tuple(self.replies(request))
        elif turn < len(self.replies):
            ids = tuple(self.replies[turn])
        else:
            raise EngineError(f"the script holds {len(self.replies)} replies, asked for {turn + 1}")
        ids = ids[: request.max_new_tokens]
        stop = next((i for i, token in enumerate(ids) if token in request.stop_ids), None)
        ids = ids if stop is None else ids[: stop + 1]
        return Generation(
            token_ids=ids,
            logprobs=(self.logprob,) * len(ids),
            versions=(self.policy_version,) * len(ids),
            finish_reason="length" if stop is None else "stop",
        )

    def release(self, conversation: str) -> None:
        """Note the release."""
        self.released.append(conversation)


@dataclass(slots=True)
class FakeSandbox:
    """A box in a dict: files by path, commands answered from `answers`; unknown ones give 127."""

    answers: Mapping[str, ExecResult] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    is_dead: bool = False

    async def exec(
        self, command: str | Sequence[str], *, stdin: bytes = b"", timeout_s: float = 10.0
    ) -> ExecResult:
        """The scripted answer of a command. Raises: SandboxError where the box is dead."""
        return self._answer(command if isinstance(command, str) else " ".join(command))

    async def shell(self, command: str, *, timeout_s: float = 10.0) -> ExecResult:
        """The scripted answer of a line. Raises: SandboxError where the box is dead."""
        return self._answer(command)

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Write files. Raises: SandboxError where the box is dead."""
        self._require_life()
        self.files.update(files)

    async def get(self, *, max_bytes: int = 1 << 20) -> dict[str, bytes]:
        """Every file. Raises: SandboxError where the box is dead or holds too much."""
        self._require_life()
        size_bytes = sum(map(len, self.files.values()))
        if size_bytes > max_bytes:
            raise SandboxError(f"the box holds {size_bytes} bytes, expected at most {max_bytes}")
        return dict(self.files)

    async def kill(self) -> None:
        """End the box."""
        self.is_dead = True

    def _answer(self, command: str) -> ExecResult:
        self._require_life()
        self.commands.append(command)
        return self.answers.get(command, ExecResult(127, f"{command}: not found"))

    def _require_life(self) -> None:
        if self.is_dead:
            raise SandboxError("the box is dead")


@dataclass(slots=True)
class FakeProvider:
    """Makes fake boxes of the images in `digests`, and keeps them for a test to look at."""

    digests: Mapping[str, str] = field(default_factory=lambda: {"fake": "sha256:fake"})
    answers: Mapping[str, ExecResult] = field(default_factory=dict)
    boxes: list[FakeSandbox] = field(default_factory=list)

    async def create(self, image: str) -> FakeSandbox:
        """A fresh fake box. Raises: UserError for an unknown image."""
        self.image_digest(image)
        self.boxes.append(FakeSandbox(self.answers))
        return self.boxes[-1]

    def image_digest(self, image: str) -> str:
        """The digest given for the image. Raises: UserError for an unknown image."""
        if image not in self.digests:
            raise UserError(f"unknown image {image!r}", hint=f"known: {', '.join(self.digests)}")
        return self.digests[image]


ECHO_TOOL = ToolSpec(
    "echo",
    "give back a text",
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)


@dataclass(slots=True)
class FakeEnvironment:
    """A task with one tool, `echo`; solved by answering `task.data["answer"]`.

    `hooks` names a step (`start`, `call`, `verify`, `close`) and what is awaited there first: it
    may raise or hang.
    """

    task: Task
    hooks: Mapping[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    version: str = "fake-environment"
    tools: tuple[ToolSpec, ...] = (ECHO_TOOL,)
    calls: list[ToolCall] = field(default_factory=list)
    is_started: bool = False
    closes: int = 0

    async def start(self) -> list[Message]:
        """The opening: a system message and the task's instruction."""
        await self._run_hook("start")
        self.is_started = True
        return [Message("system", "be brief"), Message("user", self.task.instruction)]

    async def call(self, call: ToolCall) -> ToolResult:
        """Echo, or an error that the model can read."""
        await self._run_hook("call")
        self.calls.append(call)
        if call.name != "echo":
            return ToolResult(f"error: no tool {call.name!r}", is_error=True)
        if not isinstance(call.arguments.get("text"), str):
            return ToolResult("error: text must be a string", is_error=True)
        return ToolResult(call.arguments["text"])

    async def verify(self, answer: str) -> Verdict:
        """Full marks for the right answer, none for another."""
        await self._run_hook("verify")
        is_right = answer == self.task.data["answer"]
        return Verdict(is_right, float(is_right), {"right": float(is_right)})

    async def close(self) -> None:
        """Count the closing."""
        self.closes += 1
        await self._run_hook("close")

    async def _run_hook(self, step: str) -> None:
        if step in self.hooks:
            await self.hooks[step]()


def make_trajectory(task: Task, name: str, group: str, outcome: Outcome) -> Trajectory:
    """The shortest episode of a task: one id of the prompt and one that was sampled."""
    return Trajectory(
        id=name,
        group_id=group,
        domain=task.domain,
        stage=task.stage,
        task_hash=task.content_hash,
        task_seed=task.seed,
        environment_version="v",
        token_ids=(1, 2),
        sampled=(0, 1),
        logprobs=(0.0, -0.5),
        versions=(-1, 0),
        prompt_tokens=1,
        temperature=1.0,
        outcome=outcome,
        reward=1.0 if outcome is Outcome.SOLVED else 0.0,
        error="spoilt" if outcome is Outcome.INVALID else "",
    )
