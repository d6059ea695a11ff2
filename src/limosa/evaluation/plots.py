"""Drawings of a report: SVG for the page, a PNG for a README.

Only `evaluation/report.py` calls this, and late, for matplotlib is slow to import. The SVG's
colours are CSS variables of the page, so that one drawing serves light and dark. No pyplot: figures
are plain objects and the style lives in a context, so nothing global changes.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

SMOOTHED_STEPS = 5
SERIES = 6
COLUMNS = 3
PANEL_INCHES = (3.1, 1.75)
# The learner's metrics that are drawn, in this order; report.json holds them all.
LEARNER_TITLES = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "entropy": "entropy (nats a token)",
    "kl_k3": "KL from the sampler (nats)",
    "clip_fraction": "clipped tokens (fraction)",
    "importance": "importance ratio",
    "staleness_mean": "mean staleness (versions)",
    "staleness_max": "greatest staleness (versions)",
    "tokens_per_s": "learnt tokens a second",
}


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a drawing."""

    ink: str
    muted: str
    grid: str
    before: str
    after: str
    series: tuple[str, ...]


# Okabe and Ito's palette, told apart by colour-blind readers too.
PAPER = Theme(
    ink="#1c2430",
    muted="#5c6675",
    grid="#dfe3e9",
    before="#a9b2bf",
    after="#0b6fae",
    series=("#0b6fae", "#d55e00", "#00875f", "#b5578c", "#b07d00", "#4aa3d9"),
)
# Colours that stand for the page's variables until `_to_svg` puts those in their place.
STAND_INS = {
    "ink": "#010101",
    "muted": "#020202",
    "grid": "#030303",
    "before": "#040404",
    "after": "#050505",
    **{f"series-{index}": f"#1010{index:02x}" for index in range(SERIES)},
}
PAGE = Theme(
    ink=STAND_INS["ink"],
    muted=STAND_INS["muted"],
    grid=STAND_INS["grid"],
    before=STAND_INS["before"],
    after=STAND_INS["after"],
    series=tuple(STAND_INS[f"series-{index}"] for index in range(SERIES)),
)


def draw(report: Mapping[str, Any]) -> dict[str, str]:
    """The page's drawings as SVG text: `bars`, and where a step was made `curves`, `learner`."""
    curves = report["curves"]
    drawings = {"bars": _to_svg("bars", lambda: _make_bars(report))}
    if any(curves["domains"].values()):
        drawings["curves"] = _to_svg("curves", lambda: _make_curves(report))
    if LEARNER_TITLES.keys() & curves["learner"].keys():
        drawings["learner"] = _to_svg("learner", lambda: _make_learner(curves))
    return drawings


def write_picture(report: Mapping[str, Any], path: Path) -> None:
    """Bars beside the success curves, as a PNG on white."""
    with matplotlib.rc_context(_make_style(PAPER)):
        figure = Figure(figsize=(10.4, 3.9), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2, width_ratios=[1.05, 1])
        _draw_bars(left, report, PAPER)
        left.set_title("held-out success, 95 % intervals")
        _draw_series(right, report["curves"], _choose_metric(report["curves"]), PAPER)
        figure.savefig(path, format="png", dpi=160)


def _make_bars(report: Mapping[str, Any]) -> Figure:
    groups = len(report["domains"]) + 1
    figure = Figure(figsize=(max(6.0, 1.9 * groups), 3.4), layout="constrained")
    _draw_bars(figure.subplots(), report, PAGE)
    return figure


def _make_curves(report: Mapping[str, Any]) -> Figure:
    curves = report["curves"]
    metrics = [m for m in ("success", "reward") if any(m in c for c in curves["domains"].values())]
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    panels = figure.subplots(1, max(1, len(metrics)), squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=False):
        _draw_series(axes, curves, metric, PAGE)
    return figure


def _make_learner(curves: Mapping[str, Any]) -> Figure:
    names = [name for name in LEARNER_TITLES if name in curves["learner"]]
    rows = -(-len(names) // COLUMNS)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(COLUMNS * width, rows * height), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False, sharex=True).flatten()
    for axes, name in zip(panels, names, strict=False):
        _draw_line(axes, curves["step"], curves["learner"][name], PAGE.after)
        axes.set_title(LEARNER_TITLES[name], fontsize=9)
        axes.tick_params(labelsize=8)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    return figure


def _draw_bars(axes: Any, report: Mapping[str, Any], theme: Theme) -> None:
    rows = {"overall": report["overall"], **report["domains"]}
    width = 0.36
    for offset, moment, color in ((-0.5, "before", theme.before), (0.5, "after", theme.after)):
        for place, row in enumerate(rows.values()):
            success, (low, high) = row[f"success_{moment}"], row[f"ci_{moment}"]
            if success is None:
                continue
            x = place + offset * (width + 0.04)
            axes.bar(x, success, width, color=color, label=moment if place == 0 else None)
            spread = [[success - low], [high - success]]
            axes.errorbar(x, success, spread, fmt="none", color=theme.ink, capsize=3)
            axes.annotate(
                f"{100 * success:.0f} %",
                (x, high),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                color=theme.ink,
            )
    axes.set_xticks(range(len(rows)), [name.replace("_", "\n") for name in rows])
    axes.set_ylim(0, 1.12)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="x", visible=False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", ncols=2, bbox_to_anchor=(0, 1.02))


def _choose_metric(curves: Mapping[str, Any]) -> str:
    has_success = any("success" in columns for columns in curves["domains"].values())
    return "success" if has_success else "reward"


def _draw_series(axes: Any, curves: Mapping[str, Any], metric: str, theme: Theme) -> None:
    """One line a domain, smoothed over the steps, the steps themselves pale behind it."""
    for index, (domain, columns) in enumerate(curves["domains"].items()):
        if metric not in columns:
            continue
        color = theme.series[index % len(theme.series)]
        values = columns[metric]
        _draw_line(axes, curves["step"], values, color, alpha=0.28, linewidth=1)
        label = domain.replace("_", " ")
        _draw_line(axes, curves["step"], _smooth(values), color, label=label, linewidth=2)
    axes.set_title(f"training {metric}, mean of {SMOOTHED_STEPS} steps")
    axes.set_xlabel("step")
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    if metric == "success":
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")


def _draw_line(
    axes: Any, steps: Sequence[int], values: Sequence[float | None], color: str, **style: Any
) -> None:
    gaps = [float("nan") if value is None else value for value in values]
    axes.plot(steps, gaps, color=color, marker="o" if len(gaps) == 1 else None, **style)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))


def _smooth(values: Sequence[float | None]) -> list[float | None]:
    """The mean of the last steps; a step without a value repeats the mean of those before it."""
    smoothed: list[float | None] = []
    for end in range(1, len(values) + 1):
        window = [v for v in values[max(0, end - SMOOTHED_STEPS) : end] if v is not None]
        smoothed.append(sum(window) / len(window) if window else None)
    return smoothed


def _make_style(theme: Theme) -> dict[str, Any]:
    return {
        "text.parse_math": False,  # a name is text, not a formula
        "font.size": 10,
        "font.family": "sans-serif",
        "text.color": theme.ink,
        "axes.labelcolor": theme.muted,
        "axes.titlecolor": theme.ink,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.edgecolor": theme.grid,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "xtick.color": theme.grid,
        "ytick.color": theme.grid,
        "xtick.labelcolor": theme.muted,
        "ytick.labelcolor": theme.muted,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "lines.linewidth": 1.6,
        "lines.solid_capstyle": "round",
    }


def _to_svg(name: str, make: Callable[[], Figure]) -> str:
    style = {**_make_style(PAGE), "svg.fonttype": "none", "svg.hashsalt": name}
    with matplotlib.rc_context(style):
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        make().savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    svg = text[text.index("<svg") :]
    for variable, color in STAND_INS.items():
        svg = svg.replace(color, f"var(--{variable})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{name}"', 1)
