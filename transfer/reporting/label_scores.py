"""Predictions for images with a set of labels each: a score for every class, and its mAP with intervals."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from safetensors.numpy import save

from excb.console import plural
from excb.errors import UserError
from excb.files import json_text, tensors
from excb.inference.basis import JACKKNIFE, stated
from excb.inference.paired import Paired, PairedTest, of_figure
from excb.references.guessing import MAJORITY
from excb.results.pictures import CONFUSION
from excb.results.result import ResultRecord

from ..task import Task
from . import average_precision
from .average_precision import Summary, area, eleven_points

# mAP is VOC's since 2010, which other sets use; mAP11 is VOC 2007's.
SUMMARIES: dict[str, Summary] = {"mAP": area, "mAP11": eleven_points}
# Intervals need no resamples any more. The number stays, so that figures of earlier versions are of equal settings.
SETTINGS = {"labels": "sets", "ignored": "left out", "ties": "one threshold", "resamples": 1000}


@dataclass(frozen=True)
class LabelScores(Paired):
    """Scores of every class for every test image.

    Args:
        targets: [Q, C] int8: 1 of the class, 0 not, -1 ignored.
        names: the test images' paths.
        classes: class names.
        values: scores [Q, C] float64 by template: a figure's name with {} for mAP and mAP11, such as "knn_{}_k20".
    """

    targets: np.ndarray
    names: Sequence[str]
    classes: tuple[str, ...]
    values: dict[str, np.ndarray]

    judged: ClassVar[str] = "several labels per image"
    suffix: ClassVar[str] = ".safetensors"
    picture_name: ClassVar[str] = CONFUSION

    def figures(self) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
        """Figures in percent, and their 95 % intervals over the images; see `jackknife`."""
        figures, intervals = {}, {}
        for figure, (summary, scores) in self._by_figure().items():
            spread = average_precision.precision_spread(scores, self.targets, SUMMARIES[summary])
            figures[figure] = round(100 * spread.value, 4)
            if (ends := spread.interval()) is not None:
                intervals[figure] = ends
        return figures, intervals

    def by_class(self) -> dict[str, dict[str, float | None]]:
        """Average precision in percent of every class, with area; None for classes without an image."""
        figures = {}
        for template, scores in self.values.items():
            each = 100 * average_precision.precision_by_class(scores, self.targets, area)[0]
            figures[template.format("mAP")] = {
                name: None if np.isnan(value) else round(float(value), 4)
                for name, value in zip(self.classes, each, strict=True)
            }
        return figures

    def guesses(self) -> dict[str, float]:
        """Figures of scores that are equal for all images: each class's share of the images."""
        constant = np.zeros(self.targets.shape)
        return {
            figure: round(100 * float(average_precision.mean(constant, self.targets, SUMMARIES[summary])[0]), 4)
            for figure, (summary, _) in self._by_figure().items()
        }

    @property
    def main(self) -> list[str]:
        """The mAP of every template."""
        return [template.format("mAP") for template in self.values]

    @property
    def testable(self) -> list[str]:
        """Every summary of every template."""
        return list(self._by_figure())

    def _by_figure(self) -> dict[str, tuple[str, np.ndarray]]:
        """The name of a figure's summary, and the scores [Q, C] that it sums up."""
        return {
            template.format(summary): (summary, scores)
            for template, scores in self.values.items()
            for summary in SUMMARIES
        }

    def require_same_truth(self, other: "LabelScores", name: str, other_name: str) -> None:
        """See `Paired.require_same_truth`."""
        if self.classes != other.classes or not np.array_equal(self.targets, other.targets):
            raise UserError(f"the labels of {name} and {other_name} differ: evaluate both with the same labels")

    def compared(self, figure: str, other: "LabelScores", other_figure: str) -> PairedTest:
        """`Replicates.lead_over`. An image scores higher where its own labels are ranked higher among all.

        An mAP is no mean over images, and the scores of two networks are of unlike scales, so that images cannot change
        sides as in a randomisation test.

        Raises:
            UserError: the two are unlike measures.
        """
        (name, first), (other_name, second) = self._by_figure()[figure], other._by_figure()[other_figure]
        if name != other_name:
            raise UserError(f"--figure {figure}:{other_figure}: {name} and {other_name} are unlike measures")
        values = [float(average_precision.mean(each, self.targets, SUMMARIES[name])[0]) for each in (first, second)]
        difference = average_precision.precision_difference(first, second, self.targets, SUMMARIES[name])
        alone = [average_precision.of_labels(each, self.targets) for each in (first, second)]
        return PairedTest(
            100 * values[0],
            100 * values[1],
            100 * difference.value,
            difference.interval(lowest=-1.0),
            int((alone[0] > alone[1]).sum()),
            int((alone[1] > alone[0]).sum()),
            difference.p_value(),
            "jackknife less pairs",
        )

    def columns(self, figure: str) -> dict[str, list[Any]]:
        """See `PerImage.columns`."""
        _, scores = of_figure(figure, self._by_figure())
        true = [[name for name, here in zip(self.classes, row, strict=True) if here == 1] for row in self.targets]
        return {
            "path": list(self.names),
            "classes": true,
            **dict(zip(self.classes, scores.T.tolist(), strict=True)),
        }

    def pack(self) -> bytes:
        """The bytes of a .safetensors file; names and classes are in its metadata."""
        texts = {"names": json.dumps(list(self.names)), "classes": json.dumps(self.classes)}
        arrays = {"targets": self.targets} | self.values
        return bytes(save({name: np.ascontiguousarray(each) for name, each in arrays.items()}, texts))

    def picture(self) -> None:
        """None: no class is taken for another."""


def unpack_label_scores(packed: bytes) -> LabelScores:
    """Unpack what `LabelScores.pack` packed.

    Raises:
        ValueError: these bytes are something else.
    """
    try:
        arrays, texts = tensors.unpack_arrays(packed)
        names, classes = json_text.parse(texts["names"]), json_text.parse(texts["classes"])
        targets = arrays.pop("targets")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    shape = (len(names), len(classes))
    fits = targets.dtype == np.int8 and all(each.dtype == np.float64 for each in arrays.values())
    if not fits or not arrays or any(each.shape != shape for each in (targets, *arrays.values())):
        raise ValueError(f"expected scores of {plural(shape[0], 'image')} and {plural(shape[1], 'class', 'classes')}")
    return LabelScores(targets, names, tuple(classes), arrays)


def report_label_scores(
    task: Task,
    *,
    protocol: str,
    settings: dict[str, Any],
    scored: LabelScores,
    seconds: float,
    notes: Sequence[str] = (),
) -> ResultRecord:
    """Make a protocol's result; arguments as `report.report`."""
    figures, intervals = scored.figures()
    described = task.describe()
    ignored = int((scored.targets < 0).sum())
    own = [f"{ignored:,} of {plural(scored.targets.size, 'label')} of test images are ignored"] if ignored else []
    return ResultRecord(
        protocol=protocol,
        figures=figures,
        settings=settings | SETTINGS,
        checkpoint=described["checkpoint"],
        data=described["data"],
        ledger=described["ledger"],
        seconds=round(seconds, 1),
        intervals=intervals,
        inference=stated(dict.fromkeys(figures, JACKKNIFE), intervals),
        per_class=scored.by_class(),
        notes=[*notes, *own],
        references={MAJORITY: scored.guesses()},
    )
