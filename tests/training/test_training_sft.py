import json
import os
import subprocess
import sys

import pytest
import torch
import yaml
from click.testing import CliRunner

from limosa.base.errors import ConfigError, UserError
from limosa.base.messages import Message, ToolCall, ToolResult
from limosa.cli.sft import sft
from limosa.models.config import TransformerConfig
from limosa.models.transformer import attend_causally
from limosa.models.weights import load_model
from limosa.tokens.chat import load_chat
from limosa.tokens.tokenizer import train_tokenizer
from limosa.training.conversations import encode_conversation, read_conversations
from limosa.training.sft import load_corpus, load_start, plan_batches, run_sft
from limosa.training.sft_config import SftConfig, load_sft_config

TOOLS = [{"name": "bash", "description": "Run.", "parameters": {"type": "object"}}]


def make_line(number):
    name = f"file{number % 10}"
    call = {"name": "bash", "arguments": {"command": f"cat {name}"}}
    return {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": f"What is in {name}?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": f"line {number % 7}"},
            {"role": "assistant", "content": f"line {number % 7}"},
        ],
        "tools": TOOLS,
    }


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A folder with tokenizer and shape only, and conversations beside it."""
    folder = tmp_path_factory.mktemp("sft")
    lines = [json.dumps(make_line(n)) for n in range(120)]
    (folder / "demos.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    train_tokenizer(lines, 700, folder / "model")
    config = TransformerConfig(
        vocab_size=700,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
    )
    (folder / "model" / "config.json").write_text(json.dumps(config.to_hf()), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def chat(start):
    return load_chat(start / "model")


def make_config(start, out, **changes):
    fixed = {"model": str(start / "model"), "data": str(start / "demos.jsonl"), "out": str(out)}
    sizes = {"batch_tokens": 1500, "microbatch_tokens": 500, "warmup_steps": 2}
    return {**fixed, **sizes, "from_scratch": True, "learning_rate": 1e-2, **changes}


def train(start, chat, out, **changes):
    config = SftConfig(**make_config(start, out, **changes))
    model = load_start(config, start / "model")
    corpus = load_corpus(config, chat, on_read=lambda count: None)
    return run_sft(config, model, corpus, tokenizer_from=start / "model", on_step=lambda step: None)


def test_trained_tokens_are_what_the_model_would_sample(start, chat):
    conversation = next(read_conversations(start / "demos.jsonl"))
    example = encode_conversation(conversation, chat, "assistant")
    call = Message("assistant", "", (ToolCall("bash", {"command": "cat file0"}),))
    replies = [chat.encode_reply(m) for m in (call, Message("assistant", "line 0"))]
    expected = [
        *chat.encode_prompt(conversation.messages[:2], conversation.tools),
        *replies[0],
        *chat.encode_results([ToolResult("line 0")], stopped=True),
        *replies[1],
    ]
    assert example.token_ids.tolist() == expected
    assert example.token_ids[example.trained].tolist() == replies[0] + replies[1]
    everything = encode_conversation(conversation, chat, "all")
    assert everything.trained.sum() == len(expected) - 1


def test_two_runs_are_equal_and_learn(start, chat, tmp_path):
    first = train(start, chat, tmp_path / "a", epochs=12)
    second = train(start, chat, tmp_path / "b", epochs=12)
    other = train(start, chat, tmp_path / "c", epochs=12, seed=1)
    assert first.checksum == second.checksum != other.checksum
    assert first.loss_held_out < 0.5 * first.loss_first
    assert first.held_out == 2
    assert load_chat(tmp_path / "a").stop_ids == chat.stop_ids


def test_loss_equals_the_plain_computation(start, chat, tmp_path):
    changes = {"max_steps": 1, "holdout_ratio": 0.0, "threads": 3}
    report = train(start, chat, tmp_path / "a", **changes)
    config = SftConfig(**make_config(start, tmp_path / "a", **changes))
    corpus = load_corpus(config, chat, on_read=lambda count: None)
    model, total, count = load_start(config, start / "model"), 0.0, 0
    for index in plan_batches(corpus.train, config)[0]:
        ids = torch.from_numpy(corpus.train[index].token_ids).long()
        marks = torch.from_numpy(corpus.train[index].trained)[1:]
        logits = model.project(model(ids, torch.arange(len(ids)), attend_causally))
        logp = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
        total, count = total - logp[marks].sum().item(), count + int(marks.sum())
    assert report.loss_first == pytest.approx(total / count, abs=1e-5)
    assert report.loss_held_out is None


def test_bfloat16_trains_float32_weights(start, chat, tmp_path):
    report = train(start, chat, tmp_path / "a", precision="bfloat16", epochs=6)
    assert report.loss_last < 0.7 * report.loss_first
    assert load_model(tmp_path / "a").output_weight.dtype is torch.float32


def test_batches_cover_every_epoch(start, chat, tmp_path):
    config = SftConfig(**make_config(start, tmp_path / "a", epochs=2))
    corpus = load_corpus(config, chat, on_read=lambda count: None)
    seen = sorted(i for batch in plan_batches(corpus.train, config) for i in batch)
    assert seen == sorted(2 * list(range(len(corpus.train))))


def test_conversations_too_long_are_counted(start, chat, tmp_path):
    config = SftConfig(**make_config(start, tmp_path / "a", context_window=5))
    with pytest.raises(UserError, match="120 too long"):
        load_corpus(config, chat, on_read=lambda count: None)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("{", "not valid JSON"),
        ('{"messages": [{"role": "bot", "content": ""}]}', "the role is 'bot'"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "a reply must follow"),
        (
            json.dumps({"messages": [*make_line(0)["messages"], {"role": "user", "content": "x"}]}),
            "a reply must follow",
        ),
        (
            '{"messages": [{"role": "user"}, {"role": "assistant"}, {"role": "assistant"}]}',
            "two replies",
        ),
        ('{"messages": [{"role": "user", "content": 3}, {"role": "assistant"}]}', "expected text"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, wrong):
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{json.dumps(make_line(0))}\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"bad.jsonl:2: .*{wrong}"):
        list(read_conversations(file))


def test_a_bad_file_is_named(tmp_path):
    file = tmp_path / "sft.yaml"
    for text, wrong in [
        ("model: a\ndata: b\nout: c\nlr: 3\n", "lr"),
        ("model: a\nout: c\n", "'data' is missing"),
        ("model: a\ndata: b\nout: c\nepochs: 0\n", "epochs is 0"),
        ("- a\n", "the file"),
    ]:
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=wrong):
            load_sft_config(file)
    with pytest.raises(ConfigError, match="cannot read"):
        load_sft_config(tmp_path / "none.yaml")


def test_the_command_prints_one_object(start, tmp_path):
    file = tmp_path / "sft.yaml"
    file.write_text(yaml.safe_dump(make_config(start, tmp_path / "out")), encoding="utf-8")
    result = CliRunner().invoke(sft, [str(file), "--json"], catch_exceptions=False)
    report = json.loads(result.stdout)
    assert report["steps"] > 1
    assert report["tokens_per_s"] > 0
    assert "fine-tuning" in result.stderr
    saved = json.loads((tmp_path / "out" / "sft.json").read_text(encoding="utf-8"))
    assert saved["checksum"] == report["checksum"]


def test_the_help_needs_no_torch():
    code = "import sys, limosa.cli.sft; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], check=False, env=environment)
    assert done.returncode == 0
