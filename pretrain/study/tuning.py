"""Equal tuning: every cell of a study tries the same values at one seed, and its best values run at all seeds."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from excb.errors import UserError

from .studies import StudyCell

# Cells are tuned by the first of these that was measured: on training images, so that held-out ones decide nothing.
CRITERIA = ("knn_leave_one_out", "neighbour_agreement")


@dataclass(frozen=True)
class Tuning:
    """The values that every cell tries.

    Args:
        texts: "section.field=value,value,...", as `--tune` takes it; several are combined, each value with each.

    Raises:
        UserError: a text is not of that form, or has one value.
    """

    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise UserError for a text without several values."""
        for text in self.texts:
            name, _, values = text.partition("=")
            given = [value.strip() for value in values.split(",")]
            if not name.strip() or not all(given) or not 1 < len(set(given)) == len(given):
                raise UserError(
                    f"--tune takes a field and the values to try, such as optim.base_lr=0.3,0.6,1.2, not {text!r}"
                )

    @property
    def settings(self) -> list[tuple[str, ...]]:
        """All combinations of the values, each as overrides."""
        fields = [text.partition("=") for text in self.texts]
        choices = [[f"{name.strip()}={value.strip()}" for value in values.split(",")] for name, _, values in fields]
        return list(itertools.product(*choices))

    def trials(self, cell: StudyCell) -> list[StudyCell]:
        """The cell with each of the settings, in a folder of its own within the cell's."""
        return [
            replace(
                cell,
                name=f"{cell.name}/{','.join(setting)}",
                factors={**cell.factors, "tuned": " ".join(setting)},
                overrides=[*cell.overrides, *setting],
            )
            for setting in self.settings
        ]


def best(scores: Sequence[float | None]) -> int | None:
    """The place of the highest score, the first of equals; None while one is missing, or if all diverged (-inf)."""
    known = [score for score in scores if score is not None]
    decided = len(known) == len(scores) and max(known, default=-math.inf) > -math.inf
    return known.index(max(known)) if decided else None
