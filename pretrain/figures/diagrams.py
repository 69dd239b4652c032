"""Pictures of the method and of the paper: the operator B, the boundary it shifts, accuracy against epochs."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from excb.charts.style import BLUE, GREEN, GREY, ORANGE, SEQUENCE, new_figure, style_axes
from excb.errors import UserError
from excb.files.csv_text import read_listing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = Path(__file__).with_name("paper_figure2.csv")  # the paper's points, for `accuracy`
COLUMNS = ("method", "epochs", "batch", "accuracy")


def balanced(
    similarity: float, sizes: Sequence[float], clusters: int, form: Literal["linear", "squared"]
) -> list[float]:
    """z^B = B(z; s) as training computes it (Eq. 10), for one z and many sizes s of a cluster among K."""
    import torch

    from excb.method import balancing

    values = []
    for size in sizes:
        others = (1 - size) / (clusters - 1)
        scale, offset = balancing(torch.tensor([size] + [others] * (clusters - 1), dtype=torch.float64), form)
        values.append(float(scale[0] * similarity + offset[0]))
    return values


def balancing_curves(*, clusters: int = 8, similarities: Sequence[float] = (-0.6, 0.0, 0.6)) -> "Figure":
    """The appendix's figure of B(z; s): adjusted similarity against relative size, linear and squared below 1/K."""
    figure = new_figure(6.4, 3.4)
    axes = figure.subplots()
    # Every curve has a kink at 1/K.
    sizes = [index / 100 / clusters for index in range(101)]
    sizes += [1 / clusters + (1 - 1 / clusters) * index / 200 for index in range(1, 201)]
    below = sizes[:101]
    colours = [BLUE, ORANGE, GREEN, *SEQUENCE]
    for number, z in enumerate(similarities):
        colour = colours[number % len(colours)]
        axes.plot(sizes, balanced(z, sizes, clusters, "linear"), color=colour, label=f"$z = {z:g}$")
        axes.plot(below, balanced(z, below, clusters, "squared"), color=colour, linestyle="--")
        axes.plot([1 / clusters], [z], marker="o", color=colour, markersize=4)
    axes.plot([], [], color=GREY, label=r"linear: $1 - (1 - z)\,sK$ below $1/K$")
    axes.plot([], [], color=GREY, linestyle="--", label=r"squared: $1 - (1 - z)\,(sK)^2$")
    axes.axvline(1 / clusters, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xticks([0, 1 / clusters, 1], ["0", "1/K", "1"])
    axes.set_xlim(0, 1)
    axes.set_ylim(-1.03, 1.03)
    style_axes(axes, x="relative cluster size $s$", y=r"$z^B = \mathcal{B}(z;\, s)$")
    axes.legend(frameon=False, fontsize=8)
    return figure


def boundary(share: float, angle: float) -> tuple[float, float] | None:
    """The boundary of two clusters on the unit circle after balancing by B (the paper's Figure 1).

    The centroids lie at -angle/2 (c1) and +angle/2 (c2). B is affine per cluster, so z_1^B - z_2^B is a cosine plus
    a constant, with zeros in closed form.

    Args:
        share: s of c1, in (0, 1); c2 takes the rest.
        angle: between the centroids, in radians, in (0, pi].

    Returns:
        The ends of the arc assigned to c2, counterclockwise, in radians: (0, pi) for equal shares. None if one
        cluster covers the whole circle.
    """
    import torch

    from excb.method import balancing

    scale, offset = (values.tolist() for values in balancing(torch.tensor([share, 1 - share], dtype=torch.float64)))
    half = angle / 2
    # z_2^B - z_1^B = across cos(x) + along sin(x) + shift, positive where c2 wins.
    across, along = (scale[1] - scale[0]) * math.cos(half), (scale[1] + scale[0]) * math.sin(half)
    shift, length = offset[1] - offset[0], math.hypot(across, along)
    if abs(shift) >= length:
        return None
    middle, width = math.atan2(along, across), math.acos(-shift / length)
    return middle - width, middle + width


def boundary_shift(*, ratios: Sequence[float] = (1, 1.25, 1.5, 2), angle: float = 90.0) -> "Figure":
    """The paper's Figure 1: B moves the boundary of two clusters towards the larger one.

    Each panel has one of `ratios`: how many times larger c2 is than c1. The angle is in degrees.
    """
    from matplotlib.lines import Line2D

    figure = new_figure(2.3 * len(ratios), 3.0)
    for axes, ratio in zip(figure.subplots(1, len(ratios), squeeze=False)[0], ratios, strict=True):
        _disc(axes, ratio, math.radians(angle))
        axes.set_title("equal sizes" if ratio == 1 else f"$c_2$ {ratio:g} times as large", fontsize=10)
    figure.legend(
        handles=[
            Line2D([], [], color=GREY, linestyle="--", label="boundary by similarity $z$"),
            Line2D([], [], color="black", label=r"by $z^B = \mathcal{B}(z;\, s)$"),
        ],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=9,
    )
    return figure


def _disc(axes: Any, ratio: float, angle: float) -> None:
    """The circle with its two parts, the boundary before (dashed) and after B, and the centroids."""
    from matplotlib.patches import Wedge

    half, arc = angle / 2, boundary(1 / (1 + ratio), angle)
    # c1 at the top right, c2 at the top left: the boundary before B stands upright.
    upright = math.pi / 2
    start, stop = (math.degrees(end + upright) for end in arc or (0.0, 0.0))
    axes.add_patch(Wedge((0, 0), 1, 0, 360, facecolor=BLUE, alpha=0.22, linewidth=0))
    if arc is not None:
        axes.add_patch(Wedge((0, 0), 1, start, stop, facecolor="white", linewidth=0))
        axes.add_patch(Wedge((0, 0), 1, start, stop, facecolor=ORANGE, alpha=0.3, linewidth=0))
        for end in arc:
            x, y = math.cos(end + upright), math.sin(end + upright)
            axes.plot([0, x], [0, y], color="black", linewidth=1.4)
    axes.plot([0, 0], [-1, 1], color=GREY, linestyle="--", linewidth=1)
    for name, at, colour in (("$c_1$", upright - half, BLUE), ("$c_2$", upright + half, ORANGE)):
        x, y = math.cos(at), math.sin(at)
        axes.plot([0, x], [0, y], color=colour, linewidth=0.8)
        axes.plot([x], [y], marker="o", color=colour, markersize=7, clip_on=False)
        axes.text(1.17 * x, 1.17 * y, name, ha="center", va="center", fontsize=10)
    axes.set_aspect("equal")
    axes.set_xlim(-1.2, 1.2)
    axes.set_ylim(-1.05, 1.2)
    axes.axis("off")


@dataclass(frozen=True)
class PublishedRun:
    """One published run: a method's accuracy after so many epochs at a batch size."""

    method: str
    epochs: float
    batch: float
    accuracy: float


def read_points(file: Path) -> list[PublishedRun]:
    """Read a CSV file with the columns method, epochs, batch and accuracy; lines that start with # are notes.

    Raises:
        UserError: the file cannot be read, or a line is no point.
    """
    try:
        lines = [line for line in read_listing(file).splitlines() if not line.startswith("#")]
    except OSError as error:
        raise UserError(f"cannot read {file}: {error}") from None
    rows = list(csv.DictReader(lines))
    if not rows or not set(COLUMNS) <= rows[0].keys():
        raise UserError(f"{file} holds no points: it needs the columns {', '.join(COLUMNS)} and one line per point")
    try:
        points = [PublishedRun(row["method"], *(float(row[name]) for name in COLUMNS[1:])) for row in rows]
    except (TypeError, ValueError) as error:
        raise UserError(f"{file} has a line that is no point ({error}): write {', '.join(COLUMNS)}") from None
    if any(point.batch <= 0 or not math.isfinite(point.epochs + point.accuracy) for point in points):
        raise UserError(f"{file} has a point without a size: batch must be above 0, epochs and accuracy finite")
    return points


def accuracy_against_epochs(points: Sequence[PublishedRun]) -> "Figure":
    """The paper's Figure 2: accuracy against epochs of pretraining, a circle's area showing the batch size.

    A method's points are joined in the order of their epochs; the method listed first stands out.
    """
    figure = new_figure(6.4, 3.8)
    axes = figure.subplots()
    methods: dict[str, list[PublishedRun]] = {}
    for point in sorted(points, key=lambda point: point.epochs):
        methods.setdefault(point.method, []).append(point)
    first = points[0].method
    area = 60 / min(point.batch for point in points)
    colours = dict(zip(methods, SEQUENCE[1:] * len(methods), strict=False)) | {first: BLUE}
    for name in sorted(methods, key=lambda name: name == first):
        x, y, batches = zip(*((point.epochs, point.accuracy, point.batch) for point in methods[name]), strict=True)
        axes.plot(x, y, color=colours[name], marker="o", markersize=2.5, linewidth=2 if name == first else 1)
        axes.scatter(x, y, [area * batch for batch in batches], color=colours[name], alpha=0.35, linewidths=0)
    axes.margins(0.1)
    ends = [group[-1] for group in methods.values()]
    for end in ends:
        radius = math.sqrt(area * end.batch / math.pi)
        _name(axes, end, ends, radius=radius, color=colours[end.method], strong=end.method == first)
    for batch in sorted({point.batch for point in points}):
        axes.scatter([], [], area * batch, color=GREY, alpha=0.5, linewidths=0, label=f"{batch:,.0f}")
    style_axes(axes, x="epochs of pretraining", y="top-1 accuracy, %")
    axes.legend(title="batch", title_fontsize=8, frameon=False, fontsize=8, loc="lower right", labelspacing=1)
    return figure


def _name(
    axes: Any, end: PublishedRun, ends: Sequence[PublishedRun], *, radius: float, color: str, strong: bool
) -> None:
    """Label a method at its last point: above if emphasised, else to the right, or below if crowded."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    crowded = any(
        0 < other.epochs - end.epochs < 0.12 * (right - left)
        and abs(other.accuracy - end.accuracy) < 0.06 * (high - low)
        for other in ends
    )
    offset = (0.0, radius + 6) if strong else (0.0, -radius - 6) if crowded else (radius + 3, 0.0)
    axes.annotate(
        end.method,
        (end.epochs, end.accuracy),
        offset,
        textcoords="offset points",
        ha="left" if offset[0] else "center",
        va="center",
        color=color,
        fontsize=9,
        fontweight="bold" if strong else "normal",
    )
