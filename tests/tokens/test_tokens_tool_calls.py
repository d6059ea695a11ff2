"""Reading tool calls: the form, its tolerances, and that no text makes it raise."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limosa.base.messages import MalformedCall, ParsedReply, ToolCall
from limosa.tokens.tool_calls import format_call, parse_reply_text

LS = ToolCall("bash", {"command": "ls"})
LS_TEXT = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'


def test_format_is_the_hermes_form() -> None:
    assert format_call(LS) == LS_TEXT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("done", ParsedReply("done")),
        (" done\n", ParsedReply("done")),
        ("", ParsedReply("")),
        (LS_TEXT, ParsedReply("", (LS,))),
        (f"look\n{LS_TEXT}\n{LS_TEXT}\n", ParsedReply("look", (LS, LS))),
        (
            '<tool_call>\n{"name": "bash",\n "arguments": {"command": "ls"}}\n</tool_call>',
            ParsedReply("", (LS,)),
        ),
        ('<tool_call>{"name": "now"}</tool_call>', ParsedReply("", (ToolCall("now", {}),))),
        (
            '<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>',
            ParsedReply("", (LS,)),
        ),
        (
            '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}</tool_call>',
            ParsedReply("", (ToolCall("f", {"x": "</tool_call>"}),)),
        ),
        ("a </tool_call> b", ParsedReply("a </tool_call> b")),
    ],
)
def test_well_formed(text: str, expected: ParsedReply) -> None:
    assert parse_reply_text(text) == expected


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        ('{"name": "f", "arguments": {}}', "has no </tool_call>"),
        ('{"name": "f", "argum', "not JSON"),
        ("", "not JSON"),
        ("ls</tool_call>", "not JSON"),
        ("[1]</tool_call>", "a list, expected an object"),
        ('"f"</tool_call>', "a string, expected an object"),
        ("{}</tool_call>", "no name"),
        ('{"name": 3}</tool_call>', "no name"),
        ('{"name": ""}</tool_call>', "no name"),
        ('{"name": "f", "arguments": [1]}</tool_call>', "arguments is a list"),
        ('{"name": "f", "arguments": null}</tool_call>', "arguments is a null"),
        ('{"name": "f", "arguments": "x"}</tool_call>', "a string that is not JSON"),
        ('{"name": "f", "arguments": {"x": NaN}}</tool_call>', "not JSON"),
        ('{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>', "surrogate"),
        ('{"name": "f"} and more</tool_call>', "expected </tool_call>"),
        ("[" * 100_000, "not JSON"),
        ('{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>", "not JSON"),
    ],
)
def test_malformed(inner: str, reason: str) -> None:
    text = f"<tool_call>{inner}"
    parsed = parse_reply_text(f"so {text}")
    (call,) = parsed.calls
    assert isinstance(call, MalformedCall)
    assert reason in call.reason
    assert call.text == text
    assert parsed.content == "so"


def test_a_malformed_call_does_not_swallow_the_next() -> None:
    broken, unclosed = "<tool_call>{</tool_call>", '<tool_call>{"name": "f"}'
    parsed = parse_reply_text(f"{broken}a{LS_TEXT}b{unclosed}{LS_TEXT}c")
    first, second, third, fourth = parsed.calls
    assert (second, fourth) == (LS, LS)
    assert isinstance(first, MalformedCall)
    assert isinstance(third, MalformedCall)
    assert (first.text, third.text) == (broken, unclosed)
    assert parsed.content == "abc"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.text(min_size=1), st.dictionaries(st.text(), json_values, max_size=4), st.text())
def test_what_is_formatted_reads_back(name: str, arguments: dict[str, object], prose: str) -> None:
    call = ToolCall(name, arguments)
    if "<tool_call>" not in prose:
        assert parse_reply_text(prose + format_call(call)) == ParsedReply(prose.strip(), (call,))


pieces = st.sampled_from(
    ["<tool_call>", "</tool_call>", LS_TEXT, '{"name": "', '"arguments": ', "{}", '"', "}", "\\u"]
)


@settings(deadline=None)
@given(st.lists(pieces | st.text(max_size=5) | json_values.map(json.dumps), max_size=12))
def test_no_text_raises_or_is_lost(parts: list[str]) -> None:
    text = "".join(parts)
    parsed = parse_reply_text(text)
    assert len(parsed.calls) <= text.count("<tool_call>")
    assert bool(parsed.calls) == ("<tool_call>" in text)
    for call in parsed.calls:
        if isinstance(call, MalformedCall):
            assert call.text.startswith("<tool_call>")
            assert call.text in text
            assert call.reason
