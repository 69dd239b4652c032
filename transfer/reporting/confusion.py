"""The picture of a confusion matrix: every row in percent of its class, names where they can be read."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from excb.charts.style import drawable, figure_bytes, new_figure, shortened, style_axes

NAMED = 40  # classes whose names fit on the axes
NUMBERED = 20  # classes whose percentages fit in the cells
LISTED = 10  # confusions that are listed beside the picture of more classes


def draw_confusion(counts: np.ndarray, classes: Sequence[str], *, title: str) -> bytes:
    """Draw a confusion matrix.

    Args:
        counts: [C, C] images, true by predicted. A class without images has an empty, grey row.
        classes: C names.
        title: of the picture.

    Returns:
        A PNG file.
    """
    from matplotlib.colors import PowerNorm

    named = len(classes) <= NAMED
    side = 4.5 + 0.22 * len(classes) if named else 9.0
    figure = new_figure(side + (1.0 if named else 4.0), side)
    axes, beside = (figure.subplots(), None) if named else figure.subplots(1, 2, width_ratios=(9, 4))
    images = counts.sum(1, keepdims=True)
    shares = np.ma.masked_where(np.broadcast_to(images == 0, counts.shape), 100 * counts / np.maximum(images, 1))
    # Square roots show the few per cent that rare confusions are, beside a diagonal near 100.
    drawn = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 100))
    axes.set_facecolor("0.85")
    style_axes(axes, title, x="predicted class", y="true class", frame=True)
    figure.colorbar(drawn, ax=axes, shrink=0.8, label="% of the true class", ticks=[0, 1, 5, 10, 25, 50, 100])
    if beside is None:
        _name(axes, classes)
    else:
        axes.tick_params(labelbottom=False, labelleft=False)
        _list(beside, counts, classes)
    if len(classes) <= NUMBERED:
        _number(axes, shares)
    return figure_bytes(figure, dpi=110)


def most_confused(counts: np.ndarray) -> list[tuple[int, int, int]]:
    """The most frequent confusions as (true class, predicted class, images), most frequent first."""
    wrong = counts * ~np.eye(len(counts), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[:LISTED]
    pairs = [(int(index) // len(counts), int(index) % len(counts)) for index in order]
    return [(true, taken, int(wrong[true, taken])) for true, taken in pairs if wrong[true, taken]]


def _name(axes: Any, classes: Sequence[str]) -> None:
    labels = [_readable(name, 24) for name in classes]
    size = 9 if len(classes) <= NUMBERED else 8
    axes.set_xticks(range(len(classes)), labels, rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(range(len(classes)), labels, fontsize=size, parse_math=False)


def _number(axes: Any, shares: np.ma.MaskedArray) -> None:
    """Write the percentages into the cells, zeros left out."""
    for true, taken in np.argwhere(shares.filled(0) >= 0.5):
        value = shares[true, taken]
        axes.text(
            taken, true, f"{value:.0f}", ha="center", va="center", fontsize=8, color="white" if value > 40 else "black"
        )


def _list(axes: Any, counts: np.ndarray, classes: Sequence[str]) -> None:
    images = counts.sum(1)
    lines = [
        f"{_readable(classes[true], 38)}\n   as {_readable(classes[taken], 30)}: {number:,} of {images[true]:,}"
        for true, taken, number in most_confused(counts)
    ]
    text = "\n\n".join(["Most frequent confusions" if lines else "No image is confused", *lines])
    axes.axis("off")
    axes.text(0, 0.95, text, va="top", fontsize=9, transform=axes.transAxes, parse_math=False)


def _readable(name: str, most: int) -> str:
    return shortened(drawable(name), most)
