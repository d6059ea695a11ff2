"""A chat template over a Hugging Face tokenizer: messages in, token ids out.

The template's own text is learnt once, by rendering small conversations and comparing; results
then cost a concatenation and one call of the fast tokenizer. Text from outside never becomes a
control token: it is hidden while the template renders, and encoded as plain text.
Neighbours: `tool_calls.py` reads calls; `folder.py` checks the files without loading all this;
`tokenizer.py` trains our own folder. Left out: slow tokenizers, and call forms other than Hermes
(such a template gets its calls as content).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limosa.base.errors import ModelError
from limosa.base.interfaces import Chat
from limosa.base.messages import Message, ParsedReply, ToolCall, ToolResult, ToolSpec
from limosa.tokens.folder import find_tokenizer, make_template_error
from limosa.tokens.tool_calls import format_call, parse_reply_text

_PROBE = "probetext"
_PROBE_CALL = ToolCall("probetool", {"probekey": "probevalue"})
_PROBE_TOOL = ToolSpec("probetool", "probe", {"type": "object", "properties": {}})
_OPENING = ({"role": "user", "content": "question"},)
# Two characters of the private use area frame the number of a hidden string.
_MARKED = re.compile("\ue000([0-9]+)\ue001")
_TOOL_RULE = (
    'To use a tool, reply with <tool_call>{"name": NAME, "arguments": {...}}</tool_call> and wait '
    "for its result. Reply without a call to give the final answer. Tools:"
)


@dataclass(frozen=True, slots=True)
class _ResultText:
    """What a template puts around tool results: `before` A `between` B `after`."""

    before: str
    between: str
    after: str


class TemplateChat:
    """`Chat` over a tokenizer of transformers; made by `load_chat`."""

    def __init__(self, tokenizer: Any) -> None:
        self.stop_ids: frozenset[int]
        self.tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._plain = _make_plain(self._backend)
        self._control = _find_control_strings(self._backend)
        self._reply_start = self._render(_OPENING, begin_reply=True)
        self._end_text = self._find_end()
        self._has_calls = self._probe_calls()
        self._result_role, self._result_form = self._probe_result_role()
        self._result_text = self._probe_result_text()
        eos_id, end_id = tokenizer.eos_token_id, self._backend.token_to_id(self._end_text)
        self._end_id: int = end_id
        self.stop_ids = frozenset(i for i in (eos_id, end_id) if i is not None)

    @property
    def pad_id(self) -> int:
        """The id that fills a batch; the end token's where the tokenizer has none for padding."""
        pad_id: int | None = self.tokenizer.pad_token_id
        return self._end_id if pad_id is None else pad_id

    @property
    def vocabulary_size(self) -> int:
        """The number of ids, added tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of the opening messages up to where the assistant begins."""
        hidden: list[str] = []
        values = [self._to_value(message, hidden) for message in messages]
        schemas = [self._hide(_to_schema(tool), hidden) for tool in tools]
        if tools and not self._has_calls:
            text = "\n".join([_TOOL_RULE, *(json.dumps(s, ensure_ascii=False) for s in schemas)])
            values = _add_to_system(values, text)
            schemas = []
        return self._encode(self._render(values, schemas, begin_reply=True), hidden)

    def encode_results(self, results: Sequence[ToolResult], *, stopped: bool) -> list[int]:
        """Ids that follow a sampled reply: close it where not `stopped`, add the results."""
        hidden: list[str] = []
        contents = [self._hide_text(self._result_form.format(r.content), hidden) for r in results]
        known = self._result_text
        if known is not None:
            text = known.before + known.between.join(contents) + known.after
        else:
            text = self._render_results(contents)
        return self._encode(text if stopped else self._end_text + text, hidden)

    def encode_reply(self, message: Message) -> list[int]:
        """Ids of an assistant's message, stop id included, as the model would sample them."""
        assert message.role == "assistant", f"a reply is the assistant's, not the {message.role}'s"
        hidden: list[str] = []
        values = [*_OPENING, self._to_value(message, hidden)]
        # Some templates write a reply otherwise once it is answered, and calls always are.
        text = self._render([*values, self._to_result(_PROBE)]) if message.tool_calls else ""
        if not text.startswith(self._reply_start):
            text = self._render(values)
        start = len(self._reply_start)
        return self._encode(text[start : self._find_reply_end(text, start)], hidden)

    def parse_reply(self, token_ids: Sequence[int]) -> ParsedReply:
        """Read a sampled reply; a malformed call is kept as such."""
        ids = list(token_ids)
        while ids and ids[-1] in self.stop_ids:
            ids.pop()
        return parse_reply_text(self.decode(ids))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, control tokens included."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=False))

    def _render(
        self,
        values: Sequence[dict[str, Any]],
        schemas: Sequence[dict[str, Any]] = (),
        *,
        begin_reply: bool = False,
    ) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                list(values),
                tools=list(schemas) or None,
                tokenize=False,
                add_generation_prompt=begin_reply,
            )
        )

    def _encode(self, text: str, hidden: Sequence[str]) -> list[int]:
        """Ids of rendered text, in which hidden strings are plain text whatever they spell."""
        if not hidden:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return ids
        ids = []
        for index, piece in enumerate(_MARKED.split(text)):
            if index % 2:
                ids += self._plain.encode(hidden[int(piece)], add_special_tokens=False).ids
            elif piece:
                ids += self._backend.encode(piece, add_special_tokens=False).ids
        return ids

    def _hide_text(self, text: str, hidden: list[str]) -> str:
        """The text with a mark for each control string in it; the strings join `hidden`."""

        def mark(found: re.Match[str]) -> str:
            hidden.append(found.group())
            return f"\ue000{len(hidden) - 1}\ue001"

        return self._control.sub(mark, text)

    def _hide(self, value: Any, hidden: list[str]) -> Any:
        """`_hide_text` in every string of a JSON value."""
        if isinstance(value, str):
            return self._hide_text(value, hidden)
        if isinstance(value, dict):
            return {
                self._hide_text(k, hidden) if isinstance(k, str) else k: self._hide(v, hidden)
                for k, v in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._hide(item, hidden) for item in value]
        return value

    def _to_value(self, message: Message, hidden: list[str]) -> dict[str, Any]:
        """The message as templates take it; calls become content where the template has none."""
        if message.role == "tool":
            return self._to_result(self._hide_text(message.content, hidden))
        value: dict[str, Any] = {
            "role": message.role,
            "content": self._hide_text(message.content, hidden),
        }
        calls = [
            ToolCall(self._hide_text(c.name, hidden), self._hide(dict(c.arguments), hidden))
            for c in message.tool_calls
        ]
        if calls and self._has_calls:
            value["tool_calls"] = [_to_call_value(call) for call in calls]
        elif calls:
            value["content"] += "".join(map(format_call, calls))
        return value

    def _to_result(self, content: str) -> dict[str, Any]:
        return {"role": self._result_role, "content": self._result_form.format(content)}

    def _find_end(self) -> str:
        """The token that ends a reply: the first control string after its content."""
        text = self._render([*_OPENING, {"role": "assistant", "content": _PROBE}])
        if not text.startswith(self._reply_start) or _PROBE not in text:
            raise ModelError(
                f"the chat template does not write a reply after {self._reply_start[-40:]!r}",
                hint="use a template whose generation prompt is how a reply begins",
            )
        found = self._control.search(text, text.index(_PROBE) + len(_PROBE))
        if found is None:
            hint = "use a template that ends a reply with a special token, such as <|im_end|>"
            raise ModelError("the chat template does not end a reply with a token", hint=hint)
        return found.group()

    def _find_reply_end(self, text: str, start: int) -> int:
        return text.index(self._end_text, start) + len(self._end_text)

    def _probe_calls(self) -> bool:
        """True where the template lists tools and writes calls in the Hermes form."""
        value = {"role": "assistant", "content": "", "tool_calls": [_to_call_value(_PROBE_CALL)]}
        try:
            text = self._render([*_OPENING, value])
            opening = self._render(_OPENING, [_to_schema(_PROBE_TOOL)])
        except (_template_error(), TypeError):
            return False
        written = text.partition(_OPENING[0]["content"])[2]
        return parse_reply_text(written).calls == (_PROBE_CALL,) and _PROBE_TOOL.name in opening

    def _probe_result_role(self) -> tuple[str, str]:
        """The role and form of a tool's result; a user's message where there is no such role."""
        call = self._to_value(Message("assistant", "", (_PROBE_CALL,)), [])
        try:
            text = self._render([*_OPENING, call, {"role": "tool", "content": _PROBE}])
        except _template_error():
            text = ""
        if _PROBE in text:
            return "tool", "{}"
        return "user", "<tool_response>\n{}\n</tool_response>"

    def _probe_result_text(self) -> _ResultText | None:
        """What stands around results; None where it depends on what they say."""
        names = ["probeone", "probetwo", "probesix"]
        parts = re.split("|".join(names), self._render_results(names))
        if len(parts) != 4 or parts[1] != parts[2]:
            return None
        found = _ResultText(parts[0], parts[1], parts[3])
        for probes in ([" \n one \n "], ["one", " two\n"], [""]):
            expected = found.before + found.between.join(probes) + found.after
            if self._render_results(probes) != expected:
                return None
        return found

    def _render_results(self, contents: Sequence[str]) -> str:
        """The text from behind a reply's end to where the next one begins."""
        call = self._to_value(Message("assistant", "", (_PROBE_CALL,)), [])
        results = [{"role": self._result_role, "content": content} for content in contents]
        text = self._render([*_OPENING, call, *results], begin_reply=True)
        return text[self._find_reply_end(text, text.index(_PROBE_CALL.name)) :]


def load_chat(folder: str | Path) -> TemplateChat:
    """The chat of a Hugging Face folder.

    Raises: ModelError for a missing folder, tokenizer or chat template, or one that cannot serve.
    """
    path = Path(folder).expanduser()
    find_tokenizer(path)
    from transformers import AutoTokenizer  # takes seconds to import

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # the library raises what its file formats raise
        hint = "save the tokenizer again with transformers' save_pretrained"
        raise ModelError(f"the tokenizer in {path} cannot be read: {error}", hint=hint) from error
    if not tokenizer.chat_template:
        raise make_template_error(path)
    try:
        return TemplateChat(tokenizer)
    except _template_error() as error:
        hint = "mend chat_template.jinja; it must take user and assistant messages"
        raise ModelError(f"the chat template in {path} fails: {error}", hint=hint) from error


def encode_conversation(
    chat: Chat, messages: Sequence[Message], tools: Sequence[ToolSpec]
) -> tuple[list[int], list[int]]:
    """Ids of a whole conversation, and for each whether the assistant said it (1) or not (0).

    The ids that an episode with these replies has: for demonstrations to learn from.
    """
    roles = [message.role for message in messages]
    begin = roles.index("assistant") if "assistant" in roles else len(roles)
    ids = chat.encode_prompt(messages[:begin], tools)
    said = [0] * len(ids)
    results: list[ToolResult] = []
    for message in messages[begin:]:
        if message.role == "tool":
            results.append(ToolResult(message.content))
            continue
        assert message.role == "assistant", f"a {message.role}'s message amid the replies"
        between = chat.encode_results(results, stopped=True) if results else []
        reply = chat.encode_reply(message)
        ids += between + reply
        said += [0] * len(between) + [1] * len(reply)
        results = []
    return ids, said


def _template_error() -> type[Exception]:
    from jinja2 import TemplateError

    return TemplateError


def _make_plain(backend: Any) -> Any:
    """The tokenizer without its added tokens: no text can spell a control token."""
    from tokenizers import Tokenizer

    value = json.loads(backend.to_str())
    return Tokenizer.from_str(json.dumps({**value, "added_tokens": [], "post_processor": None}))


def _find_control_strings(backend: Any) -> re.Pattern[str]:
    """A pattern of what must not be read in text from outside: control tokens and our marks.

    Added tokens that are plain text (runs of spaces in some vocabularies) are left alone.
    """
    tokens = backend.get_added_tokens_decoder().values()
    names = {t.content for t in tokens if t.special or t.content.startswith("<")}
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    return re.compile("|".join([*map(re.escape, longest_first), "[\ue000\ue001]"]))


def _to_schema(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _to_call_value(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": dict(call.arguments)}
    return {"type": "function", "function": function}


def _add_to_system(values: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    if values and values[0]["role"] == "system":
        content = f"{values[0]['content']}\n\n{text}"
        return [{"role": "system", "content": content}, *values[1:]]
    return [{"role": "system", "content": text}, *values]
