import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from limosa.base.config import DomainConfig, RlConfig
from limosa.base.errors import LearnerError, UserError
from limosa.base.interfaces import StepStats
from limosa.models.weights import checksum, load_model
from limosa.training.learner import RlLearner
from limosa.training.process import LearnerProcess, LearnerSpec
from limosa.training.rl import push_weights, run_rl

RL = RlConfig(learning_rate=1e-2)
DOMAINS = (DomainConfig(name="maze"),)


def make_spec(folder, **changes):
    return LearnerSpec(**{"model": str(folder), "rl": RL, "domains": DOMAINS, **changes})


class Sink:
    """Installs into tensors of its own, as an engine does."""

    def __init__(self, *, loses=False):
        self.policy_version, self.state, self.loses = 0, {}, loses

    async def update_weights(self, weights, version):
        self.state = {name: t.clone() for name, t in weights.items()}
        if self.loses:
            self.state.popitem()
        self.policy_version = version
        return checksum(self.state)


class Source:
    """Groups in order, and the versions that were announced."""

    def __init__(self, batches):
        self.batches, self.versions = list(batches), []

    async def next_groups(self):
        return self.batches.pop(0)

    def set_version(self, version):
        self.versions.append(version)


async def test_child_gives_the_weights_of_the_learner_in_this_process(
    tiny_folder, play_group, tmp_path
):
    model = load_model(tiny_folder)
    batches = [[play_group(model, i)] for i in range(2)]
    child, first = await LearnerProcess.start(make_spec(tiny_folder))
    seen, sink, source = [], Sink(), Source(batches)

    async def on_step(step, stats, groups):
        seen.append((step, stats.checksum, len(groups)))

    try:
        assert first.checksum == checksum(model.state_dict())
        await run_rl(source, child, [sink], steps=2, on_step=on_step, should_stop=lambda: False)
        await child.save(str(tmp_path / "checkpoint"))
    finally:
        await child.close()
    local = RlLearner(model, RL, DOMAINS, tokenizer_from=None)
    expected = [local.step(batch).checksum for batch in batches]
    assert seen == [(1, expected[0], 1), (2, expected[1], 1)]
    assert source.versions == [1, 2]
    assert checksum(sink.state) == expected[1]
    assert checksum(load_model(tmp_path / "checkpoint").state_dict()) == expected[1]


async def test_a_killed_child_ends_the_waiting_step_at_once(tiny_folder, play_group):
    group = play_group(load_model(tiny_folder), 1, size=2)
    child, _ = await LearnerProcess.start(make_spec(tiny_folder))
    try:
        step = asyncio.create_task(child.step([group] * 4000))
        await asyncio.sleep(0.3)
        assert not step.done()
        killed = time.monotonic()
        os.kill(child.process_id, signal.SIGKILL)
        with pytest.raises(LearnerError, match="exit code -9"):
            await step
        assert time.monotonic() - killed < 2.0
        with pytest.raises(LearnerError):
            await child.step([group])
    finally:
        await child.close()
    await child.close()
    with pytest.raises(LearnerError, match="closed"):
        await child.step([group])


async def test_failures_of_the_child_reach_the_caller(tiny_folder, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        await LearnerProcess.start(make_spec(tmp_path / "nowhere"))
    child, _ = await LearnerProcess.start(make_spec(tiny_folder))
    try:
        os.kill(child.process_id, signal.SIGINT)
        with pytest.raises(LearnerError, match="at least one trajectory"):
            await child.step([])
    finally:
        await child.close()


async def test_weights_that_do_not_arrive_are_an_error(tiny_model):
    weights = tiny_model.state_dict()
    stats = StepStats(3, checksum(weights), weights, {})
    await push_weights(stats, [Sink(), Sink()])
    with pytest.raises(LearnerError, match="version 3 did not arrive"):
        await push_weights(stats, [Sink(), Sink(loses=True)])


async def test_the_loop_stops_between_updates(tiny_model):
    async def on_step(step, stats, groups):
        raise AssertionError("no update was due")

    result = await run_rl(
        Source([]), None, [], steps=9, first_step=4, on_step=on_step, should_stop=lambda: True
    )
    assert (result.steps, result.stopped) == (4, True)


PARENT = """
import asyncio, os, signal, sys, threading, time
from limosa.base.config import DomainConfig, RlConfig
from limosa.training.process import LearnerProcess, LearnerSpec

kept = []

def pester():
    for _ in range(100):
        os.killpg(0, signal.SIGINT)
        os.killpg(0, signal.SIGTERM)
        time.sleep(0.02)

async def main(folder, what):
    if what == "pester":
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        pesterer = threading.Thread(target=pester)
        pesterer.start()
    spec = LearnerSpec(folder, RlConfig(), (DomainConfig(name="maze"),))
    learner, _ = await LearnerProcess.start(spec)
    kept.append(learner)
    print(learner.process_id, flush=True)
    if what == "pester":
        pesterer.join()
        await learner.save(folder + "-saved")
        await learner.close()
        print("closed", flush=True)
    if what == "sleep":
        time.sleep(60)

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def start_parent(tiny_folder, tmp_path):
    """Starts a program that has a learner, with a group and a folder for temporary files."""
    started = []

    def start(what):
        script = tmp_path / "parent.py"
        script.write_text(PARENT, encoding="utf-8")
        (tmp_path / "temporary").mkdir()
        parent = subprocess.Popen(
            [sys.executable, str(script), str(tiny_folder), what],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        )
        started.append(parent)
        assert parent.stdout is not None
        return parent, int(parent.stdout.readline())

    yield start
    for parent in started:
        parent.kill()
        parent.communicate()


def test_a_child_dies_with_its_parent_and_leaves_no_file(start_parent, tmp_path):
    parent, child = start_parent("sleep")
    assert is_running(child)
    parent.kill()
    wait_gone(child)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_signals_to_the_whole_group_are_the_parents_alone(start_parent):
    parent, child = start_parent("pester")
    out, _ = parent.communicate(timeout=30)
    assert (parent.returncode, out) == (0, "closed\n")
    wait_gone(child)


def test_a_parent_that_ends_without_closing_does_not_hang(start_parent):
    parent, child = start_parent("end")
    assert parent.wait(timeout=10) == 0
    wait_gone(child)


def wait_gone(process_id):
    deadline = time.monotonic() + 5.0
    while is_running(process_id) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(process_id)


def is_running(process_id):
    """False for a zombie too: whoever adopts it may be slow to bury it."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
