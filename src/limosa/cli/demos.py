"""`limosa demos`: scripted demonstrations, played in real environments, as conversations.

The same loop plays them that plays a model. Neighbours: the scripts are each domain's own;
`limosa sft` and `limosa models new` read what is written here. No torch. Leaves out filtering:
failed demonstrations are written too, marked as such.
"""

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import click

from limosa.agent.loop import Episode, run_episode
from limosa.agent.policies import ScriptPolicy
from limosa.base.errors import InfrastructureError, UserError
from limosa.base.interfaces import Domain, SandboxProvider, Script
from limosa.base.messages import Message, ToolSpec
from limosa.base.task import make_seed
from limosa.base.trajectory import Outcome
from limosa.base.yaml_file import name_nearest
from limosa.cli.outputs import require_file
from limosa.cli.progress import Reporter
from limosa.domains.table import load_domain
from limosa.sandbox.bubblewrap import BubblewrapProvider

ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Demo:
    """One demonstration to play: the `index`-th task of a stage."""

    domain: str
    stage: str
    index: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """Who demonstrates, and the seed of the slips; `jobs` episodes run at once."""

    demonstrator: str
    seed: int
    jobs: int


@click.command(short_help="Play demonstrations and write them as conversations.")
@click.option("--domain", "counts", multiple=True, required=True, metavar="NAME=COUNT")
@click.option("--stages", "stages", multiple=True, metavar="NAME=STAGE,...", help="Default: all.")
@click.option(
    "--demonstrator",
    type=click.Choice(["novice", "reference"]),
    default="novice",
    show_default=True,
    help="The novice slips as each domain says; the reference solves every task.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the novice's slips.")
@click.option("--first", type=click.IntRange(min=0), default=0, help="Index of the first task.")
@click.option("--jobs", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A JSONL file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def demos(
    counts: Sequence[str],
    stages: Sequence[str],
    demonstrator: str,
    seed: int,
    first: int,
    jobs: int,
    out: Path,
    as_json: bool,
) -> None:
    """Play demonstrations of domains and write them as conversations, one JSON object a line.

    COUNT is shared evenly by the domain's stages. Tasks come from seeds that neither training nor
    evaluation uses. The same options write the same file.

    \b
    Examples:
      limosa demos --domain knowledge_research=100 --out demos.jsonl
      limosa demos --domain code_engineering=600 --domain long_horizon_agent=600 --jobs 16 --out demos.jsonl
      limosa demos --domain code_engineering=50 --stages code_engineering=easy,medium --out easy.jsonl
    """  # noqa: E501  (an example stands on one line)
    plan = make_plan(counts, stages, first)
    require_file(out, "--out")
    reporter = Reporter()
    with reporter.live():
        summary = asyncio.run(_write(plan, Recipe(demonstrator, seed, jobs), out, reporter))
    if as_json:
        click.echo(json.dumps(summary))
        return
    for name, row in summary["domains"].items():
        click.echo(f"{name}: {row['solved']} of {row['n']} solved ({row['success_ratio']:.0%})")
    click.echo(f"{out}: {len(plan)} demonstrations in {summary['wall_s']:.0f} s")


def make_plan(counts: Sequence[str], stages: Sequence[str], first: int) -> list[Demo]:
    """Which demonstrations, domains in the order given, stages by turns.

    Raises: UserError for an option that is not NAME=VALUE, an unknown name or a repeated one.
    """
    chosen = _read_pairs("--stages", stages, "NAME=STAGE,STAGE")
    plan = []
    for name, text in _read_pairs("--domain", counts, "NAME=COUNT").items():
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            hint = "give a whole number above 0, as in --domain knowledge_research=100"
            raise UserError(f"--domain {name}={text}: the count is {text!r}", hint=hint)
        domain = load_domain(name)
        names = chosen.pop(name).split(",") if name in chosen else list(domain.stages)
        for stage in names:
            if stage not in domain.stages:
                hint = f"stages of {name}: {', '.join(domain.stages)}"
                hint += name_nearest(stage, domain.stages)
                raise UserError(f"--stages {name}: the stage {stage!r} is not known", hint=hint)
        for number in range(int(text)):
            turn, place = divmod(number, len(names))
            plan.append(Demo(name, names[place], first + turn))
    if chosen:
        hint = "name only domains that --domain names"
        raise UserError(f"--stages: no demonstrations of {', '.join(chosen)}", hint=hint)
    return plan


async def play_demo(demo: Demo, recipe: Recipe, sandboxes: SandboxProvider) -> dict[str, Any]:
    """Play one demonstration, again where infrastructure failed, and give its line.

    Raises: InfrastructureError where every attempt failed.
    """
    domain = load_domain(demo.domain)
    task = domain.make_task(demo.stage, make_seed("demo", demo.index))
    for _ in range(ATTEMPTS):
        environment = domain.make_environment(task, sandboxes)
        policy = ScriptPolicy(_make_script(domain, demo, recipe))
        episode = await run_episode(task, environment, policy)
        # A script does not ponder: where time ran out, the machine was at fault.
        if episode.outcome not in (Outcome.INVALID, Outcome.TIMED_OUT):
            return _to_line(demo, task.seed, episode, environment.tools)
    what = f"{demo.domain}/{demo.stage} task {demo.index}: {ATTEMPTS} attempts failed"
    raise InfrastructureError(f"{what}; the last: {episode.error}")


def _make_script(domain: Domain, demo: Demo, recipe: Recipe) -> Script:
    task = domain.make_task(demo.stage, make_seed("demo", demo.index))
    if recipe.demonstrator == "reference":
        return domain.play_reference(task)
    rng = Random(f"{recipe.seed}/{demo.domain}/{demo.stage}/{demo.index}")
    return domain.play_novice(task, rng)


def _to_line(demo: Demo, seed: int, episode: Episode, tools: Sequence[ToolSpec]) -> dict[str, Any]:
    return {
        "domain": demo.domain,
        "stage": demo.stage,
        "seed": seed,
        "solved": episode.outcome is Outcome.SOLVED,
        "tools": [asdict(tool) for tool in tools],
        "messages": [_to_json(message) for message in episode.messages],
    }


def _to_json(message: Message) -> dict[str, Any]:
    value: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        value["tool_calls"] = [
            {"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls
        ]
    return value


async def _play_in_order(
    plan: Sequence[Demo], recipe: Recipe, sandboxes: SandboxProvider
) -> AsyncIterator[dict[str, Any]]:
    """Lines in the order of the plan, while `jobs` later ones are being played."""
    waiting: Iterator[Demo] = iter(plan)
    playing: deque[asyncio.Task[dict[str, Any]]] = deque()
    try:
        for demo in waiting:
            playing.append(asyncio.create_task(play_demo(demo, recipe, sandboxes)))
            if len(playing) >= recipe.jobs:
                yield await playing[0]
                playing.popleft()
        while playing:
            yield await playing[0]
            playing.popleft()
    finally:
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


async def _write(
    plan: Sequence[Demo], recipe: Recipe, out: Path, reporter: Reporter
) -> dict[str, Any]:
    """Play the plan and write `out` at once when all is there; the summary for `--json`."""
    started_s = time.monotonic()
    played: Counter[tuple[str, str]] = Counter()
    solved: Counter[tuple[str, str]] = Counter()
    part = out.with_name(f"{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lines = part.open("w", encoding="utf-8")
    except OSError as error:
        hint = "give --out a path of a file in a folder that can be written"
        raise UserError(f"cannot write {str(out)!r}: {error}", hint=hint) from None
    sandboxes = BubblewrapProvider(max_boxes=recipe.jobs)
    try:
        with lines, reporter.phase("demonstrations", len(plan), "episodes") as phase:
            async for line in _play_in_order(plan, recipe, sandboxes):
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")
                played[line["domain"], line["stage"]] += 1
                solved[line["domain"], line["stage"]] += line["solved"]
                phase.advance(detail=f"{sum(solved.values()) / sum(played.values()):.0%} solved")
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
        await sandboxes.close()
    return {
        "out": str(out),
        "demonstrations": len(plan),
        "wall_s": time.monotonic() - started_s,
        "domains": _summarise(played, solved),
    }


def _summarise(
    played: Mapping[tuple[str, str], int], solved: Mapping[tuple[str, str], int]
) -> dict[str, Any]:
    domains: dict[str, Any] = {}
    for (name, stage), n in played.items():
        domain = domains.setdefault(name, {"n": 0, "solved": 0, "success_ratio": 0.0, "stages": {}})
        count = solved[name, stage]
        domain["stages"][stage] = {"n": n, "solved": count, "success_ratio": count / n}
        domain["n"] += n
        domain["solved"] += count
        domain["success_ratio"] = domain["solved"] / domain["n"]
    return domains


def _read_pairs(option: str, texts: Sequence[str], form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise UserError(f"{option} is {text!r}, expected {form}", hint=f"write {option} {form}")
        if name in pairs:
            raise UserError(f"{option} names {name!r} twice", hint="give each domain once")
        pairs[name] = value
    return pairs
