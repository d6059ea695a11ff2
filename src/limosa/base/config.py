"""The one file that describes a run: frozen pydantic models, unknown keys forbidden, no torch.

Neighbours: `yaml_file.py` reads it and words the errors. Shape and ranges are checked here. Names
(domains, stages, images, normalisations, losses) live in the tables of higher floors, so the
caller passes them in as `KnownNames`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from limosa.base.errors import ConfigError
from limosa.base.yaml_file import Section, load_section, name_nearest

EXAMPLE = "examples/quickstart.yaml"

Fraction = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
# Bounded, so that the sum of the ratios stays finite.
Ratio = Annotated[float, Field(ge=0.0, le=1e6, allow_inf_nan=False)]


class DomainConfig(Section):
    """One domain of the mixture. `curriculum` empty means every stage, in the domain's order."""

    name: str
    sampling_ratio: Ratio = 1.0
    curriculum: tuple[str, ...] = ()
    env_image: str | None = None
    max_steps: PositiveInt | None = None
    reward_normalization: str = "none"
    loss_weight: NonNegative = 1.0


class RlConfig(Section):
    """Reinforcement learning. Units: `context_window` tokens, `max_staleness` policy versions."""

    framework: Literal["async_actor_learner"] = "async_actor_learner"
    rollout_batch: PositiveInt | Literal["dynamic"] = "dynamic"
    context_window: PositiveInt = 1024
    steps: PositiveInt = 30
    groups_per_step: PositiveInt = 8
    group_size: Annotated[int, Field(ge=2)] = 8
    max_staleness: Annotated[int, Field(ge=0)] = 2
    max_new_tokens: PositiveInt = 64
    temperature: Positive = 1.0
    loss: str = "dapo"
    advantage: str = "grpo"
    clip_low: Positive = 0.2
    clip_high: Positive = 0.28
    importance_cap: Positive = 2.0
    kl_coefficient: NonNegative = 0.0
    entropy_coefficient: NonNegative = 0.0
    learning_rate: Positive = 3e-4
    warmup_steps: Annotated[int, Field(ge=0)] = 3
    weight_decay: NonNegative = 0.0
    max_grad_norm: Positive = 1.0
    microbatch_tokens: PositiveInt = 8192
    checkpoint_every: PositiveInt = 10


class EvaluationConfig(Section):
    """Held-out evaluation before and after. `temperature` 0 is greedy."""

    tasks_per_domain: PositiveInt = 64
    temperature: NonNegative = 1.0


class QualityConfig(Section):
    """The gate before training: how many tasks of each domain and stage prove themselves."""

    tasks_per_stage: PositiveInt = 8
    max_unsound_ratio: Fraction = 0.5


class SandboxConfig(Section):
    """Where untrusted code runs. `max_boxes` bounds the live boxes, and so the live episodes."""

    backend: Literal["bubblewrap"] = "bubblewrap"
    max_boxes: PositiveInt = 64


class RunConfig(Section):
    """A run. `model` is a packaged model's name or a Hugging Face folder."""

    domains: Annotated[tuple[DomainConfig, ...], Field(min_length=1)]
    rl: RlConfig = RlConfig()
    model: str = "limosa-base"
    seed: Annotated[int, Field(ge=0)] = 0
    evaluation: EvaluationConfig = EvaluationConfig()
    quality: QualityConfig = QualityConfig()
    sandbox: SandboxConfig = SandboxConfig()

    @property
    def ratios(self) -> dict[str, float]:
        """Sampling ratio of each domain, normalised to a sum of 1."""
        total = sum(d.sampling_ratio for d in self.domains)
        return {d.name: d.sampling_ratio / total for d in self.domains}


@dataclass(frozen=True, slots=True)
class KnownNames:
    """What the tables of the higher floors hold. `domains` maps a name to its stages."""

    domains: Mapping[str, Collection[str]]
    images: Collection[str]
    normalizations: Collection[str]
    losses: Collection[str]
    advantages: Collection[str]


def load_config(path: Path, known: KnownNames) -> RunConfig:
    """Read, validate and return a run file. Raises: ConfigError naming key, value and remedy."""
    config = load_section(path, RunConfig, example=EXAMPLE)
    _check_mixture(path, config)
    _check_names(path, config, known)
    return config


def list_notices(config: RunConfig) -> list[str]:
    """What a user should hear about a valid file, such as ratios that were normalised."""
    total = sum(d.sampling_ratio for d in config.domains)
    if abs(total - 1.0) <= 1e-9:
        return []
    shares = ", ".join(f"{name} {ratio:.4g}" for name, ratio in config.ratios.items())
    return [f"domains.sampling_ratio: the ratios sum to {total:g}, normalised to {shares}"]


def _check_mixture(path: Path, config: RunConfig) -> None:
    names = [d.name for d in config.domains]
    for name in names:
        if names.count(name) > 1:
            hint = "give each domain once; its curriculum may list several stages"
            raise ConfigError(f"{path}: domains.name {name!r} stands twice", hint=hint)
    for index, domain in enumerate(config.domains):
        for stage in domain.curriculum:
            if domain.curriculum.count(stage) > 1:
                what = f"{path}: domains.{index}.curriculum: the stage {stage!r} stands twice"
                raise ConfigError(what, hint="give each stage once, in the order to learn them")
    if not any(d.sampling_ratio > 0 for d in config.domains):
        ratios = [d.sampling_ratio for d in config.domains]
        what = f"{path}: domains.sampling_ratio is zero for every domain ({ratios})"
        raise ConfigError(what, hint="give at least one domain a positive ratio")


def _check_names(path: Path, config: RunConfig, known: KnownNames) -> None:
    for index, domain in enumerate(config.domains):
        key = f"domains.{index}"
        _check_name(path, f"{key}.name", domain.name, known.domains)
        for stage in domain.curriculum:
            _check_name(path, f"{key}.curriculum", stage, known.domains[domain.name])
        if domain.env_image is not None:
            _check_name(path, f"{key}.env_image", domain.env_image, known.images)
        normalization = domain.reward_normalization
        _check_name(path, f"{key}.reward_normalization", normalization, known.normalizations)
    _check_name(path, "rl.loss", config.rl.loss, known.losses)
    _check_name(path, "rl.advantage", config.rl.advantage, known.advantages)


def _check_name(path: Path, key: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        hint = f"accepted: {', '.join(known)}{name_nearest(value, known)}"
        raise ConfigError(f"{path}: {key} is {value!r}, which is not known", hint=hint)
