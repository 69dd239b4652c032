"""The output of a watch beside its log: rows or JSON lines on stdout, `best.json`, event files, the page."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from excb.charts.tensorboard import TensorBoardWriter
from excb.console import Reporter, duration
from excb.errors import UserError
from excb.files import json_text
from excb.files.atomic import write_text
from excb.files.foreign import open_file
from excb.files.run_files import WATCH_BEST
from excb.results.beside import page_beside, refuse_folders, refuse_other_beside, text_beside
from excb.results.replacing import FOLDER_ADVICE
from excb.results.result import interval_text

from .log import LOG, CheckpointFigures
from .page import PAGE, render_watch
from .state import WatchState

EVENTS = "tensorboard"  # of the watch's own: the run's event files have one writer, the run
TAG = "watch/"  # how names of curves begin
_HEAD = 2**16  # bytes of an event file in which one is
SHORTEST, LONGEST = 5, 60  # seconds between two loads of the page
# Columns of the rows, with the characters of their cells.
WIDTHS = {"step": 9, "epoch": 7, "figure": 16, "value": 6, "95 % interval": 14, "time": 12, "": 11}


def refuse_other_watch(folder: Path) -> None:
    """Refuse a folder whose `best.json` or page is of something else. Raises UserError if one is."""
    files = (
        text_beside(WATCH_BEST, "best checkpoint of a watch", '"checkpoint"', '"better_but_gone"'),
        page_beside(PAGE, "watch"),
    )
    refuse_folders(folder / each.name for each in files)
    refuse_other_beside(folder / LOG, files, advice=FOLDER_ADVICE)


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
        self._events: TensorBoardWriter | None = None
        self._pointer: dict[str, Any] | None = None

    def add(self, one: CheckpointFigures, state: WatchState) -> None:
        """Show a measurement, and write it to the event file.

        Raises:
            UserError: the folder cannot be written.
        """
        low, high = one.interval or (None, None)
        values = {one.figure: one.value, f"{one.figure}_low": low, f"{one.figure}_high": high}
        with _writing(self._folder / EVENTS) as folder:
            self._events = self._events or _new_events(folder)
            self._events.add_scalars(
                {f"{TAG}{name}": each for name, each in values.items() if each is not None}, one.step
            )
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

    def refresh(self, state: WatchState, *, ended: bool) -> None:
        """Write `best.json`, where it changed, and the page.

        Args:
            state: what they say.
            ended: whether nothing will follow.

        Raises:
            UserError: the folder cannot be written.
        """
        if state.pointer is not None and state.pointer != self._pointer:
            self._pointer = state.pointer
            json_text.write_json(state.pointer, self._folder / WATCH_BEST)
        write_text(render_watch(state, refresh=None if ended else self._refresh), self._folder / PAGE)

    def end(self, state: WatchState) -> None:
        """Say what was found, and where it is."""
        if self._as_json:
            summary = {
                "best": state.pointer,
                "gone": list(state.missed),
                "unreadable": dict(state.unreadable or {}),
                "finished": state.snapshot.finished,
            }
            self._reporter.answer(json.dumps(summary))
        if state.pointer is not None:
            which = f"best: step {state.pointer['step']}, {state.pointer['figure']} {state.pointer['value']:.2f}"
            self._reporter.note(f"{which}; {self._folder} holds {PAGE}, {WATCH_BEST} and all figures")

    def close(self) -> None:
        """Close the event file."""
        if self._events is not None:
            self._events.close()


def _new_events(folder: Path) -> TensorBoardWriter:
    """The event file of this start, which is written anew from the log and takes the place of those of earlier ones."""
    folder.mkdir(parents=True, exist_ok=True)
    before = [file for file in folder.glob("events.out.tfevents.*") if _is_own(file)]
    writer = TensorBoardWriter(folder, purge_step=0)
    for file in before:
        file.unlink(missing_ok=True)
    return writer


def _is_own(events: Path) -> bool:
    """Whether a watch has written an event file: --out may name the folder of a run, which has its own."""
    with open_file(events) as stream:
        return TAG.encode() in stream.read(_HEAD)


@contextmanager
def _writing(folder: Path) -> Iterator[Path]:
    try:
        yield folder
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error}): make room, then repeat the command") from None
