"""Bars at the width of a plain terminal, lines without one, and the rate of resumed work."""

import io
import re
import time

import pytest
from rich.console import Console

from limosa.cli.progress import Reporter, format_rate

DETAIL = "reward code_engineering 0.31, long_horizon_agent [0.44], knowledge_research 0.52"


def draw(width: int, name: str, total: int, done: int, detail: str) -> str:
    """The last frame of a phase's bar, without the terminal's codes."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    reporter = Reporter(console)
    with reporter.live(), reporter.phase(name, total, "episodes") as phase:
        time.sleep(0.01)
        phase.advance(done, detail)
    frames = re.split(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]", file.getvalue())
    return [frame for frame in frames if frame.strip()][-1]


@pytest.mark.parametrize(
    ("name", "total", "done"),
    [("training", 30, 12), ("eval before", 288, 100), ("demonstrations", 48_000, 24_000)],
)
def test_a_bar_fits_80_columns(name: str, total: int, done: int) -> None:
    line = draw(80, name, total, done, DETAIL)
    assert len(line.rstrip()) <= 80
    head = line.partition("reward")[0]
    assert name in head and f"{done}/{total}" in head and "episodes/s" in head and "━━━━" in head
    assert "…" not in head, "more than the detail was cut"


def test_the_detail_takes_what_is_left() -> None:
    assert DETAIL in draw(200, "training", 30, 12, DETAIL)
    assert draw(80, "training", 30, 12, DETAIL).rstrip().endswith("…")
    assert draw(80, "training", 30, 12, "").count("\n") == 0


def test_a_rate_counts_only_what_is_done_now() -> None:
    reporter = Reporter(Console(file=io.StringIO()))
    with reporter.phase("training", 30, "updates", done=20) as phase:
        assert (phase.done, phase.rate) == (20, 0.0)
        time.sleep(0.05)
        phase.advance()
        assert phase.done == 21
        assert phase.rate == pytest.approx(1 / phase.wall_s, rel=0.2)
        assert phase.rate <= 20


def test_a_bar_of_resumed_work_begins_where_it_was() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None)
    reporter = Reporter(console)
    with reporter.live(), reporter.phase("training", 30, "updates", done=20):
        pass
    assert "20/30" in file.getvalue()


def test_lines_without_a_terminal() -> None:
    file = io.StringIO()
    reporter = Reporter(Console(file=file, width=80))
    with reporter.live(), reporter.phase("training", 4, "updates", done=1) as phase:
        phase.advance(detail="[quiet]")
        phase.advance(2, DETAIL)
    first, last = file.getvalue().splitlines()
    assert first == "training: 1/4"
    assert re.fullmatch(r"training: 4/4  [0-9.]+ updates/s  " + re.escape(DETAIL), last)


def test_rates_are_short() -> None:
    assert [format_rate(r) for r in (1234.5, 12.34, 1.25, 0.046)] == ["1234", "12.3", "1.2", "0.05"]
