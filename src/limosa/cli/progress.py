"""Progress on standard error: live bars on a terminal, one line now and then elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

LINE_EVERY_S = 5.0
BAR_WIDTH = 16


class Phase:
    """One piece of long work that advances; `done` units of it may be done before it begins."""

    def __init__(
        self, reporter: "Reporter", name: str, total: int, unit: str, done: int = 0
    ) -> None:
        self._reporter, self.name, self.total, self._unit = reporter, name, total, unit
        self._begun_at = self.done = done
        self._started_s = time.monotonic()
        self._printed_s = self._started_s
        self._task: TaskID | None = reporter.add_bar(name, total, done)

    @property
    def wall_s(self) -> float:
        """Seconds since the phase began."""
        return time.monotonic() - self._started_s

    @property
    def rate(self) -> float:
        """Units a second since the phase began, without those done before."""
        return (self.done - self._begun_at) / max(self.wall_s, 1e-9)

    def advance(self, count: int = 1, detail: str = "") -> None:
        """`count` more units are done; `detail` is what else there is to say, if there is room."""
        self.done += count
        rate = f"{format_rate(self.rate)} {self._unit}/s"
        if self._task is not None:
            self._reporter.update_bar(self._task, self.done, rate, detail)
        elif self.done >= self.total or time.monotonic() - self._printed_s >= LINE_EVERY_S:
            self._printed_s = time.monotonic()
            self._reporter.note(f"{self.name}: {self.done}/{self.total}  {rate}  {detail}".rstrip())


class Reporter:
    """Where every message for the user's eyes goes; never standard output."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("[bold]{task.description:<14}"),
            BarColumn(bar_width=BAR_WIDTH),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[rate]}", markup=False),
            # All that is left of the line, and the only part that is cut where the line is short.
            TextColumn(
                "{task.fields[detail]}",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=self.console,
            expand=True,
        )

    @contextmanager
    def live(self) -> Iterator[None]:
        """Bars are drawn inside this block."""
        if not self.console.is_terminal:
            yield
            return
        with self._bars:
            yield

    @contextmanager
    def phase(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Phase]:
        """A bar (or lines) for `total` units of work, of which `done` were done before."""
        phase = Phase(self, name, total, unit, done)
        if not self.console.is_terminal:
            self.note(f"{name}: {done}/{total}")
        yield phase

    def note(self, text: str) -> None:
        """One line for the user."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def add_bar(self, name: str, total: int, done: int) -> TaskID | None:
        """A bar where there is a terminal, else None."""
        if not self.console.is_terminal:
            return None
        return self._bars.add_task(name, total=total, completed=done, rate="", detail="")

    def update_bar(self, task: TaskID, done: int, rate: str, detail: str) -> None:
        """Move a bar."""
        self._bars.update(task, completed=done, rate=rate, detail=detail)


def format_rate(rate: float) -> str:
    """A rate in few characters: 120, 3.4 or 0.05."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2f}"
