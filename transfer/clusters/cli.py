"""`excb-eval clusters`: its options, and the command."""

import argparse
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Parser, local_path
from excb.console import Reporter
from excb.errors import UserError, is_rank0

from ..old_protocol import Evaluation, Measured, Protocol
from ..options import add_pass_options
from ..parallel import in_parallel
from ..task_command import Work, forecast, prepared

if TYPE_CHECKING:
    import torch

    from excb.hub.trained_heads import NetworkHeads
    from excb.images.image_set import Images
    from excb.results.result import Result

    from ..task import Task
    from .command import Clusters, Options
    from .files import Assigned


def _add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--ckpt", required=True, metavar="PATH", help="checkpoint with heads: a run, its export, the authors', DINO's")
    add("--data", required=True, metavar="SOURCE", help="images, folder with train/, shards, torchvision:NAME or hf:ID")
    add("--data-root", type=Path, metavar="DIR", help="folder of torchvision's data sets")
    add_pass_options(parser)
    add("--out", type=local_path, metavar="DIR", help="write figures, assignments, plot and atlas to this folder")
    add(
        "--compare",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="earlier --out folders to show in the same plot",
    )
    add(
        "--duplicates", type=float, metavar="COSINE", help="cosine above which centroids are duplicates (default: 0.99)"
    )
    add("--exemplars", type=int, metavar="N", help="images per cluster in the atlas (default: 9, and 3 at its border)")
    add("--atlas-mb", dest="megabytes", type=float, metavar="MB", help="MB of pictures in the atlas (default: 48)")


def _work(args: argparse.Namespace, device: "torch.device") -> int:
    from excb.distributed.collectives import run_on_rank0

    from . import command

    reporter = Reporter(quiet=args.quiet or not is_rank0())
    request = _open(args, device, reporter, results=args.out)
    if args.dry_run:
        forecast(request.task, Work({"images": request.images}), reporter)
        return 0
    clusters = request.evaluate(reporter, table=not args.json)
    result = clusters.result
    if args.out is not None:
        result, files = run_on_rank0(
            lambda: command.write(
                clusters, request.images, args.out, reporter, name=request.name, options=request.options
            )
        )
        reporter.note(f"wrote {', '.join(map(str, files))}")
    if args.json and is_rank0():
        reporter.answer(result.to_json())
    return 0


@dataclass(frozen=True)
class _Request:
    """What a command line names, loaded and checked."""

    task: "Task"
    images: "Images"
    heads: "NetworkHeads"
    options: "Options"
    name: str  # of the checkpoint, for readers

    def evaluate(self, reporter: Reporter, *, table: bool) -> "Clusters":
        from . import command

        return command.evaluate(
            self.heads,
            self.task.stored(self.images, "images", reporter),
            self.images,
            checkpoint=self.task.describe_checkpoint(),
            device=self.task.device,
            reporter=reporter,
            options=self.options,
            balancing=command.balancing_of(self.task.backbone),
            table=table,
        )


def _open(
    args: argparse.Namespace, device: "torch.device", reporter: Reporter, *, results: Path | None = None
) -> _Request:
    from excb.distributed.collectives import all_succeed
    from excb.images.scanning import refuse_among

    from ..data.sources import images_of
    from . import command
    from .files import read_sizes

    if args.compare and args.out is None:
        raise UserError.on_all_ranks("--compare needs a folder to draw into: name it with --out DIR")
    for folder in args.compare:
        all_succeed(partial(read_sizes, folder))  # reports a wrong one before images are read
    names = ("duplicates", "exemplars", "megabytes", "compare")
    set_options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    options = all_succeed(lambda: command.Options(**set_options))
    images = all_succeed(lambda: images_of(args.data, data_root=args.data_root, note=reporter.note))
    if results is not None:
        all_succeed(partial(refuse_among, images, results))
    task = prepared(args, images, images, device, heads=True)
    source = args.ckpt if isinstance(args.ckpt, str) else str(task.describe_checkpoint()["name"])
    name = Path(source).name
    heads = all_succeed(lambda: command.heads_of(task.backbone, source=source))
    return _Request(task, images, heads, options, name)


def _evaluation(
    args: argparse.Namespace,
    device: "torch.device",
    reporter: Reporter,
    *,
    task: "Task | None" = None,  # noqa: ARG001 - of two sets and a backbone without heads
    results: Path | None = None,
) -> Evaluation:
    """See `protocol.OpenEvaluation`."""
    from . import command

    request = _open(args, device, reporter, results=results)

    def measure(table: bool) -> Measured:
        clusters = request.evaluate(reporter, table=table)
        return clusters.result, _Files(request, clusters, reporter)

    return Evaluation(command.describe(request.images), measure)


@dataclass(frozen=True)
class _Files:
    """Writes the folder of a result."""

    request: _Request
    clusters: "Clusters"
    reporter: Reporter

    @property
    def scored(self) -> "Assigned":
        """The cluster of every image."""
        from .files import Assigned

        return Assigned(self.clusters.assignment, self.request.images)

    def __call__(self, result: "Result", file: Path) -> list[Path]:
        from excb.distributed.collectives import run_on_rank0

        from . import command

        request, clusters, folder = self.request, replace(self.clusters, result=result), file.with_suffix("")
        return run_on_rank0(
            lambda: command.write(
                clusters, request.images, folder, self.reporter, name=request.name, options=request.options
            )[1]
        )


CLUSTERS = Protocol(
    name="clusters",
    help="assign images to clusters: sizes, purity and an atlas",
    add_options=_add_options,
    run=in_parallel(_work, out="folder"),
    open=_evaluation,
    families=(),  # its figures are of clusters, and none ranks checkpoints
    cost=lambda _options, images: None if images.train is None else float(images.train),
    group="frozen features",
    examples=(
        "clusters --ckpt runs/a --data photos --out clusters",
        "clusters --ckpt tiny_grocery --data photos",
    ),
)
