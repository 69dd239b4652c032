"""`excb-eval leaderboard`: result files beside published figures; or submissions, checked and written."""

import argparse
import json
from pathlib import Path

from excb.cli import Command, Parser, local_path
from excb.console import Reporter, plural
from excb.errors import UserError, require
from excb.files.atomic import check_writable_folder


def _add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("results", nargs="*", type=Path, metavar="RESULTS", help="result files, or folders of them")
    add("--out", type=local_path, metavar="DIR", help="write leaderboard.md, .csv and .html here")
    add("--overwrite", action="store_true", help="replace files of these names that are no leaderboard")
    add("--check", action="store_true", help="check that RESULTS are fit for a leaderboard, and write nothing")
    add("--submit", type=Path, metavar="DIR", help="check RESULTS, and write them here without this machine's paths")
    add("--claims", action="append", default=[], type=Path, metavar="FILE.toml", help="more published figures")
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--quiet", action="store_true", help="print no notes")


def _run(args: argparse.Namespace) -> int:
    reporter = Reporter(quiet=args.quiet)
    if args.check or args.submit is not None:
        _refuse_idle(args)
        return _check(args, reporter)
    require(args.out is not None or not args.overwrite, "--overwrite is of files: name their folder with --out DIR")
    if args.out is None and not args.json:
        raise UserError("name the folder to write with --out DIR (or --json to see what is in it)")
    if args.out is not None and args.out.exists() and not args.out.is_dir():
        raise UserError(f"--out {args.out} is a file: name a folder")
    from .board import MEASURED, PUBLISHED
    from .making import make, refuse_other_leaderboard

    if args.out is not None:
        check_writable_folder(args.out)
    if args.out is not None and not args.overwrite:
        refuse_other_leaderboard(args.out)
    made = make(args.results, claims=args.claims, out=args.out)
    if others := made.passed_over:
        without = plural(len(others), "result has", "results have")
        reporter.note(f"{without} no figure that a leaderboard shows, such as {others[0]}")
    if args.out is not None:
        reporter.note(f"wrote {', '.join(map(str, made.save(args.out, overwrite=True)))}")
    if args.json:
        reporter.answer(json.dumps(made.to_dict(), indent=2, ensure_ascii=False))
        return 0
    rows = []
    for board in made.boards:
        statuses = [row.status for group in board.groups for row in group.rows]
        own = sum(status != PUBLISHED for status in statuses)
        rows.append([board.title, board.images, str(len(board.groups)), str(len(statuses) - own), str(own)])
    reporter.table("Leaderboard", ["task", "images", "protocols", PUBLISHED, MEASURED], rows)
    return 0


def _refuse_idle(args: argparse.Namespace) -> None:
    """Refuse options of the tables, where none are made."""
    which = "--submit" if args.submit is not None else "--check"
    require(not (args.check and args.submit is not None), "--submit checks what it writes: leave out --check")
    for name, given in (
        ("--out", args.out is not None),
        ("--overwrite", args.overwrite),
        ("--claims", bool(args.claims)),
    ):
        require(not given, f"{name} is of the leaderboard, and {which} makes none: leave it out")


def _check(args: argparse.Namespace, reporter: Reporter) -> int:
    from .gather import results_of
    from .submission import check_result, submit

    if not args.results:
        raise UserError("name the result files to check, or folders of them")
    results = results_of(args.results)
    done = {str(file): check_result(file, result) for file, result in results.items()}
    if args.submit is not None:
        for result in results.values():
            reporter.note(f"wrote {submit(result, args.submit)}")
    if args.json:
        reporter.answer(json.dumps({"checked": done}, indent=2, ensure_ascii=False))
    else:
        for name, words in done.items():
            reporter.answer(f"{name}: {', '.join(words)}")
    return 0


LEADERBOARD = Command(
    "leaderboard",
    "results beside published figures: Markdown, CSV and a web page",
    _add_options,
    _run,
    group="everything, and against others",
    examples=(
        "leaderboard runs --out board",
        "leaderboard runs --check",
    ),
)
