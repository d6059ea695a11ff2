"""The last table of a run, for a terminal; the same numbers as the report's first table.

It goes to standard error, since standard output belongs to `--json`.
"""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the table; to standard error where no console is given."""
    (console or Console(stderr=True)).print(make_table(report))


def make_table(report: Mapping[str, Any]) -> Table:
    """Success before and after with 95 % intervals, the change, and the trajectories."""
    table = Table(title="held-out success (95 % intervals)", title_justify="left")
    table.add_column("domain")
    for heading in ("tasks", "before", "after", "change in points", "trajectories", "invalid"):
        table.add_column(heading, justify="right")
    for name, row in report["domains"].items():
        _add_row(table, name, row)
    table.add_section()
    _add_row(table, "overall", report["overall"])
    return table


def _add_row(table: Table, name: str, row: Mapping[str, Any]) -> None:
    trajectories = row["trajectories"]
    table.add_row(
        Text(name),  # as text, for a name is no markup
        str(row["n"]),
        _to_rate(row["success_before"], row["ci_before"]),
        _to_rate(row["success_after"], row["ci_after"]),
        _to_change(row["change"], row["ci_change"]),
        str(sum(trajectories.values())),
        str(trajectories["invalid"]),
    )


def _to_rate(success: float | None, ci: tuple[float, float]) -> str:
    if success is None:
        return "–"
    return f"{100 * success:.0f} % [dim]({100 * ci[0]:.0f} to {100 * ci[1]:.0f})[/dim]"


def _to_change(change: float | None, ci: tuple[float, float]) -> str:
    if change is None:
        return "–"
    text = f"{100 * change:+.0f} ({100 * ci[0]:+.0f} to {100 * ci[1]:+.0f})"
    color = "green" if ci[0] > 0 else "red" if ci[1] < 0 else ""
    return f"[{color}]{text}[/{color}]" if color else text
