"""A run's curves as one picture: the paper's five training statistics, and what frozen features are worth."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .journal import read_metrics
from .run_state import CURVES

BLUE, ORANGE, GREEN, GREY, RED = "#2563a8", "#d9772b", "#2f8f5b", "#9aa0a6", "#c0392b"


def draw(folder: Path, *, clusters: int, title: str) -> Path | None:
    """Draw `curves.png` from a run folder's `metrics.jsonl`.

    Args:
        folder: the run folder.
        clusters: K.
        title: of the picture.

    Returns:
        The picture's file, or None while nothing was written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = read_metrics(folder)
    steps = [line for line in lines if line["kind"] == "step"]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    if not steps and not epochs:
        return None
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    loss, confidence, sizes, agreement, purity, frozen = figure.subplots(2, 3).ravel()

    loss.plot(_column(steps, "epoch"), _column(steps, "loss"), color=BLUE, alpha=0.25, linewidth=0.8)
    loss.plot(_column(epochs, "epoch"), _column(epochs, "loss"), color=BLUE)
    loss.axhline(math.log(clusters), color=GREY, linestyle=":")
    loss.text(
        0.99, math.log(clusters), "ln K", color=GREY, ha="right", va="bottom", transform=loss.get_yaxis_transform()
    )
    _finish(loss, "Loss")
    _series(confidence, epochs, "confidence", BLUE)
    _finish(confidence, "Teacher confidence $c_{avg}$", top=1)
    _series(sizes, epochs, "smallest_cluster", BLUE, "smallest")
    _series(sizes, epochs, "largest_cluster", ORANGE, "largest")
    sizes.axhline(1, color=GREY, linestyle=":")
    empty = sizes.twinx()
    share = [100 * value / clusters for value in _column(epochs, "empty_clusters")]
    empty.plot(_column(epochs, "epoch"), share, color=GREY, linestyle="--", label="empty, % (right)")
    empty.set_ylim(0, 100)
    lines_drawn = sizes.get_lines()[:2] + empty.get_lines()
    _finish(sizes, "Cluster sizes, relative to 1/K")
    sizes.legend(lines_drawn, [str(line.get_label()) for line in lines_drawn], frameon=False, fontsize=8)
    _series(agreement, epochs, "agreement", BLUE)
    _finish(agreement, "Agreement between views $a_{avg}$", top=1)
    _series(purity, epochs, "purity", GREEN)
    _finish(purity, "Purity of clusters" if purity.get_lines() else "Purity: no labels", top=1)
    _series(frozen, epochs, "knn_top1", GREEN, "k-NN top-1, %")
    _series(frozen, epochs, "neighbour_agreement", BLUE, "agreement of neighbours, %")
    _series(frozen, epochs, "effective_rank", ORANGE, "effective rank")
    _finish(frozen, "Frozen features of the teacher")
    if frozen.get_lines():
        frozen.set_ylim(bottom=0)
        frozen.legend(frameon=False, fontsize=8)
    alarms = [line for line in lines if line["kind"] == "alarm" and "epoch" in line]
    for name, axes in {
        "chance": loss,
        "diverging": loss,
        "not finite": loss,
        "clusters": sizes,
        "certain": confidence,
    }.items():
        _mark(axes, [alarm["epoch"] for alarm in alarms if alarm["name"] == name], name)
    _mark(frozen, [alarm["epoch"] for alarm in alarms if alarm["name"] == "collapse"], "collapse")
    figure.suptitle(title + (f"  -  {len(alarms)} alarm{'s' * (len(alarms) > 1)}, see metrics.jsonl" if alarms else ""))

    file = folder / CURVES
    temporary = folder / f".{CURVES}.tmp.png"
    figure.savefig(temporary, dpi=110)
    temporary.replace(file)
    return file


def _column(lines: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [line[name] for line in lines if name in line]


def _series(axes: Any, lines: Sequence[dict[str, Any]], name: str, color: str, label: str | None = None) -> None:
    """Plot one figure against epochs, where it was measured."""
    points = [(line["epoch"], line[name]) for line in lines if name in line]
    if points:
        marker = "o" if len(points) < 30 else None
        axes.plot(*zip(*points, strict=True), color=color, label=label, marker=marker, markersize=3)


def _mark(axes: Any, epochs: Sequence[float], name: str) -> None:
    """Mark the epochs in which an alarm began."""
    for epoch in epochs:
        axes.axvline(epoch, color=RED, linewidth=1)
        axes.annotate(
            name, (epoch, 0.5), xycoords=axes.get_xaxis_transform(), color=RED, fontsize=8, rotation=90, va="center"
        )


def _finish(axes: Any, title: str, top: float | None = None) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, fontsize=10)
    axes.set_xlabel("epoch", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if top is not None:
        axes.set_ylim(0, top)
