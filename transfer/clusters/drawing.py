"""The paper's picture of clusters: sorted relative sizes, with the empty share and the largest one in the legend."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from excb.charts.style import FORMATS, GREY, distinct_styles, drawable, figure_bytes, new_figure, style_axes
from excb.console import plural

from .statistics import sizes_figures


@dataclass(frozen=True)
class Curve:
    """Cluster sizes of one checkpoint."""

    name: str  # in the legend
    sizes: np.ndarray  # [K] images of every cluster

    @property
    def label(self) -> str:
        """The text in the legend."""
        figures = sizes_figures(self.sizes)
        return (
            f"{self.name}: {plural(len(self.sizes), 'cluster')} of {plural(int(self.sizes.sum()), 'image')}\n"
            f"empty {figures['empty_clusters_unbalanced']:,} ({figures['empty_percent_unbalanced']:.1f} %), "
            f"largest {figures['largest_relative_size']:.1f} ({plural(int(figures['largest_images']), 'image')})"
        )


def draw_sizes(curves: Sequence[Curve], *, title: str) -> dict[str, bytes]:
    """Draw sorted relative sizes, size K / N, of one checkpoint or several.

    Returns:
        The files' contents by suffix, "png" and "svg"; equal curves give equal bytes.
    """
    figure = new_figure(8, 4.6)
    axes = figure.subplots()
    for curve, (color, _) in zip(curves, distinct_styles(len(curves)), strict=True):
        relative = np.sort(curve.sizes)[::-1] * (len(curve.sizes) / curve.sizes.sum())
        filled = int((relative > 0).sum())
        percent = 100 * np.arange(len(relative) + 1) / len(relative)
        # Every cluster is a step as wide as its share of K; the curve ends where the empty ones begin.
        axes.stairs(relative[:filled], percent[: filled + 1], color=color, baseline=None, label=curve.label, lw=1.8)
        if filled < len(relative):
            axes.axvspan(percent[filled], 100, color=color, alpha=0.08, lw=0)
    axes.axhline(1, color=GREY, linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlim(0, 100)
    style_axes(
        axes, drawable(title), x="clusters, largest first, % of all (shaded: empty)", y="relative size  (size · K / N)"
    )
    axes.title.set_parse_math(False)
    axes.yaxis.set_major_formatter("{x:g}")
    for text in axes.legend(frameon=False, fontsize=8, loc="upper right").get_texts():
        text.set_text(drawable(text.get_text()))
        text.set_parse_math(False)
    return {suffix.removeprefix("."): figure_bytes(figure, suffix) for suffix in FORMATS}
