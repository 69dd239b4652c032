"""What a protocol says of images with a set of labels each: a score for every class, and its mAP with intervals."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from safetensors.numpy import save

from excb.networks.backbone import weights_hash
from excb.references.guessing import MAJORITY
from excb.results.result import Result

from ..pairing import named
from ..task import Task
from . import average_precision
from .average_precision import RESAMPLES, Summary, area, eleven_points
from .scoring import percentiles

# mAP is VOC's since 2010, which other sets use; mAP11 is VOC 2007's.
SUMMARIES: dict[str, Summary] = {"mAP": area, "mAP11": eleven_points}
SETTINGS = {"labels": "sets", "ignored": "left out", "ties": "one threshold", "resamples": RESAMPLES}


@dataclass(frozen=True)
class LabelScores:
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

    suffix: ClassVar[str] = ".safetensors"
    picture_name: ClassVar[str] = "confusion"

    def names_of(self, template: str) -> list[str]:
        """The figures of a template."""
        return [template.format(name) for name in SUMMARIES]

    def figures(self) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
        """Figures in percent, and their 95 % bootstrap intervals over the images."""
        figures, intervals = {}, {}
        for template, scores in self.values.items():
            for name, summary in SUMMARIES.items():
                value = float(average_precision.mean(scores, self.targets, summary)[0])
                draws = [
                    average_precision.mean(scores, self.targets, summary, weights)
                    for weights in average_precision.resamples(len(scores))
                ]
                drawn = np.concatenate(draws)
                figures[template.format(name)] = round(100 * value, 4)
                intervals[template.format(name)] = percentiles(drawn[~np.isnan(drawn)])
        return figures, intervals

    def by_class(self) -> dict[str, dict[str, float | None]]:
        """Average precision in percent of every class, with area; None for classes without an image."""
        found = {}
        for template, scores in self.values.items():
            each = 100 * average_precision.by_class(scores, self.targets, area)[0]
            found[template.format("mAP")] = {
                name: None if np.isnan(value) else round(float(value), 4)
                for name, value in zip(self.classes, each, strict=True)
            }
        return found

    def guesses(self) -> dict[str, float]:
        """Figures of scores that are equal for all images: each class's share of the images."""
        constant = np.zeros(self.targets.shape)
        return {
            template.format(name): round(100 * float(average_precision.mean(constant, self.targets, summary)[0]), 4)
            for template in self.values
            for name, summary in SUMMARIES.items()
        }

    def columns(self, figure: str) -> dict[str, list[Any]]:
        """See `PerImage.columns`."""
        scores = named(
            figure, {name: scores for template, scores in self.values.items() for name in self.names_of(template)}
        )
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


def report_label_scores(
    task: Task,
    *,
    protocol: str,
    settings: dict[str, Any],
    scored: LabelScores,
    seconds: float,
    notes: Sequence[str] = (),
) -> Result:
    """Make a protocol's result; arguments as `report.report`."""
    figures, intervals = scored.figures()
    described = task.describe()
    ignored = int((scored.targets < 0).sum())
    own = [f"{ignored:,} of {scored.targets.size:,} labels of test images are ignored"] if ignored else []
    return Result(
        protocol=protocol,
        figures=figures,
        settings=settings | SETTINGS,
        checkpoint=described["checkpoint"] | {"weights_sha256": weights_hash(task.backbone.network)},
        data=described["data"],
        seconds=round(seconds, 1),
        intervals=intervals,
        per_class=scored.by_class(),
        notes=[*notes, *own],
        references={MAJORITY: scored.guesses()},
    )
