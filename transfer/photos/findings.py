"""All that is found in a folder of photographs, as one record."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from excb.console import plural
from excb.images.image_set import Images
from excb.ledger import Ledger

from .comparison import NetworkComparison
from .label_errors import PossibleError
from .labelling import NextLabels
from .labels import PhotoLabels
from .prediction import GuessedLabels

TRUSTED = 90.0  # percent of labels that a network has right, from which on its doubts are mostly errors


@dataclass(frozen=True)
class Findings:
    """All that was found.

    Attributes:
        images: all of them.
        labels: the class of each.
        groups: of each, int64 [N]: what stays together in every split.
        ledger: what was left out or is doubted.
        copies: groups of paths that look the same or are equal files, the largest first.
        comparison: of networks; None of too few labels.
        predictions: of the rest; None of too few labels, or where everything is labelled.
        errors: labels to look at.
        next: images to label; None where all are labelled.
        why: why there is no comparison; empty where there is one.
    """

    images: Images
    labels: PhotoLabels
    groups: np.ndarray
    ledger: Ledger
    copies: tuple[tuple[str, ...], ...]
    comparison: NetworkComparison | None
    predictions: GuessedLabels | None
    errors: tuple[PossibleError, ...]
    next: NextLabels | None
    why: str

    @cached_property
    def classes(self) -> dict[str, int]:
        """Names, and how many images are labelled so."""
        return dict(zip(self.labels.classes, self.labels.counts.tolist(), strict=True))

    @property
    def labelled(self) -> int:
        """Images with a label."""
        return int(self.labels.labelled.sum())

    @property
    def inventory(self) -> str:
        """A line."""
        parts = [plural(len(self.images), "image"), f"{self.labelled:,} labelled"]
        if self.classes:
            kinds = ("class", "classes") if self.labels.sets is None else ("label", "labels")
            parts[-1] += f" ({plural(len(self.classes), *kinds)})"
        if self.copies:
            extra = sum(len(group) - 1 for group in self.copies)
            parts.append(f"{plural(extra, 'copy or near-copy', 'copies and near-copies')}")
        return ", ".join(parts)

    @property
    def doubt(self) -> str:
        """How far labels to look at are to be believed; empty where the network is nearly always right."""
        if self.comparison is None or self.labels.sets is not None:
            return ""
        if (right := self.comparison.best.accuracy) >= TRUSTED:
            return ""
        best = self.comparison.best.name
        return (
            f"{best} is right on {right:.0f} % of the labels, so many of these are right: look before you change one."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values: dict[str, Any] = {
            "folder": str(self.images.root),
            "images": len(self.images),
            "classes": self.classes,
            "ledger": self.ledger.to_dict(),
            "copies": [list(group) for group in self.copies],
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
        }
        if self.predictions is not None:
            counts = Counter(guess.label for guess in self.predictions.guesses)
            values["predictions"] = {
                "network": self.predictions.network,
                "guesses": len(self.predictions),
                "sure": len(self.predictions.sure),
                "certainty": self.predictions.certainty.to_dict(),
                "classes": dict(counts.most_common()),
            }
        if self.next is not None:
            values["label_next"] = {"rule": self.next.rule, "paths": list(self.next.paths)}
        values["possible_errors"] = [vars(each) for each in self.errors]
        return values | ({"why_no_comparison": self.why} if self.why else {})
