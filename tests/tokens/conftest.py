"""Tokenizer folders: our own, and the same vocabulary under templates written as others are."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from limosa.tokens.tokenizer import train_tokenizer

WORDS = ("walnut", "heron", "kettle", "apricot", "violet", "zinc", "canyon", "otter")

# As the Qwen family writes it: schemas in <tools>, one user turn around consecutive results.
QWEN_LIKE = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}
    {%- else %}{{- 'You are helpful.' }}{%- endif %}
    {{- '\\n\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools>\\nAnswer in <tool_call></tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content or not message.tool_calls %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
# The same with trimmed results, which a concatenation cannot give.
TRIMMING = QWEN_LIKE.replace(
    "<tool_response>\\n' + message.content", "<tool_response>\\n' + message.content | trim"
)
# An empty thought before a reply that is not answered by a tool.
THINKING = QWEN_LIKE.replace(
    "{{- '\\n' + message.content }}",
    "{{- ('\\n<think>\\n\\n</think>\\n\\n' if loop.last else '\\n') + message.content }}",
)
PLAIN = """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
NO_TOOL_ROLE = (
    "{%- for m in messages if m.role == 'tool' %}{{ raise_exception('no tools') }}{%- endfor %}"
    + PLAIN
)
assert TRIMMING != QWEN_LIKE != THINKING
TEMPLATES = {
    "qwen_like": QWEN_LIKE,
    "trimming": TRIMMING,
    "thinking": THINKING,
    "plain": PLAIN,
    "no_tool_role": NO_TOOL_ROLE,
}


def list_texts() -> list[str]:
    texts = []
    for a in WORDS:
        for b in WORDS:
            texts.append(f'Write the line "{a}" to the file "{b}.txt" and count the words.')
            call = {"name": "bash", "arguments": {"command": f"echo {a} > {b}.txt"}}
            texts.append(f"<tool_call>{json.dumps(call)}</tool_call>")
            texts.append(f"def {a}(x):\n    return x\n")
    return texts


@pytest.fixture(scope="session")
def own_texts() -> list[str]:
    return list_texts()


@pytest.fixture(scope="session")
def own_folder(own_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tokenizer(own_texts, 700, tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="session")
def make_folder(
    own_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        if name == "own":
            return own_folder
        folder = tmp_path_factory.mktemp(name)
        shutil.copytree(own_folder, folder, dirs_exist_ok=True)
        (folder / "chat_template.jinja").write_text(TEMPLATES[name])
        return folder

    return make
