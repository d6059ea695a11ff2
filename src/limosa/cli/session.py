"""Everything live in a training run, wired together: domains, sandboxes, engine, one episode.

`cli/phases.py` drives it through the phases. Holds no policy of its own: who plays which task, and
when, is decided in `rollout/` and `evaluation/`.
"""

import dataclasses
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from limosa.agent.loop import Episode, run_episode
from limosa.agent.policies import ModelPolicy, ScriptBudget, ScriptPolicy
from limosa.agent.record import to_trajectory
from limosa.base.config import DomainConfig, RunConfig
from limosa.base.interfaces import Chat, Domain, Environment, Script
from limosa.base.task import Task
from limosa.base.trajectory import Trajectory
from limosa.cli.limits import MAX_LIVE_EPISODES
from limosa.cli.progress import Reporter
from limosa.domains.table import load_domain
from limosa.inference.engine import Engine
from limosa.models.weights import checksum, load_model
from limosa.sandbox.bubblewrap import BubblewrapProvider
from limosa.store.run import RunFolder
from limosa.tokens.chat import load_chat


@dataclass(frozen=True, slots=True)
class Session:
    """A run's live parts; `start_checksum` names the weights that the engine began with."""

    config: RunConfig
    folder: RunFolder
    reporter: Reporter
    domains: Mapping[str, Domain]
    sandboxes: BubblewrapProvider
    chat: Chat
    engine: Engine
    start_checksum: str
    context_window: int

    @property
    def max_live_episodes(self) -> int:
        """Episodes under way at once; `dynamic` leaves it to admission up to the engine's slots.

        No more than there are boxes where code runs: waiting for a box would count as a failure.
        """
        batch = self.config.rl.rollout_batch
        asked = MAX_LIVE_EPISODES if batch == "dynamic" else batch
        return self.bound_by_boxes(asked)

    def bound_by_boxes(self, count: int) -> int:
        """`count`, or the number of boxes where a domain runs code and there are fewer."""
        if all(domain.image is None for domain in self.domains.values()):
            return count
        return min(count, self.config.sandbox.max_boxes)

    def get_stages(self, domain: str) -> tuple[str, ...]:
        """The stages that the run file names, or all of the domain's."""
        settings = self._get_settings(domain)
        return settings.curriculum or tuple(self.domains[domain].stages)

    def make_task(self, domain: str, stage: str, seed: int) -> Task:
        """The task of a seed, under the run file's limits."""
        return self.bound_task(self.domains[domain].make_task(stage, seed))

    def bound_task(self, task: Task) -> Task:
        """A task under the run file's limits, which may only tighten its own."""
        limits, turns = task.limits, task.limits.max_turns
        settings = self._get_settings(task.domain)
        if settings.max_steps is not None:
            turns = min(turns, settings.max_steps)
        bounded = dataclasses.replace(
            limits,
            max_turns=turns,
            max_new_tokens=min(limits.max_new_tokens, self.config.rl.max_new_tokens),
            max_total_tokens=min(limits.max_total_tokens, self.context_window),
        )
        return dataclasses.replace(task, limits=bounded)

    async def play(
        self, task: Task, group: str, member: int, attempt: int, *, temperature: float
    ) -> Trajectory:
        """One episode of a task with the engine's present weights."""
        conversation = f"{group}/{member}/{attempt}"
        policy = ModelPolicy(
            self.engine,
            self.chat,
            task,
            conversation=conversation,
            group=group,
            temperature=temperature,
            seed=derive_seed(self.config.seed, conversation),
            context_window=self.context_window,
        )
        environment = self.domains[task.domain].make_environment(task, self.sandboxes)
        episode = await run_episode(task, environment, policy)
        return to_trajectory(
            episode,
            policy,
            task,
            trajectory_id=conversation,
            group_id=group,
        )

    async def play_script(self, task: Task, environment: Environment, script: Script) -> Episode:
        """Play a script for the quality gate, which must fit into the tokens that a model has."""
        budget = ScriptBudget(self.chat, task, context_window=self.context_window)
        return await run_episode(task, environment, ScriptPolicy(script, budget))

    def _get_settings(self, domain: str) -> DomainConfig:
        return next(d for d in self.config.domains if d.name == domain)


@asynccontextmanager
async def open_session(
    config: RunConfig, folder: RunFolder, reporter: Reporter, *, model: Path, version: int
) -> AsyncIterator[Session]:
    """Load the model and start what a run needs; everything is ended on the way out.

    `model` is a Hugging Face folder and `version` the policy version of its weights.
    """
    sandboxes = BubblewrapProvider(max_boxes=config.sandbox.max_boxes)
    domains = {}
    for settings in config.domains:
        domain = load_domain(settings.name)
        if settings.env_image is not None and domain.image is not None:
            domain.image = settings.env_image
        domains[settings.name] = domain
    network = load_model(model)
    # A file may ask for a million tokens; a model that knows fewer positions sets the bound.
    window = min(config.rl.context_window, network.config.max_position_embeddings)
    start_checksum = checksum(network.state_dict())
    engine = Engine(
        network, max_sequences=MAX_LIVE_EPISODES, context_window=window, version=version
    )
    try:
        chat = load_chat(model)
        yield Session(
            config, folder, reporter, domains, sandboxes, chat, engine, start_checksum, window
        )
    finally:
        await engine.close()
        await sandboxes.close()


def derive_seed(seed: int, name: str) -> int:
    """A seed of 63 bits for a named thing of a run; independent of the order of events."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
