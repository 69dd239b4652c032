"""The paper's Figure 2 drawn anew: linear accuracy on ImageNet against epochs, a circle's area being its batch."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from excb.console import plural

from ..published.claim import Claim
from .board import Board, LeaderboardRow

TABLE = "figure2"  # of the registry
FAMILY, METRIC, IMAGES, NETWORK = "linear", "top-1", "imagenet", "resnet50"
COLOURS = 8  # that the page's style has
AREA = 13.0 / 64  # a radius of 13 for a batch of 4,096
UNKNOWN = 4.0  # radius where the batch is not known
LETTER, HEIGHT = 7.8, 16.0  # of a label


@dataclass(frozen=True)
class LeaderboardPoint:
    """One network."""

    name: str  # its method, or the reader's own run
    epochs: int  # of pretraining
    batch: int | None  # images per step; None is not known
    value: float  # top-1 in percent
    text: str  # all of it in words
    own: bool  # whether it was measured here
    method: str  # that trained it

    @property
    def radius(self) -> float:
        """In pixels: the area is in proportion to the batch."""
        return UNKNOWN if self.batch is None else AREA * math.sqrt(self.batch)


def figure_points(published: Iterable[Claim], boards: Iterable[Board]) -> tuple[list[LeaderboardPoint], list[str]]:
    """The points of the figure, and in words which measured linear figures it cannot show, and why."""
    shown, left_out = [], []
    for claim in published:
        if claim.table == TABLE and claim.epochs is not None:
            text = _text_of(claim.method, claim.epochs, claim.batch, claim.value, claim.source)
            shown.append(
                LeaderboardPoint(claim.method, claim.epochs, claim.batch, claim.number, text, False, claim.method)
            )
    for board in boards:
        if board.family != FAMILY:
            continue
        for row in (row for group in board.groups for row in group.rows if row.weights and METRIC in row.cells):
            if why := _missing(board, row):
                left_out.append(f"{row.model}: {why}")
                continue
            value = row.cells[METRIC].measured
            assert value is not None
            assert row.epochs is not None
            text = _text_of(row.model, row.epochs, row.batch, f"{value:.2f}", "measured")
            shown.append(LeaderboardPoint(row.model, row.epochs, row.batch, value, text, True, row.method))
    return shown, list(dict.fromkeys(left_out))


def _missing(board: Board, row: LeaderboardRow) -> str:
    if not board.key.endswith(f" {IMAGES}"):
        return f"its figure is of {board.images}, not of ImageNet-1k"
    if row.architecture != NETWORK:
        return f"it is a {row.architecture}, not a ResNet-50"
    value = row.cells[METRIC].measured
    if value is None or not 0 <= value <= 100:
        return "its figure is not an accuracy in percent"
    return "" if row.epochs is not None else "its epochs are not known"


def _text_of(name: str, epochs: int, batch: int | None, value: str, source: str) -> str:
    size = "batch not known" if batch is None else f"batch {batch:,}"
    return f"{name}: {value} % after {plural(epochs, 'epoch')}, {size} ({source})"


@dataclass(frozen=True)
class DrawnText:
    """Words at a place, in pixels."""

    x: float
    y: float
    words: str
    anchor: str = "start"
    style: str = "tick"
    method: str = ""  # that they name


@dataclass(frozen=True)
class DrawnCircle:
    """A point at its place, in pixels."""

    x: float
    y: float
    point: LeaderboardPoint
    colour: str


@dataclass(frozen=True)
class Drawing:
    """The figure in pixels, in the order in which it is painted."""

    name: str  # of its class, so that the style shows the one that fits the window
    width: int
    height: int
    left: int  # of the grid
    right: int
    grid: Sequence[float]
    ticks: Sequence[DrawnText]
    lines: Sequence[tuple[str, str, str]]  # places, colour and method
    circles: Sequence[DrawnCircle]
    labels: Sequence[DrawnText]
    sizes: Sequence[tuple[float, float, float]]  # x, y and radius of the legend's circles


@dataclass(frozen=True)
class _Frame:
    """The plot's box in pixels, and what its axes span."""

    width: int
    height: int
    most_epochs: float
    low: float
    high: float
    left: int = 44
    right: int = 16
    top: int = 34
    bottom: int = 44

    def x(self, epochs: float) -> float:
        return self.left + (self.width - self.left - self.right) * epochs / self.most_epochs

    def y(self, percent: float) -> float:
        share = (percent - self.low) / (self.high - self.low)
        return self.height - self.bottom - (self.height - self.top - self.bottom) * share


def drawing(shown: Sequence[LeaderboardPoint], *, width: int, height: int, name: str) -> Drawing:
    """The figure.

    Args:
        shown: at least one point.
        width: in pixels.
        height: in pixels.
        name: see `Drawing`.
    """
    methods = list(dict.fromkeys(point.method for point in shown if not point.own))
    frame = _Frame(
        width,
        height,
        1.09 * max(point.epochs for point in shown),
        math.floor(min(point.value for point in shown)),
        math.ceil(max(point.value for point in shown) + 0.4),
    )
    series = [[point for point in shown if point.name == each and not point.own] for each in methods]
    own = [[point] for point in shown if point.own]
    large_first = sorted((point for each in [*series, *own] for point in each), key=lambda point: -point.radius)
    percents = range(math.ceil(frame.low), math.floor(frame.high) + 1)
    sizes, words = _sizes(frame)
    return Drawing(
        name,
        width,
        height,
        frame.left,
        width - frame.right,
        [frame.y(percent) for percent in percents],
        [*_ticks(frame, percents), *words],
        [_line(frame, each, methods) for each in series if len(each) > 1],
        [DrawnCircle(frame.x(each.epochs), frame.y(each.value), each, _colour(each, methods)) for each in large_first],
        _labels(frame, [*series, *own], methods),
        sizes,
    )


def _ticks(frame: _Frame, percents: Iterable[int]) -> Iterator[DrawnText]:
    for percent in percents:
        yield DrawnText(frame.left - 8, frame.y(percent) + 4, str(percent), "end")
    step = 200 if frame.most_epochs <= 2000 else 10 ** math.floor(math.log10(frame.most_epochs))
    for epochs in range(0, int(frame.most_epochs) + 1, step):
        yield DrawnText(frame.x(epochs), frame.height - frame.bottom + 18, str(epochs), "middle")
    middle = (frame.left + frame.width - frame.right) / 2
    yield DrawnText(middle, frame.height - 6, "epochs of pretraining", "middle")
    yield DrawnText(frame.left - 8, 14, "top-1 %")


def _colour(point: LeaderboardPoint, methods: Sequence[str]) -> str:
    return "own" if point.own else f"c{methods.index(point.method) % COLOURS}"


def _line(frame: _Frame, series: Sequence[LeaderboardPoint], methods: Sequence[str]) -> tuple[str, str, str]:
    places = sorted((point.epochs, point.value) for point in series)
    path = " ".join(f"{frame.x(epochs):.1f},{frame.y(value):.1f}" for epochs, value in places)
    return path, _colour(series[0], methods), series[0].method


def _labels(frame: _Frame, series: Sequence[Sequence[LeaderboardPoint]], methods: Sequence[str]) -> list[DrawnText]:
    """Each series' name beside its last point, where it covers no circle and no other name if there is such a place."""
    taken = [_box(frame.x(p.epochs), frame.y(p.value), 2 * p.radius, 2 * p.radius) for each in series for p in each]
    labels = []
    for each in sorted(series, key=lambda one: -one[-1].value):
        last = max(each, key=lambda point: point.epochs)
        x, y, r, width = frame.x(last.epochs), frame.y(last.value), last.radius, LETTER * len(last.name)
        across, up = r + 6 + width / 2, r + 4 + HEIGHT / 2
        straight = [(0, -up), (across, 0), (0, up), (-across, 0)]
        turns = [*straight, (across, -up), (-across, -up), (across, up), (-across, up)]
        inside = [
            _box(x + dx, y + dy, width, HEIGHT)
            for dx, dy in turns
            if x + dx - width / 2 > frame.left and x + dx + width / 2 < frame.width
        ] or [_box(x, y - up, width, HEIGHT)]
        box = min(inside, key=lambda one: sum(_overlap(one, other) for other in taken))
        taken.append(box)
        middle = (box[0] + box[2]) / 2
        classes = f"label {_colour(last, methods)}"
        labels.append(DrawnText(middle, box[3] - 4, last.name, "middle", classes, last.method))
    return labels


_Box = tuple[float, float, float, float]


def _box(x: float, y: float, width: float, height: float) -> _Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _overlap(one: _Box, other: _Box) -> float:
    across = min(one[2], other[2]) - max(one[0], other[0])
    up = min(one[3], other[3]) - max(one[1], other[1])
    return across * up if across > 0 and up > 0 else 0.0


def _sizes(frame: _Frame) -> tuple[list[tuple[float, float, float]], list[DrawnText]]:
    """The legend of areas, in the corner that accuracies leave free: its circles and its words."""
    y = frame.height - frame.bottom - 22.0
    x = frame.width - frame.right - 12.0
    circles, texts = [], []
    for batch in (4096, 2048, 1024):
        words, radius = f"{batch:,}", AREA * math.sqrt(batch)
        x -= LETTER * len(words)
        texts.append(DrawnText(x, y + 4, words))
        x -= radius + 6
        circles.append((x, y, radius))
        x -= radius + 12
    return circles, [*texts, DrawnText(x, y + 4, "batch", "end")]
