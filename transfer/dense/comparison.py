"""Whether two segmentations differ by more than chance: paired tests on images, each with all its pixels.

mIoU is no mean over images, so areas are summed anew for each set of images, and the figure is computed again.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from excb.console import plural
from excb.errors import UserError
from excb.inference.means import RESAMPLES, blocks
from excb.inference.paired import Paired, PairedTest
from excb.results.result import ResultRecord
from excb.seeding import Purpose, generator

from ..reporting.report import bytes_beside
from .patches.metrics import MEASURES, Areas, area_difference, figure_name

Measure = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # see `metrics.MEASURES`
Resampling = Callable[[np.ndarray], np.ndarray]  # [resamples, N] -> [resamples], a share of 1

_SLACK = 1e-12  # rounding errors of a share of 1


@dataclass(frozen=True)
class Segmentations(Paired):
    """The areas of every test image, by run and seed.

    Args:
        names: the test images' paths.
        classes: class names, C of them.
        runs: by head and part, such as "knn_1of8", the areas [N, C] of every seed.
    """

    names: Sequence[str]
    classes: Sequence[str]
    runs: dict[str, list[Areas]]

    judged: ClassVar[str] = "pixels"

    @property
    def main(self) -> list[str]:
        """The mIoU of every run."""
        return [figure_name(run, "miou") for run in self.runs]

    @property
    def testable(self) -> list[str]:
        """Every measure of every run."""
        return [figure_name(run, measure) for run in self.runs for measure in MEASURES]

    def require_same_truth(self, other: "Segmentations", name: str, other_name: str) -> None:
        """See `Paired.require_same_truth`: areas of true classes are equal in every image."""
        true, others = (next(iter(each.runs.values()))[0].true for each in (self, other))
        same = list(self.classes) == list(other.classes) and true.shape == others.shape and (true == others).all()
        if not same:
            raise UserError(
                f"the true masks of {name} and {other_name} differ: "
                "evaluate both with the same masks, classes and --mask-size"
            )

    def compared(self, figure: str, other: "Segmentations", other_figure: str) -> PairedTest:
        """The jackknife of the difference, and a randomisation test in which images change sides.

        Figures are means over seeds; an image is left out of all of them, or changes sides in all.

        Raises:
            UserError: the two have unlike numbers of seeds, or are unlike measures.
        """
        (measure, first), (other_measure, second) = self._of(figure), other._of(other_figure)
        if measure != other_measure:
            raise UserError(f"--figure {figure}:{other_figure}: {measure} and {other_measure} are unlike measures")
        if len(first) != len(second):
            raise UserError(
                f"{figure} is a mean over {plural(len(first), 'seed')} of one and {len(second)} of the other: "
                "evaluate both with equally many --seeds"
            )
        mixed = [_exchanged(MEASURES[measure], *runs) for runs in ((first, second), (second, first))]
        images = len(self.names)
        nobody = np.zeros((1, images))
        values_of_all = [float(value(nobody)[0]) for value in mixed]
        swapped = np.concatenate([mixed[1](sides) - mixed[0](sides) for sides in _sides(images)])
        extreme = np.abs(swapped) >= abs(values_of_all[1] - values_of_all[0]) - _SLACK
        alone = [_by_image(MEASURES[measure], runs) for runs in (first, second)]
        return PairedTest(
            100 * values_of_all[0],
            100 * values_of_all[1],
            100 * (values_of_all[1] - values_of_all[0]),
            area_difference(first, second, measure).interval(lowest=-1.0),
            int((alone[0] > alone[1]).sum()),
            int((alone[1] > alone[0]).sum()),
            float((1 + extreme.sum()) / (1 + RESAMPLES)),
            "randomisation",
        )

    def _of(self, figure: str) -> tuple[str, list[Areas]]:
        """The measure and the areas of a figure."""
        matches = [(m, areas) for run, areas in self.runs.items() for m in MEASURES if figure_name(run, m) == figure]
        return matches[0]


def _exchanged(measure: Measure, runs: Sequence[Areas], others: Sequence[Areas]) -> Resampling:
    """A measure's mean over runs, by which images (1, not 0) are taken from the others' runs instead."""

    def value(sides: np.ndarray) -> np.ndarray:
        each = [
            measure(
                *(
                    mine.sum(0) + sides @ (theirs - mine)
                    for mine, theirs in zip(_kinds(run), _kinds(other), strict=True)
                )
            )
            for run, other in zip(runs, others, strict=True)
        ]
        return np.asarray(np.mean(each, axis=0))

    return value


def _kinds(areas: Areas) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return areas.right, areas.predicted, areas.true


def _sides(images: int) -> Iterator[np.ndarray]:
    """Which images change sides, in blocks [resamples, N] of 0 or 1 as float64."""
    random = generator(Purpose.BOOTSTRAP, images, 1)
    for number in blocks(images):
        yield random.integers(2, size=(number, images)).astype(np.float64)


def _by_image(measure: Measure, runs: Sequence[Areas]) -> np.ndarray:
    """The measure of every image alone that has a pixel that counts, the mean over runs."""
    counted = runs[0].true.sum(1) > 0
    return np.asarray(np.mean([measure(*(kind[counted] for kind in _kinds(run))) for run in runs], axis=0))


def read_areas(file: Path) -> Segmentations:
    """The areas beside a dense result's FILE.json.

    Raises:
        UserError: it names none, or they are missing, damaged or not its own.
    """
    areas, text = bytes_beside(ResultRecord.read(file), file, what="areas")
    try:
        kept = json.loads(text)
        width = len(kept["classes"])
        runs = {run: [_areas(images, width) for images in seeds] for run, seeds in kept["areas"].items()}
        return Segmentations(kept["images"], kept["classes"], runs)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{areas} holds no areas ({type(error).__name__}: {error}): evaluate again") from None


def _areas(images: Sequence[dict[str, list[int]]], classes: int) -> Areas:
    areas = np.zeros((3, len(images), classes), np.int64)
    for number, image in enumerate(images):
        for label, pixels in image.items():
            areas[:, number, int(label)] = pixels
    return Areas(*areas)
