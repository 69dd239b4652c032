"""The picture of a watch: the watched figure with intervals and references, above the run's own curves."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from excb.charts.style import BLUE, GREEN, GREY, ORANGE, new_figure, style_axes
from excb.references.guessing import TITLES

from ..protocols import kind_of, title
from .state import WatchState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 1e30  # larger values are not drawn
# The run's own curves: a panel's title, and which figures of `metrics.jsonl` it shows, with their names.
PANELS = (
    ("Loss of the run", {"loss": "loss", "cluster_loss": "Eq. 7", "contrast": "contrast", "regression": "regression"}),
    (
        "Its own images, %",
        {
            "knn_top1": "k-NN top-1",
            "neighbour_agreement": "agreement of neighbours",
            "instance_retrieval": "images found by their view",
        },
    ),
    ("Effective rank of features", {"effective_rank": "effective rank"}),
    ("Confidence, agreement, purity", {"confidence": "confidence", "agreement": "agreement", "purity": "purity"}),
    ("Cluster sizes, relative to 1/K", {"smallest_cluster": "smallest", "largest_cluster": "largest"}),
)
COLOURS = (BLUE, ORANGE, GREEN, GREY)


def draw_watch(state: WatchState) -> "Figure | None":
    """The picture; None while nothing is measured and the run has no epoch."""
    epochs = [line for line in state.snapshot.metrics if line["kind"] == "epoch"]
    shown = [(name, own) for name, series in PANELS if (own := _present(epochs, series))]
    if not state.measured and not shown:
        return None
    columns = min(3, len(shown)) or 1
    rows = -(-len(shown) // columns)
    figure = new_figure(10, 4.2 + 2.5 * rows)
    grid = figure.add_gridspec(1 + rows, columns, height_ratios=[4, *[2.4] * rows])
    top = figure.add_subplot(grid[0, :])
    _watched(top, state)
    for number, (name, series) in enumerate(shown):
        axes = figure.add_subplot(grid[1 + number // columns, number % columns], sharex=top)
        _panel(axes, name, series, epochs)
    return figure


def _watched(axes: Any, state: WatchState) -> None:
    figure = state.measured[-1].figure if state.measured else ""
    points = [(_epoch(state, one.step, one.epoch), one) for one in state.measured]
    when, values = [at for at, _ in points], [one.value for _, one in points]
    axes.plot(when, values, color=BLUE, linewidth=1.5)
    bounds = [(at, *one.interval) for at, one in points if one.interval is not None]
    if bounds:
        places, low, high = (list(each) for each in zip(*bounds, strict=True))
        axes.fill_between(places, low, high, color=BLUE, alpha=0.15, linewidth=0)
    for at, one in points:
        low_end, high_end = one.interval or (one.value, one.value)
        ends = [[max(0.0, one.value - low_end)], [max(0.0, high_end - one.value)]]
        axes.errorbar(at, one.value, yerr=ends, color=BLUE, marker="o", markersize=4, capsize=2.5, linewidth=1)
    if state.pointer is not None:
        _best(axes, state)
    for number, (name, words) in enumerate(TITLES.items()):
        value = state.measured[-1].references.get(name, {}).get(figure) if state.measured else None
        if value is not None:
            axes.axhline(
                value, color=GREY, linestyle=(":", "--")[number % 2], linewidth=1, label=f"{words} {value:.1f}"
            )
    missed = [_epoch(state, step, None) for step in state.missed]
    if missed:
        axes.plot(
            missed,
            [0.02] * len(missed),
            color=ORANGE,
            marker="x",
            linestyle="",
            markersize=5,
            transform=axes.get_xaxis_transform(),
            label="gone before it was measured",
        )
    kind = kind_of(figure) if figure else None
    unit = "%" if kind is None or kind.unit == "percent" else kind.unit
    style_axes(
        axes, f"Watched: {title(figure)} on other images" if figure else "Nothing is measured yet", x="epoch", y=unit
    )
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="best")
    axes.margins(x=0.03, y=0.12)


def _best(axes: Any, state: WatchState) -> None:
    assert state.pointer is not None
    at = _epoch(state, state.pointer["step"], state.pointer["epoch"])
    value = state.pointer["value"]
    axes.plot([at], [value], color=GREEN, marker="*", markersize=13, linestyle="", label=f"best, {value:.2f}", zorder=5)


def _epoch(state: WatchState, step: int, epoch: float | None) -> float:
    """Where a checkpoint stands on the axis: its epoch, or by the run's metrics, or its step where neither is known."""
    return state.snapshot.epochs.get(step, float(step)) if epoch is None else epoch


def _panel(axes: Any, name: str, series: dict[str, str], epochs: Sequence[Any]) -> None:
    for colour, (figure, words) in zip(COLOURS, series.items(), strict=False):
        points = [(line["epoch"], line[figure]) for line in epochs if _is_drawable(line, figure)]
        marker = "o" if len(points) < 30 else None
        axes.plot(*zip(*points, strict=True), color=colour, label=words, marker=marker, markersize=2.5, linewidth=1.2)
    style_axes(axes, name, x="epoch")
    axes.legend(frameon=False, fontsize=7)


def _present(epochs: Sequence[Any], series: dict[str, str]) -> dict[str, str]:
    return {name: words for name, words in series.items() if any(_is_drawable(line, name) for line in epochs)}


def _is_drawable(line: Any, name: str) -> bool:
    return all(
        isinstance(value := line.get(each), int | float) and math.isfinite(value) and abs(value) < LARGEST
        for each in ("epoch", name)
    )
