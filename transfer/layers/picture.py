"""The heat map of a layers result, and its files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from excb.charts.style import FORMATS, figure_bytes, new_figure, style_axes
from excb.distributed.collectives import run_on_rank0
from excb.files.atomic import write_bytes
from excb.results.pictures import LAYERS, picture_beside
from excb.results.result import ResultRecord

from ..reporting.predictions import Scored
from ..reporting.report import write_result


@dataclass(frozen=True)
class LayerFiles:
    """Writes a result with its predictions and the heat map."""

    scored: Scored

    def __call__(self, result: ResultRecord, file: Path) -> list[Path]:
        """Write FILE.json, what `write_result` puts beside it, and FILE.layers.png and .svg.

        Returns:
            The files, JSON first.

        Raises:
            UserError: one cannot be written.
        """
        files = write_result(result, self.scored, file)
        return [*files, *run_on_rank0(lambda: _draw(result, file))]


def _draw(result: ResultRecord, file: Path) -> list[Path]:
    figure = heat_map(result.settings, str(result.checkpoint.get("name", "")))
    pictures = [picture_beside(file, LAYERS, suffix) for suffix in FORMATS]
    for picture in pictures:
        write_bytes(figure_bytes(figure, picture.suffix), picture)
    return pictures


def heat_map(settings: Mapping[str, Any], name: str) -> Any:
    """Held-out accuracy by block and pooling, the chosen cell framed; cells that were not judged stay empty.

    Args:
        settings: of the result.
        name: of the checkpoint.
    """
    sweep, best = settings["sweep"], settings["chosen"]
    poolings = list(dict.fromkeys(each["pooling"] for each in sweep))
    blocks = sorted({each["block"] for each in sweep})
    values = np.full((len(poolings), len(blocks)), np.nan)
    for each in sweep:
        values[poolings.index(each["pooling"]), blocks.index(each["block"])] = each["holdout_top1"]
    figure = new_figure(2.2 + 0.6 * len(blocks), 1.4 + 0.42 * len(poolings))
    axes: Any = figure.subplots()
    image = axes.imshow(values, cmap="cividis", aspect="auto")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "white" if value < middle else "black"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=8, color=colour)
    place = poolings.index(best["pooling"]), blocks.index(best["block"])
    outline = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5]]) + place[::-1]
    axes.plot(*outline.T, color="#c0392b", linewidth=2, clip_on=False)
    axes.set_xticks(range(len(blocks)), [str(block) for block in blocks])
    axes.set_yticks(range(len(poolings)), poolings)
    style_axes(axes, f"{name}: top-1 % on held-out train images", x="block", frame=True)
    figure.colorbar(image, ax=axes).ax.tick_params(labelsize=8)
    return figure
