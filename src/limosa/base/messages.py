"""Chat messages, tool calls and tool schemas: what a conversation is made of.

Plain frozen values. `tokens/` turns them into token ids; `agent/` exchanges them with the
environment. Nothing here knows a chat template.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it: a tool's name and its arguments by name."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """Text that meant to be a tool call and is not one; answered with an observation."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; `tool_calls` only where the role is assistant."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered; `is_error` marks an observation of failure, not a crash."""

    content: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A model's reply, read: prose, and the calls it holds in their order."""

    content: str
    calls: tuple[ToolCall | MalformedCall, ...] = ()
