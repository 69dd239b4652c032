"""From scored images to a result and its files: the one form in which every protocol reports."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError
from excb.files import npy
from excb.files.atomic import read_again, write_bytes
from excb.files.foreign import read_bytes
from excb.inference import statistics
from excb.inference.basis import stated
from excb.inference.paired import Paired
from excb.results.pictures import picture_beside
from excb.results.result import ResultRecord

from ..task import Task
from . import label_scores
from .label_scores import LabelScores
from .predictions import ImageScores, Predictions, Scored, unpack_predictions
from .references import below, guesses, nearly_by_chance


def make_result(
    task: Task,
    *,
    protocol: str,
    settings: dict[str, Any],
    scored: Scored,
    seconds: float,
    notes: Sequence[str] = (),
    references: Mapping[str, Mapping[str, float]] | None = None,
) -> ResultRecord:
    """Make a protocol's result, with intervals, and its main figures by class.

    Args:
        task: backbone and images.
        protocol: its name.
        settings: all that the figures depend on; JSON holds it, and its hash tells whether figures compare.
        scored: the test images.
        seconds: wall time.
        notes: what a reader of the figures must know.
        references: figures in percent by reference, beside those of guessing.
    """
    scores = scored.scores()
    described = task.describe()
    guessing = guesses(task, scored) if isinstance(scored, Predictions) else {}
    result = ResultRecord(
        protocol=protocol,
        figures={name: round(statistics.percent(each), 4) for name, each in scores.items()},
        settings=settings | task.settings,
        checkpoint=described["checkpoint"],
        data=described["data"],
        ledger=described["ledger"] + nearly_by_chance(guessing),
        seconds=round(seconds, 1),
        intervals=(intervals := scored.intervals()),
        inference=stated(scored.bases(), intervals),
        per_class={name: statistics.by_class(scores[name], scored.targets, scored.classes) for name in scored.main},
        notes=[*(task.unknown_notes() if isinstance(scored, Predictions) else []), *notes, *_untrained_note(task)],
        references=guessing | {name: dict(values) for name, values in (references or {}).items()},
    )
    return replace(result, notes=[*result.notes, *below(result)])


def _untrained_note(task: Task) -> list[str]:
    return ["random weights, with the BatchNorm statistics of the train images"] if task.is_untrained else []


class Packed(Protocol):
    """A protocol's answers for every test image, ready for a file."""

    @property
    def suffix(self) -> str:
        """Of the file beside FILE.json, such as ".npz"."""

    @property
    def picture_name(self) -> str:
        """Of the picture beside FILE.json, such as "confusion"."""

    def pack(self) -> bytes:
        """The file's bytes."""

    def picture(self) -> bytes | None:
        """A PNG of confusions; None where nothing is confused."""


@dataclass(frozen=True)
class ScoredFiles:
    """Writes a result with what was said of every image, as `write_result` does."""

    scored: Packed

    def __call__(self, result: ResultRecord, file: Path) -> list[Path]:
        """The files, JSON first."""
        return write_result(result, self.scored, file)


def write_result(result: ResultRecord, scored: Packed, file: Path) -> list[Path]:
    """Write a result's files; rank 0 does, for all.

    Args:
        result: what `make_result` made, perhaps with more figures.
        scored: what it was made of.
        file: FILE.json. FILE.npz with the guesses or scores of all images is put beside it (sets of labels:
            FILE.safetensors), and FILE.confusion.png where classes were guessed, or the protocol's own picture.

    Returns:
        The files, JSON first.

    Raises:
        UserError: one cannot be written.
    """
    return run_on_rank0(lambda: _write(result, scored, file))


def _write(result: ResultRecord, scored: Packed, file: Path) -> list[Path]:
    stem = file.name.removesuffix(".json")
    arrays, picture = file.with_name(f"{stem}{scored.suffix}"), picture_beside(file, scored.picture_name)
    packed, drawn = scored.pack(), scored.picture()
    with read_again(arrays):
        unpack = label_scores.unpack_label_scores if scored.suffix == LabelScores.suffix else unpack_predictions
        unpack(packed)
    result = replace(result, predictions={"file": arrays.name, "sha256": hashlib.sha256(packed).hexdigest()})
    write_bytes(packed, arrays)
    if drawn is not None:
        write_bytes(drawn, picture)
    result.write(file)  # last: the files that it names exist
    return [file, arrays] if drawn is None else [file, arrays, picture]


def paired_beside(result: ResultRecord, file: Path) -> Paired:
    """The predictions beside FILE.json, of images with one label or several. Raises UserError as `scored_beside`."""
    if not (result.predictions and result.predictions["file"].endswith(LabelScores.suffix)):
        return scored_beside(result, file)
    place, packed = bytes_beside(result, file, what="scores")
    try:
        return label_scores.unpack_label_scores(packed)
    except ValueError as error:
        raise UserError(f"{place} holds no scores ({error}): evaluate again") from None


def scored_beside(result: ResultRecord, file: Path) -> Predictions | ImageScores:
    """The predictions beside FILE.json, of images with one label. Raises UserError if there are none of its own."""
    if result.predictions and not result.predictions["file"].endswith(".npz"):
        raise UserError(f"{file} is of protocol {result.protocol}, which saves no score for each image: name another")
    arrays, packed = bytes_beside(result, file, what="predictions")
    try:
        return unpack_predictions(packed)
    except npy.DAMAGE as error:
        raise UserError(f"{arrays} holds no predictions ({type(error).__name__}: {error}): evaluate again") from None


def bytes_beside(result: ResultRecord, file: Path, *, what: str) -> tuple[Path, bytes]:
    """The file that a result's FILE.json names as its predictions, and its bytes; `what` is what messages call them.

    Raises:
        UserError: it names none, or they are missing or not its own.
    """
    if not result.predictions:
        raise UserError(f"{file} names no predictions: evaluate again with --out")
    place = file.parent / result.predictions["file"]
    try:
        packed = read_bytes(place)
    except OSError as error:
        raise UserError(f"cannot read the {what} of {file}: {error}; keep both files together") from None
    if hashlib.sha256(packed).hexdigest() != result.predictions["sha256"]:
        raise UserError(f"{place} does not hold the {what} of {file} (their sha256 differ): evaluate again")
    return place, packed
