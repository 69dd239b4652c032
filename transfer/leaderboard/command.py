"""`excb-eval leaderboard`: result files beside published figures; or submissions, checked and written."""

import argparse
import json
from pathlib import Path

from excb.console import Reporter
from excb.errors import UserError
from excb.files.atomic import write_text

from ..published.claims import claims
from . import figure, page, tables
from .board import MEASURED, PUBLISHED
from .gather import gather, results_of
from .sorting import boards

FILES = ("leaderboard.md", "leaderboard.csv", "leaderboard.html")


def leaderboard(chosen: argparse.Namespace, reporter: Reporter) -> int:
    """Do what a command line asks for.

    Raises:
        UserError: a file is no result, may not stand in a leaderboard, or cannot be written.
    """
    if chosen.check or chosen.submit is not None:
        return _check(chosen, reporter)
    if chosen.out is None and not chosen.json:
        raise UserError("name the folder to write with --out DIR (or --json to see what is in it)")
    if chosen.out is not None and chosen.out.exists() and not chosen.out.is_dir():
        raise UserError(f"--out {chosen.out} is a file: name a folder")
    published = claims(chosen.claims)
    measured = gather(chosen.results, chosen.out or Path())
    made = boards(measured, published)
    points, left_out = figure.points(published, made)
    if chosen.out is not None:
        texts = (
            tables.markdown(made),
            tables.to_csv(made),
            page.render(made, points, left_out),
        )
        for name, text in zip(FILES, texts, strict=True):
            write_text(text, chosen.out / name)
        reporter.note(f"wrote {', '.join(str(chosen.out / name) for name in FILES)}")
    if chosen.json:
        reporter.answer(json.dumps(tables.to_dict(made), indent=2, ensure_ascii=False))
        return 0
    rows = []
    for board in made:
        statuses = [row.status for group in board.groups for row in group.rows]
        own = sum(status != PUBLISHED for status in statuses)
        rows.append([board.title, board.images, str(len(board.groups)), str(len(statuses) - own), str(own)])
    reporter.table("Leaderboard", ["task", "images", "protocols", PUBLISHED, MEASURED], rows)
    return 0


def _check(chosen: argparse.Namespace, reporter: Reporter) -> int:
    from .submission import check, submit

    if not chosen.results:
        raise UserError("name the result files to check, or folders of them")
    files = results_of(chosen.results)
    done = {str(file): check(file) for file in files}
    if chosen.submit is not None:
        for file in files:
            reporter.note(f"wrote {submit(file, chosen.submit)}")
    if chosen.json:
        reporter.answer(json.dumps({"checked": done}, indent=2, ensure_ascii=False))
    else:
        for name, words in done.items():
            reporter.answer(f"{name}: {', '.join(words)}")
    return 0
