"""The file that describes a supervised fine-tuning: a frozen schema, no torch.

Neighbours: `sft.py` runs it, `cli/sft.py` loads it. Left out: checks that need the model's folder.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from limosa.base.config import Fraction, NonNegative, Positive
from limosa.base.yaml_file import Section, load_section


def _to_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class SftConfig(Section):
    """Supervised fine-tuning. Paths are relative to the working directory.

    `from_scratch` takes only shape and tokenizer from `model`, and weights from `seed`. An update
    sees about `batch_tokens`; `precision: bfloat16` keeps weights and attention in float32, and
    pays where the CPU has AMX. `muon` learns more from each update, for training from scratch.
    `learning_rate` falls along a cosine to `floor_ratio` of itself.
    """

    model: str
    data: Annotated[tuple[str, ...], BeforeValidator(_to_list), Field(min_length=1)]
    out: str
    seed: Annotated[int, Field(ge=0)] = 0
    from_scratch: bool = False
    loss_on: Literal["assistant", "all"] = "assistant"
    context_window: PositiveInt = 1024
    holdout_ratio: Fraction = 0.02
    epochs: PositiveInt = 1
    max_steps: PositiveInt | None = None
    batch_tokens: PositiveInt = 16384
    microbatch_tokens: PositiveInt = 4096
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: Positive = 1e-3
    floor_ratio: Fraction = 0.1
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    weight_decay: NonNegative = 0.1
    max_grad_norm: Positive = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    threads: PositiveInt = 2


def load_sft_config(path: Path) -> SftConfig:
    """Read and validate a file. Raises: ConfigError naming key, value and remedy."""
    return load_section(path, SftConfig, example="examples/base_model/instruct.yaml")
