"""A run's curves: the paper's five training statistics, several runs overlaid, and the quality of frozen features."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.charts.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    distinct_styles,
    new_figure,
    save_figure,
    shortened,
    style_axes,
)
from excb.errors import UserError, printable
from excb.files import json_text
from excb.files.foreign import read_text
from excb.files.run_files import METRICS, RECIPE, read_metrics
from excb.results.pictures import CURVES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEGEND_ROOM = 1.3  # of an axis: the legend of a single run's panel lies above its lines
LARGEST = 1e30  # larger values are not drawn
LONGEST_NAME = 40  # characters of a run's
# Shares of empty clusters. Runs of older versions have the first name only, for what is now the second.
EMPTY = (
    ("empty_clusters", "empty", "--"),
    ("empty_clusters_balanced", "empty", "--"),
    ("empty_clusters_unbalanced", "empty before B", "-."),
)
# The panel that an alarm is marked in. The last panel is drawn for a single run only.
LOSS, CONFIDENCE, SIZES, AGREEMENT, PURITY, FROZEN = range(6)
# The figures that each panel shows: a panel without any is left out of `curves.png`.
PANELS = {
    LOSS: ("loss", "cluster_loss", "contrast"),
    CONFIDENCE: ("confidence",),
    SIZES: ("smallest_cluster", "largest_cluster"),
    AGREEMENT: ("agreement",),
    PURITY: ("purity",),
    FROZEN: ("knn_top1", "neighbour_agreement", "effective_rank"),  # and those of the probes
}
LINE, MOST_ALARMS = 50, 4  # characters of an alarm below each column of panels, and alarms that are listed there
MARKED = {
    "chance": LOSS,
    "diverging": LOSS,
    "not finite": LOSS,
    "certain": CONFIDENCE,
    "clusters": SIZES,
    "coincide": SIZES,
    "wound up": SIZES,
    "rotating": AGREEMENT,
    "stalled": AGREEMENT,
    "collapse": FROZEN,
}


@dataclass(frozen=True)
class Curves:
    """The lines of one run's `metrics.jsonl`, by kind."""

    label: str  # the run's name in a figure of several
    clusters: int | None  # K, or None if unknown
    lines: Sequence[dict[str, Any]]

    @classmethod
    def read(cls, run: Path, label: str | None = None) -> "Curves":
        """Read a run folder, or a `metrics.jsonl`; K comes from the `recipe.json` beside it.

        Raises:
            UserError: there is nothing to draw.
        """
        folder = run.parent if run.name == METRICS else run
        lines = read_metrics(folder)
        if not any(line.get("kind") == "epoch" for line in lines):
            raise UserError(f"{folder} has no {METRICS} with a finished epoch: name a run folder")
        try:
            recipe = json_text.parse(read_text(folder / RECIPE))
            stated = int(recipe["recipe"]["method"]["clusters"])
            clusters = stated if 1 < stated < LARGEST else None
        except (OSError, ArithmeticError, ValueError, LookupError, TypeError):
            clusters = None  # a copied metrics.jsonl is enough for curves
        return cls(_literally(label or folder.resolve().name), clusters, lines)

    def kind(self, kind: str) -> list[dict[str, Any]]:
        """The lines of one kind: `step`, `epoch` or `alarm`."""
        return [line for line in self.lines if line["kind"] == kind]


def draw_curves(folder: Path, *, clusters: int, title: str) -> Path | None:
    """Draw `curves.png` from a run folder's `metrics.jsonl` and return its path, or None if nothing is logged yet."""
    run = Curves(title, clusters, read_metrics(folder))
    if not run.kind("step") and not run.kind("epoch"):
        return None
    shown = [
        panel for panel in PANELS if any(_drawable(line.get(name)) for line in run.lines for name in PANELS[panel])
    ]
    rows, columns = (1, len(shown)) if len(shown) < 4 else (2, -(-len(shown) // 2))
    words = _alarms_in_words(run, LINE * columns)
    figure, axes = _panels(shown, rows, columns, 0.2 * len(words.splitlines()))
    _one(axes, run)
    figure.suptitle(_literally(title))
    if words:
        figure.supxlabel(words, x=0.01, ha="left", fontsize=9, color=RED)
    save_figure(figure, folder / CURVES, dpi=110)
    return folder / CURVES


def _panels(shown: Sequence[int], rows: int, columns: int, below: float) -> tuple["Figure", list[Any]]:
    """A figure with these panels and some inches below; axes of all panels, the others in no figure."""
    figure = new_figure(4 * columns, 3.2 * rows + below)
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in places[len(shown) :]:
        unused.remove()
    hidden = new_figure(4, 3)
    placed = dict(zip(shown, places, strict=False))
    return figure, [placed[panel] if panel in placed else hidden.add_subplot() for panel in PANELS]


def _alarms_in_words(run: Curves, width: int) -> str:
    """The alarms, each where it first rang, on lines of at most `width` characters."""
    lines: dict[str, list[str]] = {}
    for alarm in _placed(run):
        text = f"Alarm in epoch {alarm['epoch']:g}: {alarm.get('message') or alarm['name']}"
        lines.setdefault(alarm["name"], textwrap.wrap(printable(text), width, max_lines=3, placeholder=" ..."))
    shown = [line for each in list(lines.values())[:MOST_ALARMS] for line in each]
    if len(lines) > MOST_ALARMS:
        shown.append(f"and {len(lines) - MOST_ALARMS} more in {METRICS}")
    return "\n".join(shown).replace("$", r"\$")


def statistics(runs: Sequence[Curves]) -> "Figure":
    """The paper's figure of training statistics: of one run, or of several overlaid.

    Every panel shows an epoch's mean or extreme: loss (Eq. 7), confidence (Eq. 11), smallest and largest relative
    cluster, agreement (Eq. 12), purity; of several runs also how often images of a batch share a cluster. Alarms are
    marked where they began.
    """
    figure = new_figure(9.6, 5.4)
    *axes, last = figure.subplots(2, 3).ravel()
    if len(runs) == 1:
        last.axis("off")
        _one(axes, runs[0])
        return figure
    colours = [colour for colour, _ in distinct_styles(len(runs))]
    drawn = [_many(axes, run, colours[number], number) for number, run in enumerate(runs)]
    _chance(axes[LOSS], runs)
    _titles(axes)
    key = drawn, [run.label for run in runs]
    if any(_points(run.kind("epoch"), "same_winner")[0] for run in runs):
        _batches(last, runs, colours)
        figure.legend(*key, loc="outside lower center", ncols=min(4, len(runs)), frameon=False, fontsize=9)
    else:
        last.axis("off")
        last.legend(*key, loc="center left", frameon=False, fontsize=9)
    return figure


def _one(axes: Sequence[Any], run: Curves) -> None:
    """Draw one run: the five statistics and, in a sixth panel, the frozen features."""
    steps, epochs = run.kind("step"), run.kind("epoch")
    if any("cluster_loss" in line for line in epochs):  # ln K is chance for Eq. 7 alone
        _series(axes[LOSS], epochs, "cluster_loss", BLUE, "Eq. 7")
        _series(axes[LOSS], epochs, "contrast", ORANGE, "contrast")
        _series(axes[LOSS], epochs, "regression", GREEN, "regression")
        axes[LOSS].legend(frameon=False, fontsize=8)
    else:
        axes[LOSS].plot(*_points(steps, "loss"), color=BLUE, alpha=0.25, linewidth=0.8)
        axes[LOSS].plot(*_points(epochs, "loss"), color=BLUE)
    if any("confidence" in line for line in epochs):
        _chance(axes[LOSS], [run])
    _series(axes[CONFIDENCE], epochs, "confidence", BLUE)
    _series(axes[SIZES], epochs, "smallest_cluster", BLUE, "smallest")
    _series(axes[SIZES], epochs, "largest_cluster", ORANGE, "largest")
    _series(axes[AGREEMENT], epochs, "agreement", BLUE)
    _series(axes[PURITY], epochs, "purity", GREEN)
    if len(axes) > FROZEN:
        _shares(axes[SIZES], epochs, run.clusters)
        _same_winner(axes[AGREEMENT], epochs)
        _series(axes[FROZEN], epochs, "knn_top1", GREEN, "k-NN top-1, %")
        for probe, colour in (("target", RED), ("source", GREY)):
            _series(axes[FROZEN], epochs, f"{probe}_knn_top1", colour, f"k-NN top-1 of the {probe}, %")
            _series(axes[FROZEN], epochs, f"{probe}_instance_retrieval", colour, f"{probe} images found, %")
        _series(axes[FROZEN], epochs, "neighbour_agreement", BLUE, "agreement of neighbours, %")
        _series(axes[FROZEN], epochs, "instance_retrieval", GREY, "images found by their view, %")
        _series(axes[FROZEN], epochs, "effective_rank", ORANGE, "effective rank")
    elif axes[SIZES].get_lines():
        axes[SIZES].legend(frameon=False, fontsize=8)
    _titles(axes)
    _mark(axes, run, RED)


def _many(axes: Sequence[Any], run: Curves, colour: str, number: int) -> Any:
    """Draw one run of several, and return its line for the legend."""
    epochs = run.kind("epoch")
    (line,) = axes[LOSS].plot(*_points(epochs, "loss"), color=colour)
    for panel, name in (
        (CONFIDENCE, "confidence"),
        (SIZES, "smallest_cluster"),
        (SIZES, "largest_cluster"),
        (AGREEMENT, "agreement"),
        (PURITY, "purity"),
    ):
        _series(axes[panel], epochs, name, colour)
    _mark(axes, run, colour, number)
    return line


def _chance(axes: Any, runs: Sequence[Curves]) -> None:
    """Mark the loss of a student that predicts all clusters equally."""
    for clusters in sorted({run.clusters for run in runs if run.clusters}):
        level = math.log(clusters)
        axes.axhline(level, color=GREY, linestyle=":")
        text = "ln K" if len({run.clusters for run in runs}) == 1 else f"ln {clusters:,}"
        axes.text(
            0.99, level, text, color=GREY, fontsize=8, ha="right", va="bottom", transform=axes.get_yaxis_transform()
        )


def _shares(sizes: Any, epochs: Sequence[dict[str, Any]], clusters: int | None) -> None:
    """Draw clusters empty before and after balancing, and coinciding centroids, in percent on the right."""
    right = sizes.twinx()
    if clusters:
        for name, label, style in EMPTY:
            when, empty = _points(epochs, name)
            if empty:
                share = [100 * value / clusters for value in empty]
                right.plot(when, share, color=GREY, linestyle=style, label=f"{label}, %")
    when, doubled = _points(epochs, "coincident_centroids")
    if doubled:
        right.plot(when, [100 * value for value in doubled], color=GREY, linestyle=":", label="coinciding, %")
    right.set_ylim(0, 100)
    right.set_ylabel("% of clusters", fontsize=8)
    right.tick_params(labelsize=8)
    right.spines["top"].set_visible(False)
    lines = sizes.get_lines() + right.get_lines()
    right.legend(lines, [str(line.get_label()) for line in lines], frameon=False, fontsize=8, ncols=2, loc="upper left")


def _same_winner(agreement: Any, epochs: Sequence[dict[str, Any]]) -> None:
    """Draw how often different images of a batch share a cluster, on the right: 1 where they choose freely."""
    when, values = _points(epochs, "same_winner")
    if not values:
        return
    right = agreement.twinx()
    right.plot(when, values, color=GREY, linestyle="--", label="different images, times chance")
    right.axhline(1, color=GREY, linestyle=":", linewidth=0.8)
    right.set_ylim(0, max(4.0, 1.1 * max(values)))
    right.tick_params(labelsize=8)
    right.spines["top"].set_visible(False)
    right.legend(frameon=False, fontsize=8, loc="upper right")


def _batches(axes: Any, runs: Sequence[Curves], colours: Sequence[str]) -> None:
    """Draw the same of several runs, on a logarithmic axis."""
    for run, colour in zip(runs, colours, strict=True):
        _series(axes, run.kind("epoch"), "same_winner", colour)
    axes.axhline(1, color=GREY, linestyle=":", zorder=0)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:g}")
    _by_epoch(axes, "Same cluster in a batch, x chance")


def _by_epoch(axes: Any, title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    style_axes(axes, title, x="epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _titles(axes: Sequence[Any]) -> None:
    names = ["Loss", "Teacher confidence $c_{avg}$", "Cluster sizes, relative to 1/K"]
    names += ["Agreement between views $a_{avg}$", "Purity of clusters", "Frozen features of the teacher"]
    for panel, name in zip(axes, names, strict=False):
        _by_epoch(panel, name)
    for panel in (CONFIDENCE, AGREEMENT, PURITY):
        axes[panel].set_ylim(0, 1 if len(axes) > FROZEN else None)  # curves.png of different runs stay comparable
    axes[SIZES].axhline(1, color=GREY, linestyle=":", zorder=0)
    room = LEGEND_ROOM if len(axes) > FROZEN else 1
    if (top := axes[SIZES].get_ylim()[1]) > 6:  # one dominant cluster would flatten the rest
        axes[SIZES].set_yscale("symlog", linthresh=2)
        axes[SIZES].set_yticks([0, 1, *[m * 10**n for n in range(6) for m in (2, 5, 10) if m * 10**n <= top][:8]])
        axes[SIZES].yaxis.set_major_formatter("{x:g}")
        room **= 5  # as much on its logarithmic part
    axes[SIZES].set_ylim(0, room * top)
    if not axes[PURITY].get_lines():
        axes[PURITY].set_title("Purity: no labels", fontsize=10)
    if len(axes) > FROZEN and axes[FROZEN].get_lines():
        axes[FROZEN].set_ylim(0, axes[FROZEN].get_ylim()[1] * LEGEND_ROOM)
        axes[FROZEN].legend(
            frameon=False, fontsize=7.5, ncols=2, loc="upper left", columnspacing=0.6, handlelength=1.2, borderaxespad=0
        )


def _placed(run: Curves) -> list[dict[str, Any]]:
    return [line for line in run.kind("alarm") if _drawable(line.get("epoch")) and isinstance(line.get("name"), str)]


def _mark(axes: Sequence[Any], run: Curves, colour: str, number: int = 0) -> None:
    """Mark the alarms where they began; `number` separates the labels of several runs."""
    for alarm in _placed(run):
        panel = MARKED.get(alarm["name"], LOSS)
        if panel >= len(axes):
            continue
        axes[panel].axvline(alarm["epoch"], color=colour, linewidth=1, linestyle="-" if colour == RED else "--")
        axes[panel].annotate(
            _literally(alarm["name"]),
            (alarm["epoch"], 0.5 + 0.12 * (-1) ** number * ((number + 1) // 2 % 4)),
            xycoords=axes[panel].get_xaxis_transform(),
            color=colour,
            fontsize=8,
            rotation=90,
            va="center",
        )


def _points(lines: Sequence[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    both = [line for line in lines if _drawable(line.get("epoch")) and _drawable(line.get(name))]
    return [line["epoch"] for line in both], [line[name] for line in both]


def _drawable(value: Any) -> bool:
    """Whether it is a number that fits on an axis, or the NaN of a diverged run."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > LARGEST


def _literally(text: str) -> str:
    """The name shortened, with dollars escaped: matplotlib reads text between dollars as a formula."""
    return shortened(printable(text), LONGEST_NAME).replace("$", r"\$")


def _series(axes: Any, lines: Sequence[dict[str, Any]], name: str, color: str, label: str | None = None) -> None:
    when, values = _points(lines, name)
    if values:
        axes.plot(when, values, color=color, label=label, marker="o" if len(values) < 30 else None, markersize=3)
