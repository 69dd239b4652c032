"""The watch itself: look at the run, measure what is new one checkpoint at a time, write it down, look again."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from excb.checkpoint import run_checkpoint
from excb.console import Reporter, duration, plural
from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError
from excb.results.result import ResultRecord
from excb.version import __version__

from ..protocols import headline
from .display import Display
from .log import CheckpointFigures, Log
from .runs import Snapshot, UnreachableError, WatchedRun
from .state import WatchState, steps_in_words

# Measures a checkpoint's file, unless its weights have the given hash; None where they do, or where the run has removed
# the file meanwhile. All ranks call it together.
Measure = Callable[[int, Path, str | None], ResultRecord | None]


@dataclass(frozen=True)
class NextCheckpoint:
    """The next step of all ranks.

    Attributes:
        step: of the checkpoint to measure; None where there is none.
        file: its file.
        known: hash of the weights that were measured for this step before; None where none were.
        over: whether the watch has ended.
    """

    step: int | None = None
    file: Path | None = None
    known: str | None = None
    over: bool = False


class Watch:
    """The part of rank 0: what it knows and does.

    Args:
        run: what is watched.
        log: what is measured; it grows.
        display: shows it.
        reporter: prints notes and warnings.
        scratch: folder of what an evaluation keeps while it is unfinished; removed after each.
        every: seconds between two looks.
        once: end when all that is there is measured.
    """

    def __init__(
        self,
        run: WatchedRun,
        log: Log,
        display: Display,
        reporter: Reporter,
        *,
        scratch: Path,
        every: float,
        once: bool,
    ) -> None:
        self._run, self._log, self._display, self._reporter = run, log, display, reporter
        self._scratch, self._every, self._once = scratch, every, once
        self._snapshot, self._trouble, self._waiting = Snapshot({}, (), False), "", False
        self._seen, self._named = set[int](), set[int]()
        self._unreadable: dict[int, tuple[str, str]] = {}  # by step, the stamp of the file and why
        self._same: dict[int, str] = {}  # by step, the stamp of another file with the weights that were measured

    def begin(self) -> None:
        """Look for the first time, and show what earlier starts have measured.

        Raises:
            UserError: there is no run; or it has no checkpoint, and none will come or is to be waited for.
        """
        self._look()
        if not self._snapshot.checkpoints and not self._log.measured:
            if self._snapshot.finished:
                raise UserError(f"the run at {self._run.place} is finished, and none of its checkpoints is left")
            if self._once:
                raise UserError(f"{self._run.place} has no checkpoint yet: leave out --once to wait for the first one")
        for measurement in sorted(self._log.measured.values(), key=lambda one: one.step):
            self._display.add(measurement, self.state())

    def next(self) -> NextCheckpoint:
        """The next step; whatever is waited for, the page and `best.json` are as new as the run."""
        try:
            self._look()
            self._name_missed()
            while due := self._due():
                step = due[0]
                if (file := self._undamaged(step)) is not None:
                    self._announce(due)
                    known = self._log.measured.get(step)
                    return NextCheckpoint(step, file, None if known is None else known.weights_sha256)
        except UnreachableError as error:
            if self._once:
                raise
            if not self._trouble:
                self._reporter.warn(f"{error}; trying again every {duration(self._every)}")
            self._trouble = str(error)
            return NextCheckpoint()
        self._trouble = ""
        self._name_missed()
        over = self._once or self._snapshot.finished
        if over and not self._log.measured:
            why = next((why for _, why in self._unreadable.values()), "all were removed meanwhile")
            raise UserError(f"no checkpoint of {self._run.place} could be measured: {why}")
        self._display.refresh(self.state(), ended=over)
        if over:
            shutil.rmtree(self._scratch, ignore_errors=True)
        if not over and not self._waiting:
            self._waiting = True
            self._reporter.note(f"looking for new checkpoints every {duration(self._every)}; Ctrl-C ends the watch")
        return NextCheckpoint(over=over)

    def record(self, upcoming: NextCheckpoint, result: ResultRecord | None) -> None:
        """Write down what was measured, or why nothing was.

        Raises:
            UserError: the folder cannot be written, or the settings are not those of before.
        """
        assert upcoming.step is not None
        assert upcoming.file is not None
        stamp = self._snapshot.checkpoints[upcoming.step]
        if result is not None:
            self._write_down(upcoming, result, stamp)
        elif upcoming.file.is_file():
            self._same[upcoming.step] = stamp
        else:
            self._forget(upcoming.step)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _write_down(self, upcoming: NextCheckpoint, result: ResultRecord, stamp: str) -> None:
        assert upcoming.step is not None
        if upcoming.known is not None:
            self._reporter.warn(f"step {upcoming.step} was written again with other weights, and is measured anew")
        measurement = _measurement(upcoming.step, stamp, result, self._log)
        self._log.append(measurement)
        self._display.add(measurement, self.state())
        self._display.refresh(self.state(), ended=False)
        for note in measurement.notes:
            self._reporter.note(note)

    def interrupt(self) -> None:
        """Say on the page that the watch has ended."""
        self._display.refresh(self.state(), ended=True)

    def state(self) -> WatchState:
        """All that is known."""
        measured = sorted(self._log.measured.values(), key=lambda one: one.step)
        unreadable = {step: why for step, (_, why) in self._unreadable.items() if step not in self._log.measured}
        return WatchState(self._run, self._log.setup, self._snapshot, measured, self._missed(), unreadable)

    def _look(self) -> None:
        self._snapshot = self._run.look()
        self._seen |= self._snapshot.checkpoints.keys()

    def _due(self) -> list[int]:
        """The steps to measure, the oldest first: the run removes that one first."""
        due = []
        for step, stamp in self._snapshot.checkpoints.items():
            known = self._log.measured.get(step)
            stamps = {known.stamp if known else None, self._same.get(step), self._unreadable.get(step, ("", ""))[0]}
            if stamp not in stamps:
                due.append(step)
        return due

    def _undamaged(self, step: int) -> Path | None:
        """The file of a checkpoint that is undamaged; None of one that is damaged, or gone since the look."""
        stamp = self._snapshot.checkpoints[step]
        file = self._run.checkpoint(step)
        if file is not None:
            try:
                run_checkpoint.read_in_run(file)
                self._unreadable.pop(step, None)
                return file
            except (run_checkpoint.DamagedFileError, run_checkpoint.ForeignFileError) as error:
                why = str(error)
            except UserError:
                if file.is_file():
                    raise
                why = ""
            if file.is_file():
                self._unreadable[step] = stamp, why
                self._reporter.warn(f"{why}; it is passed over")
                return None
        self._forget(step)
        return None

    def _forget(self, step: int) -> None:
        """Take a checkpoint that the run has removed since the look out of what was seen."""
        left = {each: stamp for each, stamp in self._snapshot.checkpoints.items() if each != step}
        self._snapshot = replace(self._snapshot, checkpoints=left)

    def _announce(self, due: list[int]) -> None:
        took = [one.seconds for one in self._log.measured.values()]
        left = f", about {duration(len(due) * sum(took) / len(took))} left" if took else ""
        self._reporter.note(f"step {due[0]}: {plural(len(due), 'checkpoint')} to measure{left}")

    def _missed(self) -> list[int]:
        known = self._seen | self._snapshot.saved()
        return sorted(known - self._snapshot.checkpoints.keys() - self._log.measured.keys())

    def _name_missed(self) -> None:
        if new := [step for step in self._missed() if step not in self._named]:
            self._named.update(new)
            self._reporter.warn(
                f"{steps_in_words(new)}: gone before {'it was' if len(new) == 1 else 'they were'} measured (the run "
                "keeps run.keep checkpoints and its best one)"
            )


def watch(watching: Watch, measure: Measure, *, every: float) -> None:
    """Watch until the run is finished, or for ever; all ranks call this together.

    Args:
        watching: used on rank 0 only.
        measure: see `Measure`.
        every: seconds between two looks.

    Raises:
        UserError: the run, the images or the folder cannot be used.
    """
    run_on_rank0(watching.begin)
    while not (upcoming := run_on_rank0(watching.next)).over:
        if upcoming.step is None or upcoming.file is None:
            pause(every)
            continue
        result = measure(upcoming.step, upcoming.file, upcoming.known)
        run_on_rank0(partial(watching.record, upcoming, result))


def pause(seconds: float) -> None:
    """Wait between two looks."""
    time.sleep(seconds)


def _measurement(step: int, stamp: str, result: ResultRecord, log: Log) -> CheckpointFigures:
    epoch = result.checkpoint.get("epoch")
    return CheckpointFigures(
        step=step,
        epoch=None if epoch is None else float(epoch),
        stamp=stamp,
        weights_sha256=result.checkpoint["weights_sha256"],
        figure=headline(result.figures),
        figures=result.figures,
        intervals=result.intervals,
        references=result.references,
        notes=tuple(result.remarks),
        protocol=result.protocol,
        protocol_hash=result.protocol_hash,
        setup=log.setup,
        seconds=result.seconds,
        created=result.created,
        version=__version__,
    )
