"""The last table of a run on terminals of several widths."""

import io

import pytest
from rich.console import Console

from limosa.evaluation.table import print_table

NAMES = ("code_engineering", "long_horizon_agent", "knowledge_research", "reasoning_gym/chain_sum")


def make_row(*, invalid: int = 0, before: float | None = 0.3) -> dict:
    counts = {"solved": 1500, "failed": 100, "truncated": 3, "timed_out": 0, "invalid": invalid}
    return {
        "n": 1000,
        "success_before": before,
        "ci_before": (0.22, 0.4),
        "success_after": 1.0,
        "ci_after": (0.94, 1.0),
        "change": None if before is None else 0.7,
        "ci_change": (-0.1, 1.0),
        "trajectories": counts,
    }


def render(report: dict, width: int) -> str:
    file = io.StringIO()
    print_table(report, Console(file=file, width=width))
    return file.getvalue()


@pytest.fixture
def report() -> dict:
    rows = {name: make_row(invalid=12 * (name == NAMES[1])) for name in NAMES}
    return {"domains": rows, "overall": make_row(invalid=12)}


def test_80_columns_hold_every_name_and_number(report: dict) -> None:
    lines = render(report, 80).splitlines()
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "…" not in text
    for heading in ("domain", "tasks", "before", "after", "change", "episodes"):
        assert heading in lines[1].split()
    for name in NAMES:
        (place,) = [i for i, line in enumerate(lines) if line.startswith(f"{name} ")]
        assert lines[place].split()[1:7] == ["1000", "30", "%", "100", "%", "+70"]
        intervals = " ".join(lines[place + 1].split())
        assert intervals.startswith("22 to 40 94 to 100 -10 to +100")
        assert intervals.endswith("12 invalid") == (name == NAMES[1])


def test_a_wide_terminal_has_a_row_a_line(report: dict) -> None:
    lines = render(report, 120).splitlines()
    for name in NAMES:
        (line,) = [line for line in lines if name in line]
        assert "30 % (22 to 40)" in line and "+70 (-10 to +100)" in line
        assert ("1,615 (12 invalid)" in line) == (name == NAMES[1])


def test_a_name_longer_than_the_terminal_goes_on_below() -> None:
    name = "a_domain_" * 9
    lines = render({"domains": {name: make_row()}, "overall": make_row()}, 80).splitlines()
    parts = [line.split(" ")[0] for line in lines[3:]]
    assert name in "".join(parts)
    assert "…" not in "".join(lines)


def test_what_was_not_measured_is_a_dash(report: dict) -> None:
    report["overall"] = make_row(before=None)
    (line,) = [line for line in render(report, 80).splitlines() if line.startswith("overall")]
    assert line.split()[1:] == ["1000", "–", "100", "%", "–", "1,603"]
