"""Output for people: progress with ETA, tables and notes; colour on a terminal, plain lines in a pipe or a notebook."""

import importlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from excb.errors import printable

PLAIN_SECONDS = 10.0  # between progress lines in a pipe
CELL_SECONDS = 0.5  # between changes of the one progress line of a notebook's cell


class Progressor:
    """Progress of one long job: `advance` it, and set `status` to show more, such as the loss."""

    def __init__(
        self, title: str, total: int, done: int, stream: TextIO | None, bar: Progress | None = None, *, cell: Any = None
    ) -> None:
        self.status, self._cell = "", cell
        self._title, self._total, self._done, self._stream, self._bar = title, total, done, stream, bar
        self._start, self._first, self._printed = time.monotonic(), done, time.monotonic()
        self._task = bar.add_task(title, total=total, completed=done, status="") if bar else None

    def advance(self, steps: int = 1) -> None:
        """Count `steps` more of the total as done."""
        self._done += steps
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, status=self.status)
        elif self._cell is not None:
            if time.monotonic() - self._printed >= CELL_SECONDS or self._done >= self._total:
                self._printed = time.monotonic()
                self._cell.update({"text/plain": self._line()}, raw=True)
        elif self._stream is not None and time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            print(self._line(), file=self._stream, flush=True)

    def _line(self) -> str:
        seconds = time.monotonic() - self._start
        left = seconds / max(1, self._done - self._first) * (self._total - self._done)
        status = f"  {self.status}" if self.status else ""
        return f"{self._title}: {self._done}/{self._total}{status}  ETA {duration(left)}"


class Reporter:
    """A program's output: notes and progress on stderr, results on stdout, so pipes carry results only.

    Args:
        quiet: print neither notes nor progress.
        brief: print no details.
    """

    def __init__(self, *, quiet: bool = False, brief: bool = False) -> None:
        self._notes = Console(stderr=True, quiet=quiet, highlight=False)
        self._results = Console(highlight=False, markup=False)  # rich would take "[/]" in a name for markup
        self.quiet, self._brief = quiet, brief
        self._live: Progress | None = None

    def note(self, text: str) -> None:
        """Print a note."""
        self._say(text, "")

    def detail(self, text: str) -> None:
        """Print a note that would be one of many where a program is `brief`."""
        if not self._brief:
            self.note(text)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self._say(f"warning: {text}", "yellow")

    def _say(self, text: str, style: str) -> None:
        text = printable(text)
        if self._notes.is_terminal:
            console = self._live.console if self._live else self._notes
            console.print(text, style=style or None, markup=False, soft_wrap=True)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def answer(self, text: str) -> None:
        """Print part of the result on stdout."""
        print(printable(text))

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table on stdout, numbers right-aligned: drawn on a terminal, plain text in a pipe."""
        rows = [list(map(printable, row)) for row in rows]
        right = [column > 0 and all(map(_numeric, cells)) for column, cells in enumerate(zip(*rows, strict=True))]
        if self._results.is_terminal:
            table = Table(title=printable(title), title_justify="left", header_style="bold")
            for number, name in enumerate(header):
                table.add_column(name, justify="right" if rows and right[number] else "left", overflow="fold")
            for row in rows:
                table.add_row(*row)
            self._results.print(table)
            return
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        print(printable(title))
        for row in [header, *rows]:
            cells = [
                cell.rjust(width) if rows and right[column] else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            print("  ".join(cells).rstrip())

    def rows(self, columns: Mapping[str, int]) -> "GrowingTable":
        """A table on stdout whose rows come one by one.

        Args:
            columns: names, each with the width that its cells need.
        """
        return GrowingTable(columns, drawn=self._results.is_terminal)

    def _cell(self, title: str) -> Any:
        """A line of a notebook's cell that can be changed; None elsewhere."""
        if self.quiet or not _in_notebook():
            return None
        display: Any = importlib.import_module("IPython.display").display  # untyped, where it is installed

        return display({"text/plain": title}, raw=True, display_id=True)

    @contextmanager
    def progress(self, title: str, total: int, *, done: int = 0) -> Iterator[Progressor]:
        """Show progress with ETA while the block runs.

        A terminal has a live bar, a notebook one line that changes, and a pipe a new line every few seconds.
        """
        title = printable(title)
        if self.quiet or not self._notes.is_terminal or self._live is not None:
            yield Progressor(title, total, done, None if self.quiet else sys.stderr, cell=self._cell(title))
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._notes, transient=False) as bar:
            self._live = bar
            try:
                yield Progressor(title, total, done, sys.stderr, bar)
            finally:
                self._live = None


class GrowingTable:
    """A table that grows: rows below one header on a terminal; in a pipe each row is a line that names its cells."""

    def __init__(self, columns: Mapping[str, int], *, drawn: bool) -> None:
        self._widths = {name: max(width, len(name)) for name, width in columns.items()}
        self._drawn, self._begun = drawn, False

    def add(self, *cells: str) -> None:
        """Print a row, a cell for each column; empty ones are left out in a pipe."""
        shown = dict(zip(self._widths, map(printable, cells), strict=True))
        if not self._drawn:
            print("  ".join(f"{name} {cell}".strip() for name, cell in shown.items() if cell), flush=True)
            return
        if not self._begun:
            self._begun = True
            print(self._line({name: name for name in self._widths}), flush=True)
        print(self._line(shown), flush=True)

    def _line(self, cells: Mapping[str, str]) -> str:
        return "  ".join(cell.rjust(self._widths[name]) for name, cell in cells.items()).rstrip()


def _in_notebook() -> bool:
    """Whether this process is a notebook's kernel; one that is has loaded IPython before us."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _numeric(cell: str) -> bool:
    return not cell or cell.lstrip("+-.")[:1].isdigit() or cell in ("nan", "inf")


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """A number and its noun: "1 image", "1,200 images", "2 classes"."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def few(names: Sequence[str]) -> str:
    """The first three names, for a message."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def duration(seconds: float) -> str:
    """A duration as people read it: 42 s, 3 min 20 s, 5 h 12 min."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"
