"""The chart: accuracy against severity, the mean and every corruption, for one or several results."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from excb.charts.style import GREY, distinct_styles, drawable, new_figure, shortened, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 4
_CELL = re.compile(r"robustness_top1_(\w+)_(\d)")
MEAN = "severity"  # what figures call the mean over corruptions

Curves = dict[str, dict[int, float]]  # percent by corruption and severity; the clean accuracy is that of severity 0


def curves_of(figures: Mapping[str, float]) -> Curves:
    """The curves of a result's figures, the mean first; none where nothing was corrupted."""
    curves: Curves = {MEAN: {}}
    for name, value in figures.items():
        if (match := _CELL.fullmatch(name)) is not None:
            curves.setdefault(match[1], {0: figures["robustness_clean_top1"]})[int(match[2])] = value
    curves[MEAN] |= {} if len(curves) == 1 else {0: figures["robustness_clean_top1"]}
    return curves if len(curves) > 1 else {}


def draw_robustness(results: Mapping[str, Curves], references: Mapping[str, float] | None = None) -> "Figure":
    """A panel for the mean and one for every corruption.

    Args:
        results: curves by name, such as that of the checkpoint; one without a name has no legend.
        references: percentages drawn as dotted lines, by name.
    """
    panels = [*dict.fromkeys(name for curves in results.values() for name in curves)]
    across = min(_COLUMNS, len(panels))
    down = -(-len(panels) // across)
    figure = new_figure(2.4 * across + 0.6, 1.9 * down + 0.5)
    places = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).ravel()
    for unused in places[len(panels) :]:
        unused.remove()
    for axes, name in zip(places, panels, strict=False):
        _panel(axes, name, results, references or {})
    if any(results) or references:
        lines, names = places[0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside upper center", ncols=len(names), frameon=False, fontsize=8)
    figure.supxlabel("severity (0: clean)", fontsize=9)
    figure.supylabel("top-1 %", fontsize=9)
    return figure


def _panel(axes: Any, name: str, results: Mapping[str, Curves], references: Mapping[str, float]) -> None:
    for (title, curves), (colour, marker) in zip(results.items(), distinct_styles(len(results)), strict=True):
        if points := sorted(curves.get(name, {}).items()):
            label = shortened(drawable(title), 40) or None
            width = 2.0 if name == MEAN else 1.4
            axes.plot(
                *zip(*points, strict=True), color=colour, marker=marker, markersize=3, linewidth=width, label=label
            )
    for title, value in references.items():
        axes.axhline(value, color=GREY, linestyle=":", linewidth=1, label=title)
    style_axes(axes, "mean" if name == MEAN else name.replace("_", " "))
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(6))
