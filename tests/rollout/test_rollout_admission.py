"""Admission: the staleness bound holds whatever the order in which groups finish."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limosa.rollout.admission import Admission, Ticket


@given(
    seed=st.integers(0, 10_000),
    max_staleness=st.integers(0, 4),
    groups_per_step=st.integers(1, 6),
    slow_share=st.floats(0.0, 0.6),
)
def test_no_group_is_ever_trained_older_than_the_bound(
    seed: int, max_staleness: int, groups_per_step: int, slow_share: float
) -> None:
    rng = random.Random(seed)
    admission = Admission(max_staleness=max_staleness, groups_per_step=groups_per_step)
    running: list[Ticket] = []
    ready: list[Ticket] = []
    ages: list[int] = []
    for _ in range(600):
        while admission.may_start():
            running.append(admission.start())
        # Slow groups (by number) finish rarely: they must be waited for, not overtaken.
        slow = {t.number for t in running if (t.number * 7919 + seed) % 100 < slow_share * 100}
        ticket = rng.choice(running) if running else None
        if ticket and (ticket.number not in slow or rng.random() < 0.1):
            running.remove(ticket)
            if rng.random() < 0.2:
                admission.drop(ticket)
            else:
                ready.append(ticket)
        chosen = admission.select(ready)
        if chosen is None:
            continue
        ages += [admission.version - t.version for t in chosen]
        for t in chosen:
            ready.remove(t)
            admission.train(t)
        while admission.may_start():  # while the update runs, others start from the old version
            running.append(admission.start())
        admission.set_version(admission.version + 1)
    assert ages, "nothing was trained at all"
    assert max(ages) <= max_staleness


def test_at_most_the_bound_is_under_way() -> None:
    admission = Admission(max_staleness=1, groups_per_step=3)
    for _ in range(6):
        admission.start()
    assert not admission.may_start()
    with pytest.raises(AssertionError, match="no room"):
        admission.start()


def test_an_update_waits_for_a_group_that_it_would_make_too_old() -> None:
    admission = Admission(max_staleness=1, groups_per_step=1)
    slow, quick = admission.start(), admission.start()
    assert admission.select([quick]) == [quick]
    admission.train(quick)
    admission.set_version(1)
    later = admission.start()
    assert admission.select([later]) is None
    assert admission.select([slow, later]) == [slow]
