"""Tool calls in the Hermes form: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Reads any text without raising: what meant to be a call and is none becomes a `MalformedCall`,
which the agent loop answers with an observation. Token ids are `tokens/chat.py`'s matter.
"""

import json
import re
from typing import Any

from limosa.base.messages import MalformedCall, ParsedReply, ToolCall

OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"

_SPACE = re.compile(r"\s*")


def format_call(call: ToolCall) -> str:
    """The call as text, tags included."""
    value = {"name": call.name, "arguments": dict(call.arguments)}
    return f"{OPEN_TAG}{json.dumps(value, ensure_ascii=False)}{CLOSE_TAG}"


def parse_reply_text(text: str) -> ParsedReply:
    """The prose and the calls of a reply, in order; prose is stripped of outer white space.

    Tolerated: white space around the JSON, several calls, arguments given as a string of JSON, no
    arguments at all. A malformed call keeps its text from its opening tag on.
    """
    prose: list[str] = []
    calls: list[ToolCall | MalformedCall] = []
    position = 0
    while (start := text.find(OPEN_TAG, position)) >= 0:
        prose.append(text[position:start])
        call, position = _parse_call(text, start)
        calls.append(call)
    prose.append(text[position:])
    return ParsedReply("".join(prose).strip(), tuple(calls))


def _parse_call(text: str, start: int) -> tuple[ToolCall | MalformedCall, int]:
    """The call whose tag opens at `start`, and where the text goes on behind it."""
    body = _skip_space(text, start + len(OPEN_TAG))
    try:
        # Decoding before searching for the closing tag: a string in the JSON may hold one.
        value, end = _DECODER.raw_decode(text, body)
    except (ValueError, RecursionError) as error:
        reason = f"the call is not JSON ({_describe(error)})"
        return _to_malformed(text, start, body, reason)
    end = _skip_space(text, end)
    if end == len(text):
        return _to_malformed(text, start, end, f"the call has no {CLOSE_TAG}")
    if not text.startswith(CLOSE_TAG, end):
        return _to_malformed(text, start, end, f"expected {CLOSE_TAG} after the JSON")
    end += len(CLOSE_TAG)
    call = _read_call(value)
    return (MalformedCall(text[start:end], call) if isinstance(call, str) else call), end


def _to_malformed(text: str, start: int, body: int, reason: str) -> tuple[MalformedCall, int]:
    """A malformed call reaches to its closing tag, to the next opening one, or to the end."""
    closing = text.find(CLOSE_TAG, body)
    opening = text.find(OPEN_TAG, body)
    if closing >= 0 and not 0 <= opening < closing:
        end = closing + len(CLOSE_TAG)
    else:
        end = opening if opening >= 0 else len(text)
        if "not JSON" in reason:
            reason += f" and has no {CLOSE_TAG}"
    return MalformedCall(text[start:end], reason), end


def _read_call(value: Any) -> ToolCall | str:
    """The call that a JSON value holds, or what is wrong with it."""
    if not isinstance(value, dict):
        return f"the call is a {_KINDS[type(value)]}, expected an object"
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return "the call has no name"
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except (ValueError, RecursionError):
            return "arguments is a string that is not JSON"
    if not isinstance(arguments, dict):
        return f"arguments is a {_KINDS[type(arguments)]}, expected an object"
    try:
        json.dumps([name, arguments], ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return "the call holds half of a surrogate pair"
    return ToolCall(name, arguments)


def _skip_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    assert found is not None, "a pattern that may be empty always matches"
    return found.end()


def _describe(error: Exception) -> str:
    return error.msg.lower() if isinstance(error, json.JSONDecodeError) else "a value out of range"


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)
_KINDS = {
    dict: "object",
    list: "list",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
