"""`watch.jsonl`: one line for every checkpoint that was measured. It is all that a watch remembers."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from excb.errors import UserError
from excb.files import json_text
from excb.files.atomic import lock_of, write_text
from excb.files.foreign import read_bytes
from excb.files.records import count, list_of, number, optional, record_of, table, table_of, text
from excb.results.replacing import FOLDER_ADVICE

from .setup import difference

LOG = "watch.jsonl"
_BEGINNING = '{"step": '  # of every line


@dataclass(frozen=True, kw_only=True)
class CheckpointFigures:
    """A checkpoint's figures, as its evaluation by hand gives them.

    Attributes:
        step: of the run.
        epoch: of the run; None where the checkpoint does not say it.
        stamp: of its file when it was read: another file of this step has another one.
        weights_sha256: of its backbone.
        figure: the name of the main figure.
        figures: all of them by name, in their protocol's unit.
        intervals: their 95 % intervals.
        references: what figures must beat, by reference and figure.
        notes: what a reader of the figures must know.
        protocol: the result's.
        protocol_hash: equal for figures of equal settings.
        setup: what was asked for (`setup.Asked.on`).
        seconds: the evaluation took.
        created: when.
        version: of excb.
    """

    step: int
    epoch: float | None
    stamp: str
    weights_sha256: str
    figure: str
    figures: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    references: Mapping[str, Mapping[str, float]]
    notes: tuple[str, ...]
    protocol: str
    protocol_hash: str
    setup: Mapping[str, Any]
    seconds: float
    created: str
    version: str

    @property
    def value(self) -> float:
        """The main figure's value."""
        return self.figures[self.figure]

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its interval, if it has one."""
        ends = self.intervals.get(self.figure)
        return None if ends is None else (ends[0], ends[1])


_RULES = {
    **dict.fromkeys(("stamp", "weights_sha256", "figure", "protocol", "protocol_hash", "created", "version"), text),
    "step": count,
    "epoch": optional(number),
    "figures": table_of(number),
    "intervals": table_of(list_of(number, 2)),
    "references": table_of(table_of(number)),
    "notes": list_of(text),
    "setup": table,
    "seconds": number,
}
_LINE = record_of(_RULES, required=[field.name for field in fields(CheckpointFigures)])


class Log:
    """The measurements of one setup.

    Attributes:
        file: the folder's `watch.jsonl`.
        setup: what its figures depend on.
        measured: the newest measurement of every step.
        torn: whether the file ends in the beginning of a line, whose writer was killed.
    """

    def __init__(self, folder: Path, setup: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Read the file, if there is one; with `overwrite` one of something else counts as none. Nothing is written.

        Raises:
            UserError: it cannot be read; or, without `overwrite`, it is no log, or of another setup, or a line of it is
                damaged.
        """
        self.file, self.setup = folder / LOG, setup
        self._lines, rest = self._read()
        self.torn = bool(rest)
        try:
            if rest and not rest.startswith(_BEGINNING[: len(rest)]):
                raise UserError(f"{self.file} is there, and is no log of a watch: {FOLDER_ADVICE}")
            measured = map(self._measurement, self._lines)
            self.measured = {measurement.step: measurement for measurement in measured}
        except UserError:
            if not overwrite:
                raise
            self._lines, self.measured, self.torn = [], {}, True

    def _read(self) -> tuple[list[str], str]:
        """The whole lines, and what there is more: the beginning of a line whose writer was killed."""
        try:
            content = read_bytes(self.file).decode("utf-8", "replace")
        except FileNotFoundError:
            return [], ""
        except OSError as error:
            raise UserError(f"cannot read {self.file}: {error}") from None
        *lines, rest = content.split("\n")
        return lines, rest

    def _measurement(self, line: str) -> CheckpointFigures:
        try:
            values = json_text.parse(line)
        except ValueError:
            values = None
        if _LINE(values) is not None or values["figure"] not in values["figures"]:
            where = self._lines.index(line) + 1
            raise UserError(f"line {where} of {self.file} is damaged: remove it, and its checkpoint is measured again")
        if other := difference(values["setup"], self.setup):
            raise UserError(f"{self.file} holds figures {other}: repeat its command, {FOLDER_ADVICE}")
        values["intervals"] = {name: (low, high) for name, (low, high) in values["intervals"].items()}
        return CheckpointFigures(**values | {"notes": tuple(values["notes"])})

    def trim(self) -> None:
        """Remove what a killed writer has left of a line, and all of a log that is replaced.

        Raises:
            UserError: the file cannot be written.
        """
        if self.torn:
            write_text("".join(f"{line}\n" for line in self._lines), self.file)
            self.torn = False

    def append(self, measurement: CheckpointFigures) -> None:
        """Add a measurement, which is on the disk when this returns.

        Raises:
            UserError: the file cannot be written, or the settings of the protocol are not those of the other lines.
        """
        for other in self.measured.values():
            if other.protocol_hash != measurement.protocol_hash:
                raise UserError(
                    f"the settings of {measurement.protocol} are not those of {self.file} (excb {other.version} there, "
                    f"{measurement.version} here): name another --out"
                )
        line = json.dumps(asdict(measurement), allow_nan=False)
        try:
            with self.file.open("a", encoding="utf-8") as stream:
                stream.write(f"{line}\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise UserError(
                f"cannot write {self.file} ({error}): make room, or make it writable, then repeat the command"
            ) from None
        self._lines.append(line)
        self.measured[measurement.step] = measurement


@contextmanager
def writing(folder: Path, setup: Mapping[str, Any], *, overwrite: bool = False) -> Iterator[Log]:
    """The log of a folder, to which nobody else writes while the block runs.

    Raises:
        UserError: another watch writes there, the folder cannot be written, or as `Log`.
    """
    from filelock import FileLock, Timeout

    file = folder / LOG
    lock = FileLock(lock_of(file))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"another watch writes to {file}: wait for it, or name another --out") from None
    except (OSError, NotImplementedError) as error:
        raise UserError(f"cannot write {file}: {error}; name another --out") from None
    try:
        log = Log(folder, setup, overwrite=overwrite)
        log.trim()
        yield log
    finally:
        lock.release()
