"""The gate before training: every task proves itself, or is left out with the evidence.

A task is sound where its reference solution earns the full reward and doing nothing earns none,
each in an environment of its own (one container for both is the classic source of false alarms).
The caller's `play_script` decides under which bounds of tokens a reference solution must fit.
`check_domain` proves a sample before the run, `TaskGate` each task about to be trained on. Neither
looks for ways to cheat the verifier, nor for verdicts that flip.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from limosa.agent.loop import Episode, run_episode
from limosa.agent.policies import ScriptPolicy
from limosa.base.errors import InfrastructureError, UserError
from limosa.base.interfaces import Domain, Environment, SandboxProvider, Script
from limosa.base.messages import Message
from limosa.base.task import Task, make_seed
from limosa.base.trajectory import Outcome
from limosa.quality.finding import DomainFinding, Status, TaskFinding

PlayScript = Callable[[Task, Environment, Script], Awaitable[Episode]]
OnTask = Callable[[TaskFinding], None]

FULL_REWARD = 1.0
EVIDENCE_CHARACTERS = 600


async def play_script(task: Task, environment: Environment, script: Script) -> Episode:
    """Play a script through the one agent loop, with no bound on its tokens."""
    return await run_episode(task, environment, ScriptPolicy(script))


def play_nothing() -> Script:
    """The script of an agent that gives an empty final answer at once."""
    yield Message("assistant", "")


def make_gate_tasks(
    make_task: Callable[[str, int], Task],
    stages: Sequence[str],
    per_stage: int,
    *,
    first_index: int = 0,
) -> list[Task]:
    """A sample for the gate: of each stage the training tasks from an index on.

    `make_task` takes a stage and a seed.
    """
    return [
        make_task(stage, make_seed("train", first_index + number))
        for stage in stages
        for number in range(per_stage)
    ]


async def check_domain(
    domain: Domain,
    tasks: Sequence[Task],
    sandboxes: SandboxProvider,
    *,
    jobs: int,
    play_script: PlayScript = play_script,
    on_progress: OnTask = lambda _: None,
    retries: int = 2,
) -> DomainFinding:
    """Prove each task, at most `jobs` at a time; findings in the order of the tasks.

    A trial that infrastructure spoils is repeated up to `retries` times. Raises: UserError, such
    as for an unknown image, after the other checks were cancelled.
    """
    assert jobs > 0, f"{jobs} gate jobs"
    slots = asyncio.Semaphore(jobs)

    async def check(task: Task) -> TaskFinding:
        async with slots:
            finding = await check_task(
                domain, task, sandboxes, play_script=play_script, retries=retries
            )
        on_progress(finding)
        return finding

    try:
        async with asyncio.TaskGroup() as group:
            checks = [group.create_task(check(task)) for task in tasks]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return DomainFinding(domain.name, tuple(c.result() for c in checks))


def apply_gate(findings: Iterable[DomainFinding], max_unsound_ratio: float) -> None:
    """Let the run go on, or stop it: every stage needs a sound task.

    Raises: UserError naming domain, stage and the first evidence; InfrastructureError where what
    lacks a sound task could not be checked at all.
    """
    for finding in findings:
        _require_sound(f"domain {finding.domain!r}", finding.tasks)
        for stage in dict.fromkeys(t.stage for t in finding.tasks):
            tasks = [t for t in finding.tasks if t.stage == stage]
            _require_sound(f"stage {stage!r} of domain {finding.domain!r}", tasks)
        if finding.unsound_ratio > max_unsound_ratio:
            raise UserError(
                f"domain {finding.domain!r}: {finding.unsound_ratio:.0%} of the tasks checked are "
                f"unsound, at most {max_unsound_ratio:.0%} is tolerated: "
                f"{_describe_first(finding.tasks, Status.UNSOUND)}",
                hint="mend the domain, drop the stage at fault from its curriculum, or raise "
                "quality.max_unsound_ratio",
            )


def _require_sound(what: str, tasks: Sequence[TaskFinding]) -> None:
    if any(t.is_sound for t in tasks):
        return
    if not tasks:
        raise UserError(f"{what}: no task was given", hint="raise quality.tasks_per_stage")
    failed = [t for t in tasks if t.status is Status.INFRASTRUCTURE]
    if len(failed) == len(tasks):
        raise InfrastructureError(
            f"{what}: none of the {len(tasks)} tasks could be checked, the last because of "
            f"{failed[-1].reason}"
        )
    raise UserError(
        f"{what} has no sound task among the {len(tasks)} checked: "
        f"{_describe_first(tasks, Status.UNSOUND)}",
        hint="mend its reference solution or verifier, give it the room it needs "
        "(rl.context_window, rl.max_new_tokens, max_steps), or leave it out of the run",
    )


async def check_task(
    domain: Domain,
    task: Task,
    sandboxes: SandboxProvider,
    *,
    play_script: PlayScript = play_script,
    retries: int = 2,
) -> TaskFinding:
    """Prove one task by its two trials; an unsound reference spares the second one."""
    clock = asyncio.get_running_loop().time
    started_s = clock()

    async def run_trial(make_script: Callable[[], Script]) -> _Trial:
        return await _run_trial(domain, task, sandboxes, make_script, play_script, retries)

    reference = await run_trial(lambda: domain.play_reference(task))
    reason = reference.error or _judge_reference(reference)
    noop = _Trial()
    if not reason:
        noop = await run_trial(play_nothing)
        reason = noop.error or _judge_noop(noop)
    spoilt = reference.is_spoilt or noop.is_spoilt
    status = Status.INFRASTRUCTURE if spoilt else Status.UNSOUND if reason else Status.SOUND
    return TaskFinding(
        domain=task.domain,
        stage=task.stage,
        seed=task.seed,
        task_hash=task.content_hash,
        status=status,
        reference_reward=reference.reward,
        noop_reward=noop.reward,
        reason=_shorten(reason),
        environments=reference.environments + noop.environments,
        wall_s=clock() - started_s,
    )


class TaskGate:
    """Admits tasks to training one by one, each proven when it is first asked for.

    A verdict is kept by the task's content hash, and those who ask meanwhile wait for the same
    check. A check that infrastructure spoilt says nothing of the task and is not kept: it may be
    asked for again. `known` are findings of the gate before the run.
    """

    def __init__(
        self,
        domains: Mapping[str, Domain],
        sandboxes: SandboxProvider,
        *,
        play_script: PlayScript = play_script,
        on_rejected: OnTask = lambda _: None,
        retries: int = 2,
        known: Iterable[DomainFinding] = (),
    ) -> None:
        self._domains = domains
        self._sandboxes = sandboxes
        self._play_script = play_script
        self._on_rejected = on_rejected
        self._retries = retries
        self._verdicts = {
            task.task_hash: task.is_sound
            for finding in known
            for task in finding.tasks
            if task.status is not Status.INFRASTRUCTURE
        }
        self._under_way: dict[str, asyncio.Lock] = {}
        self._findings: dict[str, list[TaskFinding]] = {}

    async def admit(self, task: Task) -> bool:
        """True where the task is sound.

        Raises: InfrastructureError where the check was spoilt; UserError, as `check_domain`.
        """
        key = task.content_hash
        if key in self._verdicts:
            return self._verdicts[key]
        lock = self._under_way.setdefault(key, asyncio.Lock())
        try:
            async with lock:  # a caller who is cancelled leaves the check to the next in line
                if key not in self._verdicts:
                    self._verdicts[key] = await self._check(task)
        finally:
            self._under_way.pop(key, None)
        return self._verdicts[key]

    @property
    def findings(self) -> tuple[DomainFinding, ...]:
        """What was checked here, by domain: counts, cost in environments, and the rejected."""
        return tuple(DomainFinding(name, tuple(tasks)) for name, tasks in self._findings.items())

    async def _check(self, task: Task) -> bool:
        assert task.domain in self._domains, f"the gate does not know domain {task.domain!r}"
        finding = await check_task(
            self._domains[task.domain],
            task,
            self._sandboxes,
            play_script=self._play_script,
            retries=self._retries,
        )
        self._findings.setdefault(task.domain, []).append(finding)
        if finding.status is Status.INFRASTRUCTURE:
            raise InfrastructureError(f"the check was spoilt by {finding.reason}")
        if not finding.is_sound:
            self._on_rejected(finding)
        return finding.is_sound


@dataclass(frozen=True, slots=True)
class _Trial:
    """What one script earned; `is_spoilt` where infrastructure failed every time."""

    reward: float | None = None
    solved: bool = False
    outcome: str = ""
    error: str = ""
    is_spoilt: bool = False
    environments: int = 0


async def _run_trial(
    domain: Domain,
    task: Task,
    sandboxes: SandboxProvider,
    make_script: Callable[[], Script],
    play_script: PlayScript,
    retries: int,
) -> _Trial:
    """Play a script until infrastructure lets it end, each time in a fresh environment."""
    error = ""
    for attempt in range(1, retries + 2):
        try:
            environment = domain.make_environment(task, sandboxes)
            episode = await play_script(task, environment, make_script())
        except InfrastructureError as failure:
            error = f"{type(failure).__name__}: {failure}"
            continue
        except UserError:
            raise
        except Exception as failure:  # the boundary to a domain's code: its crash is a finding
            return _Trial(
                error=f"the domain crashed: {type(failure).__name__}: {failure}",
                environments=attempt,
            )
        if episode.outcome is Outcome.INVALID:
            error = episode.error
            continue
        return _Trial(
            reward=episode.reward,
            solved=episode.outcome is Outcome.SOLVED,
            outcome=_describe_end(episode),
            environments=attempt,
        )
    return _Trial(error=error, is_spoilt=True, environments=retries + 1)


def _judge_reference(trial: _Trial) -> str:
    if trial.solved and trial.reward == FULL_REWARD:
        return ""
    return f"the reference solution earned {trial.reward:g}, expected 1 ({trial.outcome})"


def _judge_noop(trial: _Trial) -> str:
    if not trial.solved and trial.reward == 0.0:
        return ""
    return f"doing nothing earned {trial.reward:g}, expected 0 ({trial.outcome})"


def _describe_end(episode: Episode) -> str:
    """How it ended: the error, the verdict's components and the last tool result, as evidence."""
    parts = [episode.outcome.value, episode.error]
    parts += [f"{name} {value:g}" for name, value in episode.components.items()]
    if episode.events:
        parts.append(f"last result {episode.events[-1].result!r}")
    return "; ".join(part for part in parts if part)


def _describe_first(tasks: Iterable[TaskFinding], status: Status) -> str:
    first = next(t for t in tasks if t.status is status)
    return f"{first.stage} seed {first.seed}: {first.reason}"


def _shorten(text: str) -> str:
    return text if len(text) <= EVIDENCE_CHARACTERS else text[: EVIDENCE_CHARACTERS - 1] + "…"
