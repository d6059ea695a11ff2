"""The seams between rooms: small protocols; their fakes are in `base/testing.py`.

`training` meets `inference` and `rollout` only here. An implementation need not inherit.
"""

from collections.abc import Generator as PyGenerator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, Protocol

from limosa.base.messages import Message, ParsedReply, ToolCall, ToolResult, ToolSpec
from limosa.base.task import Task
from limosa.base.trajectory import Group, Trajectory


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation: continue `prompt_ids`.

    `conversation` names an episode, so that its keys and values are kept between turns; requests
    of one `group` share their prompt. `seed` alone decides the random draws of this request.
    """

    prompt_ids: Sequence[int]
    conversation: str
    group: str
    max_new_tokens: int
    temperature: float
    seed: int
    stop_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Generation:
    """Sampled tokens. Shapes: three parallel sequences, one entry a token; the stop id is kept.

    `logprobs` are under the sampling distribution; `versions` is the policy version of each token.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: Literal["stop", "length"]


class Generator(Protocol):
    """Samples tokens. Cancelling `generate` frees what it held at once."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Continue a prompt. Raises: EngineError."""
        ...

    def release(self, conversation: str) -> None:
        """Forget a conversation's cached keys and values; unknown names are fine."""
        ...


class WeightSink(Protocol):
    """Takes new weights, in place, and proves what it took."""

    @property
    def policy_version(self) -> int:
        """The version that the next token is sampled under."""
        ...

    async def update_weights(self, weights: Mapping[str, Any], version: int) -> str:
        """Install `weights` (name -> CPU tensor) and give the checksum of what is installed.

        Cached keys and values of older versions are never used for a token of the new one.
        """
        ...


class TrajectorySource(Protocol):
    """Where a learner gets trajectories from; owns admission and therefore staleness."""

    async def next_groups(self) -> list[Group]:
        """The groups of the next update, oldest first. Raises what an actor raised, at once."""
        ...

    def set_version(self, version: int) -> None:
        """The learner has reached `version`; admission moves on."""
        ...


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command did. `cut_bytes` counts output dropped over the bound; `timed_out` is told."""

    exit_code: int
    output: str
    cut_bytes: int = 0
    timed_out: bool = False


class Sandbox(Protocol):
    """A box in which untrusted code runs. Every call raises SandboxError where the box is dead."""

    async def exec(
        self, command: str | Sequence[str], *, stdin: bytes = b"", timeout_s: float = 10.0
    ) -> ExecResult:
        """Run argv, or shell text, in a fresh process; output and error come merged."""
        ...

    async def shell(self, command: str, *, timeout_s: float = 10.0) -> ExecResult:
        """Run a line in the box's one persistent shell: directory and variables survive."""
        ...

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Write files, paths relative to the work directory; parents are made."""
        ...

    async def get(self, *, max_bytes: int = 1 << 20) -> dict[str, bytes]:
        """Every regular file below the work directory, by relative path; links are not followed."""
        ...

    async def kill(self) -> None:
        """End the box and everything in it; a second call does nothing."""
        ...


class SandboxProvider(Protocol):
    """Makes boxes of named images."""

    async def create(self, image: str) -> Sandbox:
        """A fresh box. Raises: UserError for an unknown image, SandboxError where it fails."""
        ...

    def image_digest(self, image: str) -> str:
        """What the image's content hashes to."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's finding: `reward` in [0, 1], full marks exactly where `solved`."""

    solved: bool
    reward: float
    components: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """A live, single-use instance of a task. Infrastructure trouble raises InfrastructureError."""

    version: str
    tools: tuple[ToolSpec, ...]

    async def start(self) -> list[Message]:
        """Set up, and give the opening messages (system and user)."""
        ...

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call; bad names and arguments are results with `is_error`, never exceptions."""
        ...

    async def verify(self, answer: str) -> Verdict:
        """Judge the end state and the final answer. Raises: VerifierError, SandboxError."""
        ...

    async def close(self) -> None:
        """Free everything; safe to call twice and after a failure."""
        ...


# A scripted policy: yields its next assistant message, is sent the results of its calls
# (an empty list after a final answer).
Script = PyGenerator[Message, list[ToolResult], None]


class Domain(Protocol):
    """A family of tasks. One file in `domains/`, one line in its table."""

    name: str
    stages: tuple[str, ...]
    image: str | None

    def make_task(self, stage: str, seed: int) -> Task:
        """The task of a seed, the same on every machine. Raises: UserError for a stage unknown."""
        ...

    def make_environment(self, task: Task, sandboxes: SandboxProvider) -> Environment:
        """A fresh environment of a task; nothing is started yet."""
        ...

    def play_reference(self, task: Task) -> Script:
        """The reference solution as a script: earns the full reward."""
        ...

    def play_novice(self, task: Task, rng: Random) -> Script:
        """A fallible demonstrator: acts, but slips in the ways this domain is hard."""
        ...


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one learner update did; `metrics` are named scalars for the event log."""

    version: int
    checksum: str
    weights: Mapping[str, Any]
    metrics: Mapping[str, float]


class Learner(Protocol):
    """Turns groups into the next policy version."""

    async def step(self, groups: Sequence[Group]) -> StepStats:
        """One update. Raises: LearnerError where the learner's process failed."""
        ...

    async def save(self, path: str) -> None:
        """Write a checkpoint in Hugging Face format with the optimiser's state beside it."""
        ...

    async def close(self) -> None:
        """End the learner."""
        ...


class Chat(Protocol):
    """A chat template over a tokenizer: messages in, token ids out, never the other way round."""

    stop_ids: frozenset[int]

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of the opening messages up to where the assistant begins."""
        ...

    def encode_results(self, results: Sequence[ToolResult], *, stopped: bool) -> list[int]:
        """Ids that follow a sampled reply: close it where not `stopped`, add the results."""
        ...

    def encode_reply(self, message: Message) -> list[int]:
        """Ids of an assistant's message, stop id included, as the model would sample them."""
        ...

    def parse_reply(self, token_ids: Sequence[int]) -> ParsedReply:
        """Read a sampled reply; a malformed call is kept as such."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, for people's eyes."""
        ...


class EventLog(Protocol):
    """Append-only record of a run."""

    def append(self, kind: str, **fields: Any) -> None:
        """Record one event."""
        ...

    def append_trajectory(self, trajectory: Trajectory, *, phase: str) -> None:
        """Record one finished episode of any outcome."""
        ...
