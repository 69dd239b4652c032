"""The leaderboard as one page that needs nothing else: Figure 2, and a table for every task, sortable and filtered."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from excb.pages.frame import render_page
from excb.results.result import interval_text

from .board import REPRODUCED, STATUSES, Board, Group, LeaderboardRow
from .figure import LeaderboardPoint, drawing

_FOOTER = (
    "Ranks are given among figures of one protocol only, and none where its settings are stated nowhere. "
    "A measured figure ranks before a published one of the same checkpoint. Intervals are 95 %, of the images."
)


@dataclass(frozen=True)
class OwnFigure:
    """A figure of the reader's own, in a list above all tables."""

    model: str
    board: int  # number of its table
    title: str  # of that table
    words: str  # the figure, with its rank and the best one of its protocol


def render_leaderboard(boards: Sequence[Board], points: Sequence[LeaderboardPoint], left_out: Sequence[str]) -> str:
    """The page.

    Args:
        boards: with at least one row.
        points: of Figure 2.
        left_out: measured runs that Figure 2 cannot show, and why.
    """
    groups = [group for board in boards for group in board.groups]
    rows = [row for group in groups for row in group.rows]
    cells = [cell for row in rows for cell in row.cells.values()]
    figures = {
        "Published figures": sum(len(cell.published) for cell in cells),
        "Measured figures": sum(cell.measured is not None for cell in cells),
        "Reproduced rows": sum(row.status == REPRODUCED for row in rows),
        "Protocols": len(groups),
    }
    filters = {
        "method": sorted({row.method for row in rows if row.method}, key=str.casefold),
        "network": sorted({row.network for row in rows if row.architecture}),
        "protocol": list(dict.fromkeys(name for group in groups for name in group.names)),
        "status": [each for each in STATUSES if any(row.status == each for row in rows)],
    }
    sizes = (("wide", 1100, 420), ("narrow", 400, 400)) if points else ()
    return render_page(
        "leaderboard",
        title="Leaderboard",
        style="base leaderboard",
        script="leaderboard",
        subtitles=["Published figures beside reproduced ones, ranked only where protocols agree"],
        figures=[(name, f"{value:,}", None) for name, value in figures.items()],
        footer=_FOOTER,
        boards=boards,
        own=list(_own(boards)),
        drawings=[drawing(points, width=width, height=height, name=name) for name, width, height in sizes],
        left_out=left_out,
        filters=filters,
    )


def _own(boards: Sequence[Board]) -> Iterator[OwnFigure]:
    """The reader's own figures by the first metric of each row."""
    for number, board in enumerate(boards):
        for group in board.groups:
            for row, rank in group.ranking:
                metric = next((name for name in board.metrics if name in row.cells), "")
                if not row.own or not metric or (value := row.cells[metric].measured) is None:
                    continue
                interval = row.cells[metric].interval
                ends = f" ({interval_text(interval)})" if interval else ""
                words = f": {metric} {value:.2f}{ends}{_place(row, rank, group, metric)}"
                yield OwnFigure(row.model, number, f"{board.title} {board.images}", words)


def _place(row: LeaderboardRow, rank: int | None, group: Group, metric: str) -> str:
    """Where a row stands among those of its protocol."""
    ranked = sum(each is not None for each in group.ranks)
    if rank is None or ranked == 1:
        return ", which nothing else here compares with"
    first = group.rows[0]
    best = first.cells[metric].value if metric in first.cells else None
    beside = "" if first is row or best is None else f"; the best is {first.model}, {best:.2f}"
    return f", rank {rank} of {ranked} by the same protocol{beside}"
