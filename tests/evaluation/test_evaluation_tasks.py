from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.base.task import SPLIT_OFFSETS, Task, make_seed
from limosa.evaluation.tasks import make_eval_tasks


class Numbers:
    name = "numbers"
    stages = ("easy", "medium", "hard")

    def make_task(self, stage, seed):
        return Task("numbers", stage, seed, f"say {seed}")


@given(
    seed=st.integers(min_value=0, max_value=2**63),
    count=st.integers(min_value=1, max_value=50),
    train_index=st.integers(min_value=0, max_value=999_999_999),
)
def test_no_training_seed_is_ever_held_out(seed, count, train_index):
    seeds = {task.seed for task in make_eval_tasks(Numbers(), Numbers.stages, count, seed)}
    assert len(seeds) == count
    assert make_seed("train", train_index) not in seeds
    assert make_seed("demo", train_index) not in seeds
    assert all(SPLIT_OFFSETS["eval"] <= s < SPLIT_OFFSETS["demo"] for s in seeds)


@pytest.mark.parametrize("count", [1, 3, 64])
def test_tasks_are_spread_evenly_and_repeat_exactly(count):
    tasks = make_eval_tasks(Numbers(), Numbers.stages, count, seed=7)
    counts = Counter(dict.fromkeys(Numbers.stages, 0))
    counts.update(task.stage for task in tasks)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert tasks == make_eval_tasks(Numbers(), Numbers.stages, count, seed=7)
    assert not {t.seed for t in tasks} & {
        t.seed for t in make_eval_tasks(Numbers(), Numbers.stages, count, seed=8)
    }
