"""Held-out tasks: seeds from the `eval` range, which training never draws from.

`base/task.py` owns the ranges. Disjoint seeds are what is promised here; that two seeds of a domain
make different problems is the domain's matter.
"""

from collections.abc import Sequence

from limosa.base.interfaces import Domain
from limosa.base.task import Task, make_seed

# A run's seed picks where in the range its tasks begin; a prime step keeps the blocks apart.
SEED_STEP = 100_003
INDICES = 1_000_000_000


def make_eval_tasks(domain: Domain, stages: Sequence[str], count: int, seed: int) -> list[Task]:
    """`count` held-out tasks, the stages in turn, so that their numbers differ by one at most.

    The same arguments give the same tasks, so that before and after are compared on equal ground.
    """
    assert stages, f"domain {domain.name}: no stage to evaluate on"
    assert count > 0, f"domain {domain.name}: {count} evaluation tasks"
    return [
        domain.make_task(
            stages[number % len(stages)],
            make_seed("eval", (seed * SEED_STEP + number) % INDICES),
        )
        for number in range(count)
    ]
