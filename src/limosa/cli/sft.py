"""`limosa sft`: supervised fine-tuning of a model on conversations."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from limosa.cli.outputs import require_folder
from limosa.cli.progress import Reporter
from limosa.training.sft_config import SftConfig, load_sft_config

if TYPE_CHECKING:
    from limosa.training.sft import SftReport


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def sft(file: Path, as_json: bool) -> None:
    """Fine-tune a model on conversations, as the YAML FILE describes.

    \b
    A file:
      model: models/start          # a Hugging Face folder
      data: demos.jsonl            # one path or a list
      out: models/tuned            # where the tuned model goes
      loss_on: assistant           # or: all
      epochs: 2
      learning_rate: 0.001
    \b
    `out` must be new or empty, or hold an earlier result of `limosa sft` (it has an sft.json),
    which is then replaced; anything else is refused before the training.
    \b
    A line of data:
      {"messages": [{"role": "user", "content": "What is here?"},
                    {"role": "assistant", "content": "", "tool_calls":
                      [{"name": "bash", "arguments": {"command": "ls"}}]},
                    {"role": "tool", "content": "notes.txt"},
                    {"role": "assistant", "content": "notes.txt"}],
       "tools": [{"name": "bash", "description": "Run a command.", "parameters": {}}]}
    \b
    Examples:
      limosa sft sft.yaml
      limosa sft sft.yaml --json
    """
    config = load_sft_config(file)
    # Here, not above: the help and a bad file need no torch.
    from limosa.training.sft import REPORT_FILE

    require_folder(Path(config.out).expanduser(), f"{file}: out", marker=REPORT_FILE)
    report = _train(config, Reporter())
    click.echo(json.dumps(asdict(report)) if as_json else format_report(report))


def _train(config: SftConfig, reporter: Reporter) -> "SftReport":
    from limosa.models.folder import check_vocabulary, resolve_model
    from limosa.tokens.chat import load_chat
    from limosa.training.sft import SftStep, load_corpus, load_start, plan_batches, run_sft

    folder = resolve_model(config.model)
    chat = load_chat(folder)
    model = load_start(config, folder)
    check_vocabulary(folder, chat.vocabulary_size, model.config.vocab_size)
    reporter.note(f"encoding {', '.join(config.data)}")

    def on_read(count: int) -> None:
        if count % 5000 == 0:
            reporter.note(f"encoded {count} conversations")

    corpus = load_corpus(config, chat, on_read=on_read)
    if corpus.too_long:
        reporter.note(
            f"left out {corpus.too_long} conversations of more than {config.context_window} tokens"
        )
    steps = len(plan_batches(corpus.train, config))
    with reporter.live(), reporter.phase("fine-tuning", steps, "updates") as phase:

        def on_step(step: SftStep) -> None:
            phase.advance(detail=f"loss {step.loss:.4f}  {step.tokens_per_s:,.0f} tok/s")

        return run_sft(config, model, corpus, tokenizer_from=folder, on_step=on_step)


def format_report(report: "SftReport") -> str:
    """The report in one line."""
    held_out = "" if report.loss_held_out is None else f", held out {report.loss_held_out:.4f}"
    return (
        f"{report.out}: {report.steps} updates over {report.tokens:,} tokens in "
        f"{report.wall_s:.0f} s, loss {report.loss_last:.4f}{held_out}"
    )
