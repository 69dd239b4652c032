"""The picture of a comparison: a panel a figure, a point with its interval a checkpoint, references as lines."""

from typing import TYPE_CHECKING

from excb.charts.style import BLUE, GREY, ORANGE, drawable, new_figure, shortened, style_axes
from excb.references.guessing import TITLES

from .comparison import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 3  # of panels
_NAME = 32  # characters of a checkpoint's name


def draw(comparison: Comparison) -> "Figure":
    """Every figure in percent, the first tier in blue, with the tier beside the point."""
    columns, contenders = comparison.columns, comparison.contenders
    across = min(_COLUMNS, len(columns))
    down = -(-len(columns) // across)
    figure = new_figure(2.2 + 3.4 * across, down * (1.2 + 0.38 * len(contenders)))
    panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for unused in panels[len(columns) :]:
        unused.remove()
    names = [shortened(drawable(one.name), _NAME) for one in contenders]
    for axes, column in zip(panels, columns, strict=False):
        for row, one in enumerate(contenders):
            if (cell := comparison.cells.get((one.name, column.figure))) is None:
                continue
            colour = BLUE if cell.tier == 1 else ORANGE
            low, high = cell.interval or (cell.value, cell.value)
            ends = [[max(0.0, cell.value - low)], [max(0.0, high - cell.value)]]
            axes.errorbar(cell.value, row, xerr=ends, color=colour, marker="o", markersize=5, capsize=3)
            tier = "" if cell.tier is None else f"  *{cell.tier}"
            axes.annotate(
                f"{cell.value:.1f}{tier}",
                (cell.value, row),
                (0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        for name, values in comparison.references.items():
            if name in TITLES.values() and column.figure in values:
                axes.axvline(values[column.figure], color=GREY, linestyle=":", linewidth=1)
        style_axes(axes, column.title, x="%")
        axes.set_yticks(range(len(names)), names, parse_math=False)
        axes.set_ylim(len(names) - 0.4, -0.7)
        axes.margins(x=0.15)
    lines = [name for name in comparison.references if name in TITLES.values()]
    note = "95 % intervals; blue, *1: no different from the best" + (f"; dotted: {', '.join(lines)}" if lines else "")
    figure.supxlabel(note, fontsize=8, color=GREY)
    return figure
