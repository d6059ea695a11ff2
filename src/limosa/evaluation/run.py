"""Plays every task of an evaluation once, several at a time.

`play` is wired in `cli/` (the agent loop with the model under test). What an outcome means for the
numbers is decided in `evaluation/metrics.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

from limosa.base.task import Task
from limosa.base.trajectory import Trajectory

Play = Callable[[Task, int], Awaitable[Trajectory]]
OnTrajectory = Callable[[Trajectory], None]


async def evaluate(
    tasks: Sequence[Task],
    play: Play,
    *,
    jobs: int,
    on_result: OnTrajectory,
    on_retry: OnTrajectory = lambda _: None,
    retries: int = 2,
) -> list[Trajectory]:
    """One trajectory for each task, in the order of the tasks.

    An invalid one is played again up to `retries` times (`on_retry` is told what each such attempt
    gave). One that stays invalid is in the list as it is: metrics leave it out and count it.

    Raises: what `play` raised, after the other episodes were cancelled.
    """
    assert jobs > 0, f"{jobs} evaluation jobs"
    results: dict[int, Trajectory] = {}
    todo = iter(enumerate(tasks))

    async def play_until_valid(index: int, task: Task) -> Trajectory:
        for _ in range(retries):
            trajectory = await play(task, index)
            if trajectory.is_valid:
                return trajectory
            on_retry(trajectory)
        return await play(task, index)

    async def work(queue: Iterator[tuple[int, Task]]) -> None:
        for index, task in queue:
            results[index] = await play_until_valid(index, task)
            on_result(results[index])

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(jobs, len(tasks))):
                group.create_task(work(todo))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [results[index] for index in range(len(tasks))]
