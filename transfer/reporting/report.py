"""From predictions to a result and its files: the one form in which every protocol reports."""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError
from excb.files import npy
from excb.files.atomic import write_bytes, write_text
from excb.networks.backbone import weights_hash
from excb.results.result import Result

from ..task import Task
from . import confusion, scoring


@dataclass(frozen=True)
class Predictions:
    """What a protocol predicts for the test images, every image once.

    Args:
        targets: [Q] int64, true classes.
        names: the test images' paths.
        classes: class names; of `Task.test`, so that classes which the train set has not are there as well.
        top5: guesses by template, [Q, 5 or fewer] int64, best first. A template is a figure's name with {} for top1
            and top5, such as "knn_{}_k20".
    """

    targets: Tensor
    names: Sequence[str]
    classes: tuple[str, ...]
    top5: dict[str, Tensor]

    def __post_init__(self) -> None:
        assert len(self.names) == len(self.targets) > 0
        assert 0 <= int(self.targets.min()) <= int(self.targets.max()) < len(self.classes)
        for template, ranked in self.top5.items():
            assert template.count("{}") == 1, template
            assert ranked.ndim == 2, template
            assert len(ranked) == len(self.targets), template
            assert 1 <= ranked.shape[1] <= 5, template
            assert 0 <= int(ranked.min()) <= int(ranked.max()) < len(self.classes), template

    def hits(self, *, within: int) -> dict[str, Tensor]:
        """Which images are right, [Q] bool, for every figure that looks at the first `within` guesses."""
        return {
            template.format(f"top{within}"): scoring.correct(ranked, self.targets, within=within)
            for template, ranked in self.top5.items()
        }


def report(
    task: Task,
    *,
    protocol: str,
    settings: dict[str, Any],
    predictions: Predictions,
    seconds: float,
    notes: Sequence[str] = (),
) -> Result:
    """Make a protocol's result, with intervals and accuracy by class.

    Args:
        task: backbone and images. Its weights are hashed as they are now.
        protocol: its name.
        settings: all that the figures depend on; JSON holds it, and its hash tells whether figures compare.
        predictions: of the test images.
        seconds: wall time.
        notes: what a reader of the figures must know.
    """
    first, fifth = predictions.hits(within=1), predictions.hits(within=5)
    hits = {name: each for pair in zip(first.items(), fifth.items(), strict=True) for name, each in pair}
    described = task.describe()
    return Result(
        protocol=protocol,
        figures={name: round(scoring.percent(each), 4) for name, each in hits.items()},
        settings=settings,
        checkpoint=described["checkpoint"] | {"weights_sha256": weights_hash(task.backbone.network)},
        data=described["data"],
        seconds=round(seconds, 1),
        intervals={name: scoring.interval(each) for name, each in hits.items()},
        per_class={
            name: scoring.by_class(each, predictions.targets, predictions.classes) for name, each in first.items()
        },
        notes=list(notes),
    )


def write(result: Result, predictions: Predictions, file: Path) -> list[Path]:
    """Write a result's files; process 0 does, for all.

    Args:
        result: what `report` made, perhaps with more figures.
        predictions: what it was made of.
        file: FILE.json. FILE.npz with all predictions and FILE.confusion.png of the first figure are put beside it.

    Returns:
        The files, JSON first.

    Raises:
        UserError: one cannot be written.
    """
    return run_on_rank0(lambda: _write(result, predictions, file))


def _write(result: Result, predictions: Predictions, file: Path) -> list[Path]:
    stem = file.name.removesuffix(".json")
    arrays, picture = file.with_name(f"{stem}.npz"), file.with_name(f"{stem}.confusion.png")
    packed = _pack(predictions)
    template, ranked = next(iter(predictions.top5.items()))
    matrix = scoring.confusions(ranked[:, 0], predictions.targets, len(predictions.classes))
    name = template.format("top1")
    title = f"{name}: {scoring.percent(ranked[:, 0] == predictions.targets):.2f} % of {len(ranked):,} test images"
    result = replace(result, predictions={"file": arrays.name, "sha256": hashlib.sha256(packed).hexdigest()})
    write_bytes(packed, arrays)
    write_bytes(confusion.draw(matrix.cpu().numpy(), predictions.classes, title=title), picture)
    write_text(result.to_json() + "\n", file)  # last: what it names is there
    return [file, arrays, picture]


def read(file: Path) -> tuple[Result, Predictions]:
    """Read what `write` wrote.

    Args:
        file: FILE.json.

    Raises:
        UserError: it is no such file, or its predictions are missing or not its own.
    """
    try:
        result = Result.from_json(file.read_text(encoding="utf-8"), source=str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the result {file}: {error}") from None
    if not result.predictions:
        raise UserError(f"{file} names no predictions: evaluate again with --out")
    if not result.predictions["file"].endswith(".npz"):
        raise UserError(
            f"{file} is of protocol {result.protocol}, which predicts no class for each image: name another"
        )
    arrays = file.parent / result.predictions["file"]
    try:
        packed = arrays.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the predictions of {file}: {error}; keep both files together") from None
    if hashlib.sha256(packed).hexdigest() != result.predictions["sha256"]:
        raise UserError(f"{arrays} does not hold the predictions of {file} (their sha256 differ): evaluate again")
    try:
        return result, _unpack(packed)
    except npy.DAMAGE as error:
        raise UserError(f"{arrays} holds no predictions ({type(error).__name__}: {error}): evaluate again") from None


_OTHERS = ("targets", "names", "classes")  # beside the templates, which hold {}


def _pack(predictions: Predictions) -> bytes:
    """Predictions as the bytes of an .npz file; equal predictions give equal bytes."""
    arrays: dict[str, Any] = {
        "targets": predictions.targets.cpu().numpy(),
        "names": np.array(predictions.names),
        "classes": np.array(predictions.classes),
    }
    arrays |= {template: ranked.cpu().numpy() for template, ranked in predictions.top5.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _unpack(packed: bytes) -> Predictions:
    """Predictions from the bytes of an .npz file.

    Raises:
        npy.DAMAGE: it is none, or its arrays are no predictions.
    """
    with npy.unwarned(), np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        targets, names, classes = (arrays[name] for name in _OTHERS)
        top5 = {name: arrays[name] for name in arrays.files if name not in _OTHERS}
    images, labels = len(targets), len(classes)
    _require(images > 0 and bool(top5), "images and guesses")
    _require(all(texts.ndim == 1 and texts.dtype.kind == "U" for texts in (names, classes)), "names as text")
    _require(len(names) == images, "one name for each image")
    for name, values in {"targets": targets[:, None], **top5}.items():
        _require(values.dtype == np.int64 and values.ndim == 2, f"whole numbers in {name}")
        _require(len(values) == images and 1 <= values.shape[1] <= 5, f"one to five guesses for each image in {name}")
        _require(values.min() >= 0 and values.max() < labels, f"indices of classes in {name}")
    _require(all(name.count("{}") == 1 for name in top5), "templates with {} for top1 and top5")
    tensors = {name: torch.from_numpy(values) for name, values in top5.items()}
    return Predictions(torch.from_numpy(targets), names.tolist(), tuple(classes.tolist()), tensors)


def _require(condition: bool | np.bool_, expected: str) -> None:
    if not condition:
        raise ValueError(f"expected {expected}")
