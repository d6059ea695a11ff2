import asyncio
import dataclasses
import json
from dataclasses import dataclass, field

import pytest

from limosa.agent.loop import run_episode
from limosa.agent.policies import ScriptBudget, ScriptPolicy
from limosa.base.errors import InfrastructureError, SandboxError, UserError, VerifierError
from limosa.base.interfaces import Verdict
from limosa.base.messages import Message, ToolCall
from limosa.base.task import Limits, Task, make_seed
from limosa.base.testing import FakeEnvironment, FakeProvider
from limosa.domains.table import load_domain
from limosa.quality.finding import DomainFinding, Status, TaskFinding
from limosa.quality.gate import TaskGate, apply_gate, check_domain, make_gate_tasks
from limosa.sandbox.bubblewrap import BubblewrapProvider


@dataclass
class EchoDomain:
    """Echo a text, then answer with it. A subclass breaks one thing."""

    name: str = "echo"
    stages: tuple[str, ...] = ("easy", "hard")
    image: str | None = None
    environments: list[FakeEnvironment] = field(default_factory=list)

    def make_task(self, stage, seed):
        return Task(self.name, stage, seed, "echo it", {"answer": f"word{seed}"})

    def make_environment(self, task, sandboxes):
        self.environments.append(FakeEnvironment(task, self.make_hooks(task)))
        return self.environments[-1]

    def make_hooks(self, task):
        return {}

    def play_reference(self, task):
        word = task.data["answer"]
        results = yield Message("assistant", "", (ToolCall("echo", {"text": word}),))
        yield Message("assistant", results[0].content)

    def play_novice(self, task, rng):
        return self.play_reference(task)


class WrongReference(EchoDomain):
    def play_reference(self, task):
        yield Message("assistant", "wrong" if task.seed % 2 else task.data["answer"])


class CrashingReference(EchoDomain):
    def play_reference(self, task):
        raise KeyError("missing")
        yield


class Generous(EchoDomain):
    """Pays for nothing; `reward` below 1 is partial credit."""

    reward = 1.0

    def make_environment(self, task, sandboxes):
        environment = super().make_environment(task, sandboxes)
        judge = environment.verify

        class Paying(FakeEnvironment):
            async def verify(self, answer):
                if answer:
                    return await judge(answer)
                return Verdict(Generous.reward == 1.0, Generous.reward)

        return Paying(task)


def fail_times(count, error):
    left = [count]

    async def hook():
        if left[0] > 0:
            left[0] -= 1
            raise error

    return hook


@dataclass
class FlakyBox(EchoDomain):
    """The first two starts of the domain fail."""

    def __post_init__(self):
        self.hook = fail_times(2, SandboxError("the box is dead"))

    def make_hooks(self, task):
        return {"start": self.hook}


class DeadVerifier(EchoDomain):
    def make_hooks(self, task):
        return {"verify": fail_times(100, VerifierError("the verifier crashed"))}


class UnknownImage(EchoDomain):
    def make_hooks(self, task):
        return {"start": fail_times(1, UserError("unknown image 'x'", hint="known: fake"))}


async def check(domain, count=2, **options):
    tasks = make_gate_tasks(domain.make_task, domain.stages, count)
    return await check_domain(domain, tasks, FakeProvider(), jobs=2, **options)


async def test_a_sound_domain_passes_with_two_fresh_environments_a_task():
    domain, seen = EchoDomain(), []
    finding = await check(domain, on_progress=seen.append)
    assert [t.status for t in finding.tasks] == [Status.SOUND] * 4
    assert [(t.stage, t.seed) for t in finding.tasks] == [
        (stage, make_seed("train", index)) for stage in domain.stages for index in range(2)
    ]
    assert all((t.reference_reward, t.noop_reward) == (1.0, 0.0) for t in finding.tasks)
    assert sorted(t.task_hash for t in seen) == sorted(t.task_hash for t in finding.tasks)
    assert len(domain.environments) == 8
    assert all(e.is_started and e.closes == 1 for e in domain.environments)
    assert finding.to_json()["environments"] == 8
    apply_gate([finding], max_unsound_ratio=0.0)


async def test_a_reference_that_fails_is_left_out_with_evidence():
    domain = WrongReference()
    finding = await check(domain)
    assert [t.seed for t in finding.rejected] == [make_seed("train", 1)] * 2
    bad = finding.rejected[0]
    assert bad.status is Status.UNSOUND
    assert bad.task_hash == domain.make_task("easy", bad.seed).content_hash
    assert (bad.reference_reward, bad.noop_reward) == (0.0, None)
    assert bad.reason == "the reference solution earned 0, expected 1 (failed; right 0)"
    assert finding.unsound_ratio == 0.5
    apply_gate([finding], max_unsound_ratio=0.5)
    with pytest.raises(UserError, match=r"50% of the tasks checked are unsound, at most 49%"):
        apply_gate([finding], max_unsound_ratio=0.49)


@pytest.mark.parametrize("reward", [1.0, 0.1])
async def test_paying_for_nothing_is_unsound_even_in_part(monkeypatch, reward):
    monkeypatch.setattr(Generous, "reward", reward)  # the domain's own setting, not ours
    finding = await check(Generous())
    assert [t.status for t in finding.tasks] == [Status.UNSOUND] * 4
    assert finding.tasks[0].noop_reward == reward
    assert finding.tasks[0].reason.startswith(f"doing nothing earned {reward:g}, expected 0")
    with pytest.raises(UserError, match=r"'echo' has no sound task among the 4.*\n.*hint"):
        apply_gate([finding], max_unsound_ratio=1.0)


async def test_a_reference_that_raises_is_a_finding_not_a_crash():
    finding = await check(CrashingReference())
    assert finding.tasks[0].status is Status.UNSOUND
    assert finding.tasks[0].reason == "the domain crashed: KeyError: 'missing'"


async def test_infrastructure_is_tried_again():
    domain = FlakyBox()
    finding = await check(domain, count=1)
    assert [t.status for t in finding.tasks] == [Status.SOUND] * 2
    assert sum(t.environments for t in finding.tasks) == len(domain.environments) == 6


async def test_lasting_infrastructure_failure_is_reported_as_such():
    finding = await check(DeadVerifier(), count=1, retries=1)
    assert [t.status for t in finding.tasks] == [Status.INFRASTRUCTURE] * 2
    assert finding.tasks[0].environments == 2
    assert "the verifier crashed" in finding.tasks[0].reason
    assert finding.unsound_ratio == 0.0
    counts = finding.to_json()
    assert (counts["sound"], counts["unsound"], counts["infrastructure"]) == (0, 0, 2)
    with pytest.raises(InfrastructureError, match="none of the 2 tasks could be checked") as info:
        apply_gate([finding], max_unsound_ratio=1.0)
    assert not isinstance(info.value, UserError)
    assert finding.tasks[-1].reason in str(info.value)
    assert "hint" not in str(info.value)


class HardIsBroken(EchoDomain):
    def play_reference(self, task):
        if task.stage == "hard":
            yield Message("assistant", "wrong")
        else:
            yield from super().play_reference(task)


class HardIsDead(EchoDomain):
    def make_hooks(self, task):
        return (
            {"verify": fail_times(9, VerifierError("it crashed"))} if task.stage == "hard" else {}
        )


async def test_a_stage_without_a_sound_task_stops_the_run():
    finding = await check(HardIsBroken())
    assert finding.unsound_ratio == 0.5
    with pytest.raises(UserError, match=r"stage 'hard' of domain 'echo' has no sound.*hard seed 0"):
        apply_gate([finding], max_unsound_ratio=1.0)
    with pytest.raises(InfrastructureError, match=r"stage 'hard' of domain 'echo': none.*crashed"):
        apply_gate([await check(HardIsDead())], max_unsound_ratio=1.0)


async def test_a_reference_that_infrastructure_hides_in_part_is_judged_by_what_was_seen():
    broken, dead = await check(HardIsBroken()), await check(HardIsDead())
    hard = [next(t for t in f.tasks if t.stage == "hard") for f in (dead, broken)]
    with pytest.raises(UserError, match=r"no sound task among the 2.*hard seed 0: the reference"):
        apply_gate([DomainFinding("echo", tuple(hard))], max_unsound_ratio=1.0)


class LetterChat:
    """Counts as a chat does, a token a letter; no ids are read."""

    def encode_prompt(self, messages, tools):
        return [0] * 100

    def encode_results(self, results, *, stopped):
        return [0] * sum(len(r.content) for r in results)

    def encode_reply(self, message):
        return [0] * (len(message.content) + 20 * len(message.tool_calls) + 1)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_total_tokens": 132}, ""),  # 100, a call's 21, a result's 5, an answer's 6
        ({"max_total_tokens": 131}, "it needs 132 tokens, at most 131 fit"),
        ({"max_new_tokens": 20}, ""),
        ({"max_new_tokens": 19}, "it needs 20 tokens for one reply, at most 19 fit"),
        ({"max_turns": 1}, "no answer within 1 turns"),
    ],
)
async def test_a_reference_that_a_model_has_no_room_for_is_unsound(limits, reason):
    async def play(task, environment, script):
        budget = ScriptBudget(LetterChat(), task, context_window=1000)
        return await run_episode(task, environment, ScriptPolicy(script, budget))

    domain = EchoDomain()
    task = dataclasses.replace(domain.make_task("easy", 1), limits=Limits(**limits))
    finding = await check_domain(domain, [task], FakeProvider(), jobs=1, play_script=play)
    assert finding.tasks[0].is_sound == (not reason)
    assert reason in finding.tasks[0].reason
    gate = TaskGate({"echo": domain}, FakeProvider(), play_script=play)
    assert await gate.admit(task) == (not reason)


async def test_a_user_error_stops_the_check_as_it_is():
    with pytest.raises(UserError, match="unknown image"):
        await check(UnknownImage())


async def test_a_domain_without_tasks_stops_the_run():
    with pytest.raises(UserError, match="no task was given"):
        apply_gate([DomainFinding("echo", ())], max_unsound_ratio=1.0)


async def test_findings_are_json_and_the_evidence_is_bounded():
    class Chatty(EchoDomain):
        def play_reference(self, task):
            raise ValueError("x" * 10_000)
            yield

    value = json.loads(json.dumps((await check(Chatty(), count=1)).to_json()))
    assert len(value["rejected"]) == 2
    assert len(value["rejected"][0]["reason"]) == 600
    assert value["rejected"][0]["reason"].endswith("…")
    assert value["stages"]["easy"] == {"sound": 0, "unsound": 1, "infrastructure": 0}


def test_the_sample_begins_where_the_run_does():
    tasks = make_gate_tasks(EchoDomain().make_task, ["easy", "hard"], 2, first_index=40)
    assert [(t.stage, t.seed) for t in tasks] == [
        ("easy", make_seed("train", 40)),
        ("easy", make_seed("train", 41)),
        ("hard", make_seed("train", 40)),
        ("hard", make_seed("train", 41)),
    ]


async def test_the_task_gate_checks_each_task_once_and_reports_the_rejected():
    domain, rejected = WrongReference(), []
    gate = TaskGate({"echo": domain}, FakeProvider(), on_rejected=rejected.append)
    good, bad = domain.make_task("easy", 2), domain.make_task("easy", 3)
    assert await asyncio.gather(*[gate.admit(good) for _ in range(5)]) == [True] * 5
    assert [await gate.admit(bad), await gate.admit(bad)] == [False, False]
    assert len(domain.environments) == 2 + 1
    assert [f.seed for f in rejected] == [3]
    (finding,) = gate.findings
    assert [(t.seed, t.status) for t in finding.tasks] == [(2, Status.SOUND), (3, Status.UNSOUND)]


async def test_the_task_gate_trusts_what_was_proven_before_the_run():
    domain = WrongReference()
    proven = await check(domain)
    before = len(domain.environments)
    gate = TaskGate({"echo": domain}, FakeProvider(), known=[proven])
    verdicts = [await gate.admit(domain.make_task("easy", make_seed("train", i))) for i in (0, 1)]
    assert verdicts == [True, False]
    assert len(domain.environments) == before
    assert gate.findings == ()


async def test_a_spoilt_check_is_no_verdict_and_is_not_kept():
    domain = FlakyBox()
    rejected = []
    gate = TaskGate({"echo": domain}, FakeProvider(), retries=0, on_rejected=rejected.append)
    task = domain.make_task("easy", 1)
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="spoilt by SandboxError: the box is dead"):
            await gate.admit(task)
    assert [await gate.admit(task) for _ in range(2)] == [True, True]
    assert rejected == []
    (finding,) = gate.findings
    assert [t.status for t in finding.tasks] == [
        Status.INFRASTRUCTURE,
        Status.INFRASTRUCTURE,
        Status.SOUND,
    ]


async def test_a_cancelled_caller_leaves_the_check_to_the_next():
    domain = EchoDomain()
    gate = TaskGate({"echo": domain}, FakeProvider())
    task = domain.make_task("easy", 1)
    first, second = (asyncio.create_task(gate.admit(task)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is True
    assert first.cancelled()
    assert all(e.closes == 1 for e in domain.environments if e.is_started)


async def test_the_real_code_domain_is_sound_in_real_boxes():
    domain = load_domain("code_engineering")
    sandboxes = BubblewrapProvider(max_boxes=4)
    try:
        tasks = make_gate_tasks(domain.make_task, domain.stages, 1)
        finding = await check_domain(domain, tasks, sandboxes, jobs=2)
    finally:
        await sandboxes.close()
    assert finding.rejected == ()
    assert [t.stage for t in finding.tasks] == list(domain.stages)
    apply_gate([finding], max_unsound_ratio=0.0)


def test_ratios_leave_out_what_could_not_be_checked():
    def make(status):
        return TaskFinding("d", "s", 0, "h", status, None, None, "", 1, 0.0)

    finding = DomainFinding(
        "d", (make(Status.SOUND), make(Status.UNSOUND), *[make(Status.INFRASTRUCTURE)] * 8)
    )
    assert finding.unsound_ratio == 0.5
    assert len(finding.rejected) == 9
