"""The leaderboard as Markdown, as CSV with one line for every figure, and as plain values for JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from excb.files.csv_text import csv_table
from excb.files.markdown import bullets, cell, markdown_table
from excb.results.result import interval_text

from ..reporting import fields
from .board import Board, Group, LeaderboardCell, LeaderboardRow

COLUMNS = (
    "task", "images", "protocol", "group", "rank", "model", "method", "network", "epochs", "batch", "crops", "metric",
    "kind", "percent", "low", "high", "status", "weights_sha256", "source", "notes",
)  # fmt: skip


def boards_as_markdown(boards: Sequence[Board]) -> str:
    """Every board, with one table per protocol."""
    parts = [
        "# Leaderboard",
        "Ranks are given among figures of one protocol only, and none where its settings are stated nowhere. Percent, "
        "with 95 % intervals of measured figures. `leaderboard.html` is the same to sort and filter, with the paper's "
        "Figure 2.",
    ]
    for board in boards:
        parts.append(f"## {cell(board.title)}: {cell(board.images)}")
        for group in board.groups:
            parts += [_heading(group), _table(group, board.metrics)]
            parts += [_notes(group)] if _qualified(group) else []
    return "\n\n".join(parts) + "\n"


def _heading(group: Group) -> str:
    lines = [f"**{cell(', '.join(group.names))}** {cell(group.headline)}".strip()]
    if group.why_apart:
        lines.append(cell(group.why_apart))
    return "<br>\n".join(lines)


def _table(group: Group, metrics: Sequence[str]) -> str:
    shown = [metric for metric in metrics if any(metric in row.cells for row in group.rows)]
    rows = [
        [
            "" if rank is None else rank,
            row.model,
            row.method,
            row.network,
            "" if row.epochs is None else row.epochs,
            "" if row.batch is None else row.batch,
            *(_cell_text(row.cells.get(metric)) for metric in shown),
            row.status,
            ", ".join(source.text for source in row.sources),
        ]
        for row, rank in group.ranking
    ]
    return markdown_table(["#", "model", "method", "network", "epochs", "batch", *shown, "status", "source"], rows)


def _notes(group: Group) -> str:
    """The notes on measured figures, a line for each row that has notes; the page has those of published ones."""
    return bullets([(row.model, "; ".join(row.notes)) for row in _qualified(group)])


def _qualified(group: Group) -> list[LeaderboardRow]:
    return [row for row in group.rows if row.notes and row.weights]


def _cell_text(figures: LeaderboardCell | None) -> str:
    if figures is None:
        return ""
    if figures.measured is None:
        return " / ".join(figures.published)
    text = f"{figures.measured:.2f}"
    if figures.interval is not None:
        text += f" ({interval_text(figures.interval)})"
    return text + (f", published {' / '.join(figures.published)}" if figures.published else "")


def boards_as_csv(boards: Sequence[Board]) -> str:
    """One line for every published and every measured figure."""
    return csv_table(COLUMNS, _lines(boards))


def _lines(boards: Sequence[Board]) -> Iterator[list[Any]]:
    for board in boards:
        for group in board.groups:
            code = fields.digest(group.fields)
            for row, rank in group.ranking:
                of_row = [row.model, row.method, row.architecture, row.epochs, row.batch, row.crops]
                start = [board.title, board.images, " ".join(group.names), code, rank, *of_row]
                end = [row.status, row.weights, "; ".join(source.text for source in row.sources)]
                end.append("; ".join(row.notes))
                for metric, figures in row.cells.items():
                    for kind, value, interval in _values(figures):
                        yield [*start, metric, kind, value, *interval, *end]


def _values(figures: LeaderboardCell) -> Iterator[tuple[str, Any, tuple[Any, Any]]]:
    if figures.measured is not None:
        yield "measured", figures.measured, figures.interval or (None, None)
    for value in figures.published:
        yield "published", value.replace(",", ""), (None, None)


def boards_as_dict(boards: Sequence[Board]) -> dict[str, Any]:
    """Plain values, with the fields that define every protocol and what keeps it apart."""
    return {"boards": [_board(board) for board in boards]}


def _board(board: Board) -> dict[str, Any]:
    groups = [
        {
            "protocol": group.names,
            "hash": fields.digest(group.fields),
            "fields": group.fields,
            "apart": group.apart,
            "rows": [_row(row, rank) for row, rank in group.ranking],
        }
        for group in board.groups
    ]
    return {"task": board.title, "images": board.images, "metrics": board.metrics, "groups": groups}


def _row(row: LeaderboardRow, rank: int | None) -> dict[str, Any]:
    return {"rank": rank, "status": row.status} | asdict(row) | {"verdicts": sorted(row.verdicts)}
