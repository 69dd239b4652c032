"""`excb-eval`: the only parser of downstream evaluation; every protocol is imported when it runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from excb import __version__
from excb.cli import Parser
from excb.console import Reporter
from excb.errors import UserError, run

DESCRIPTION = """\
Evaluate a checkpoint on downstream tasks.

  excb-eval knn --ckpt runs/rn18_small --train DIR --test DIR
  excb-eval knn --ckpt runs/rn18_small --data DIR --out knn.json      DIR holds train/ and test/ (or val/)"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `excb-eval` and return its exit code."""
    return run("excb-eval", lambda: _main(argv))


def _parser() -> Parser:
    parser = Parser(prog="excb-eval", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"excb {__version__}")
    protocols = parser.add_subparsers(dest="protocol", metavar="PROTOCOL", required=True)
    knn = protocols.add_parser("knn", help="weighted k-nearest-neighbour vote on frozen features (DINO's protocol)")
    _add_common(knn)
    knn.add_argument("--k", type=int, nargs="+", metavar="K", help="neighbours that vote (default: 10 20 100 200)")
    knn.add_argument("--temperature", type=float, default=0.07, metavar="T", help="of the vote (default: 0.07)")
    knn.add_argument(
        "--backend", choices=("auto", "faiss", "torch"), default="auto", help="search; the answers are equal"
    )
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    """Options of every protocol."""
    parser.add_argument(
        "--ckpt", required=True, metavar="PATH", help="a run folder, checkpoint file or exported folder"
    )
    parser.add_argument("--network", choices=("teacher", "student"), default="teacher", help="default: teacher")
    parser.add_argument("--data", type=Path, metavar="DIR", help="holds train/ and test/, else val/")
    parser.add_argument("--train", type=Path, metavar="DIR", help="labelled images: one sub-folder a class")
    parser.add_argument("--test", type=Path, metavar="DIR", help="the same classes, other images")
    parser.add_argument(
        "--rename",
        action="append",
        default=[],
        metavar="TEST=TRAIN",
        help="a test folder that is called otherwise in train (may be repeated)",
    )
    parser.add_argument("--resize", type=int, metavar="PIXELS", help="shorter side (default: the checkpoint's)")
    parser.add_argument("--crop", type=int, metavar="PIXELS", help="central square (default: the checkpoint's)")
    parser.add_argument("--device", default="auto", metavar="NAME", help="cpu, cuda or auto (default)")
    parser.add_argument("--batch-size", type=int, default=64, metavar="B", help="images at once (default: 64)")
    parser.add_argument("--workers", type=int, default=None, metavar="N", help="processes that read images")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the result here")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    parser.add_argument("--quiet", action="store_true", help="no notes, no progress")


def _main(argv: Sequence[str] | None) -> int:
    chosen = _parser().parse_args(argv)
    train, test = _folders(chosen)
    if chosen.out is not None and chosen.out.is_dir():
        raise UserError(f"--out {chosen.out} is a folder: name a file, such as {chosen.out / 'knn.json'}")
    reporter = Reporter(quiet=chosen.quiet)

    from .task import Task

    task = Task.prepare(
        chosen.ckpt,
        train,
        test,
        network=chosen.network,
        resize=chosen.resize,
        crop=chosen.crop,
        device=chosen.device,
        batch=chosen.batch_size,
        workers=chosen.workers,
        rename=_renames(chosen.rename),
    )
    from .knn import evaluate

    result = evaluate(
        task,
        reporter,
        ks=chosen.k,
        temperature=chosen.temperature,
        backend=chosen.backend,
        table=not chosen.json,
    )
    if chosen.out is not None:
        from excb.results import write_text

        write_text(result.to_json() + "\n", chosen.out)
        reporter.note(f"wrote {chosen.out}")
    if chosen.json:
        print(result.to_json())
    return 0


def _renames(pairs: Sequence[str]) -> dict[str, str]:
    """`--rename TEST=TRAIN` as a mapping."""
    if wrong := [pair for pair in pairs if pair.count("=") != 1]:
        raise UserError(f"--rename {wrong[0]}: write TEST=TRAIN, the folder's name in test and its name in train")
    return dict(pair.split("=") for pair in pairs)


def _folders(chosen: argparse.Namespace) -> tuple[Path, Path]:
    """The train and test folders that the options name."""
    train, test = chosen.train, chosen.test
    if chosen.data is not None:
        if not chosen.data.is_dir():
            raise UserError(f"no folder {chosen.data}: --data names a folder that holds train/ and test/ (or val/)")
        held_out = "test" if (chosen.data / "test").is_dir() else "val"
        train, test = train or chosen.data / "train", test or chosen.data / held_out
    if train is None or test is None:
        raise UserError("name the images with --data DIR (train/ and test/ inside), or with --train DIR --test DIR")
    return train, test


if __name__ == "__main__":
    sys.exit(main())
