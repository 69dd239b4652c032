"""`excb-eval overlap`: its options, and what it does in each process."""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Command, Parser, local_path
from excb.console import Reporter
from excb.errors import UserError, is_rank0
from excb.results.result import interval_text

from ..options import CKPT, add_pass_options
from ..parallel import in_parallel

if TYPE_CHECKING:
    import torch

    from excb.images.image_set import Images

    from ..task import Task
    from .auditing import Audit

LISTED = 20  # pairs that the terminal lists


def _add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--train", metavar="SOURCE", help="images used for training: a folder of any depth; shards; hf:ID ...")
    add("--test", metavar="SOURCE", help="test images, likewise; for a named set, its test images")
    add("--ckpt", metavar="PATH", help=f"compare its features, too: {CKPT} (default: hashes only)")
    add("--data-root", type=Path, metavar="DIR", help="folder with torchvision's data sets")
    add(
        "--cosine",
        type=float,
        metavar="C",
        help="cosine of whitened features from which images overlap (default: calibrated)",
    )
    add("--bits", type=int, metavar="B", help="bits, out of 64, in which hashes may differ (default: calibrated)")
    add("--k", type=int, default=3, metavar="K", help="train images compared with each test image (default: 3)")
    add(
        "--calibrate",
        type=int,
        default=200,
        metavar="N",
        help="train images to plant as altered copies (default: 200); 0 with --cosine and --bits",
    )
    add(
        "--control",
        choices=("all", "classes"),
        default="all",
        help="images to compare non-copies with when thresholds are set: all other train images (default), or "
        "those of other classes, which finds more copies and also images of a class that only look alike",
    )
    add("--out", type=local_path, metavar="FILE.json", help="write the result, FILE.pairs.csv and the page FILE.html")
    add_pass_options(parser)


def _check(args: argparse.Namespace) -> None:
    def refuse(message: str) -> None:
        raise UserError.on_all_ranks(message)

    if not args.train or not args.test:
        refuse("name both sets of images: --train SOURCE --test SOURCE")
    if args.out is not None and args.out.suffix != ".json":
        refuse(f"--out {args.out}: the result is written to a file that ends in .json, with others beside it")
    if args.cosine is not None and not -1 < args.cosine <= 1:
        refuse(f"--cosine must be above -1 and at most 1, such as 0.8, not {args.cosine:g}")
    if args.cosine is not None and args.ckpt is None:
        refuse("--cosine is of features: name a checkpoint with --ckpt")
    if args.bits is not None and not 0 <= args.bits <= 64:
        refuse(f"--bits must lie in 0 to 64, such as 8, not {args.bits}")
    if args.k < 1:
        refuse("--k must be at least 1")
    if args.calibrate < 0:
        refuse("--calibrate must be at least 0")
    if args.calibrate == 0 and (args.bits is None or (args.ckpt is not None and args.cosine is None)):
        refuse(f"--calibrate 0 needs thresholds: name --bits{' and --cosine' if args.ckpt is not None else ''}")


def _overlap(args: argparse.Namespace, device: "torch.device") -> int:
    from excb.distributed.collectives import all_succeed, run_on_rank0

    from ..task_command import Work, forecast, prepared
    from .auditing import audit
    from .hashing import of_bits
    from .sets import both_sets

    _check(args)
    reporter = Reporter(quiet=args.quiet or not is_rank0())
    train, test = all_succeed(lambda: both_sets(args.train, args.test, args.data_root, reporter))
    task = None if args.ckpt is None else prepared(args, train, test, device)
    hashing = _hashing(args, train, test)
    if args.dry_run:
        then = ("a perceptual hash of every image", f"{args.k} nearest train images of each test image, twice")
        forecast(task or hashing, Work({"train": train, "test": test}, then=then), reporter)
        return 0
    thresholds = {} if args.cosine is None else {"features": args.cosine}
    thresholds |= {} if args.bits is None else {"hash": of_bits(args.bits)}
    found = audit(
        task,
        hashing,
        reporter,
        thresholds=thresholds,
        k=args.k,
        planted=args.calibrate,
        by_class=args.control == "classes",
    )
    run_on_rank0(partial(_answer, args, found, reporter))
    return 0


def _hashing(args: argparse.Namespace, train: "Images", test: "Images") -> "Task":
    """Hashes are computed on the CPU: reading the images takes the time."""
    from ..task import Task
    from .hashing import PerceptualHash

    return Task.prepare(PerceptualHash(), train, test, device="cpu", workers=args.workers)


def _answer(args: argparse.Namespace, found: "Audit", reporter: Reporter) -> None:
    """Write the files, and print what was found; rank 0 does."""
    from excb.files.atomic import write_text

    from .page import render_audit, shown_pairs

    if args.out is not None:
        stem = args.out.name.removesuffix(".json")
        listed, shown_page = (args.out.with_name(f"{stem}{ending}") for ending in (".pairs.csv", ".html"))
        with reporter.progress("pictures of the page", len(shown_pairs(found))) as bar:
            page = render_audit(found, progress=bar.advance)
        write_text(found.to_csv(), listed)
        write_text(page, shown_page)
        write_text(found.result.to_json() + "\n", args.out)
        reporter.note(f"wrote {args.out}, {listed}, {shown_page}")
    if args.json:
        pairs = [found.describe(pair) for pair in found.pairs]
        reporter.answer(json.dumps(json.loads(found.result.to_json()) | {"pairs": pairs}, indent=2))
    else:
        _print(found, reporter)


def _print(found: "Audit", reporter: Reporter) -> None:
    from .page import TITLES, calibration_table, near_from

    header, rows = calibration_table(found)
    if rows:
        reporter.table("Planted copies of train images, and images that are none", header, rows)
    else:
        names = found.calibration.thresholds
        reporter.answer(f"Near from {' or '.join(near_from(found, name) for name in names)}, not calibrated")
    result, images = found.result, len({pair.test for pair in found.pairs})
    title = f"{images:,} of {len(found.test):,} test images overlap with {len(found.train):,} train images"
    figures = [
        [words, f"{result.figures[name]:.2f}", interval_text(result.intervals[name])]
        for name, words in TITLES.items()
        if name in result.figures
    ]
    reporter.table(title, ["figure", "%", "95 % interval"], figures)
    if not found.pairs:
        return
    described = [found.describe(pair) for pair in found.pairs[:LISTED]]
    rows = [
        [each["test"], each["train"], "" if each["cosine"] is None else f"{each['cosine']:.3f}", str(each["bits"]),
         each["by"], "yes" if each["mirrored"] else "no"]
        for each in described
    ]  # fmt: skip
    reporter.table(f"{len(found.pairs):,} pairs", ["test", "train", "cosine", "bits", "by", "mirrored"], rows)
    if len(found.pairs) > LISTED:
        reporter.answer(f"{len(found.pairs) - LISTED:,} more pairs are not listed: --json and --out have all")


OVERLAP = Command(
    "overlap",
    "near-duplicates between pretraining and test images; the k-NN figure with and without them",
    _add_options,
    in_parallel(_overlap),
    group="everything, and against others",
    examples=(
        "overlap --train photos --test benchmark --out overlap.json",
        "overlap --train photos/train --test photos/test --ckpt rn50_400ep --out overlap.json",
    ),
)
