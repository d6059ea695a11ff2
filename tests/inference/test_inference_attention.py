"""Runs cover what decodes, each slot once, without masking more than a call is worth."""

from hypothesis import given
from hypothesis import strategies as st

from limosa.inference.attention import CALL_TOKENS, split_runs


@given(st.dictionaries(st.integers(0, 60), st.integers(1, 900), min_size=1))
def test_runs_cover_every_slot_once(wanted):
    slots = sorted(wanted)
    runs = split_runs(slots, [wanted[s] for s in slots])
    covered = [s for r in runs for s in range(r.first_slot, r.last_slot + 1)]
    assert len(set(covered)) == len(covered) and set(slots) <= set(covered)
    row = 0
    for run in runs:
        assert run.first_row == row
        row += run.last_slot - run.first_slot + 1
        inside = [s for s in slots if run.first_slot <= s <= run.last_slot]
        assert run.length == max(wanted[s] for s in inside)
    area = sum((r.last_slot - r.first_slot + 1) * r.length for r in runs)
    assert area <= sum(wanted.values()) + CALL_TOKENS * (len(slots) - len(runs))


def test_even_slots_are_one_run_and_a_long_one_stands_alone():
    assert len(split_runs(list(range(48)), [300] * 48)) == 1
    lengths = [100] * 20 + [5000] + [100] * 20
    assert [r.length for r in split_runs(list(range(41)), lengths)] == [100, 5000, 100]
