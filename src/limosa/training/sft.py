"""Supervised fine-tuning: conversations in, a Hugging Face folder out, the same from every run.

Each update is cut into equal shares for worker threads that each run torch on one thread; their
gradients are added in a fixed order. That is faster on a few cores than threads inside every
operation, for most operations of a small model are too short to share. Neighbours:
`conversations.py` encodes, `packing.py` packs. Left out: resuming, which minutes do not need.

Legend: N packed tokens, T predicted tokens, D hidden.
"""

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from limosa.base.errors import ModelError, UserError
from limosa.base.interfaces import Chat
from limosa.models.config import TransformerConfig
from limosa.models.transformer import Transformer, make_model
from limosa.models.weights import checksum, load_model, save_model
from limosa.training.conversations import Example, encode_conversation, read_conversations
from limosa.training.optimizer import OPTIMIZERS, compute_cosine, set_learning_rate
from limosa.training.packing import Branch, pack
from limosa.training.projection import compute_logprobs
from limosa.training.sft_config import SftConfig

REPORT_FILE = "sft.json"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Encoded conversations, split by the seed; `too_long` were left out and are reported."""

    train: tuple[Example, ...]
    held_out: tuple[Example, ...]
    too_long: int


@dataclass(frozen=True, slots=True)
class SftStep:
    """One update, as progress shows it."""

    step: int
    steps: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class SftReport:
    """What a fine-tuning did. Losses in nats a trained token; None without held-out data."""

    out: str
    checksum: str
    steps: int
    conversations: int
    held_out: int
    too_long: int
    tokens: int
    tokens_per_s: float
    loss_first: float
    loss_last: float
    loss_held_out: float | None
    skipped_nonfinite: int
    wall_s: float


def load_corpus(config: SftConfig, chat: Chat, *, on_read: Callable[[int], None]) -> Corpus:
    """Read, encode and split. Raises: UserError for a bad file, or where nothing is left."""
    examples: list[Example] = []
    too_long = 0
    for path in config.data:
        for conversation in read_conversations(Path(path).expanduser()):
            example = encode_conversation(conversation, chat, config.loss_on)
            if len(example) > config.context_window:
                too_long += 1
            else:
                examples.append(example)
            on_read(len(examples) + too_long)
    if not examples:
        what = f"{', '.join(config.data)}: no conversation to train on ({too_long} too long)"
        raise UserError(what, hint="give more data, or a larger context_window")
    random.Random(config.seed).shuffle(examples)
    held = min(round(len(examples) * config.holdout_ratio), len(examples) - 1)
    return Corpus(tuple(examples[held:]), tuple(examples[:held]), too_long)


def load_start(config: SftConfig, folder: Path) -> Transformer:
    """The model to begin from. Raises: ModelError."""
    if not config.from_scratch:
        return load_model(folder)
    try:
        value = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        hint = "from_scratch needs a folder with config.json and a tokenizer"
        raise ModelError(f"{folder}: no shape to read: {error}", hint=hint) from None
    return make_model(TransformerConfig.from_hf(value), config.seed)


def plan_batches(examples: Sequence[Example], config: SftConfig) -> list[list[int]]:
    """Which examples each update sees: every epoch shuffled anew, batches of like size."""
    batches: list[list[int]] = []
    for epoch in range(config.epochs):
        order = list(range(len(examples)))
        random.Random(f"{config.seed}/{epoch}").shuffle(order)
        total = sum(len(e) for e in examples)
        count = max(1, round(total / config.batch_tokens))
        batches += _split_evenly(order, [len(examples[i]) for i in order], count)
        if config.max_steps is not None and len(batches) >= config.max_steps:
            return batches[: config.max_steps]
    return batches


def run_sft(
    config: SftConfig,
    model: Transformer,
    corpus: Corpus,
    *,
    tokenizer_from: Path,
    on_step: Callable[[SftStep], None],
) -> SftReport:
    """Train `model` in place, write it to `config.out`, and report."""
    batches = plan_batches(corpus.train, config)
    started = time.perf_counter()
    tokens = 0
    steps: list[SftStep] = []
    with open_workers(config.threads) as workers:
        trainer = Trainer(config, model, len(batches), workers)
        for step, batch in enumerate(batches):
            examples = [corpus.train[i] for i in batch]
            loss, norm, learning_rate = trainer.update(step, examples)
            tokens += sum(map(len, examples))
            rate = tokens / (time.perf_counter() - started)
            done = SftStep(step + 1, len(batches), loss, norm, learning_rate, tokens, rate)
            steps.append(done)
            on_step(done)
        held_out = trainer.evaluate(corpus.held_out)
    out = Path(config.out).expanduser()
    save_model(model, out, tokenizer_from=tokenizer_from)
    report = SftReport(
        out=str(out),
        checksum=checksum(model.state_dict()),
        steps=len(steps),
        conversations=len(corpus.train),
        held_out=len(corpus.held_out),
        too_long=corpus.too_long,
        tokens=tokens,
        tokens_per_s=steps[-1].tokens_per_s,
        loss_first=steps[0].loss,
        loss_last=steps[-1].loss,
        loss_held_out=held_out,
        skipped_nonfinite=trainer.skipped,
        wall_s=time.perf_counter() - started,
    )
    text = json.dumps({**asdict(report), "config": config.model_dump(mode="json")}, indent=2)
    (out / REPORT_FILE).write_text(text + "\n", encoding="utf-8")
    return report


class Trainer:
    """Model, optimiser and workers: one update at a time."""

    def __init__(
        self, config: SftConfig, model: Transformer, steps: int, workers: ThreadPoolExecutor
    ) -> None:
        self.skipped = 0
        self._config, self._model, self._steps, self._workers = config, model, steps, workers
        self._parameters = list(model.parameters())
        make = OPTIMIZERS[config.optimizer]
        self._optimizers = make(model, config.learning_rate, config.betas, config.weight_decay)

    def update(self, step: int, examples: Sequence[Example]) -> tuple[float, float, float]:
        """One update; gives loss, gradient norm and learning rate.

        The loss is the mean over the trained tokens of the whole batch. A gradient that is not
        finite is skipped and counted.
        """
        config, parameters = self._config, self._parameters
        count = _count_trained(examples)
        assert count, "a batch has no trained token"
        shares = _make_shares(examples, config)
        loss, totals = 0.0, [torch.zeros_like(p) for p in parameters]
        for share_loss, grads in self._workers.map(self._differentiate, shares):
            loss += share_loss / count
            torch._foreach_add_(totals, list(grads), alpha=1.0 / count)
        for parameter, total in zip(parameters, totals, strict=True):
            parameter.grad = total
        factor = compute_cosine(
            step,
            steps=self._steps,
            warmup_steps=config.warmup_steps,
            floor_ratio=config.floor_ratio,
        )
        set_learning_rate(self._optimizers, config.learning_rate * factor)
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm).item()
        if math.isfinite(norm) and math.isfinite(loss):
            for optimizer in self._optimizers:
                optimizer.step()
        else:
            self.skipped += 1
        return loss, norm, config.learning_rate * factor

    def evaluate(self, examples: Sequence[Example]) -> float | None:
        """Mean loss over the trained tokens of examples; None where there are none."""
        if not examples:
            return None
        shares = _make_shares(examples, self._config)
        return sum(self._workers.map(self._evaluate, shares)) / _count_trained(examples)

    def _differentiate(self, share: Sequence[Example]) -> tuple[float, tuple[Tensor, ...]]:
        """The summed loss of a share and its gradients, apart from those of other shares."""
        loss = self._sum_loss(share)
        return loss.item(), torch.autograd.grad(loss, self._parameters)

    def _evaluate(self, share: Sequence[Example]) -> float:
        with torch.no_grad():
            return self._sum_loss(share).item()

    def _sum_loss(self, share: Sequence[Example]) -> Tensor:
        family = [Branch(e.token_ids, e.trained, 0) for e in share]
        (micro,) = pack([family], microbatch_tokens=sum(map(len, share)))
        low = self._config.precision == "bfloat16"
        # Each weight is used once, so the cache of casts would only be shared between threads.
        with torch.autocast("cpu", torch.bfloat16, enabled=low, cache_enabled=False):
            hidden_ND = self._model(micro.token_ids_N, micro.positions_N, micro.attend)
            hidden_TD = functional.embedding(micro.predictor_T, hidden_ND)
            logprobs_T, _ = compute_logprobs(hidden_TD, self._model.output_weight, micro.target_T)
        return -logprobs_T.sum()


def _count_trained(examples: Sequence[Example]) -> int:
    return sum(int(e.trained.sum()) for e in examples)


@contextmanager
def open_workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that each run torch on one thread; the setting of before comes back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def _make_shares(examples: Sequence[Example], config: SftConfig) -> list[list[Example]]:
    """Equal shares, a multiple of the workers; neighbours in order share their beginnings."""
    ordered = sorted(examples, key=lambda e: e.token_ids.tolist())
    lengths = [len(e) for e in ordered]
    rounds = -(-sum(lengths) // (config.microbatch_tokens * config.threads))
    shares = _split_evenly(list(range(len(ordered))), lengths, rounds * config.threads)
    return [[ordered[i] for i in share] for share in shares]


def _split_evenly(order: Sequence[int], lengths: Sequence[int], count: int) -> list[list[int]]:
    """`order` in at most `count` runs of about equal total length, none empty."""
    total, seen = sum(lengths), 0
    parts: list[list[int]] = [[] for _ in range(count)]
    for item, length in zip(order, lengths, strict=True):
        # The middle of an item decides, so that rounding does not pile up on the last part.
        parts[min(count - 1, (2 * seen + length) * count // (2 * total))].append(item)
        seen += length
    return [part for part in parts if part]
