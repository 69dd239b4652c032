"""The table of checkpoints side by side: one figure per cell, with its interval and tier; references stand below."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from excb.inference.tiers import Pair, pairwise, tiers
from excb.results.result import interval_text


@dataclass(frozen=True)
class FigureColumn:
    """A figure that all rows may have, in percent."""

    key: str  # its name in cells and files
    title: str  # as people call it
    higher_is_better: bool = True


@dataclass(frozen=True)
class FigureCell:
    """A figure in percent, its 95 % interval, and its tier; None where there is none."""

    value: float
    interval: tuple[float, float] | None = None
    tier: int | None = None

    @property
    def text(self) -> str:
        """As "80.00 (79.0 to 81.0) *1"."""
        interval = f" ({interval_text(self.interval)})" if self.interval else ""
        return f"{self.value:.2f}{interval}{'' if self.tier is None else f' *{self.tier}'}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"percent": self.value, "interval": self.interval, "tier": self.tier}


@dataclass(frozen=True)
class FigureRow:
    """A checkpoint or a reference.

    Attributes:
        name: as people call it.
        cells: its figures by column; those that it lacks are missing.
        facts: what else is known of it, as text, a value for each of the table's `facts`; none of references.
        reference: whether it is there to be beaten: it has no rank and no tier.
    """

    name: str
    cells: Mapping[str, FigureCell]
    facts: Sequence[str] = ()
    reference: bool = False


@dataclass(frozen=True)
class FigureTable:
    """Checkpoints, then references, x figures.

    Attributes:
        columns: the figures.
        rows: checkpoints and references.
        p_values: of every two that were tested, by figure and names, corrected for their number.
        title: of the table; empty where it is alone.
        facts: headings of further columns.
    """

    columns: Sequence[FigureColumn]
    rows: Sequence[FigureRow]
    p_values: Mapping[Pair, float] = field(default_factory=dict)
    title: str = ""
    facts: Sequence[str] = ()

    @property
    def headings(self) -> list[str]:
        """Of all columns; the first one holds the names."""
        return ["checkpoint", *(column.title for column in self.columns), *self.facts]

    @property
    def lines(self) -> list[list[str]]:
        """The rows as text, a value for each heading."""
        return [
            [
                row.name,
                *(row.cells[column.key].text if column.key in row.cells else "" for column in self.columns),
                *(row.facts or [""] * len(self.facts)),
            ]
            for row in self.rows
        ]


def with_tiers(
    table: FigureTable, tested: Mapping[str, Sequence[str]], p_value: Callable[[str, str, str], float]
) -> FigureTable:
    """Test every two checkpoints of a table, and give figures their tiers.

    Args:
        table: without tiers.
        tested: names of the rows that can be tested, by column.
        p_value: of a paired test on the same images, given a column and two names.
    """
    p_values, rows = pairwise(tested, p_value), {row.name: row for row in table.rows if not row.reference}
    for column in table.columns:
        values = {name: rows[name].cells[column.key].value for name in tested.get(column.key, ())}
        for name, tier in tiers(column.key, values, p_values, higher_is_better=column.higher_is_better).items():
            cell = replace(rows[name].cells[column.key], tier=tier)
            rows[name] = replace(rows[name], cells={**rows[name].cells, column.key: cell})
    return replace(table, rows=[row if row.reference else rows[row.name] for row in table.rows], p_values=p_values)
