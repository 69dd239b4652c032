"""Several checkpoints side by side: one figure a protocol, intervals, and tiers of what differs by more than chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from excb.references.guessing import CHANCE, MAJORITY
from excb.references.untrained import NETWORK
from excb.results.result import Result

from ..inference.statistics import compared
from ..inference.tiers import pairwise, tiers
from ..protocols import headline, kind_of, title
from ..reporting.references import HISTOGRAM, PATCHES, PIXELS, TITLES
from .cost import Cost


@dataclass(frozen=True)
class Contender:
    """One checkpoint.

    Attributes:
        name: that tables call it.
        folder: of its results, below that of the comparison.
        architecture: of its backbone.
        preprocessing: of its images, as in results.
        cost: of its backbone.
        results: by step.
        scores: of every test image, by figure, where a protocol saves them.
    """

    name: str
    folder: str
    architecture: str
    preprocessing: Mapping[str, Any]
    cost: Cost
    results: Mapping[str, Result]
    scores: Mapping[str, Mapping[str, Tensor]]

    def figure(self, column: "Column") -> float | None:
        """Its value of a column, if it has one."""
        result = self.results.get(column.step)
        return None if result is None else result.figures.get(column.figure)


@dataclass(frozen=True)
class Column:
    """One figure of one protocol, in percent."""

    step: str
    figure: str
    title: str
    higher_is_better: bool = True


@dataclass(frozen=True)
class Cell:
    """A checkpoint's figure.

    Attributes:
        value: in percent.
        interval: its 95 % interval; None where the protocol has none.
        tier: 1 for the best one and all that do not differ from it, 2 for the best of the rest and all that do not
            differ from that, and so on; None where nothing could be tested.
    """

    value: float
    interval: tuple[float, float] | None
    tier: int | None


@dataclass(frozen=True)
class Comparison:
    """Checkpoints x protocols.

    Attributes:
        data: the images in words.
        contenders: in the order they were named.
        columns: the figures.
        cells: by contender's name and figure.
        references: figures that need no checkpoint or no training: name -> figure -> percent.
        tests: how many pairs were tested, which p-values are corrected for (Holm, 1979).
        p_values: corrected, by figure and pair of names.
        notes: what a reader must know.
    """

    data: str
    contenders: Sequence[Contender]
    columns: Sequence[Column]
    cells: Mapping[tuple[str, str], Cell]
    references: Mapping[str, Mapping[str, float]]
    tests: int
    p_values: Mapping[tuple[str, str, str], float]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def explanation(self) -> str:
        """How tables are to be read."""
        pairs = f"{self.tests} pair{'s' * (self.tests != 1)}"
        return (
            "Percent, with 95 % bootstrap intervals of the test images. Figures of one tier (*1, *2, ...) do not "
            "differ at 5 % from the best of the tier: paired tests on the same images, McNemar's of hits, a "
            f"randomisation test of other scores, corrected for {pairs} by Holm's method."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "data": self.data,
            "columns": [{"figure": column.figure, "title": column.title} for column in self.columns],
            "checkpoints": [
                {
                    "name": one.name,
                    "folder": one.folder,
                    "architecture": one.architecture,
                    "preprocessing": dict(one.preprocessing),
                    "cost": one.cost.to_dict(),
                    "figures": {
                        column.figure: {"percent": cell.value, "interval": cell.interval, "tier": cell.tier}
                        for column in self.columns
                        if (cell := self.cells.get((one.name, column.figure))) is not None
                    },
                }
                for one in self.contenders
            ],
            "references": {name: dict(values) for name, values in self.references.items()},
            "tests": self.tests,
            "p_values": [
                {"figure": figure, "first": first, "second": second, "p_value": value}
                for (figure, first, second), value in self.p_values.items()
            ],
            "notes": list(self.notes),
        }


def side_by_side(contenders: Sequence[Contender], *, notes: Sequence[str] = ()) -> Comparison:
    """Compare checkpoints that were evaluated on the same images.

    Args:
        contenders: at least two, with at least one result among them.
        notes: what a reader must know.
    """
    columns = list({column.figure: column for one in contenders for column in _columns(one)}.values())
    by_name, steps = {one.name: one for one in contenders}, {column.figure: column.step for column in columns}

    def p_value(figure: str, *names: str) -> float:
        return compared(*(by_name[name].scores[steps[figure]][figure] for name in names)).p_value

    tested = {column.figure: [one.name for one in contenders if _testable(one, column)] for column in columns}
    p_values, cells = pairwise(tested, p_value), {}
    for column in columns:
        values = {name: by_name[name].figure(column) or 0.0 for name in tested[column.figure]}
        tier = tiers(column.figure, values, p_values, higher_is_better=column.higher_is_better)
        for one in contenders:
            if (value := one.figure(column)) is not None:
                interval = one.results[column.step].intervals.get(column.figure)
                cells[one.name, column.figure] = Cell(value, interval, tier.get(one.name))
    return Comparison(
        _data(contenders),
        contenders,
        columns,
        cells,
        _references(contenders),
        len(p_values),
        p_values,
        [*notes, *_notes(contenders)],
    )


def _columns(one: Contender) -> list[Column]:
    columns = []
    for step, result in one.results.items():
        figure, kind = headline(result.figures), kind_of(headline(result.figures))
        columns.append(Column(step, figure, title(figure), kind is None or kind.higher_is_better))
    return columns


def _testable(one: Contender, column: Column) -> bool:
    return column.figure in one.scores.get(column.step, {})


def _references(contenders: Sequence[Contender]) -> dict[str, dict[str, float]]:
    """Rows of guessing, which are equal for all checkpoints, and of the others, once where they are."""
    rows: dict[str, dict[str, float]] = {}
    for reference in (MAJORITY, CHANCE):
        for values in (_reference(one, reference) for one in contenders):
            rows.setdefault(TITLES[reference], {}).update(values)
    for reference in (PATCHES, HISTOGRAM, PIXELS, NETWORK):  # equal for one preprocessing, and one architecture
        of: dict[tuple[tuple[str, float], ...], list[str]] = {}
        for one in contenders:
            if values := _reference(one, reference):
                of.setdefault(tuple(sorted(values.items())), []).append(one.name)
        rows |= {
            (f"{', '.join(names)}, " if len(of) > 1 else "") + TITLES[reference]: dict(values)
            for values, names in of.items()
        }
    return {name: values for name, values in rows.items() if values}


def _reference(one: Contender, reference: str) -> dict[str, float]:
    """Figures of one reference, of all of a checkpoint's results."""
    return {
        figure: value
        for result in one.results.values()
        for figure, value in result.references.get(reference, {}).items()
    }


def _notes(contenders: Sequence[Contender]) -> list[str]:
    """The notes of all results; one that all checkpoints have is reported once."""
    by_note: dict[str, list[str]] = {}
    for one in contenders:
        for note in dict.fromkeys(note for result in one.results.values() for note in result.notes):
            by_note.setdefault(note, []).append(one.name)
    return [note if len(names) == len(contenders) else f"{', '.join(names)}: {note}" for note, names in by_note.items()]


def _data(contenders: Sequence[Contender]) -> str:
    first = next(result for one in contenders for result in one.results.values())
    images = " and ".join(
        f"{first.data[part]['images']:,} {part} images" for part in ("train", "test") if part in first.data
    )
    return f"{images}, {first.data.get('classes')} classes" if images else "images of the protocols"
