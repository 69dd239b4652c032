"""`excb-eval features` and `excb-eval cache`: compute, export, list and delete features."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import UserError, is_rank0

from .options import CKPT, add_data_options, add_out
from .parallel import in_parallel
from .task_command import Work, forecast, task_of

if TYPE_CHECKING:
    import torch


def _add_features(parser: Parser) -> None:
    parser.add_argument("--ckpt", required=True, metavar="PATH", help=CKPT)
    add_data_options(parser)
    add_out(parser, "FILE.npz")
    parser.add_argument(
        "--kind", choices=("pooled", "last4_cls"), default="pooled", help="last4_cls: DINO's input of linear heads"
    )


def _features(args: argparse.Namespace, device: "torch.device") -> int:
    from .features.export import check_file, export

    if args.out is not None:
        check_file(args.out)
    reporter = Reporter(quiet=args.quiet or not is_rank0())
    task = task_of(args, device, reporter, results=None if args.out is None else args.out.parent)
    sets = {"train": task.train, "test": task.test}
    if args.dry_run:
        forecast(task, Work(sets, args.kind), reporter)
        return 0
    if args.out is None:
        raise UserError.on_all_ranks("name the file with --out FILE.npz")
    extractions = {name: task.extraction(images, args.kind) for name, images in sets.items()}
    file = export(extractions, task.cache, args.out, reporter)
    if args.json and is_rank0():
        answer = {"file": str(file), "kind": args.kind, "train": len(task.train), "test": len(task.test)}
        reporter.answer(json.dumps(answer, indent=2))
    return 0


def _add_cache(parser: Parser) -> None:
    parser.add_argument("--cache", type=Path, metavar="DIR", help="default: $EXCB_CACHE, else ~/.cache/excb")
    parser.add_argument("--clear", action="store_true", help="delete all features in it")


def _cache(args: argparse.Namespace) -> int:
    from excb.features.cache import entries, remove
    from excb.remote.home import cache_root

    root, reporter = args.cache or cache_root(), Reporter()
    if args.cache is not None and not root.is_dir():
        raise UserError(f"no folder {root}: --cache names the one that keeps features")
    if args.clear:
        reporter.answer(f"{remove(root) / 2**20:,.1f} MiB deleted from {root}")
        return 0
    rows = [
        [entry.architecture or "unfinished", entry.kind or "", f"{entry.images or 0:,}", f"{entry.bytes / 2**20:,.1f}"]
        for entry in entries(root)
    ]
    reporter.table(f"Features in {root}", ["network", "kind", "images", "MiB"], rows)
    return 0


FEATURES = Command(
    "features",
    "compute, keep and export features",
    _add_features,
    in_parallel(_features),
    group="features",
    examples=(
        "features --ckpt runs/a --data photos --out features.npz",
        "features --ckpt tiny_grocery --data photos",
    ),
)
CACHE = Command(
    "cache",
    "what the feature cache holds; --clear empties it",
    _add_cache,
    _cache,
    group="features",
    examples=(
        "cache",
        "cache --clear",
    ),
)
