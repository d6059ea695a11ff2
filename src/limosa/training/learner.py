"""The learner of reinforcement learning, in this process: groups in, the next policy version out.

Neighbours: `batch.py` (advantages and weights), `packing.py` (micro-batches), `losses.py` (terms);
`process.py` runs this in a child and `rl.py` drives it. One update a batch: the proximal policy is
the one that sampled, see `losses.truncate_importance`. Left out: several epochs over a batch, and
parallel layouts.

Legend: T predicted tokens of a micro-batch, S tokens of all sequences, D hidden.
"""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from limosa.base.config import DomainConfig, RlConfig
from limosa.base.errors import UserError
from limosa.base.interfaces import StepStats
from limosa.base.trajectory import Group
from limosa.models.transformer import Transformer
from limosa.models.weights import checksum, load_model, save_model
from limosa.training.advantages import ADVANTAGES
from limosa.training.batch import BatchRules, RlBatch, make_batch
from limosa.training.losses import (
    LOSSES,
    Clip,
    SampledTokens,
    estimate_kl,
    truncate_importance,
)
from limosa.training.optimizer import make_adamw, set_learning_rate
from limosa.training.packing import Microbatch, pack
from limosa.training.projection import compute_logprobs
from limosa.training.rewards import RewardNormalizer

STATE_FILE = "learner.pt"
BETAS = (0.9, 0.99)


@dataclass(slots=True)
class _Sums:
    """Sums over the sampled tokens of a batch, from which the metrics are means."""

    tokens: int = 0
    packed: int = 0
    values: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, values_T: Tensor) -> None:
        self.values[name] = self.values.get(name, 0.0) + float(values_T.detach().sum())

    def mean(self, name: str) -> float:
        return self.values.get(name, 0.0) / max(1, self.tokens)


class RlLearner:
    """Policy gradient with group baselines over a model that it updates in place.

    `tokenizer_from` is the folder whose tokenizer goes into checkpoints. With a KL coefficient the
    model as given here is kept, frozen, as the reference; `restore` does not change it.
    """

    def __init__(
        self,
        model: Transformer,
        rl: RlConfig,
        domains: Sequence[DomainConfig],
        *,
        tokenizer_from: Path | None,
    ) -> None:
        self.model = model
        self.version = 0
        self._rl = rl
        self._tokenizer_from = tokenizer_from
        self._loss = LOSSES[rl.loss]
        self._clip = Clip(rl.clip_low, rl.clip_high)
        self._rules = BatchRules(
            advantage=ADVANTAGES[rl.advantage],
            aggregation=self._loss.aggregation,
            loss_weights={d.name: d.loss_weight for d in domains},
            # A file may ask for a million tokens; no sequence is longer than the model's positions.
            max_tokens=min(rl.context_window, model.config.max_position_embeddings),
            keep_flat=rl.kl_coefficient > 0 or rl.entropy_coefficient > 0,
        )
        self._normalizer = RewardNormalizer({d.name: d.reward_normalization for d in domains})
        self._optimizer = make_adamw(model, rl.learning_rate, BETAS, rl.weight_decay)
        self._updates = 0
        self._skipped = {"skipped_nonfinite": 0, "skipped_no_signal": 0}
        self._reference: Transformer | None = None
        if rl.kl_coefficient > 0:
            self._reference = copy.deepcopy(model).requires_grad_(False)

    def step(self, groups: Sequence[Group]) -> StepStats:
        """One update over all groups, whatever the micro-batches; the version rises by one.

        A gradient that is not finite, or groups that are all flat, leave the weights as they are
        and are counted.
        """
        trajectories = [t for g in groups for t in g.trajectories]
        assert trajectories, "an update needs at least one trajectory"
        started = time.perf_counter()
        rewards: dict[str, list[float]] = {}
        for trajectory in trajectories:
            rewards.setdefault(trajectory.domain, []).append(trajectory.reward)
        for domain, values in rewards.items():
            self._normalizer.observe(domain, values)
        batch = make_batch(groups, self._rules, self._normalizer)
        sums = _Sums()
        metrics: dict[str, float] = {}
        if batch is None:
            self._skipped["skipped_no_signal"] += 1
        else:
            metrics |= self._update(batch, sums)
        self.version += 1
        wall_s = time.perf_counter() - started
        metrics |= {f"reward_trained/{name}": sum(v) / len(v) for name, v in rewards.items()}
        metrics |= {name: float(count) for name, count in self._skipped.items()}
        metrics |= {
            "trajectories": float(len(trajectories)),
            "tokens": float(batch.tokens if batch else 0),
            "tokens_packed": float(sums.packed),
            "tokens_sampled": float(sums.tokens),
            "tokens_per_s": (batch.tokens if batch else 0) / wall_s,
            "step_s": wall_s,
        }
        weights = {name: t.detach() for name, t in self.model.state_dict().items()}
        return StepStats(self.version, checksum(weights), weights, metrics)

    def save(self, path: Path) -> None:
        """Write a Hugging Face folder, and beside the weights what `restore` needs to go on."""
        save_model(self.model, path, tokenizer_from=self._tokenizer_from)
        state = {
            "version": self.version,
            "updates": self._updates,
            "skipped": self._skipped,
            "optimizer": self._optimizer.state_dict(),
            "normalizer": self._normalizer.to_json(),
            "random": torch.get_rng_state(),
        }
        fresh = path / f"{STATE_FILE}.part"
        torch.save(state, fresh)
        fresh.replace(path / STATE_FILE)

    def restore(self, path: Path) -> None:
        """Go on, bit for bit, from what `save` wrote.

        Raises: UserError where it is not there, or damaged.
        """
        if not (path / STATE_FILE).is_file():
            hint = "give a checkpoint that `limosa train` wrote"
            raise UserError(f"{path} holds no learner state ({STATE_FILE})", hint=hint)
        self.model.load_state_dict(load_model(path).state_dict())
        try:
            state: dict[str, Any] = torch.load(path / STATE_FILE, weights_only=True)
            self.version = state["version"]
            self._updates = state["updates"]
            self._skipped = state["skipped"]
            self._optimizer.load_state_dict(state["optimizer"])
            self._normalizer.restore(state["normalizer"])
            torch.set_rng_state(state["random"])
        except Exception as error:  # the file is foreign: torch raises many kinds for a damaged one
            reason = next(iter(str(error).splitlines()), "")[:200]
            what = f"{path / STATE_FILE} cannot be read: {type(error).__name__}: {reason}"
            raise UserError(what, hint="resume from an older step, or begin anew") from None

    def _update(self, batch: RlBatch, sums: _Sums) -> Mapping[str, float]:
        warmup = min(1.0, (self._updates + 1) / max(1, self._rl.warmup_steps))
        learning_rate = self._rl.learning_rate * warmup
        set_learning_rate([self._optimizer], learning_rate)
        micros = list(pack(batch.families, microbatch_tokens=self._rl.microbatch_tokens))
        loss = sum(self._accumulate(micro, batch, sums) for micro in micros)
        grad_norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self._rl.max_grad_norm
        ).item()
        if torch.tensor([grad_norm, loss]).isfinite().all():
            self._optimizer.step()
            self._updates += 1
        else:
            self._skipped["skipped_nonfinite"] += 1
        self._optimizer.zero_grad(set_to_none=True)
        staleness = self.version - batch.version_S[torch.cat([m.source_T for m in micros])].float()
        names = ("entropy", "kl_k1", "kl_k3", "clip_fraction", "importance", "kl_reference")
        return {
            "loss": loss,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            "staleness_mean": staleness.mean().item(),
            "staleness_max": staleness.max().item(),
            **{name: sums.mean(name) for name in names if name in sums.values},
        }

    def _accumulate(self, micro: Microbatch, batch: RlBatch, sums: _Sums) -> float:
        """Add a micro-batch's gradients and sums; gives its share of the loss."""
        source_T = micro.source_T
        temperature_T = batch.temperature_S[source_T]
        logprobs_T, entropy_T = _evaluate(self.model, micro, temperature_T)
        behaviour_T = batch.behaviour_S[source_T]
        tokens = SampledTokens(
            logprobs_T, behaviour_T, batch.advantage_S[source_T], batch.sequence_S[source_T]
        )
        terms = self._loss.terms(tokens, self._clip)
        factor_T, importance_T = truncate_importance(
            logprobs_T, behaviour_T, self._rl.importance_cap
        )
        losses_T = terms.losses_T
        if not self._loss.holds_importance:
            losses_T = losses_T * factor_T
        if self._rl.entropy_coefficient > 0:
            losses_T = losses_T - self._rl.entropy_coefficient * entropy_T
        if self._reference is not None:
            with torch.no_grad():
                reference_T, _ = _evaluate(self._reference, micro, temperature_T)
            kl_T = estimate_kl(logprobs_T, reference_T, "k3")
            losses_T = losses_T + self._rl.kl_coefficient * kl_T
            sums.add("kl_reference", kl_T)
        loss = (losses_T * batch.weight_S[source_T]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        sums.tokens += len(source_T)
        sums.packed += len(micro.token_ids_N)
        sums.add("entropy", entropy_T)
        # The tokens were drawn by the sampler, so its policy comes first in the divergence.
        sums.add("kl_k1", estimate_kl(behaviour_T, logprobs_T, "k1"))
        sums.add("kl_k3", estimate_kl(behaviour_T, logprobs_T, "k3"))
        sums.add("clip_fraction", terms.clipped_T.float())
        sums.add("importance", importance_T)
        return loss.item()


def _evaluate(
    model: Transformer, micro: Microbatch, temperature_T: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies (T,) under the distribution that was sampled from."""
    hidden_ND = model(micro.token_ids_N, micro.positions_N, micro.attend)
    hidden_TD = functional.embedding(micro.predictor_T, hidden_ND)
    # Dividing the hidden state divides the logits, and is smaller by far.
    hidden_TD = hidden_TD / temperature_T[:, None]
    return compute_logprobs(hidden_TD, model.output_weight, micro.target_T)
