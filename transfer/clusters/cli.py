"""`excb-eval clusters`: its options, and the command."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Command, Parser, local_path
from excb.console import Reporter
from excb.errors import UserError, is_rank0

from ..options import add_pass_options
from ..parallel import in_parallel
from ..task_command import Work, forecast, prepared

if TYPE_CHECKING:
    import torch


def _add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--ckpt", required=True, metavar="PATH", help="checkpoint with heads: a run, its export, the authors', DINO's")
    add("--data", required=True, metavar="SOURCE", help="images, folder with train/, shards, torchvision:NAME or hf:ID")
    add("--data-root", type=Path, metavar="DIR", help="folder of torchvision's data sets")
    add_pass_options(parser)
    add("--out", type=local_path, metavar="DIR", help="write figures, assignments, picture and atlas to this folder")
    add("--compare", type=Path, nargs="+", default=[], metavar="DIR", help="earlier --out folders, for one picture")
    add("--duplicates", type=float, metavar="COSINE", help="centroids above it are duplicates (default: 0.99)")
    add("--exemplars", type=int, metavar="N", help="images per cluster in the atlas (default: 9, and 3 at its border)")
    add("--atlas-mb", dest="megabytes", type=float, metavar="MB", help="size of the atlas's pictures (default: 48)")


def _work(args: argparse.Namespace, device: "torch.device") -> int:
    from excb.distributed.collectives import all_succeed, run_on_rank0
    from excb.images.scanning import refuse_among

    from ..data.sources import images_of
    from . import command
    from .files import read_sizes

    reporter = Reporter(quiet=args.quiet or not is_rank0())
    if args.compare and args.out is None:
        raise UserError.on_all_ranks("--compare needs a folder to draw into: name it with --out DIR")
    for folder in args.compare:
        all_succeed(partial(read_sizes, folder))  # reports a wrong one before images are read
    names = ("duplicates", "exemplars", "megabytes", "compare")
    set_options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    options = all_succeed(lambda: command.Options(**set_options))
    images = all_succeed(lambda: images_of(args.data, data_root=args.data_root, note=reporter.note))
    if args.out is not None:
        all_succeed(partial(refuse_among, images, args.out))
    task = prepared(args, images, images, device, heads=True)
    heads = all_succeed(lambda: command.heads_of(task.backbone, source=args.ckpt))
    if args.dry_run:
        forecast(task, Work({"images": images}), reporter)
        return 0
    clusters = command.evaluate(
        heads,
        task.stored(images, "images", reporter),
        images,
        checkpoint=task.describe_checkpoint(),
        device=device,
        reporter=reporter,
        options=options,
        table=not args.json,
    )
    result = clusters.result
    if args.out is not None:
        result, files = run_on_rank0(
            lambda: command.write(clusters, images, args.out, reporter, name=Path(args.ckpt).name, options=options)
        )
        reporter.note(f"wrote {', '.join(map(str, files))}")
    if args.json and is_rank0():
        reporter.answer(result.to_json())
    return 0


CLUSTERS = Command(
    "clusters", "assign images to clusters: sizes, purity and an atlas", _add_options, in_parallel(_work, out="folder")
)
