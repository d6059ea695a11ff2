"""Conversations of a JSONL file to token ids, by the functions that reinforcement learning uses.

A line: {"messages": [{"role", "content", "tool_calls": [{"name", "arguments"}]}],
"tools": [{"name", "description", "parameters"}]}. System and user messages open it; then replies
and tool results alternate. Neighbours: `tokens/` encodes, `sft.py` trains. No torch. Left out:
further user messages after the first reply, for which the chat has no encoding yet.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from limosa.base.errors import UserError
from limosa.base.interfaces import Chat
from limosa.base.messages import Message, ToolCall, ToolResult, ToolSpec

LossOn = Literal["assistant", "all"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation and the tools that were at hand; it ends with a reply."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids, and 1 where a token's prediction counts. Shapes: both (length,)."""

    token_ids: npt.NDArray[np.int32]
    trained: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.token_ids)


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The conversations of a file. Raises: UserError naming file, line and what is wrong."""
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _read_line(f"{path}:{number}", line)
    except (OSError, UnicodeDecodeError) as error:
        hint = "give the path of a JSONL file of conversations, such as `limosa demos` writes"
        raise UserError(f"cannot read {str(path)!r}: {error}", hint=hint) from None


def encode_conversation(conversation: Conversation, chat: Chat, loss_on: LossOn) -> Example:
    """The ids of a conversation; trained are the replies, or all tokens but the first."""
    messages = conversation.messages
    opening = next(i for i, m in enumerate(messages) if m.role == "assistant")
    ids = chat.encode_prompt(messages[:opening], conversation.tools)
    trained = [False] * len(ids)
    results: list[ToolResult] = []
    for message in messages[opening:]:
        if message.role == "tool":
            results.append(ToolResult(message.content))
            continue
        if results:
            ids += chat.encode_results(results, stopped=True)
            results = []
        trained += [False] * (len(ids) - len(trained))
        ids += chat.encode_reply(message)
        trained += [True] * (len(ids) - len(trained))
    marks = np.array(trained)
    if loss_on == "all":
        marks[:] = True
        marks[0] = False
    return Example(np.array(ids, dtype=np.int32), marks)


def _read_line(place: str, line: str) -> Conversation:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"{place}: not valid JSON: {error}", hint="one object a line") from None
    try:
        messages = tuple(_read_message(m) for m in value["messages"])
        tools = tuple(_read_tool(t) for t in value.get("tools") or ())
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"{place}: not a conversation: {type(error).__name__}: {error}"
        raise UserError(what, hint="see `limosa sft --help` for the form of a line") from None
    _check_order(place, messages)
    return Conversation(messages, tools)


def _read_message(value: Mapping[str, Any]) -> Message:
    role, content = value["role"], value.get("content") or ""
    if role not in {"system", "user", "assistant", "tool"}:
        raise ValueError(f"the role is {role!r}, expected system, user, assistant or tool")
    if not isinstance(content, str):
        raise TypeError(f"the content is {type(content).__name__}, expected text")
    calls = tuple(_read_call(call) for call in value.get("tool_calls") or ())
    return Message(role, content, calls)


def _read_call(value: Mapping[str, Any]) -> ToolCall:
    if not isinstance(value["arguments"], dict):
        kind = type(value["arguments"]).__name__
        raise TypeError(f"the arguments of {value['name']!r} are {kind}, expected an object")
    return ToolCall(str(value["name"]), value["arguments"])


def _read_tool(value: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(value["name"], value.get("description", ""), value.get("parameters") or {})


def _check_order(place: str, messages: Sequence[Message]) -> None:
    """Openings, then a reply, then results and replies by turns, and a reply at the end."""
    roles = [m.role for m in messages]
    opening = next((i for i, role in enumerate(roles) if role == "assistant"), 0)
    hint = "order: system and user messages, a reply, then tool results and replies by turns"
    if not opening or roles[-1] != "assistant":
        raise UserError(f"{place}: the roles are {roles}; a reply must follow", hint=hint)
    if "tool" in roles[:opening] or not set(roles[opening:]) <= {"assistant", "tool"}:
        raise UserError(f"{place}: the roles {roles} are out of order", hint=hint)
    for first, second in zip(roles[opening:], roles[opening + 1 :], strict=False):
        if first == second == "assistant":
            raise UserError(f"{place}: two replies without a tool result between", hint=hint)
