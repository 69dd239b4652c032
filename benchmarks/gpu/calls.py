"""One call: the machine is looked at, then parts run one after the other until all are done or the time is over."""

import fcntl
import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import look
from benchmarks.gpu.parts import Part, Places
from benchmarks.gpu.processes import GRACE, duration, last_lines, missing_module, read_figures, run_limited
from benchmarks.gpu.record import FAILED, LEFT, Outcome, Record
from benchmarks.gpu.table import write_table
from excb.errors import UserError, printable

MOST_STARTS = 3  # of a part that begins anew each time, or whose call was killed
ALL_DONE, SOME_FAILED, SOME_LEFT = 0, 1, 3  # exit codes


@dataclass(frozen=True)
class Call:
    """The options of one call."""

    parts: Sequence[Part]
    places: Places
    tiny: bool
    minutes: float  # how long it may take
    patience: float  # times its guessed seconds that a part may take
    again: frozenset[str] = frozenset()  # parts to run once more, by name or all that failed
    only: frozenset[str] = frozenset()  # parts that may run in this call; none named: all
    commit: str = ""  # of the code, where git does not know it
    start: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds in which parts may run."""
        return self.start + 60 * self.minutes - GRACE - time.monotonic()

    def limit(self, part: Part) -> float:
        """Seconds that a part may take in all."""
        return self.patience * part.seconds

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that must be the same in all calls with one folder."""
        data = self.places.data
        return {"device": self.places.device, "tiny": self.tiny, "data": None if data is None else str(data)}


def run_call(call: Call, command: str, *, look: Callable[[Places, float], dict[str, Any]] = look) -> int:
    """Run parts, and return an exit code: `ALL_DONE`, `SOME_FAILED` or `SOME_LEFT`.

    Args:
        call: what is asked for.
        command: what to type to call again.
        look: finds out about the machine, as `benchmarks.gpu.machine.look`.

    Raises:
        UserError: the folder is in use, of other settings or cannot be written, or the device cannot be used.
    """
    with _alone(call.places.out):
        record = Record.open(call.places.out, call.settings)
        machine = look(call.places, call.left)
        machine["commit"] = machine.get("commit") or call.commit or "unknown"
        work = _Work(call, record, machine)
        work.prepare()
        work.run()
        return work.sum_up(command)


class _Work:
    """The parts of a call, with the record that they fill."""

    def __init__(self, call: Call, record: Record, machine: dict[str, Any]) -> None:
        self.call, self.record, self.machine = call, record, machine
        self.number = record.machine({name: value for name, value in machine.items() if name != "workers"})

    def prepare(self) -> None:
        """Bring the record up to date: parts to run once more, made things that are gone, what is missing here."""
        for part in self.call.parts:
            outcome, own = self.record.of(part.name), self.call.places.own(part.name)
            again = part.name in self.call.again or (FAILED in self.call.again and outcome.state == FAILED)
            gone = outcome.state == "done" and part.makes and not (own / part.makes).exists()
            if again or gone or outcome.state == "skipped":
                outcome = self.record.parts[part.name] = Outcome()
            if outcome.state in LEFT and (reason := self._missing(part)):
                self.record.parts[part.name] = Outcome("skipped", error=[reason])
            elif outcome.state == "running" and outcome.starts >= MOST_STARTS:
                outcome.state, outcome.error = FAILED, [f"{outcome.starts} calls were killed while it ran"]
        self._save()

    def _missing(self, part: Part) -> str:
        """The requirements of a part that this machine lacks."""
        if missing := [name for name in part.needs if importlib.util.find_spec(name) is None]:
            return f"not installed: {', '.join(missing)}"
        if part.gpus > max(1, self.machine["gpus"]):
            return f"it needs {part.gpus} GPUs, and this machine has {self.machine['gpus']}"
        return ""

    def run(self) -> None:
        """Run what is left and fits the time, in the table's order; the first one whether it fits or not."""
        begun = False
        self._say(self._overview())
        for number, part in enumerate(self.call.parts, start=1):
            outcome = self.record.of(part.name)
            if outcome.state not in LEFT or (self.call.only and part.name not in self.call.only):
                continue
            left, needed = self.call.left, part.seconds - (outcome.seconds if part.continues else 0)
            if left <= 0 or (begun and needed > left):
                continue
            begun = True
            time_of = f"about {duration(part.seconds)}; {duration(left)} of this call left"
            self._say(f"[{number}/{len(self.call.parts)}] {part.name}: {part.what} ({time_of})")
            self._run(part, outcome)
            self._say(f"  {part.name}: {self._told(part)}")

    def _run(self, part: Part, outcome: Outcome) -> None:
        call, own = self.call, self.call.places.own(part.name)
        if not (part.continues and outcome.starts):
            shutil.rmtree(own, ignore_errors=True)
            outcome.seconds = 0.0
        own.mkdir(parents=True, exist_ok=True)
        words = part.words(call.places, workers=self.machine["workers"], tiny=call.tiny)
        outcome.state, outcome.machine, outcome.starts = "running", self.number, outcome.starts + 1
        outcome.command, outcome.date = f"python {' '.join(words)}", _now()
        self._save()
        own_limit = call.limit(part) - outcome.seconds
        before, log = outcome.seconds, own / "log.txt"

        def report(seconds: float) -> None:
            of = f"{duration(before + seconds)} of about {duration(part.seconds)}"
            self._say(f"  {part.name}: {of}; {duration(max(0.0, call.left))} of this call left")

        ended = run_limited(words, log, limit=min(own_limit, call.left), report=report)
        outcome.seconds = round(before + ended.seconds, 1)
        outcome.figures = read_figures(own / "figures.json")
        outcome.result = _result(part, outcome.figures)
        cut_off = ended.code is None and ended.seconds < own_limit
        if ended.code == 0 and outcome.result:
            outcome.state, outcome.error = "done", []
        elif cut_off and (part.continues or outcome.starts < MOST_STARTS):
            outcome.state = "cut off"
        else:
            if ended.code is not None:
                why = f"exit code {ended.code}" if ended.code else "it wrote no figures, or not those expected"
            elif cut_off:
                why = f"cut off {outcome.starts} times at the end of a call: give it more --minutes"
            else:
                why = f"ended after {duration(outcome.seconds)}, {call.patience:g} times what was guessed (--patience)"
            outcome.state, outcome.error = FAILED, [*last_lines(log), why]
            if ended.code and (module := missing_module(outcome.error[-2:])):
                outcome.state, outcome.error = "skipped", [f"not installed: {module}"]
        self._save()

    def _told(self, part: Part) -> str:
        """How a part ended, for people."""
        outcome = self.record.of(part.name)
        if outcome.state == "done":
            return f"done in {duration(outcome.seconds)}: {outcome.result}"
        if outcome.state == FAILED:
            log = self.call.places.own(part.name) / "log.txt"
            return "\n    ".join([f"failed; the end of its log, {log}:", *outcome.error])
        if outcome.state == "skipped":
            return f"skipped: {outcome.error[0]}"
        return f"cut off by the end of this call; the next one {'continues it' if part.continues else 'begins it anew'}"

    def sum_up(self, command: str) -> int:
        """Say what was skipped, what failed, what is left and how to continue; return the exit code."""
        outcomes = [(part.name, self.record.of(part.name)) for part in self.call.parts]
        for name, outcome in outcomes:
            if outcome.state == "skipped":
                self._say(f"skipped {name}: {outcome.error[0]}")
        if failed := [name for name, outcome in outcomes if outcome.state == FAILED]:
            self._say(f"failed: {', '.join(failed)}. To run them once more: {command} --again {FAILED}")
        self._say(f"figures: {self.call.places.out / 'gpu.json'}, {self.call.places.out / 'table.md'}")
        if left := self._left():
            names = ", ".join(part.name for part in left)
            self._say(f"left: {names}, about {duration(_needed(left))}. Call again:\n  {command}")
            return SOME_LEFT
        self._say("nothing is left")
        return SOME_FAILED if failed else ALL_DONE

    def _overview(self) -> str:
        left, here = self._left(), self.machine
        what = f"{len(left)} of {len(self.call.parts)} parts left, about {duration(_needed(left))}"
        return f"{here['device']}, torch {here['torch']}, commit {here['commit']}: {what}"

    def _left(self) -> list[Part]:
        return [part for part in self.call.parts if self.record.of(part.name).state in LEFT]

    def _save(self) -> None:
        self.record.save(self.call.places.out)
        write_table(self.call.places.out, self.call.parts, self.record)

    def _say(self, text: str) -> None:
        print(printable(text), flush=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other calls out of a folder; the system ends this however the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    except OSError as error:
        raise UserError(f"cannot write in {folder}: {error.strerror or error}: name another --out") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another call works in {folder}: wait for its end, or name another --out") from None
        yield


def _result(part: Part, figures: Any) -> str:
    """A part's figures as a line; empty if there are none, or not those that the line is made of."""
    try:
        return "" if figures is None else part.result(figures)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return ""


def _needed(parts: Sequence[Part]) -> int:
    return sum(part.seconds for part in parts)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
