"""The chart: accuracy against severity, the mean and every corruption."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from excb.charts.style import distinct_styles, new_figure, style_axes

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


def draw_robustness(curves: Curves) -> "Figure":
    """A panel for the mean and one for every corruption."""
    across = min(_COLUMNS, len(curves))
    down = -(-len(curves) // across)
    figure = new_figure(2.4 * across + 0.6, 1.9 * down + 0.5)
    places = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).ravel()
    for unused in places[len(curves) :]:
        unused.remove()
    for axes, (name, curve) in zip(places, curves.items(), strict=False):
        _panel(axes, name, curve)
    figure.supxlabel("severity (0: clean)", fontsize=9)
    figure.supylabel("top-1 %", fontsize=9)
    return figure


def _panel(axes: Any, name: str, curve: Mapping[int, float]) -> None:
    ((colour, marker),) = distinct_styles(1)
    width = 2.0 if name == MEAN else 1.4
    axes.plot(*zip(*sorted(curve.items()), strict=True), color=colour, marker=marker, markersize=3, linewidth=width)
    style_axes(axes, "mean" if name == MEAN else name.replace("_", " "))
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(6))
