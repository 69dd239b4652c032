"""The picture of a table: a panel for each figure, checkpoints as points with intervals, references as lines."""

from typing import TYPE_CHECKING, Any

from excb.charts.style import BLUE, GREY, ORANGE, drawable, new_figure, shortened, style_axes
from excb.references.guessing import TITLES

from .table import FigureCell, FigureTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 3  # of panels
_NAME = 32  # characters of a checkpoint's name


def draw_table(table: FigureTable) -> "Figure":
    """Every figure in percent, the first tier in blue, with the tier beside the point."""
    checkpoints = [row for row in table.rows if not row.reference]
    references = [row for row in table.rows if row.reference and row.name in TITLES.values()]
    across = min(_COLUMNS, len(table.columns))
    down = -(-len(table.columns) // across)
    figure = new_figure(2.2 + 3.4 * across, down * (1.2 + 0.38 * len(checkpoints)))
    panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for unused in panels[len(table.columns) :]:
        unused.remove()
    names = [shortened(drawable(row.name), _NAME) for row in checkpoints]
    for axes, column in zip(panels, table.columns, strict=False):
        for place, row in enumerate(checkpoints):
            if (cell := row.cells.get(column.key)) is not None:
                _point(axes, place, cell)
        for row in references:
            if column.key in row.cells:
                axes.axvline(row.cells[column.key].value, color=GREY, linestyle=":", linewidth=1)
        style_axes(axes, column.title, x="%")
        axes.set_yticks(range(len(names)), names, parse_math=False)
        axes.set_ylim(len(names) - 0.4, -0.7)
        axes.margins(x=0.15)
    note = "95 % intervals; blue, *1: no different from the best"
    note += f"; dotted: {', '.join(row.name for row in references)}" if references else ""
    figure.supxlabel(note, fontsize=8, color=GREY)
    return figure


def _point(axes: Any, place: int, cell: FigureCell) -> None:
    colour = GREY if cell.tier is None else BLUE if cell.tier == 1 else ORANGE
    low, high = cell.interval or (cell.value, cell.value)
    ends = [[max(0.0, cell.value - low)], [max(0.0, high - cell.value)]]
    axes.errorbar(cell.value, place, xerr=ends, color=colour, marker="o", markersize=5, capsize=3)
    words = f"{cell.value:.1f}" + ("" if cell.tier is None else f"  *{cell.tier}")
    axes.annotate(words, (cell.value, place), (0, 7), textcoords="offset points", ha="center", fontsize=8)
