"""Several checkpoints side by side: one figure per protocol, intervals, and tiers of real differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from excb.console import plural
from excb.files.csv_text import csv_table
from excb.inference.paired import Paired
from excb.references.guessing import CHANCE, MAJORITY
from excb.results.result import ResultRecord

from ..protocols import headline, kind_of, title
from ..reporting.references import TITLES, titles_of
from ..standings.forms import Sheet
from ..standings.table import FigureCell, FigureColumn, FigureRow, FigureTable, with_tiers
from .cost import FACTS, Cost

COLUMNS = ("checkpoint", "kind", "figure", "percent", "low", "high", "tier", "parameters", "flops", "images_per_second")


@dataclass(frozen=True)
class EvaluatedCheckpoint:
    """One checkpoint after its evaluation.

    Attributes:
        name: that tables call it.
        folder: of its results, below that of the comparison.
        architecture: of its backbone.
        preprocessing: of its images, as in results.
        cost: of its backbone.
        results: by step.
        paired: answers for every test image, by step, where a protocol saves them.
    """

    name: str
    folder: str
    architecture: str
    preprocessing: Mapping[str, Any]
    cost: Cost
    results: Mapping[str, ResultRecord]
    paired: Mapping[str, Paired]

    def row(self, steps: Mapping[str, str]) -> FigureRow:
        """Its line of a table, given the step of each figure."""
        cells = {}
        for figure, step in steps.items():
            result = self.results.get(step)
            if result is not None and figure in result.figures:
                cells[figure] = FigureCell(result.figures[figure], result.intervals.get(figure))
        return FigureRow(self.name, cells, self.cost.facts)

    @property
    def description(self) -> str:
        """Its network, its images and what its speed was measured with."""
        prepared = self.preprocessing
        images = f"images {prepared.get('resize')} → {prepared.get('crop')} px, {prepared.get('interpolation')}"
        return f"{self.architecture.removeprefix('timm:')} · {images} · {self.cost.where}"


@dataclass(frozen=True)
class Comparison:
    """Checkpoints x protocols.

    Attributes:
        data: the images in words.
        checkpoints: in the order they were named.
        table: their figures, and below them those of references.
        notes: what a reader must know.
    """

    data: str
    checkpoints: Sequence[EvaluatedCheckpoint]
    table: FigureTable
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def explanation(self) -> str:
        """How tables are to be read."""
        tests = len(self.table.p_values)
        return (
            "Percent, with 95 % intervals over the test images. Figures of one tier (*1, *2, ...) do not "
            "differ at 5 % from the best of the tier: the paired tests of excb-eval compare, corrected for "
            f"{plural(tests, 'pair')} by Holm's method."
        )

    def sheet(self, report: str) -> Sheet:
        """All that a reader sees; `report` is the name of the page in each checkpoint's folder."""
        terms = [(one.name, one.description, f"{quote(one.folder)}/{report}") for one in self.checkpoints]
        return Sheet(
            f"{plural(len(self.checkpoints), 'checkpoint')} side by side",
            self.data,
            [self.table],
            f"{self.explanation} Images per second are of the backbone alone; a multiply-add is two FLOPs.",
            [("Checkpoints", terms)],
            self.notes,
        )

    def to_csv(self) -> str:
        """One line for every figure of every checkpoint, and of every reference."""
        costs = {one.name: one.cost for one in self.checkpoints}
        lines = []
        for row in self.table.rows:
            kind = "reference" if row.reference else "measured"
            cost = costs.get(row.name) if kind == "measured" else None
            counts = (cost.parameters, cost.flops, cost.images_per_second) if cost else (None, None, None)
            for figure, cell in row.cells.items():
                lines.append([row.name, kind, figure, cell.value, *(cell.interval or (None, None)), cell.tier, *counts])
        return csv_table(COLUMNS, lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = {row.name: row for row in self.table.rows if not row.reference}
        return {
            "data": self.data,
            "columns": [{"figure": column.key, "title": column.title} for column in self.table.columns],
            "checkpoints": [
                {
                    "name": one.name,
                    "folder": one.folder,
                    "architecture": one.architecture,
                    "preprocessing": dict(one.preprocessing),
                    "cost": one.cost.to_dict(),
                    "figures": {figure: cell.to_dict() for figure, cell in rows[one.name].cells.items()},
                }
                for one in self.checkpoints
            ],
            "references": {
                row.name: {figure: cell.value for figure, cell in row.cells.items()}
                for row in self.table.rows
                if row.reference
            },
            "tests": len(self.table.p_values),
            "p_values": [
                {"figure": figure, "first": first, "second": second, "p_value": value}
                for (figure, first, second), value in self.table.p_values.items()
            ],
            "notes": list(self.notes),
        }


def side_by_side(checkpoints: Sequence[EvaluatedCheckpoint], *, notes: Sequence[str] = ()) -> Comparison:
    """Compare checkpoints that were evaluated on the same images.

    Args:
        checkpoints: at least two, with at least one result among them.
        notes: what a reader must know.
    """
    steps = {headline(result.figures): step for one in checkpoints for step, result in one.results.items()}
    paired = {
        figure: {
            one.name: one.paired[step]
            for one in checkpoints
            if step in one.paired and figure in one.paired[step].testable
        }
        for figure, step in steps.items()
    }
    references = [
        FigureRow(name, {figure: FigureCell(values[figure]) for figure in steps if figure in values}, reference=True)
        for name, values in _references(checkpoints).items()
    ]
    table = FigureTable(
        [_column(figure) for figure in steps],
        [*(one.row(steps) for one in checkpoints), *references],
        facts=FACTS,
    )

    def p_value(figure: str, first: str, second: str) -> float:
        return paired[figure][first].compared(figure, paired[figure][second], figure).p_value

    tested = {figure: list(each) for figure, each in paired.items()}
    notes = [*notes, *_notes(checkpoints)]
    return Comparison(_data(checkpoints), checkpoints, with_tiers(table, tested, p_value), notes)


def _column(figure: str) -> FigureColumn:
    kind = kind_of(figure)
    return FigureColumn(figure, title(figure), kind is None or kind.higher_is_better)


def _references(checkpoints: Sequence[EvaluatedCheckpoint]) -> dict[str, dict[str, float]]:
    """Rows of guessing, which are equal for all checkpoints, and of the others, once where they are."""
    rows: dict[str, dict[str, float]] = {}
    for reference in (MAJORITY, CHANCE):
        for values in (_reference(one, reference) for one in checkpoints):
            rows.setdefault(TITLES[reference], {}).update(values)
    others = titles_of(result for one in checkpoints for result in one.results.values())
    for reference in [name for name in others if name not in (MAJORITY, CHANCE)]:
        # Equal for one preprocessing, and of a network for one architecture.
        of: dict[tuple[tuple[str, float], ...], list[str]] = {}
        for one in checkpoints:
            if values := _reference(one, reference):
                of.setdefault(tuple(sorted(values.items())), []).append(one.name)
        rows |= {
            (f"{', '.join(names)}, " if len(of) > 1 else "") + others[reference]: dict(values)
            for values, names in of.items()
        }
    return {name: values for name, values in rows.items() if values}


def _reference(one: EvaluatedCheckpoint, reference: str) -> dict[str, float]:
    """Figures of one reference, of all of a checkpoint's results."""
    return {
        figure: value
        for result in one.results.values()
        for figure, value in result.references.get(reference, {}).items()
    }


def _notes(checkpoints: Sequence[EvaluatedCheckpoint]) -> list[str]:
    """The notes of all results; one that all checkpoints have is reported once."""
    by_note: dict[str, list[str]] = {}
    for one in checkpoints:
        for note in dict.fromkeys(note for result in one.results.values() for note in result.remarks):
            by_note.setdefault(note, []).append(one.name)
    return [
        note if len(names) == len(checkpoints) else f"{', '.join(names)}: {note}" for note, names in by_note.items()
    ]


def _data(checkpoints: Sequence[EvaluatedCheckpoint]) -> str:
    first = next(result for one in checkpoints for result in one.results.values())
    images = " and ".join(
        plural(first.data[part]["images"], f"{part} image") for part in ("train", "test") if part in first.data
    )
    return f"{images}, {first.data.get('classes')} classes" if images else "images of the protocols"
