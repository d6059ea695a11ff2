"""A trajectory: everything that happened in one episode, ids exactly as sampled."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How an episode ended; `INVALID` is an infrastructure failure and never a reward."""

    SOLVED = "solved"
    FAILED = "failed"
    TRUNCATED = "truncated"
    TIMED_OUT = "timed_out"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class ToolEvent:
    """One tool call of an episode. Units: `wall_s` in seconds."""

    turn: int
    tool: str
    arguments: Mapping[str, Any]
    result: str
    is_error: bool
    wall_s: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Tokens, log-probabilities, policy versions, tool events and outcome of one episode.

    Shapes: `token_ids`, `sampled`, `logprobs` and `versions` have one entry a token. Where
    `sampled` is 0 (prompt, tool results, template glue) `logprobs` is 0.0 and `versions` is -1.
    `logprobs` are under the distribution that was sampled from (temperature and all).
    `prompt_tokens` is the length of the prompt that a group's trajectories share.
    """

    id: str
    group_id: str
    domain: str
    stage: str
    task_hash: str
    task_seed: int
    environment_version: str
    token_ids: tuple[int, ...]
    sampled: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    prompt_tokens: int
    temperature: float
    outcome: Outcome
    reward: float
    components: Mapping[str, float] = field(default_factory=dict)
    events: tuple[ToolEvent, ...] = ()
    turns: int = 0
    wall_s: float = 0.0
    error: str = ""

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.sampled), len(self.logprobs), len(self.versions)}
        assert len(lengths) == 1, f"trajectory {self.id}: ragged token arrays {lengths}"

    @property
    def is_valid(self) -> bool:
        """False where infrastructure failed: such a trajectory enters no baseline or statistic."""
        return self.outcome is not Outcome.INVALID

    @property
    def oldest_version(self) -> int:
        """The lowest policy version among the sampled tokens; -1 where none was sampled."""
        return min((v for v, s in zip(self.versions, self.sampled, strict=True) if s), default=-1)

    def to_json(self) -> dict[str, Any]:
        """The trajectory as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Trajectory":
        """The trajectory that `to_json` wrote."""
        arrays = {k: tuple(value[k]) for k in ("token_ids", "sampled", "logprobs", "versions")}
        events = tuple(ToolEvent(**event) for event in value["events"])
        return cls(**{**value, **arrays, "outcome": Outcome(value["outcome"]), "events": events})


@dataclass(frozen=True, slots=True)
class Group:
    """The valid trajectories of one task that share a baseline."""

    id: str
    domain: str
    stage: str
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        bad = [t.id for t in self.trajectories if not t.is_valid]
        assert not bad, f"group {self.id}: invalid trajectories {bad} must not enter a baseline"
