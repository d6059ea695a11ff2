"""Dispatcher: groups, retries of invalid episodes, flat groups, errors, resume."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from limosa.base.errors import InfrastructureError
from limosa.base.task import Task
from limosa.base.testing import make_trajectory
from limosa.base.trajectory import Outcome, Trajectory
from limosa.rollout.admission import Admission
from limosa.rollout.curriculum import Curriculum
from limosa.rollout.dispatcher import Admit, Dispatcher, DispatchLimits, Play
from limosa.rollout.mixture import Mixture

RATIOS = {"a": 0.75, "b": 0.25}


class _Log:
    def __init__(self) -> None:
        self.trajectories: list[Trajectory] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    def append(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def append_trajectory(self, trajectory: Trajectory, *, phase: str) -> None:
        self.trajectories.append(trajectory)


def _trajectory(task: Task, group: str, member: int, outcome: Outcome) -> Trajectory:
    return make_trajectory(task, f"{group}/{member}", group, outcome)


def _player(decide: Callable[[Task, int, int], Outcome]) -> Play:
    async def play(task: Task, group: str, member: int, attempt: int) -> Trajectory:
        await asyncio.sleep(random.Random(f"{task.seed}/{member}").random() * 0.003)
        return _trajectory(task, group, member, decide(task, member, attempt))

    return play


def _mixed(task: Task, member: int, attempt: int) -> Outcome:
    return Outcome.SOLVED if member % 2 else Outcome.FAILED


async def _admit_all(task: Task) -> bool:
    return True


def _dispatcher(
    play: Play,
    *,
    steps: int = 10,
    staleness: int = 1,
    live: int = 16,
    admit: Admit = _admit_all,
    log: _Log | None = None,
    session: int = 0,
) -> Dispatcher:
    return Dispatcher(
        play,
        lambda domain, stage, seed: Task(domain, stage, seed, "do"),
        admit,
        mixture=Mixture(RATIOS),
        curricula={name: Curriculum(["only"]) for name in RATIOS},
        admission=Admission(max_staleness=staleness, groups_per_step=4),
        limits=DispatchLimits(
            group_size=4, groups_per_step=4, total_steps=steps, max_live_episodes=live
        ),
        log=log or _Log(),
        session=session,
    )


async def _train(dispatcher: Dispatcher, steps: int) -> Counter[str]:
    domains = Counter[str]()
    for version in range(steps):
        groups = await asyncio.wait_for(dispatcher.next_groups(), 10)
        domains.update(g.domain for g in groups)
        assert all(len(g.trajectories) == 4 for g in groups)
        await asyncio.sleep(0.002)
        dispatcher.set_version(version + 1)
    await dispatcher.close()
    return domains


async def test_the_trained_mix_is_the_configured_mix() -> None:
    domains = await _train(_dispatcher(_player(_mixed)), 10)
    assert domains.total() == 40
    assert abs(domains["a"] - 30) <= 2


async def test_an_invalid_episode_is_played_again_and_enters_nothing() -> None:
    def decide(task: Task, member: int, attempt: int) -> Outcome:
        return Outcome.INVALID if attempt == 0 and member == 1 else _mixed(task, member, attempt)

    dispatcher = _dispatcher(_player(decide))
    await _train(dispatcher, 4)
    episodes = dispatcher.counts.episodes
    assert episodes["invalid"] >= 16
    assert not dispatcher.counts.empty_groups


async def test_a_group_without_valid_members_is_dropped_and_replaced() -> None:
    def decide(task: Task, member: int, attempt: int) -> Outcome:
        return Outcome.INVALID if task.seed == 2 else _mixed(task, member, attempt)

    dispatcher = _dispatcher(_player(decide))
    domains = await _train(dispatcher, 3)
    assert domains.total() == 12
    assert dispatcher.counts.empty_groups.total() >= 1


async def test_a_task_that_the_gate_rejects_is_never_played() -> None:
    played: set[int] = set()

    async def play(task: Task, group: str, member: int, attempt: int) -> Trajectory:
        played.add(task.seed)
        return _trajectory(task, group, member, _mixed(task, member, attempt))

    async def admit(task: Task) -> bool:
        await asyncio.sleep(0)
        return task.seed % 3 != 0

    dispatcher = _dispatcher(play, admit=admit)
    domains = await _train(dispatcher, 3)
    assert domains.total() == 12
    assert played and all(seed % 3 for seed in played)
    assert dispatcher.counts.rejected_tasks.total() >= 4


async def test_a_domain_without_a_sound_task_stops_the_run() -> None:
    async def admit(task: Task) -> bool:
        await asyncio.sleep(0)
        return task.domain != "b"

    dispatcher = _dispatcher(_player(_mixed), admit=admit)
    with pytest.raises(InfrastructureError, match="'b': 24 tasks in a row"):
        for version in range(10):
            await asyncio.wait_for(dispatcher.next_groups(), 10)
            dispatcher.set_version(version + 1)
    await dispatcher.close()


async def test_a_task_whose_check_was_spoilt_comes_again_and_is_not_rejected() -> None:
    spoilt: list[tuple[str, int]] = []
    played: set[tuple[str, int]] = set()

    async def admit(task: Task) -> bool:
        await asyncio.sleep(0)
        key = (task.domain, task.seed)
        if task.seed % 2 == 0 and key not in spoilt:
            spoilt.append(key)
            raise InfrastructureError("no box")
        return True

    async def play(task: Task, group: str, member: int, attempt: int) -> Trajectory:
        played.add((task.domain, task.seed))
        return _trajectory(task, group, member, _mixed(task, member, attempt))

    log = _Log()
    dispatcher = _dispatcher(play, admit=admit, log=log)
    domains = await _train(dispatcher, 5)
    assert abs(domains["a"] - 15) <= 2, "what is put back is still its domain's turn"
    assert len(spoilt) >= 5 and set(spoilt[:-8]) <= played
    assert not dispatcher.counts.rejected_tasks
    assert dispatcher.counts.spoilt_checks.total() == len(spoilt)
    events = [fields for kind, fields in log.events if kind == "check_spoilt"]
    assert [(e["domain"], e["seed"]) for e in events] == spoilt
    assert events[0]["reason"] == "no box"
    assert not [kind for kind, _ in log.events if kind == "group_dropped"]


async def test_checks_that_are_always_spoilt_stop_the_run_with_their_reason() -> None:
    async def admit(task: Task) -> bool:
        await asyncio.sleep(0)
        raise InfrastructureError("no box")

    dispatcher = _dispatcher(_player(_mixed), admit=admit)
    with pytest.raises(InfrastructureError, match=r"24 checks of tasks in a row.*no box"):
        await asyncio.wait_for(dispatcher.next_groups(), 10)
    state = dispatcher.to_state()
    await dispatcher.close()
    assert state["pending"], "what was put back is played after a resume"


async def test_flat_groups_are_replaced_up_to_the_bound_then_accepted() -> None:
    dispatcher = _dispatcher(_player(lambda t, m, a: Outcome.SOLVED))
    domains = await _train(dispatcher, 3)
    assert domains.total() == 12
    assert 4 <= dispatcher.counts.flat_groups.total() <= 12


async def test_an_episode_that_raises_surfaces_at_once() -> None:
    async def play(task: Task, group: str, member: int, attempt: int) -> Trajectory:
        raise RuntimeError("a bug in the environment")

    dispatcher = _dispatcher(play)
    with pytest.raises(RuntimeError, match="a bug in the environment"):
        await asyncio.wait_for(dispatcher.next_groups(), 5)
    await dispatcher.close()


async def test_only_invalid_episodes_stop_the_run_with_their_reason() -> None:
    dispatcher = _dispatcher(_player(lambda t, m, a: Outcome.INVALID))
    with pytest.raises(InfrastructureError, match="in a row ended invalid"):
        await asyncio.wait_for(dispatcher.next_groups(), 10)
    await dispatcher.close()


async def test_live_episodes_stay_under_their_bound() -> None:
    live, most = 0, 0

    async def play(task: Task, group: str, member: int, attempt: int) -> Trajectory:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await asyncio.sleep(0.001)
        live -= 1
        return _trajectory(task, group, member, _mixed(task, member, attempt))

    await _train(_dispatcher(play, live=8), 4)
    assert 4 <= most <= 8


async def test_nothing_is_started_beyond_the_last_update() -> None:
    dispatcher = _dispatcher(_player(_mixed), steps=2, staleness=3)
    await _train(dispatcher, 2)
    assert dispatcher.counts.episodes.total() == 2 * 4 * 4


async def test_resume_plays_what_was_under_way_again() -> None:
    first = _dispatcher(_player(_mixed))
    groups = await first.next_groups()
    first.set_version(1)
    state = first.to_state()
    await first.close()
    trained = {(g.domain, g.trajectories[0].task_seed) for g in groups}
    pending = {(d, seed) for d, _, seed in state["pending"]}
    assert pending and not pending & trained
    second = _dispatcher(_player(_mixed))
    second.restore(state)
    second.set_version(1)
    replayed = await second.next_groups()
    await second.close()
    assert {(g.domain, g.trajectories[0].task_seed) for g in replayed} <= pending


async def test_a_group_played_again_after_a_resume_has_an_id_of_its_own() -> None:
    logs = [_Log() for _ in range(3)]
    state = None
    for session, log in enumerate(logs):
        dispatcher = _dispatcher(_player(_mixed), log=log, session=session)
        if state is not None:
            dispatcher.restore(state)
        dispatcher.set_version(0)
        state = dispatcher.to_state()  # as if killed before anything of it was trained
        await dispatcher.next_groups()
        await dispatcher.close()
    ids = [t.id for log in logs for t in log.trajectories]
    tasks = [{(t.domain, t.task_seed) for t in log.trajectories} for log in logs]
    assert tasks[0] & tasks[1] & tasks[2], "no task was played again"
    assert len(set(ids)) == len(ids)
    assert {t.group_id for t in logs[2].trajectories} == {
        f"{t.domain}-{t.task_seed}.r2" for t in logs[2].trajectories
    }


async def test_a_state_with_an_unknown_stage_is_refused() -> None:
    dispatcher = _dispatcher(_player(_mixed))
    state = {**dispatcher.to_state(), "pending": [["a", "gone", 3]]}
    with pytest.raises(ValueError, match="'gone' is no stage of 'a'"):
        dispatcher.restore(state)
    dispatcher.restore({**state, "pending": [["a", "only", 3], ["gone", "x", 4]]})
