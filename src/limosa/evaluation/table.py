"""The last table of a run, for a terminal; the same numbers as the report's first table.

It goes to standard error, since standard output belongs to `--json`. Intervals stand beside their
numbers where the terminal is wide, and below them where it is not; no name is ever cut.
"""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

UNBOUNDED_WIDTH = 10_000


def print_table(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the table; to standard error where no console is given."""
    console = console or Console(stderr=True)
    table = make_table(report)
    # Measured without the terminal's bound, for a measure within it would always fit.
    unbounded = console.options.update(max_width=UNBOUNDED_WIDTH)
    if console.measure(table, options=unbounded).maximum > console.width:
        table = make_table(report, is_narrow=True)
    console.print(table)


def make_table(report: Mapping[str, Any], *, is_narrow: bool = False) -> Table:
    """Success before and after with 95 % intervals, the change, and the trajectories."""
    table = Table(title="held-out success (95 % intervals), change in points", title_justify="left")
    if is_narrow:
        table.box, table.show_edge, table.padding = box.SIMPLE_HEAD, False, (0, 1, 0, 0)
    table.add_column("domain", overflow="fold")  # a very long name goes on below
    for heading in ("tasks", "before", "after", "change", "episodes"):
        table.add_column(heading, justify="right", no_wrap=True)
    gap = "\n" if is_narrow else " "
    for name, row in report["domains"].items():
        _add_row(table, name, row, gap)
    table.add_section()
    _add_row(table, "overall", report["overall"], gap)
    return table


def _add_row(table: Table, name: str, row: Mapping[str, Any], gap: str) -> None:
    table.add_row(
        Text(name),  # as text, for a name is no markup
        str(row["n"]),
        _to_rate(row["success_before"], row["ci_before"], gap),
        _to_rate(row["success_after"], row["ci_after"], gap),
        _to_change(row["change"], row["ci_change"], gap),
        _to_count(row["trajectories"], gap),
    )


def _to_rate(success: float | None, ci: tuple[float, float], gap: str) -> Text:
    if success is None:
        return Text("–")
    return _join(f"{100 * success:.0f} %", f"{100 * ci[0]:.0f} to {100 * ci[1]:.0f}", gap)


def _to_change(change: float | None, ci: tuple[float, float], gap: str) -> Text:
    if change is None:
        return Text("–")
    text = _join(f"{100 * change:+.0f}", f"{100 * ci[0]:+.0f} to {100 * ci[1]:+.0f}", gap)
    text.stylize("green" if ci[0] > 0 else "red" if ci[1] < 0 else "")
    return text


def _to_count(trajectories: Mapping[str, int], gap: str) -> Text:
    """All episodes; those that were invalid where there are any."""
    total, invalid = sum(trajectories.values()), trajectories["invalid"]
    return _join(f"{total:,}", f"{invalid:,} invalid", gap) if invalid else Text(f"{total:,}")


def _join(value: str, aside: str, gap: str) -> Text:
    """A number and what stands beside it in brackets, or below it without."""
    return Text.assemble(value, gap, (f"({aside})" if gap == " " else aside, "dim"))
