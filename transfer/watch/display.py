"""What a watch shows and writes beside its log: rows or JSON lines on stdout, `best.json`, event files, the page."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from excb.console import Reporter, duration
from excb.files.run_files import WATCH_BEST
from excb.results.result import interval_text

from . import best, page
from .events import Events
from .log import Measurement
from .state import State

SHORTEST, LONGEST = 5, 60  # seconds between two loads of the page
# Columns of the rows, with the characters of their cells.
WIDTHS = {"step": 9, "epoch": 7, "figure": 16, "value": 6, "95 % interval": 14, "time": 12, "": 11}


class Display:
    """Everything that people and programs see of a watch.

    Args:
        folder: of the watch.
        reporter: prints rows.
        as_json: print JSON lines instead of rows.
        every: seconds between two looks at the run.
    """

    def __init__(self, folder: Path, reporter: Reporter, *, as_json: bool, every: float) -> None:
        self._folder, self._reporter, self._as_json = folder, reporter, as_json
        self._refresh = round(min(max(every, SHORTEST), LONGEST))
        self._rows = reporter.rows(WIDTHS)
        self._events: Events | None = None
        self._pointer: Mapping[str, Any] | None = None

    def add(self, one: Measurement, state: State) -> None:
        """Show a measurement, and write it to the event file.

        Raises:
            UserError: the folder cannot be written.
        """
        if self._events is None:
            self._events = Events(self._folder)
        self._events.add(one)
        if self._as_json:
            self._reporter.answer(json.dumps(asdict(one)))
            return
        is_best = state.pointer is not None and state.pointer["step"] == one.step
        self._rows.add(
            str(one.step),
            "" if one.epoch is None else f"{one.epoch:g}",
            one.figure,
            f"{one.value:.2f}",
            interval_text(one.interval),
            duration(one.seconds),
            "best so far" if is_best else "",
        )

    def refresh(self, state: State, *, ended: bool) -> None:
        """Write `best.json`, where it changed, and the page.

        Args:
            state: what they say.
            ended: whether nothing will follow.

        Raises:
            UserError: the folder cannot be written.
        """
        if state.pointer is not None and state.pointer != self._pointer:
            self._pointer = state.pointer
            best.write(dict(state.pointer), self._folder)
        page.write(state, self._folder, refresh=None if ended else self._refresh)

    def end(self, state: State) -> None:
        """Say what was found, and where it is."""
        if self._as_json:
            summary = {
                "best": state.pointer,
                "gone": list(state.missed),
                "unreadable": dict(state.unreadable),
                "finished": state.snapshot.finished,
            }
            self._reporter.answer(json.dumps(summary))
        if state.pointer is not None:
            which = f"best: step {state.pointer['step']}, {state.pointer['figure']} {state.pointer['value']:.2f}"
            self._reporter.note(f"{which}; {self._folder} holds {page.PAGE}, {WATCH_BEST} and all figures")

    def close(self) -> None:
        """Close the event file."""
        if self._events is not None:
            self._events.close()
