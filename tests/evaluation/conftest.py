from collections.abc import Callable

import pytest

from limosa.base.trajectory import Outcome, Trajectory


@pytest.fixture
def make_trajectory() -> Callable[..., Trajectory]:
    def make(**changes: object) -> Trajectory:
        values: dict[str, object] = {
            "id": "e1",
            "group_id": "g1",
            "domain": "code_engineering",
            "stage": "easy",
            "task_hash": "h1",
            "task_seed": 1_000_000_007,
            "environment_version": "v",
            "token_ids": (1, 2, 3, 4, 5),
            "sampled": (0, 0, 1, 0, 1),
            "logprobs": (0.0, 0.0, -0.5, 0.0, -0.1),
            "versions": (-1, -1, 0, -1, 0),
            "prompt_tokens": 2,
            "temperature": 1.0,
            "outcome": Outcome.SOLVED,
            "reward": 1.0,
            "turns": 2,
            "wall_s": 0.5,
        }
        return Trajectory(**{**values, **changes})  # type: ignore[arg-type]

    return make
