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
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINE_EVERY_S = 5.0


class Phase:
    """One piece of long work that advances; `detail` carries its rates."""

    def __init__(self, reporter: "Reporter", name: str, total: int, unit: str) -> None:
        self._reporter, self.name, self.total, self._unit = reporter, name, total, unit
        self.done = 0
        self._started_s = time.monotonic()
        self._printed_s = self._started_s
        self._task: TaskID | None = reporter.add_bar(name, total)

    @property
    def wall_s(self) -> float:
        """Seconds since the phase began."""
        return time.monotonic() - self._started_s

    def advance(self, count: int = 1, detail: str = "") -> None:
        """`count` more units are done."""
        self.done += count
        rate = self.done / max(self.wall_s, 1e-9)
        text = f"{rate:.1f} {self._unit}/s  {detail}"
        if self._task is not None:
            self._reporter.update_bar(self._task, self.done, text)
        elif self.done >= self.total or time.monotonic() - self._printed_s >= LINE_EVERY_S:
            self._printed_s = time.monotonic()
            self._reporter.note(f"{self.name}: {self.done}/{self.total}  {text}")


class Reporter:
    """Where every message for the user's eyes goes; never standard output."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("[bold]{task.description:<18}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}"),
            console=self.console,
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
    def phase(self, name: str, total: int, unit: str) -> Iterator[Phase]:
        """A bar (or lines) for `total` units of work."""
        phase = Phase(self, name, total, unit)
        if not self.console.is_terminal:
            self.note(f"{name}: 0/{total}")
        yield phase

    def note(self, text: str) -> None:
        """One line for the user."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def add_bar(self, name: str, total: int) -> TaskID | None:
        """A bar where there is a terminal, else None."""
        if not self.console.is_terminal:
            return None
        return self._bars.add_task(name, total=total, detail="")

    def update_bar(self, task: TaskID, done: int, detail: str) -> None:
        """Move a bar."""
        self._bars.update(task, completed=done, detail=detail)
