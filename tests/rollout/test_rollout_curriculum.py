"""Curriculum: stages open by mastery or by time; seeds never repeat; state survives."""

from limosa.base.task import make_seed
from limosa.rollout.curriculum import WINDOW, Curriculum


def test_only_the_first_stage_is_open_at_the_start() -> None:
    curriculum = Curriculum(["easy", "hard"])
    assert [curriculum.take(0.0)[0] for _ in range(3)] == ["easy"] * 3


def test_mastery_opens_the_next_stage() -> None:
    curriculum = Curriculum(["easy", "hard"])
    for _ in range(WINDOW):
        curriculum.record("easy", True)
    assert {curriculum.take(0.0)[0] for _ in range(4)} == {"easy", "hard"}


def test_time_opens_a_stage_that_is_never_mastered() -> None:
    curriculum = Curriculum(["easy", "medium", "hard"])
    for _ in range(WINDOW):
        curriculum.record("easy", False)
    curriculum.take(0.2)
    assert curriculum.open_stages == ("easy", "medium")
    curriculum.take(0.4)
    assert curriculum.open_stages == ("easy", "medium", "hard")


def test_training_seeds_are_distinct_and_in_the_training_range() -> None:
    curriculum = Curriculum(["easy"])
    seeds = [curriculum.take(0.0)[1] for _ in range(100)]
    assert len(set(seeds)) == 100
    assert max(seeds) < make_seed("eval", 0)


def test_state_round_trip_continues_identically() -> None:
    first = Curriculum(["easy", "hard"])
    for index in range(70):
        first.take(0.1)
        first.record("easy", index % 3 != 0)
    second = Curriculum(["easy", "hard"])
    second.restore(first.to_state())
    assert [first.take(0.3) for _ in range(5)] == [second.take(0.3) for _ in range(5)]
