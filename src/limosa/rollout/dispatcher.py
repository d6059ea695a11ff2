"""The actor: keeps groups of episodes under way and hands finished ones to the learner.

Implements `TrajectorySource`. It plays episodes through a callable (wired in `cli/`), so it knows
no engine and no sandbox. An invalid episode is played again and enters nothing, a task whose check
was spoilt comes again; whatever an actor raises reaches the learner's next wait at once.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from limosa.base.errors import InfrastructureError
from limosa.base.interfaces import EventLog
from limosa.base.task import Task
from limosa.base.trajectory import Group, Trajectory
from limosa.rollout.admission import Admission, Ticket
from limosa.rollout.curriculum import Curriculum
from limosa.rollout.mixture import Mixture

Play = Callable[[Task, str, int, int], Awaitable[Trajectory]]
"""(task, group id, member, attempt) -> trajectory."""
MakeTask = Callable[[str, str, int], Task]
"""(domain, stage, seed) -> task."""
Admit = Callable[[Task], Awaitable[bool]]
"""The quality gate: False leaves the task out; InfrastructureError says nothing of the task."""


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Bounds of the dispatcher. Units: counts of episodes, groups and tries."""

    group_size: int
    groups_per_step: int
    total_steps: int
    max_live_episodes: int
    attempts: int = 3
    max_invalid_in_a_row: int = 64
    max_rejected_in_a_row: int = 24
    max_spoilt_in_a_row: int = 24
    max_flat_ratio: float = 1.0


@dataclass(slots=True)
class _Job:
    """One group under way."""

    ticket: Ticket
    domain: str
    stage: str
    seed: int
    live: int = 0
    group: Group | None = None


@dataclass(slots=True)
class DispatchCounts:
    """What happened to groups and episodes so far; nothing is dropped without being counted.

    `signal_groups` are the trained ones whose rewards differ: only these have a gradient.
    """

    episodes: Counter[str] = field(default_factory=Counter)
    trained_groups: Counter[str] = field(default_factory=Counter)
    signal_groups: Counter[str] = field(default_factory=Counter)
    flat_groups: Counter[str] = field(default_factory=Counter)
    empty_groups: Counter[str] = field(default_factory=Counter)
    rejected_tasks: Counter[str] = field(default_factory=Counter)
    spoilt_checks: Counter[str] = field(default_factory=Counter)


class Dispatcher:
    """Plays groups of tasks, by mixture and curriculum, as admission allows.

    `session` numbers the times that the run was gone on with. It enters the groups' ids, for a
    group that was under way when a run ended is played again, as another group.
    """

    def __init__(
        self,
        play: Play,
        make_task: MakeTask,
        admit: Admit,
        *,
        mixture: Mixture,
        curricula: Mapping[str, Curriculum],
        admission: Admission,
        limits: DispatchLimits,
        log: EventLog,
        session: int = 0,
    ) -> None:
        self._play, self._make_task, self._admit = play, make_task, admit
        self._mixture, self._curricula, self._admission = mixture, curricula, admission
        self._limits, self._log = limits, log
        self._suffix = f".r{session}" if session else ""
        self.counts = DispatchCounts()
        self._jobs: dict[int, _Job] = {}
        self._again: list[tuple[str, str, int]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(limits.max_live_episodes)
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._recent: dict[str, list[float]] = {}
        self._invalid_in_a_row = 0
        self._rejected_in_a_row = Counter[str]()
        self._spoilt_in_a_row = 0
        self._flat_since_step = 0
        self._closed = False

    async def next_groups(self) -> list[Group]:
        """The groups of the next update, oldest first.

        Raises: whatever an episode raised; InfrastructureError where episodes keep ending invalid,
        or the gate's checks keep being spoilt.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            self._start_groups()
            chosen = self._admission.select([j.ticket for j in self._jobs.values() if j.group])
            if chosen is not None:
                return [self._hand_over(ticket) for ticket in chosen]
            self._changed.clear()
            await self._changed.wait()

    def set_version(self, version: int) -> None:
        """The learner has reached `version`: admission moves on."""
        self._admission.set_version(version)
        self._flat_since_step = 0
        self._start_groups()

    def take_rewards(self) -> dict[str, list[float]]:
        """Rewards of all valid episodes since the last call, by domain.

        Flat groups included: the groups that are trained on alone would flatter a weak policy and
        slander a strong one.
        """
        recent, self._recent = self._recent, {}
        return recent

    async def close(self) -> None:
        """End every episode under way and wait until it is gone."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def to_state(self) -> dict[str, Any]:
        """What a resumed run needs; groups not yet trained are noted to be played again."""
        pending = [[j.domain, j.stage, j.seed] for j in self._jobs.values()]
        pending += [list(entry) for entry in self._again]
        curricula = {name: c.to_state() for name, c in self._curricula.items()}
        trained = dict(self.counts.trained_groups)
        return {"pending": pending, "curricula": curricula, "trained_groups": trained}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state of an earlier run. Raises: ValueError for a stage unknown."""
        self._again = [(d, s, seed) for d, s, seed in state["pending"] if d in self._curricula]
        for domain, stage, _ in self._again:
            if stage not in self._curricula[domain].stages:
                raise ValueError(f"{stage!r} is no stage of {domain!r} in this run")
        for name, curriculum in self._curricula.items():
            if name in state["curricula"]:
                curriculum.restore(state["curricula"][name])
        self.counts.trained_groups.update(state["trained_groups"])
        counts = Counter(state["trained_groups"])
        counts.update(domain for domain, _, _ in self._again)
        self._mixture.restore(counts)

    def _start_groups(self) -> None:
        wanted = self._limits.total_steps * self._limits.groups_per_step
        while not self._closed and self._admission.may_start():
            done = self._admission.version * self._limits.groups_per_step
            if done + self._admission.live_groups >= wanted:
                return
            # A group waits here, not in the semaphore, so that its version is that of its start.
            if (
                self._live_episodes() + self._limits.group_size > self._limits.max_live_episodes
                and (self._live_episodes() > 0)
            ):
                return
            self._start_group()

    def _live_episodes(self) -> int:
        return sum(job.live for job in self._jobs.values())

    def _start_group(self) -> None:
        if self._again:
            domain, stage, seed = self._again.pop(0)
        else:
            domain = self._mixture.take()
            progress = self._admission.version / self._limits.total_steps
            stage, seed = self._curricula[domain].take(progress)
        job = _Job(self._admission.start(), domain, stage, seed, live=self._limits.group_size)
        self._jobs[job.ticket.number] = job
        task = asyncio.create_task(self._run_group(job), name=f"group {job.ticket.number}")
        self._tasks.add(task)
        task.add_done_callback(self._on_group_done)

    def _on_group_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error: BaseException | None = None
        if not task.cancelled():
            error = task.exception()
        elif not self._closed:  # nobody would hand this group over, or say why
            error = InfrastructureError(f"{task.get_name()} was cancelled from within")
        if error is not None:
            self._failure = self._failure or _first_cause(error)
        if self._failure is None:
            self._start_groups()
        self._changed.set()

    async def _run_group(self, job: _Job) -> None:
        task = self._make_task(job.domain, job.stage, job.seed)
        try:
            is_sound = await self._admit(task)
        except InfrastructureError as error:
            self._put_back(job, error)
            return
        self._spoilt_in_a_row = 0
        if not is_sound:
            self._reject(job)
            return
        self._rejected_in_a_row[job.domain] = 0
        group_id = f"{job.domain}-{job.seed}{self._suffix}"
        async with asyncio.TaskGroup() as members:
            runs = [
                members.create_task(self._run_member(job, task, group_id, member))
                for member in range(self._limits.group_size)
            ]
        valid = tuple(t for t in (run.result() for run in runs) if t is not None)
        group = Group(group_id, job.domain, job.stage, valid)
        self._settle(job, group)

    async def _run_member(
        self, job: _Job, task: Task, group_id: str, member: int
    ) -> Trajectory | None:
        """A valid trajectory, or None where every attempt ended invalid."""
        try:
            return await self._play_until_valid(task, group_id, member)
        finally:
            job.live -= 1
            self._start_groups()

    async def _play_until_valid(self, task: Task, group_id: str, member: int) -> Trajectory | None:
        for attempt in range(self._limits.attempts):
            async with self._slots:
                trajectory = await self._play(task, group_id, member, attempt)
            self.counts.episodes[trajectory.outcome.value] += 1
            self._log.append_trajectory(trajectory, phase="train")
            if trajectory.is_valid:
                self._invalid_in_a_row = 0
                self._recent.setdefault(task.domain, []).append(trajectory.reward)
                self._curricula[task.domain].record(task.stage, trajectory.reward >= 1.0)
                return trajectory
            self._invalid_in_a_row += 1
            if self._invalid_in_a_row >= self._limits.max_invalid_in_a_row:
                raise InfrastructureError(
                    f"{self._invalid_in_a_row} episodes in a row ended invalid, the last of "
                    f"{task.domain}: {trajectory.error}"
                )
        return None

    def _reject(self, job: _Job) -> None:
        """Leave the task out; a domain that has no sound task left must not be asked for ever."""
        self._drop(job, self.counts.rejected_tasks, "the quality gate left the task out")
        self._rejected_in_a_row[job.domain] += 1
        if self._rejected_in_a_row[job.domain] >= self._limits.max_rejected_in_a_row:
            raise InfrastructureError(
                f"domain {job.domain!r}: {self._rejected_in_a_row[job.domain]} tasks in a row did "
                "not pass the quality gate; the events task_rejected of the run say why"
            )

    def _put_back(self, job: _Job, error: InfrastructureError) -> None:
        """The task's check was spoilt: it comes again, and stays its domain's turn meanwhile."""
        self.counts.spoilt_checks[job.domain] += 1
        self._log.append(
            "check_spoilt", domain=job.domain, stage=job.stage, seed=job.seed, reason=str(error)
        )
        del self._jobs[job.ticket.number]
        self._admission.drop(job.ticket)
        self._again.append((job.domain, job.stage, job.seed))
        self._spoilt_in_a_row += 1
        if self._spoilt_in_a_row >= self._limits.max_spoilt_in_a_row:
            raise InfrastructureError(
                f"{self._spoilt_in_a_row} checks of tasks in a row were spoilt, the last of "
                f"{job.domain} seed {job.seed}: {error}"
            ) from error

    def _settle(self, job: _Job, group: Group) -> None:
        rewards = {t.reward for t in group.trajectories}
        if len(group.trajectories) < 2:
            self._drop(job, self.counts.empty_groups, "too few valid trajectories")
        elif len(rewards) == 1 and self._flat_since_step < self._flat_limit():
            self._flat_since_step += 1
            self._drop(job, self.counts.flat_groups, "all rewards equal")
        else:
            job.group = group

    def _flat_limit(self) -> int:
        """Flat groups that are replaced per update; more would leave a strong policy waiting."""
        return int(self._limits.max_flat_ratio * self._limits.groups_per_step)

    def _drop(self, job: _Job, counter: Counter[str], reason: str) -> None:
        counter[job.domain] += 1
        self._log.append("group_dropped", domain=job.domain, seed=job.seed, reason=reason)
        del self._jobs[job.ticket.number]
        self._admission.drop(job.ticket)
        self._mixture.give_back(job.domain)

    def _hand_over(self, ticket: Ticket) -> Group:
        job = self._jobs[ticket.number]
        assert job.group is not None, f"group {ticket.number} was chosen before it was done"
        self.counts.trained_groups[job.domain] += 1
        has_signal = len({t.reward for t in job.group.trajectories}) > 1
        self.counts.signal_groups[job.domain] += has_signal
        del self._jobs[ticket.number]
        self._admission.train(ticket)
        return job.group


def _first_cause(error: BaseException) -> BaseException:
    """The first error inside nested groups: the one that a user must read."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
