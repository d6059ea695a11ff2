"""The chat: piecewise ids spell what the template writes, and no text forges a control token."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limosa.base.errors import ModelError
from limosa.base.messages import Message, ParsedReply, ToolCall, ToolResult, ToolSpec
from limosa.tokens.chat import TemplateChat, encode_conversation, load_chat

NATIVE = ("own", "qwen_like", "trimming", "thinking")
ALL = (*NATIVE, "plain", "no_tool_role")
TOOLS = (
    ToolSpec(
        "bash", "run a line", {"type": "object", "properties": {"command": {"type": "string"}}}
    ),
    ToolSpec("now", "the time", {"type": "object", "properties": {}}),
)
LS = ToolCall("bash", {"command": 'ls "a b"\nécho'})
CONVERSATION = (
    Message("system", "Be brief."),
    Message("user", 'Count the words of "zinc.txt".'),
    Message("assistant", "", (LS,)),
    Message("tool", "zinc.txt\n"),
    Message("assistant", "Twice.", (LS, ToolCall("now", {}))),
    Message("tool", " zinc.txt\n\n"),
    Message("tool", "12:00"),
    Message("assistant", "There are 3."),
)
FORGERIES = (
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "<|im_start|>",
    "<tool_call>",
    "</tool_call>",
    "<|pad|>",
    "<|im_<|im_end|>end|>",
    "\ue0000\ue001",
)


@pytest.fixture(scope="module")
def chats(make_folder: Callable[[str], Path]) -> dict[str, TemplateChat]:
    return {name: load_chat(make_folder(name)) for name in ALL}


def to_values(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """The messages as a user of plain transformers gives them."""
    values = []
    for message in messages:
        value: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            value["tool_calls"] = [
                {"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
                for c in message.tool_calls
            ]
        values.append(value)
    return values


def to_schemas(tools: tuple[ToolSpec, ...]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": t.name,
                "description": t.description,
                "parameters": dict(t.parameters),
            },
        }
        for t in tools
    ]


def strip_end(text: str) -> str:
    """Without the line break that ChatML adds after the last message, which nobody samples."""
    return text.removesuffix("\n")


@pytest.mark.parametrize("name", NATIVE)
def test_pieces_spell_the_whole_template(chats: dict[str, TemplateChat], name: str) -> None:
    chat = chats[name]
    ids, said = encode_conversation(chat, CONVERSATION, TOOLS)
    expected = chat.tokenizer.apply_chat_template(
        to_values(CONVERSATION), tools=to_schemas(TOOLS), tokenize=False
    )
    assert chat.decode(ids) == strip_end(expected)
    whole = chat.tokenizer.encode(strip_end(expected), add_special_tokens=False)
    assert ids == whole
    assert len(said) == len(ids)


@pytest.mark.parametrize("name", ALL)
def test_what_is_said_reads_back(chats: dict[str, TemplateChat], name: str) -> None:
    chat = chats[name]
    for message in (m for m in CONVERSATION if m.role == "assistant"):
        ids = chat.encode_reply(message)
        assert ids[-1] in chat.stop_ids
        assert not chat.stop_ids & set(ids[:-1])
        parsed = chat.parse_reply(ids)
        assert parsed.calls == message.tool_calls
        assert parsed.content.removeprefix("<think>\n\n</think>\n\n") == message.content


def test_own_template_in_full(chats: dict[str, TemplateChat]) -> None:
    ids, said = encode_conversation(chats["own"], CONVERSATION, TOOLS)
    assert chats["own"].decode(ids) == (
        "<|im_start|>system\ntools: bash(command) now()\nBe brief.<|im_end|>"
        '<|im_start|>user\nCount the words of "zinc.txt".<|im_end|>'
        "<|im_start|>assistant\n"
        '<tool_call>{"name": "bash", "arguments": {"command": "ls \\"a b\\"\\nécho"}}</tool_call>'
        "<|im_end|><|im_start|>tool\nzinc.txt\n<|im_end|>"
        "<|im_start|>assistant\nTwice."
        '<tool_call>{"name": "bash", "arguments": {"command": "ls \\"a b\\"\\nécho"}}</tool_call>'
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
        "<|im_end|><|im_start|>tool\n zinc.txt\n\n<|im_end|><|im_start|>tool\n12:00<|im_end|>"
        "<|im_start|>assistant\nThere are 3.<|im_end|>"
    )
    replies = [m for m in CONVERSATION if m.role == "assistant"]
    spoken = [i for i, s in zip(ids, said, strict=True) if s]
    assert spoken == [i for m in replies for i in chats["own"].encode_reply(m)]


def test_template_without_tools_gets_them_in_the_system_message(
    chats: dict[str, TemplateChat],
) -> None:
    for opening in (CONVERSATION[:2], CONVERSATION[1:2]):
        text = chats["plain"].decode(chats["plain"].encode_prompt(opening, TOOLS))
        system, _, rest = text.partition("<|im_end|>")
        assert system.startswith("<|im_start|>system\n")
        assert '"name": "bash"' in system
        assert '"command"' in system
        assert '<tool_call>{"name"' in system
        assert rest.endswith("<|im_start|>assistant\n")
    text = chats["plain"].decode(chats["plain"].encode_prompt(CONVERSATION[:2], ()))
    assert "tool" not in text


def test_results_where_the_template_merges_them(chats: dict[str, TemplateChat]) -> None:
    chat = chats["qwen_like"]
    ids = chat.encode_results([ToolResult("a"), ToolResult("b\n")], stopped=True)
    assert chat.decode(ids) == (
        "\n<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_results_where_the_template_has_no_role_for_them(chats: dict[str, TemplateChat]) -> None:
    ids = chats["no_tool_role"].encode_results([ToolResult("{a}")], stopped=True)
    assert chats["no_tool_role"].decode(ids) == (
        "\n<|im_start|>user\n<tool_response>\n{a}\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("name", ALL)
def test_a_reply_that_was_cut_is_closed(chats: dict[str, TemplateChat], name: str) -> None:
    chat = chats[name]
    results = [ToolResult("a")]
    stopped = chat.encode_results(results, stopped=True)
    cut = chat.encode_results(results, stopped=False)
    assert cut[0] in chat.stop_ids
    assert cut[1:] == stopped


def count_controls(chat: TemplateChat, ids: list[int]) -> list[int]:
    return [i for i in ids if i in chat.tokenizer.get_added_vocab().values()]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("forgery", FORGERIES)
def test_text_from_outside_is_never_a_control_token(
    chats: dict[str, TemplateChat], name: str, forgery: str
) -> None:
    chat = chats[name]

    def encode(text: str) -> list[list[int]]:
        opening = [Message("system", text), Message("user", text), Message("tool", text)]
        if name == "no_tool_role":
            opening.pop()
        tools = [ToolSpec("t", text, {"type": "object", "properties": {text: {"type": "string"}}})]
        call = ToolCall("t", {text: text, "list": [text, 1]})
        return [
            chat.encode_prompt(opening, tools),
            chat.encode_results([ToolResult(text), ToolResult(text)], stopped=False),
            chat.encode_reply(Message("assistant", text, (call,))),
            chat.encode_reply(Message("assistant", text)),
        ]

    for forged, honest in zip(encode(f"a {forgery} b"), encode("a honest b"), strict=True):
        assert count_controls(chat, forged) == count_controls(chat, honest)
        assert f"a {forgery} b" in chat.decode(forged).replace("\\n", "\n")


@settings(deadline=None)
@given(content=st.text() | st.lists(st.sampled_from(FORGERIES)).map("".join))
def test_any_result_is_in_the_prompt_as_it_is(chats: dict[str, TemplateChat], content: str) -> None:
    for name in ("own", "qwen_like"):
        chat = chats[name]
        empty = chat.decode(chat.encode_results([ToolResult("")], stopped=True))
        ids = chat.encode_results([ToolResult(content)], stopped=True)
        text = chat.decode(ids)
        assert len(text) == len(empty) + len(content)
        assert content in text


def test_parse_reply_drops_only_the_end(chats: dict[str, TemplateChat]) -> None:
    chat = chats["own"]
    ids = chat.encode_reply(Message("assistant", "walnut"))
    assert chat.parse_reply(ids) == chat.parse_reply(ids[:-1]) == ParsedReply("walnut")
    assert chat.parse_reply([]) == ParsedReply("")


def test_results_cost_little_more_than_their_tokenisation(chats: dict[str, TemplateChat]) -> None:
    chat = chats["own"]
    results = [ToolResult("walnut.txt heron.txt\n")]

    def measure(work: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(50):
                work()
            best = min(best, (time.perf_counter() - started) / 50)
        return best

    bare_s = measure(lambda: chat.tokenizer.backend_tokenizer.encode(results[0].content).ids)
    assert measure(lambda: chat.encode_results(results, stopped=True)) < bare_s + 1e-4


def test_missing_parts_are_told(own_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no folder(.|\n)*hint:"):
        load_chat(tmp_path / "none")
    with pytest.raises(ModelError, match=r"no tokenizer\.json(.|\n)*hint:"):
        load_chat(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((own_folder / name).read_bytes())
    with pytest.raises(ModelError, match=r"no chat template(.|\n)*hint:"):
        load_chat(tmp_path)
    for template, what in (
        ("{{ nonsense(", "template in"),
        ("{{ messages[0].content }}<|im_start|>assistant\n", "does not write a reply"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "does not end a reply"),
    ):
        (tmp_path / "chat_template.jinja").write_text(template)
        with pytest.raises(ModelError, match=what):
            load_chat(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_chat(tmp_path)
