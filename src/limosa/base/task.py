"""A task: one problem, immutable and serialisable, named by the hash of its content."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Split = Literal["train", "eval", "demo"]

# Seeds of the three splits lie in disjoint ranges, so a training task can never be held out.
SPLIT_OFFSETS: Mapping[Split, int] = {"train": 0, "eval": 1_000_000_000, "demo": 2_000_000_000}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one episode. Units: turns, tokens, seconds.

    `timeout_s` bounds the time of all tool calls together: neither the environment's start nor
    waiting for a reply counts, so how fast a sampler is decides no reward.
    """

    max_turns: int = 12
    max_new_tokens: int = 96
    max_total_tokens: int = 1024
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Task:
    """One problem of a domain; `data` is what the environment and verifier need, JSON only."""

    domain: str
    stage: str
    seed: int
    instruction: str
    data: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = Limits()

    def to_json(self) -> dict[str, Any]:
        """The task as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Task":
        """The task that `to_json` wrote."""
        return cls(**{**value, "limits": Limits(**value["limits"])})

    @property
    def content_hash(self) -> str:
        """Hex sha256 of the canonical JSON; equal content, equal hash."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def make_seed(split: Split, index: int) -> int:
    """The seed of the index-th task of a split; ranges of the splits are disjoint."""
    assert 0 <= index < 1_000_000_000, f"task index {index} leaves its split's range"
    return SPLIT_OFFSETS[split] + index
