import asyncio

import pytest

from limosa.base.errors import UserError
from limosa.base.task import Task
from limosa.base.trajectory import Outcome
from limosa.evaluation.run import evaluate

TASKS = [Task("d", "easy", seed, f"task {seed}") for seed in range(12)]


async def test_results_come_in_the_order_of_the_tasks_with_bounded_jobs(make_trajectory):
    live = peak = 0
    seen = []

    async def play(task, index):
        nonlocal live, peak
        live += 1
        peak = max(peak, live)
        await asyncio.sleep(0.001 * ((7 * index) % 5))
        live -= 1
        return make_trajectory(task_seed=task.seed, id=str(index))

    results = await evaluate(TASKS, play, jobs=3, on_result=seen.append)
    assert [t.task_seed for t in results] == [task.seed for task in TASKS]
    assert [t.id for t in results] == [str(index) for index in range(12)]
    assert peak == 3
    assert sorted(t.task_seed for t in seen) == sorted(t.task_seed for t in results)


async def test_an_invalid_episode_is_played_again_and_one_that_stays_so_is_kept(make_trajectory):
    attempts = {}
    retried, seen = [], []

    async def play(task, index):
        attempts[index] = attempts.get(index, 0) + 1
        is_bad = index == 1 or (index == 0 and attempts[index] < 3)
        outcome = Outcome.INVALID if is_bad else Outcome.FAILED
        return make_trajectory(task_seed=task.seed, outcome=outcome)

    results = await evaluate(
        TASKS[:3], play, jobs=2, on_result=seen.append, on_retry=retried.append, retries=2
    )
    assert attempts == {0: 3, 1: 3, 2: 1}
    assert [t.outcome for t in results] == [Outcome.FAILED, Outcome.INVALID, Outcome.FAILED]
    assert len(seen) == 3
    assert [t.outcome for t in retried] == [Outcome.INVALID] * 4


async def test_what_play_raises_comes_out_as_it_is_and_ends_the_others(make_trajectory):
    ended = []

    async def play(task, index):
        if index == 1:
            await asyncio.sleep(0.001)
            raise UserError("no such image", hint="name another")
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(index)
        return make_trajectory()

    with pytest.raises(UserError, match="no such image"):
        await evaluate(TASKS[:3], play, jobs=3, on_result=lambda _: None)
    assert sorted(ended) == [0, 2]


async def test_no_task_gives_no_result():
    async def play(task, index):
        raise AssertionError("nothing to play")

    assert await evaluate([], play, jobs=4, on_result=lambda _: None) == []
