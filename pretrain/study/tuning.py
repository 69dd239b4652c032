"""Equal tuning: every cell of a study tries the same values at one seed, and its best values run at all seeds."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from excb.errors import UserError, require

from .. import overrides
from ..recipe import Recipe
from .studies import Study, StudyCell

# Cells are tuned by the first of these that was measured: on training images, so that held-out ones decide nothing.
CRITERIA = ("knn_leave_one_out", "neighbour_agreement")

# Fields and sections in which trials cannot differ, and what to do instead.
FIXED = {
    "run.seed": "all trials have the first seed: --seeds N runs N of them, from run.seed=FIRST on",
    "init": "all cells start from one network: write init=NAME without --tune, for each in an --out of its own",
    "data": "all cells read the same images alike: write it without --tune, for each value in an --out of its own",
    "monitor": "it decides what is measured, not what is learned: write it without --tune",
    "efficiency": "it decides how a run is computed, not what is learned: write it without --tune",
    "run": "it decides what a run writes, not what is learned: write it without --tune",
}


@dataclass(frozen=True)
class Tuning:
    """The values that every cell tries.

    Args:
        texts: "section.field=value,value,...", as `--tune` takes it; several are combined, each value with each.

    Raises:
        UserError: a text is not of that form, has one value, or names a field in which trials cannot differ.
    """

    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise UserError for texts that cannot be tried."""
        for text in self.texts:
            name, _, values = text.partition("=")
            given = [value.strip() for value in values.split(",")]
            if not name.strip() or not all(given) or not 1 < len(set(given)) == len(given):
                raise UserError(
                    f"--tune takes a field and the values to try, such as optim.base_lr=0.3,0.6,1.2, not {text!r}"
                )
        for name in self.fields:
            require(self.fields.count(name) == 1, f"--tune {name} is there twice: name all of its values in one")
            if why := FIXED.get(name) or FIXED.get(name.partition(".")[0]):
                raise UserError(f"--tune cannot try {name}: {why}")

    @property
    def fields(self) -> list[str]:
        """The fields that are tuned."""
        return [text.partition("=")[0].strip() for text in self.texts]

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

    def check(self, study: Study, base: Recipe) -> None:
        """Raise UserError if a value does not fit its field, or two trials of the study's cells would be one recipe."""
        # Without a cell's own values, so that a wrong one is named before the cells are compared.
        alone = {setting: overrides.apply(base, setting) for setting in self.settings}
        for a, b in itertools.combinations(alone, 2):
            require(alone[a] != alone[b], f"--tune tries one recipe twice: {' '.join(a)} is {' '.join(b)}")
        cells: dict[str, str] = {}  # names by recipe
        for cell in study.cells:
            for trial in self.trials(cell)[:1]:
                recipe = repr(overrides.apply(base, trial.overrides))
                require(
                    recipe not in cells,
                    f"--tune cannot try {' and '.join(self.fields)}: that is what study {study.name} compares, and "
                    f"{cells.get(recipe)} and {cell.name} would be one",
                )
                cells[recipe] = cell.name


def best(scores: Sequence[float | None]) -> int | None:
    """The place of the highest score, the first of equals; None while one is missing, or if all diverged (-inf)."""
    known = [score for score in scores if score is not None]
    decided = len(known) == len(scores) and max(known, default=-math.inf) > -math.inf
    return known.index(max(known)) if decided else None
