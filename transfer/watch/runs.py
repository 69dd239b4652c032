"""The run that is watched, in a folder of this machine or at a URL: its checkpoints, its metrics, its end."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from excb.checkpoint import run_checkpoint
from excb.errors import UserError, require
from excb.files import json_text
from excb.files.foreign import read_bytes
from excb.files.run_files import METRICS, OWNER, RECIPE, REPORT, metrics_in, read_metrics
from excb.remote import byte_ranges
from excb.remote.object_store import ObjectStore, StoreError

_WRITES = "name a run of excb-pretrain: the folder or URL of its --out"


class UnreachableError(UserError):
    """A store that could not be read, although the request was tried several times."""


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment.

    Attributes:
        checkpoints: the stamp of every checkpoint's file by step, in the order of steps; it changes when the file does.
        metrics: the lines of its `metrics.jsonl`.
        finished: whether no further checkpoint will come.
        save_epochs: epochs between its checkpoints; None where that is not known.
    """

    checkpoints: Mapping[int, str]
    metrics: Sequence[Mapping[str, Any]]
    finished: bool
    save_epochs: int | None = None

    def saved(self) -> set[int]:
        """The steps at which it must have written a checkpoint, by its metrics; those from its newest one on are open.

        A run writes one after each epoch that it measured, and every `save_epochs` epochs.
        """
        newest, every = max(self.checkpoints, default=0), self.save_epochs
        return {
            line["step"]
            for line in self.metrics
            if line["kind"] == "epoch" and line["step"] < newest and ("score" in line or _due(line.get("epoch"), every))
        }

    @cached_property
    def epochs(self) -> dict[int, float]:
        """The epoch of every step that its metrics name."""
        return {line["step"]: line["epoch"] for line in self.metrics if _is_number(line.get("epoch"))}


def _due(epoch: Any, every: int | None) -> bool:
    return every is not None and _is_number(epoch) and epoch % every == 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class WatchedRun(Protocol):
    """A run that is only read; all methods are for rank 0."""

    place: str  # its folder or URL
    name: str  # of its folder

    def look(self) -> Snapshot:
        """The run as it is now. A run that is reported as finished has no checkpoint that the snapshot lacks.

        Raises:
            UserError: there is no run.
            UnreachableError: it cannot be read.
        """

    def checkpoint(self, step: int) -> Path | None:
        """The file of a checkpoint on this machine, fetched if it must be; None if the run has removed it meanwhile.

        Raises:
            UnreachableError: it cannot be fetched.
        """

    def address(self, step: int) -> str:
        """The name that `excb.load` takes for the checkpoint."""


class LocalRun:
    """A run folder of this machine. Its checkpoints appear under their names when they are whole, and never before."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place, self.name = folder, str(folder), folder.resolve().name

    def look(self) -> Snapshot:
        """See `WatchedRun`."""
        require(not self.folder.is_file(), f"{self.folder} is a file: {_WRITES}")
        require(self.folder.is_dir(), f"no run is at {self.folder}: {_WRITES}")
        # In this order: the report comes after the last checkpoint, and a checkpoint after its epoch's metrics.
        report, metrics = (self.folder / REPORT).is_file(), read_metrics(self.folder)
        checkpoints = {}
        for file in reversed(run_checkpoint.in_run(self.folder)):
            with suppress(FileNotFoundError):  # removed since it was listed
                checkpoints[run_checkpoint.step_of(file)] = byte_ranges.local_stamp(file.stat())
        recipe = self.folder / RECIPE
        _require_run(bool(checkpoints) or recipe.is_file(), str(self.folder))
        every = _save_epochs(read_bytes(recipe) if recipe.is_file() else None)
        return Snapshot(checkpoints, metrics, report, every)

    def checkpoint(self, step: int) -> Path | None:
        """See `WatchedRun`."""
        file = self._file(step)
        return file if file.is_file() else None

    def address(self, step: int) -> str:
        """See `WatchedRun`."""
        return str(self._file(step))

    def _file(self, step: int) -> Path:
        return self.folder / run_checkpoint.FOLDER / run_checkpoint.name_of(step)


class StoredRun:
    """A run at a URL, whose checkpoints are fetched into a folder of this machine one at a time.

    Args:
        url: its address.
        scratch: where the fetched checkpoint is kept.

    Raises:
        UserError: fsspec has no such protocol, or it needs a package that is missing.
    """

    def __init__(self, url: str, scratch: Path) -> None:
        self._store, self._scratch = ObjectStore(url), scratch
        self.place, self.name = self._store.url, self._store.url.rpartition("/")[2]

    def look(self) -> Snapshot:
        """See `WatchedRun`."""
        try:
            names, report = self._store.sizes(), self._store.read(REPORT)
            metrics, recipe = self._store.read(METRICS) or b"", self._store.read(RECIPE)
            listed = self._steps()
        except StoreError as error:
            raise UnreachableError(f"{error}: check the name, and your access to it") from None
        _require_run(bool(listed) or recipe is not None, self._store.url)
        checkpoints = {}
        for step in listed:
            try:
                checkpoints[step] = byte_ranges.stamp(self.address(step))
            except UserError:  # removed since it was listed, or a failure: then the next look finds it
                continue
        # The report may be sent before the last checkpoint, which it names.
        finished = report is not None and (OWNER not in names or _last(report) in checkpoints)
        finished &= len(checkpoints) == len(listed)
        return Snapshot(checkpoints, metrics_in(metrics.decode("utf-8", "replace")), finished, _save_epochs(recipe))

    def checkpoint(self, step: int) -> Path | None:
        """See `WatchedRun`."""
        name = self._name(step)
        target = self._scratch / self.name / name
        try:
            self._store.fetch(name, target)
        except StoreError as error:
            with suppress(StoreError):
                if step not in self._steps():
                    return None
            raise UnreachableError(f"{error}: check your access to it") from None
        return target

    def address(self, step: int) -> str:
        """See `WatchedRun`."""
        return f"{self._store.url}/{self._name(step)}"

    def _steps(self) -> list[int]:
        names = filter(run_checkpoint.is_name, self._store.sizes(run_checkpoint.FOLDER))
        return sorted(run_checkpoint.step_of(Path(name)) for name in names)

    @staticmethod
    def _name(step: int) -> str:
        return f"{run_checkpoint.FOLDER}/{run_checkpoint.name_of(step)}"


def _require_run(holds: bool, place: str) -> None:
    require(holds, f"no run is at {place}, which has neither checkpoints nor {RECIPE}: {_WRITES}")


def _save_epochs(recipe: bytes | None) -> int | None:
    """The value in a run's recipe; None for a run without one, or a file that is not a recipe."""
    try:
        every = json_text.parse(recipe or b"")["recipe"]["run"]["save_epochs"]
    except (ValueError, LookupError, TypeError):
        return None
    return every if type(every) is int and every > 0 else None


def _last(report: bytes) -> int | None:
    """The step of a finished run's last checkpoint."""
    try:
        name = Path(json_text.parse(report)["checkpoint"])
    except (ValueError, LookupError, TypeError):
        return None
    return run_checkpoint.step_of(name) if run_checkpoint.is_name(name.name) else None
