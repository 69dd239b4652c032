"""A leaderboard made of results and published figures: its tables, and its files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excb.console import plural
from excb.files.atomic import write_text
from excb.results.beside import refuse_other_beside, table_beside, text_beside
from excb.results.replacing import FOLDER_ADVICE, PYTHON_FOLDER_ADVICE
from excb.results.result import ResultRecord

from ..published import registry
from ..published.claim import Claim
from . import figure, page, tables
from .board import Board
from .gather import gather
from .sorting import boards

FILES = ("leaderboard.md", "leaderboard.csv", "leaderboard.html")


@dataclass(frozen=True)
class Leaderboard:
    """Results beside published figures.

    Attributes:
        boards: one table per task and its images.
        published: the figures of the registry.
        passed_over: files of results in folders that have no figure for a board.
    """

    boards: list[Board]
    published: list[Claim]
    passed_over: list[Path]

    def to_dict(self) -> dict[str, Any]:
        """The tables as plain values, as `excb-eval leaderboard --json` prints them."""
        return tables.boards_as_dict(self.boards)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> list[Path]:
        """Write leaderboard.md, leaderboard.csv and leaderboard.html.

        Args:
            folder: it may hold an earlier leaderboard, which is replaced.
            overwrite: replace other files of these names as well.

        Raises:
            UserError: one cannot be written, or is there and no leaderboard.
        """
        if not overwrite:
            refuse_other_leaderboard(Path(folder), advice=PYTHON_FOLDER_ADVICE)
        points, left_out = figure.figure_points(self.published, self.boards)
        texts = (
            tables.boards_as_markdown(self.boards),
            tables.boards_as_csv(self.boards),
            page.render_leaderboard(self.boards, points, left_out),
        )
        files = [Path(folder) / name for name in FILES]
        for file, text in zip(files, texts, strict=True):
            write_text(text, file)
        return files

    def __repr__(self) -> str:
        rows = [(board, sum(len(group.rows) for group in board.groups)) for board in self.boards]
        return "\n".join(
            ["Leaderboard", *(f"  {board.title}, {board.images}: {plural(count, 'row')}" for board, count in rows)]
        )


def refuse_other_leaderboard(folder: Path, *, advice: str = FOLDER_ADVICE) -> None:
    """Refuse a folder with files that are no leaderboard, and would be replaced. Raises UserError then."""
    table, lines, shown = FILES
    files = [
        text_beside(table, "leaderboard", "# Leaderboard\n"),
        table_beside(lines, "leaderboard", tables.COLUMNS),
        text_beside(shown, "leaderboard", "<footer>Ranks are given among figures of one protocol only"),
    ]
    refuse_other_beside(folder / table, files, advice=advice)


def make(
    results: Sequence[Path | ResultRecord], *, claims: Sequence[Path] = (), out: Path | None = None
) -> Leaderboard:
    """Sort results and published figures into tables.

    Args:
        results: results, their files, or folders of them.
        claims: files of further published figures.
        out: the folder of the page, which links to files near it.

    Raises:
        UserError: a result is missing or damaged.
    """
    published = registry.claims(claims)
    measured, passed_over = gather(results, out or Path())
    return Leaderboard(boards(measured, published), published, passed_over)
