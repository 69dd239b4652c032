"""The paper's picture of clusters: relative sizes in order, with the empty share and the largest one written on it."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .statistics import sizes_figures

COLOURS = ("#2563a8", "#d9772b", "#2f8f5b", "#8e5ba6", "#c0392b", "#5f6b76")
GREY = "#9aa0a6"


@dataclass(frozen=True)
class Curve:
    """Cluster sizes of one checkpoint.

    Args:
        name: in the legend.
        sizes: [K] images of every cluster.
    """

    name: str
    sizes: np.ndarray

    @property
    def words(self) -> str:
        """What is written on the picture."""
        found = sizes_figures(self.sizes)
        return (
            f"{self.name}: {len(self.sizes):,} clusters, {int(self.sizes.sum()):,} images\n"
            f"empty {found['empty_clusters']:,} ({found['empty_percent']:.1f} %), "
            f"largest {found['largest_relative_size']:.1f} ({found['largest_images']:,} images)"
        )


def draw(curves: Sequence[Curve], *, title: str) -> dict[str, bytes]:
    """Draw sorted relative sizes, size K / N, of one checkpoint or several.

    Args:
        curves: the first one's colour is the project's blue.
        title: of the picture.

    Returns:
        The files' contents by suffix, "png" and "svg"; equal curves give equal bytes.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, curve in enumerate(curves):
        color = COLOURS[number % len(COLOURS)]
        relative = np.sort(curve.sizes)[::-1] * (len(curve.sizes) / curve.sizes.sum())
        filled = int((relative > 0).sum())
        percent = 100 * np.arange(len(relative) + 1) / len(relative)
        # Every cluster is a step as wide as its share of K; the curve ends where the empty ones begin.
        axes.stairs(relative[:filled], percent[: filled + 1], color=color, baseline=None, label=curve.words, lw=1.8)
        if filled < len(relative):
            axes.axvspan(percent[filled], 100, color=color, alpha=0.08, lw=0)
    axes.axhline(1, color=GREY, linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlim(0, 100)
    axes.set_xlabel("clusters, largest first, % of all (shaded: empty)")
    axes.set_ylabel("relative size  (size · K / N)")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(_readable(title), fontsize=11, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    for text in axes.legend(frameon=False, fontsize=9, loc="upper right").get_texts():
        text.set_text(_readable(text.get_text()))
        text.set_parse_math(False)
    files = {}
    with mpl.rc_context({"svg.hashsalt": "excb"}):  # names inside the file are then the same each time
        for suffix in ("png", "svg"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=suffix, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
            files[suffix] = buffer.getvalue()
    return files


def _readable(text: str) -> str:
    """Names of files that are no UTF-8 can be drawn as well."""
    return text.encode("utf-8", "replace").decode("utf-8")
