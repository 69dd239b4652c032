"""Predictions for every test image: guesses of classes, or a score for each figure. Both give scores.

A figure is 100 times the mean of its scores over the images. The scores of all figures are saved beside the result, so
that a leaderboard can compute its figures again, and `excb-eval compare` can test two results image by image.
"""

import io
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from excb.console import plural
from excb.errors import UserError
from excb.files import npy
from excb.inference import accuracy, statistics
from excb.inference.basis import EFFECTS, HALVES, Basis
from excb.inference.estimate import Estimate
from excb.inference.galleries import SIGNED, GalleryScores
from excb.inference.halves import from_bytes, halved_lead, halved_mean
from excb.inference.paired import Paired, PairedTest, of_figure
from excb.results.pictures import CONFUSION

from ..task import Task
from . import confusion

_EFFECTS, _HALVES, _SHARED = "gallery:", "halves:", "shared_gallery"  # arrays beside the scores of rankings


@dataclass(frozen=True)
class Scored(Paired):
    """A protocol's answers for every test image.

    Args:
        targets: [Q] int64, true classes.
        names: the test images' paths.
        classes: class names; of `Task.test`, so classes that the train set lacks are included.
        values: what was said of every image, by name; see the kinds below.

    Raises:
        ValueError: these do not fit together.
    """

    targets: Tensor
    names: Sequence[str]
    classes: tuple[str, ...]
    values: dict[str, Tensor]

    judged: ClassVar[str] = "one class per image"
    suffix: ClassVar[str] = ".npz"
    picture_name: ClassVar[str] = CONFUSION

    @classmethod
    def of(cls, task: Task, values: dict[str, Tensor]) -> Self:
        """A protocol's answers for the test images of a task."""
        assert task.test.labels is not None
        return cls(torch.from_numpy(task.test.labels), task.test.paths, task.test.classes or (), values)

    def __post_init__(self) -> None:
        _require(self.targets.dtype == torch.int64 and self.targets.ndim == 1, "whole numbers in targets")
        _require(len(self.targets) > 0 and bool(self.values), "images and guesses")
        _require(len(self.names) == len(self.targets), "one name for each image")
        _require(_indices(self.targets, len(self.classes)), "indices of classes in targets")

    @abstractmethod
    def scores(self) -> dict[str, Tensor]:
        """Scores [Q] by figure: bool for hits, else float64 with NaN for images that do not count."""

    @property
    @abstractmethod
    def main(self) -> list[str]:
        """The figures that are reported by class, and that `compare` tests by default."""

    @property
    def testable(self) -> list[str]:
        """See `Paired.testable`."""
        return list(self.scores())

    def require_same_truth(self, other: "Scored", name: str, other_name: str) -> None:
        """See `Paired.require_same_truth`: classes count by name; their numbers may differ."""
        for image, true, others in zip(self.names, self.targets.tolist(), other.targets.tolist(), strict=True):
            if self.classes[true] != other.classes[others]:
                raise UserError(
                    f"{image} is of class {self.classes[true]} in {name}, but {other.classes[others]} in {other_name}: "
                    "evaluate both with the same labels (and --rename)"
                )

    def compared(self, figure: str, other: "Scored", other_figure: str) -> PairedTest:
        """See `statistics.compared`."""
        return statistics.compared(self.scores()[figure], other.scores()[other_figure])

    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % interval of every figure that has one, in percent."""
        return {name: statistics.interval(each) for name, each in self.scores().items()}

    def bases(self) -> dict[str, Basis]:
        """The sampling unit and the method of every interval, by figure."""
        return {name: statistics.basis(each) for name, each in self.scores().items()}

    def columns(self, figure: str) -> dict[str, list[Any]]:
        """See `PerImage.columns`."""
        scores = of_figure(figure, self.scores())
        true = [self.classes[target] for target in self.targets.tolist()]
        return {"path": list(self.names), "class": true, **self._said(figure, scores)}

    def _said(self, _figure: str, scores: Tensor) -> dict[str, list[Any]]:
        return {"score": scores.tolist()}

    @abstractmethod
    def picture(self) -> bytes | None:
        """A PNG, such as of the confusions; None where there is nothing to draw."""

    def pack(self) -> bytes:
        """The bytes of an .npz file; equal values give equal bytes."""
        texts = {"names": np.array(self.names), "classes": np.array(self.classes)}
        values = {name: each.cpu().numpy() for name, each in self.values.items()}
        arrays: dict[str, Any] = {"targets": self.targets.cpu().numpy()} | texts | values | self._more()
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()

    def _more(self) -> dict[str, np.ndarray]:
        """More arrays, of one kind only, for its file."""
        return {}


@dataclass(frozen=True)
class Predictions(Scored):
    """The classes that a protocol guesses for the test images, every image once.

    Args:
        values: guesses by template, [Q, 5 or fewer] int64, best first, -1 where there is no further guess. A template
            is a figure's name with {} for top1 and top5, such as "knn_{}_k20". Beside templates of several seeds,
            "semisup_1pct_{}_seed4", the one without a seed stands for their mean, whatever guesses it has.
        pictured: the template of the confusion matrix; the first where it is empty.
    """

    pictured: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, ranked in self.values.items():
            _require(name.count("{}") == 1, "templates with {} for top1 and top5")
            _require(ranked.dtype == torch.int64 and ranked.ndim == 2, f"whole numbers in {name}")
            fits = len(ranked) == len(self.targets) and 1 <= ranked.shape[1] <= 5
            _require(fits, f"one to five guesses for each image in {name}")
            _require(_indices(ranked[:, 0], len(self.classes)), f"indices of classes in {name}")
            _require(_indices(ranked + 1, len(self.classes) + 1), f"indices of classes or -1 in {name}")

    def hits(self, *, within: int) -> dict[str, Tensor]:
        """Which images are right, [Q] bool, for every figure that looks at the first `within` guesses."""
        return {
            template.format(f"top{within}"): accuracy.correct(ranked, self.targets, within=within)
            for template, ranked in self.values.items()
        }

    def scores(self) -> dict[str, Tensor]:
        """Top-1 and top-5 hits of every template; of a mean over seeds, the share of seeds that are right."""
        hits = self.hits(within=1) | self.hits(within=5)
        scores = {}
        for template in self.values:
            seeds = self._seeds(template)
            for top in ("top1", "top5"):
                each = [hits[one.format(top)] for one in seeds]
                name = template.format(top)
                scores[name] = torch.stack(each).double().mean(0) if each else hits[name]
        return scores

    def _seeds(self, template: str) -> list[str]:
        """The templates of the seeds that this one is the mean of; none where it is no mean."""
        return [name for name in self.values if re.fullmatch(re.escape(template) + r"_seed\d+", name)]

    def _said(self, figure: str, scores: Tensor) -> dict[str, list[Any]]:
        template = next(each for each in self.values if figure in (each.format("top1"), each.format("top5")))
        guesses = [self.classes[ranked] for ranked in self.values[template][:, 0].tolist()]
        return {"predicted": guesses, "correct": scores.tolist()}

    @property
    def main(self) -> list[str]:
        """The top-1 figures."""
        return [template.format("top1") for template in self.values]

    def picture(self) -> bytes:
        """The confusion matrix of the template `pictured`; of a mean over seeds that of the first seed."""
        first = self.pictured or next(iter(self.values))
        template = next(iter(self._seeds(first)), first)
        ranked = self.values[template]
        matrix = accuracy.confusions(ranked[:, 0], self.targets, len(self.classes))
        percent = accuracy.accuracy(ranked[:, 0] == self.targets)
        title = f"{template.format('top1')}: {percent:.2f} % of {plural(len(ranked), 'test image')}"
        return confusion.draw_confusion(matrix.cpu().numpy(), self.classes, title=title)


@dataclass(frozen=True)
class ImageScores(Scored):
    """A score of every test image for each figure, for protocols that guess no class.

    Args:
        values: [Q] float64 by figure, 0 to 1 where the figure is in percent; NaN of images that do not count. The
            first figure is the main one.
        gallery: [W, G] float64 by figure, of rankings: see `GalleryScores.effects`.
        halves: scores of the queries in their half of P divisions into halves, [P, Q] by figure, as
            `inference.halves.as_bytes` has them.
        shared_gallery: whether the gallery holds the queries themselves, in their order.
    """

    gallery: dict[str, Tensor] = field(default_factory=dict)
    halves: dict[str, Tensor] = field(default_factory=dict)
    shared_gallery: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, scores in self.values.items():
            fits = scores.dtype == torch.float64 and scores.shape == self.targets.shape
            _require(fits, f"one score for each image in {name}")
            _require(not scores.isinf().any(), f"finite scores in {name}")
            _require(not scores.isnan().all(), f"an image that counts in {name}")
        for name, effects in self.gallery.items():
            fits = effects.dtype == torch.float64 and effects.ndim == 2 and len(effects) == 1 + SIGNED
            _require(name in self.values and fits, "effects of a figure")
            _require(bool(effects.isfinite().all()), f"finite effects on {name}")
            fits = not self.shared_gallery or effects.shape[1] == len(self.targets)
            _require(fits, f"an effect of each image on {name}")
        for name, stored in self.halves.items():
            fits = name in self.values and stored.dtype == torch.uint8 and stored.ndim == 2 and len(stored) > 0
            _require(fits and bool(self.gallery), f"scores on halves in {name}")
            _require(stored.shape[1] == len(self.targets), f"each image on halves in {name}")

    def scores(self) -> dict[str, Tensor]:
        """The scores as they are."""
        return self.values

    def intervals(self) -> dict[str, tuple[float, float]]:
        """See `Scored.intervals`; of rankings over queries and gallery."""
        over_gallery = self.gallery | self.halves
        own = {name: statistics.interval(each) for name, each in self.values.items() if name not in over_gallery}
        ends = {name: self._over_gallery(name).interval() for name in over_gallery}
        return own | {name: each for name, each in ends.items() if each is not None}

    def bases(self) -> dict[str, Basis]:
        """See `Scored.bases`."""
        return super().bases() | dict.fromkeys(self.gallery, EFFECTS) | dict.fromkeys(self.halves, HALVES)

    def compared(self, figure: str, other: "Scored", other_figure: str) -> PairedTest:
        """See `statistics.compared`; of rankings the interval and the p-value are over queries and gallery."""
        test = super().compared(figure, other, other_figure)
        if not isinstance(other, ImageScores) or not self._same_gallery(figure, other, other_figure):
            return test
        lead = self._lead(figure, other, other_figure)
        basis = HALVES if figure in self.halves else EFFECTS
        return replace(
            test, interval=lead.interval(lowest=-1.0), p_value=lead.p_value(), test=basis.method, unit=basis.unit
        )

    def _same_gallery(self, figure: str, other: "ImageScores", other_figure: str) -> bool:
        """Whether two figures are of queries and a gallery that a paired test can be over."""
        one, two = (each.gallery.keys() | each.halves.keys() for each in (self, other))
        alike = (figure in self.halves) == (other_figure in other.halves)
        if figure not in one or other_figure not in two or not alike or self.shared_gallery != other.shared_gallery:
            return False
        return self._gallery_images == other._gallery_images

    @property
    def _gallery_images(self) -> int:
        return next(iter(self.gallery.values())).shape[1]

    def _on_halves(self, figure: str) -> np.ndarray:
        return from_bytes(self.halves[figure].numpy())

    def _over_gallery(self, figure: str) -> Estimate:
        if figure in self.gallery:
            return self._effects(figure).spread()
        scores = self.values[figure].cpu().numpy()
        return halved_mean(scores, self._on_halves(figure), gallery=self._gallery_images)

    def _lead(self, figure: str, other: "ImageScores", other_figure: str) -> Estimate:
        """The other's figure minus this one."""
        if figure in self.gallery:
            return other._effects(other_figure).lead_over(self._effects(figure))
        lead = (other.values[other_figure] - self.values[figure]).cpu().numpy()
        on_halves = other._on_halves(other_figure) - self._on_halves(figure)
        return halved_lead(lead, on_halves, gallery=self._gallery_images)

    def _effects(self, figure: str) -> GalleryScores:
        return GalleryScores(
            self.values[figure].cpu().numpy(), self.gallery[figure].numpy(), shared=self.shared_gallery
        )

    def _more(self) -> dict[str, np.ndarray]:
        effects = {_EFFECTS + name: each.numpy() for name, each in self.gallery.items()}
        effects |= {_HALVES + name: each.numpy() for name, each in self.halves.items()}
        return effects | ({_SHARED: np.array(self.shared_gallery)} if effects else {})

    @property
    def main(self) -> list[str]:
        """The first figure."""
        return list(self.values)[:1]

    def picture(self) -> bytes | None:
        """None: no class is taken for another."""
        return None


def unpack_predictions(packed: bytes) -> Predictions | ImageScores:
    """Unpack what `Scored.pack` packed.

    Raises:
        npy.DAMAGE: these bytes are not an .npz file, or hold other arrays.
    """
    values = npy.read_npz(packed)
    targets, names, classes = (values.pop(name) for name in ("targets", "names", "classes"))
    _require(all(texts.ndim == 1 and texts.dtype.kind == "U" for texts in (names, classes)), "names as text")
    shared = values.pop(_SHARED, np.array(False))
    tensors = {name: torch.from_numpy(each) for name, each in values.items()}
    effects, halves = (
        {name.removeprefix(start): tensors.pop(name) for name in list(tensors) if name.startswith(start)}
        for start in (_EFFECTS, _HALVES)
    )
    what = torch.from_numpy(targets), names.tolist(), tuple(classes.tolist()), tensors
    if any(each.dtype != torch.float64 for each in tensors.values()):
        return Predictions(*what)
    _require(shared.dtype == bool and shared.ndim == 0, "whether the gallery holds the queries")
    return ImageScores(*what, effects, halves, bool(shared))


def _indices(values: Tensor, count: int) -> bool:
    return int(values.min()) >= 0 and int(values.max()) < count


def _require(condition: bool | Tensor, expected: str) -> None:
    if not condition:
        raise ValueError(f"expected {expected}")
