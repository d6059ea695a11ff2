"""The report of a run: before against after, from trajectories and step metrics to plain JSON.

`make_report` decides what is said, `evaluation/report.html` and `evaluation/plots.py` how it looks.
Neighbours: `cli/` collects the inputs and `store/` keeps the result. Model output is hostile: it
reaches the page only through the template's escaping.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import yaml

from limosa.base.trajectory import Outcome, Trajectory
from limosa.evaluation.metrics import count_outcomes, summarise
from limosa.evaluation.statistics import newcombe_interval
from limosa.store.journal import iterate_journal

Decode = Callable[[Sequence[int]], str]
Report = dict[str, Any]
OutcomeCounts = Mapping[str, Mapping[str, int]]

SAMPLE_CHARACTERS = 20_000


def make_report(
    *,
    name: str,
    config: Mapping[str, Any],
    wall_s: float,
    policy_version: int,
    checkpoint: str,
    before: Sequence[Trajectory],
    after: Sequence[Trajectory],
    train_outcomes: OutcomeCounts,
    steps: Sequence[Mapping[str, Any]],
    phases: Mapping[str, float],
    findings: Sequence[Mapping[str, Any]],
    decode: Decode,
) -> Report:
    """Everything that is said about a run, as JSON values; a number without a base is None.

    `before` and `after` are the two evaluations, `train_outcomes` counts training episodes by
    domain and outcome. Each of `steps` is one update: `step` and named scalars, of which
    `NAME/DOMAIN` (such as `reward/code_engineering`) belongs to a domain. `phases` maps a phase to
    its wall seconds, `findings` are the quality gate's, `decode` turns token ids into text.
    """
    domains = _list_domains(config, before, after, train_outcomes)
    counted = {
        "eval_before": _count_by_domain(before),
        "train": train_outcomes,
        "eval_after": _count_by_domain(after),
    }
    by_phase = {phase: _add_up(counts.values()) for phase, counts in counted.items()}
    total = _add_up(by_phase.values())
    return {
        "name": name,
        "wall_s": wall_s,
        "policy_version": policy_version,
        "checkpoint": checkpoint,
        "overall": {**_compare(before, after), "trajectories": total},
        "domains": {
            domain: {
                **_compare(_select(before, domain), _select(after, domain)),
                "trajectories": _add_up(c.get(domain, {}) for c in counted.values()),
                "stages": _compare_stages(_select(before, domain), _select(after, domain)),
            }
            for domain in domains
        },
        "trajectories": total,
        "trajectories_by_phase": by_phase,
        "curves": _make_curves(steps, domains),
        "phases": dict(phases),
        "quality": [dict(finding) for finding in findings],
        "samples": {
            domain: _pick_samples(_select(before, domain), _select(after, domain), decode)
            for domain in domains
        },
        "config": dict(config),
    }


def count_train_outcomes(run: Path) -> dict[str, dict[str, int]]:
    """Training episodes by domain and outcome, as a run's trajectory file tells them."""
    counts: dict[str, Counter[str]] = {}
    for line in iterate_journal(run / "trajectories.jsonl"):
        if line["phase"] == "train":
            counts.setdefault(line["domain"], Counter())[line["outcome"]] += 1
    return {domain: _add_up([counter]) for domain, counter in counts.items()}


def write_html(report: Report, path: Path) -> None:
    """Write the report as one self-contained page: no script, nothing loaded from elsewhere."""
    from limosa.evaluation import plots  # late: matplotlib costs most of a second

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        percent=_to_percent, points=_to_points, number=_to_number, duration=_to_duration
    )
    template = environment.from_string(
        files("limosa.evaluation").joinpath("report.html").read_text(encoding="utf-8")
    )
    text = template.render(
        report=report,
        figures=plots.draw(report),
        outcomes=[outcome.value for outcome in Outcome],
        config_text=yaml.safe_dump(report["config"], sort_keys=False, allow_unicode=True),
        series={name: index for index, name in enumerate(report["domains"])},
    )
    path.write_bytes(text.encode("utf-8", "replace"))  # a lone surrogate must not end the run


def write_picture(report: Report, path: Path) -> None:
    """Write the bars and curves as one PNG, for a README."""
    from limosa.evaluation import plots  # late: matplotlib costs most of a second

    plots.write_picture(report, path)


def _list_domains(
    config: Mapping[str, Any],
    before: Sequence[Trajectory],
    after: Sequence[Trajectory],
    train_outcomes: OutcomeCounts,
) -> list[str]:
    configured = [domain["name"] for domain in config.get("domains", ())]
    seen = [t.domain for t in (*before, *after)]
    return list(dict.fromkeys([*configured, *seen, *train_outcomes]))


def _select(trajectories: Sequence[Trajectory], domain: str) -> list[Trajectory]:
    return [t for t in trajectories if t.domain == domain]


def _count_by_domain(trajectories: Sequence[Trajectory]) -> dict[str, dict[str, int]]:
    domains = dict.fromkeys(t.domain for t in trajectories)
    return {d: count_outcomes(t.outcome for t in trajectories if t.domain == d) for d in domains}


def _add_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return {outcome.value: total[outcome.value] for outcome in Outcome}


def _compare(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> dict[str, Any]:
    """The change in success, and beside it how each evaluation went as a whole."""
    return {
        **_compare_success(before, after),
        "before": summarise(before).to_json(),
        "after": summarise(after).to_json(),
    }


def _compare_success(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> dict[str, Any]:
    """The change in success over the `n` tasks that have a valid episode in both evaluations.

    `unpaired` counts the tasks that lack one in either: on these the two would be compared over
    different tasks.
    """
    first, last = _by_task(before), _by_task(after)
    paired = first.keys() & last.keys()
    old = summarise(t for task, t in first.items() if task in paired)
    new = summarise(t for task, t in last.items() if task in paired)
    has_both = old.success is not None and new.success is not None
    played = {t.task_hash for t in (*before, *after)}
    return {
        "success_before": old.success,
        "success_after": new.success,
        "n": len(paired),
        "unpaired": len(played - paired),
        "ci_before": list(old.ci),
        "ci_after": list(new.ci),
        "change": (new.success or 0.0) - (old.success or 0.0) if has_both else None,
        "ci_change": list(newcombe_interval((old.solved, old.n), (new.solved, new.n))),
    }


def _by_task(trajectories: Sequence[Trajectory]) -> dict[str, Trajectory]:
    """The valid episode of each task; the last where there are several."""
    return {t.task_hash: t for t in trajectories if t.is_valid}


def _compare_stages(
    before: Sequence[Trajectory], after: Sequence[Trajectory]
) -> dict[str, dict[str, Any]]:
    return {
        stage: _compare_success(
            [t for t in before if t.stage == stage], [t for t in after if t.stage == stage]
        )
        for stage in dict.fromkeys(t.stage for t in (*before, *after))
    }


def _make_curves(steps: Sequence[Mapping[str, Any]], domains: Sequence[str]) -> dict[str, Any]:
    """Columns over the updates; a gap is None."""
    names = dict.fromkeys(
        key for step in steps for key, value in step.items() if _to_finite(value) is not None
    )
    names.pop("step", None)
    curves: dict[str, Any] = {
        "step": [step.get("step", index) for index, step in enumerate(steps, start=1)],
        "domains": {domain: {} for domain in domains},
        "learner": {},
    }
    for key in names:
        column = [_to_finite(step.get(key)) for step in steps]
        metric, _, domain = key.partition("/")
        if domain in curves["domains"]:
            curves["domains"][domain][metric] = column
        else:
            curves["learner"][key] = column
    return curves


def _to_finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _pick_samples(
    before: Sequence[Trajectory], after: Sequence[Trajectory], decode: Decode
) -> dict[str, Any]:
    """One task played before and after: first one that was learned, else any that both played."""
    last = _by_task(after)
    pairs = [(t, last[t.task_hash]) for t in before if t.is_valid and t.task_hash in last]
    learned = [
        (a, b) for a, b in pairs if a.outcome is not Outcome.SOLVED and b.outcome is Outcome.SOLVED
    ]
    chosen: tuple[Trajectory | None, Trajectory | None]
    if learned or pairs:
        chosen = (learned or pairs)[0]
    else:
        chosen = (next(iter(before), None), next(iter(after), None))
    return {
        moment: None if trajectory is None else _to_sample(trajectory, decode)
        for moment, trajectory in zip(("before", "after"), chosen, strict=True)
    }


def _to_sample(trajectory: Trajectory, decode: Decode) -> dict[str, Any]:
    return {
        "id": trajectory.id,
        "stage": trajectory.stage,
        "task_seed": trajectory.task_seed,
        "outcome": trajectory.outcome.value,
        "reward": trajectory.reward,
        "turns": trajectory.turns,
        "tokens": len(trajectory.token_ids),
        "error": trajectory.error,
        "segments": _to_segments(trajectory, decode),
    }


def _to_segments(trajectory: Trajectory, decode: Decode) -> list[dict[str, str]]:
    """Runs of tokens by who wrote them: the model, or the context it was given."""
    segments: list[dict[str, str]] = []
    start, room = 0, SAMPLE_CHARACTERS
    sampled = trajectory.sampled
    for end in range(1, len(sampled) + 1):
        if end < len(sampled) and sampled[end] == sampled[start]:
            continue
        text = decode(trajectory.token_ids[start:end])
        segments.append({"by": "model" if sampled[start] else "context", "text": text[:room]})
        room -= len(text)
        if room < 0:
            left = len(sampled) - end
            note = f"… cut here: {-room} more characters, then {left} more tokens"
            return [*segments, {"by": "note", "text": note}]
        start = end
    return segments


def _to_percent(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def _to_points(value: float | None) -> str:
    """A change in percentage points, with a true minus sign."""
    return "–" if value is None else f"{100 * value:+.0f}".replace("-", "−")


def _to_number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _to_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"
