"""A study's figure: sorted cluster sizes, accuracy against a number or by cell, with the spread over seeds."""

from pathlib import Path
from typing import Any

import numpy as np

from excb.charts.style import FORMATS, GREY, SEQUENCE, distinct_styles, new_figure, save_figure, style_axes
from excb.results.pictures import STUDY

from .table import FIGURES, CellResults, StudyTable


def draw_study(table: StudyTable, folder: Path) -> list[Path]:
    """Draw a study's finished cells as `picture.png` and `picture.svg`; return these files, or none without a cell.

    Raises:
        UserError: a file cannot be written.
    """
    if not (rows := [row for row in table.rows if row.runs]):
        return []
    kind = table.study.picture
    height = max(4.0, 1.4 + 0.45 * len(rows)) if kind == "dots" else 4.2
    figure = new_figure(14 if kind == "sizes" else 7.5, height)
    if kind == "sizes":
        training, by_z, scores = figure.subplots(1, 3, width_ratios=(3, 3, 2))
        by_z.sharey(training)
        _sizes(training, rows, "training", "As training assigned, last epoch")
        _sizes(by_z, rows, "by_z", "Highest z of the plain images, no balancing")
        _dots(scores, table, rows)
    elif kind == "lines":
        _lines(figure.subplots(), table, rows)
    else:
        _dots(figure.subplots(), table, rows)
    seeds = sorted({len(row.runs) for row in rows})
    many = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    figure.suptitle(f"{table.study.asks}  (mean ± standard deviation, n = {many})", fontsize=11)
    files = [folder / f"{STUDY}{suffix}" for suffix in FORMATS]
    for file in files:
        save_figure(figure, file)
    return files


def _sizes(axes: Any, rows: list[CellResults], kind: str, title: str) -> None:
    """Relative sizes from the largest cluster to the smallest: the mean over seeds, rank by rank, and its spread."""
    for row, (color, _) in zip(rows, distinct_styles(len(rows)), strict=True):
        sizes = np.array([one["sizes"][kind] for one in row.runs])
        ranks = 100 * (np.arange(sizes.shape[1]) + 0.5) / sizes.shape[1]
        mean = sizes.mean(0)
        axes.plot(ranks, mean, color=color, label=", ".join(row.cell.factors.values()), linewidth=1.6)
        if len(sizes) > 1:
            spread = sizes.std(0, ddof=1)
            axes.fill_between(ranks, (mean - spread).clip(0), mean + spread, color=color, alpha=0.2, linewidth=0)
    axes.axhline(1, color=GREY, linestyle=":")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, 100)
    style_axes(axes, title, x="clusters, largest first, %", y="size relative to 1/K")
    _legend(axes)


def _lines(axes: Any, table: StudyTable, rows: list[CellResults]) -> None:
    """The score against the factor across, one line for each combination of the others."""
    across = table.study.across
    assert across is not None
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
        if (spread := row.spread(table.score)) is not None:
            others = [value for name, value in row.cell.factors.items() if name != across]
            deviation = spread.deviation if len(spread.values) > 1 else 0.0
            lines.setdefault(", ".join(others), []).append((float(row.cell.factors[across]), spread.mean, deviation))
    for (label, points), (color, _) in zip(lines.items(), distinct_styles(len(lines)), strict=True):
        x, y, error = zip(*points, strict=True)
        axes.errorbar(x, y, error, color=color, label=label or None, marker="o", markersize=4, capsize=3)
    axes.set_xscale("log", base=2)
    levels = sorted({point[0] for points in lines.values() for point in points})
    axes.set_xticks(levels, [f"{level:g}" for level in levels])
    style_axes(axes, x=across, y=FIGURES[table.score][0])
    _references(axes.axhline, table)
    _legend(axes)


def _dots(axes: Any, table: StudyTable, rows: list[CellResults]) -> None:
    """The score of every cell: each seed a dot, mean and standard deviation a bar."""
    for place, row in enumerate(rows):
        if (spread := row.spread(table.score)) is None:
            continue
        color = SEQUENCE[place % len(SEQUENCE)] if table.study.picture == "sizes" else SEQUENCE[0]
        deviation = spread.deviation if len(spread.values) > 1 else None
        axes.errorbar(spread.mean, place, xerr=deviation, color=color, marker="|", markersize=14, capsize=3)
        axes.plot(spread.values, [place] * len(spread.values), "o", color=color, alpha=0.45, markersize=4)
    axes.set_yticks(range(len(rows)), [row.cell.name for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    style_axes(axes, x=FIGURES[table.score][0])
    _references(axes.axvline, table)
    _legend(axes)


def _references(line: Any, table: StudyTable) -> None:
    for row, style in zip(table.references, ("--", ":", "-."), strict=False):
        if (spread := row.spread(table.score)) is not None:
            (title,) = row.cell.factors.values()
            line(spread.mean, color=GREY, linestyle=style, label=title)


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
