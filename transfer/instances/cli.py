"""`excb-eval instances`: its options and its record."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.cli import Parser
from excb.console import Reporter
from excb.errors import is_rank0

from ..old_protocol import Evaluation, Measured, Protocol
from ..options import CKPT, add_machine_options, add_out, add_untrained
from ..parallel import in_parallel
from ..protocol import Family, FigureKind, one_pass
from ..reporting.fields import named
from ..task_command import finish

if TYPE_CHECKING:
    import torch

    from ..task import Task
    from .protocol import Request
    from .setup import InstanceTask

_REVISITED = re.compile(r"revisited_(mAP|mP_at_\d+)_(medium|hard|easy)")
_COPIES = re.compile(r"copies_(muAP|recall_at_p90|mAP)(?:_(strong|crops|jpeg))?")
_METRICS = {"recall_at_p90": "recall at 90 % precision"}


def _add_options(parser: Parser) -> None:
    add = parser.add_argument_group("checkpoint and images").add_argument
    add("--ckpt", required=True, metavar="PATH", help=CKPT)
    add("--network", choices=("teacher", "student"), default="teacher", help="default: teacher")
    add("--data", type=Path, required=True, metavar="DIR", help="queries, gallery and ground truth: docs/retrieval.md")
    add("--layout", metavar="NAME", help="revisited (ROxford, RParis), copydays or pairs (DISC21) (default: found)")
    add("--ground-truth", type=Path, metavar="FILE", help="for revisited and pairs (default: the file in --data)")
    add("--distractors", metavar="DIR", help="extra gallery images, right for no query")
    add = parser.add_argument_group("descriptors").add_argument
    add(
        "--mode",
        choices=("resize", "longer", "crop"),
        default="resize",
        help="resize the whole image to a square (default), resize its longer side, or take its centre",
    )
    add("--size", type=int, metavar="PIXELS", help="side of the input (default: the checkpoint's)")
    add(
        "--scales",
        type=float,
        nargs="+",
        default=[1.0],
        metavar="S",
        help="scales of the input, averaged (default: 1)",
    )
    add(
        "--pooling",
        choices=("own", "gem", "both"),
        default="own",
        help="the network's own (default), GeM over its map, or both",
    )
    add("--gem-power", type=float, default=3.0, metavar="P", help="power of GeM (default: 3)")
    add("--whiten", metavar="DIR", help="learn PCA whitening on these images")
    add("--whiten-width", type=int, metavar="D", help="dimensions that whitening keeps (default: all)")
    add = parser.add_argument_group("what is measured").add_argument
    add("--candidates", type=int, default=10, metavar="K", help="images for each query in muAP (default: 10)")
    add("--backend", choices=("auto", "faiss", "torch"), default="auto", help="search backend; all give the same")
    add_untrained(parser)
    parser.add_argument("--pixels", action="store_true", help="also evaluate raw pixels, as a reference")
    add_machine_options(parser)
    add_out(parser, "FILE.json")
    add = parser.add_argument
    add("--dry-run", action="store_true", help="say what it will take, and do nothing")
    add("--json", action="store_true", help="print the result as JSON instead of a table")
    add("--quiet", action="store_true", help="print neither notes nor progress")


def _work(args: argparse.Namespace, device: "torch.device") -> int:
    reporter = Reporter(quiet=args.quiet or not is_rank0())
    instances, request = _opened(args, device, reporter, results=None if args.out is None else args.out.parent)
    if args.dry_run:
        _forecast(args, instances, reporter)
        return 0
    return finish(_measured(args, instances, request, reporter, table=not args.json), args, reporter)


def _open(
    args: argparse.Namespace,
    device: "torch.device",
    reporter: Reporter,
    *,
    task: "Task | None" = None,  # noqa: ARG001 - see `protocol.OpenEvaluation`
    results: Path | None = None,
) -> Evaluation:
    instances, request = _opened(args, device, reporter, results=results)
    sets = {"train": instances.instances.gallery, "test": instances.instances.queries}.items()
    data: dict[str, Any] = {name: {"images": len(part), "fingerprint": part.fingerprint} for name, part in sets}
    return Evaluation(
        data | {"classes": len(set(instances.instances.groups))},
        lambda table: _measured(args, instances, request, reporter, table=table),
    )


def _opened(
    args: argparse.Namespace, device: "torch.device", reporter: Reporter, *, results: Path | None
) -> "tuple[InstanceTask, Request]":
    from excb.distributed.collectives import all_succeed
    from excb.images.scanning import refuse_among
    from excb.remote.home import cache_root

    from .protocol import Request
    from .setup import Reading, prepare

    request = Request(args.candidates, args.backend)
    reading = Reading(args.mode, args.size, args.pooling, args.gem_power, tuple(args.scales), args.whiten_width)
    request.check()  # before anything is loaded
    reading.check()
    same = {
        name: getattr(args, name) for name in ("layout", "ground_truth", "distractors", "whiten", "network", "workers")
    }

    def opened() -> "InstanceTask":
        instances = prepare(
            args.ckpt,
            args.data,
            reading,
            reporter=reporter,
            device=device,
            batch=args.batch_size,
            cache=None if args.no_cache else args.cache or cache_root(),
            **same,
        )
        if results is not None:
            for images in instances.sets.values():
                refuse_among(images, results)
        return instances

    return all_succeed(opened).calibrated(), request


def _measured(
    args: argparse.Namespace, instances: "InstanceTask", request: "Request", reporter: Reporter, *, table: bool
) -> Measured:
    from .files import InstanceFiles
    from .protocol import evaluate

    result, measured = evaluate(instances, request, reporter, untrained=args.untrained, pixels=args.pixels, table=table)
    return result, InstanceFiles(instances, measured)


def _forecast(args: argparse.Namespace, instances: "InstanceTask", reporter: Reporter) -> None:
    from excb.console import duration

    from ..features.export import describe, plan

    sets = {name: instances.extraction(images) for name, images in instances.sets.items()}
    planned = plan(sets, instances.task.cache)
    then = [f"layout {instances.layout.name}: {instances.layout.title}"]
    then += ["all of that once more with the same network untrained"] if args.untrained else []
    if is_rank0():
        reporter.answer(f"it can run: about {duration(planned['seconds'])} for features here, by the time of a few")
        reporter.answer(describe(planned, then))


def _kind_of(figure: str) -> FigureKind | None:
    if (match := _REVISITED.fullmatch(figure)) is not None:
        return FigureKind("revisited", f"{match[1].replace('_at_', '@')} {match[2]}")
    if (match := _COPIES.fullmatch(figure)) is not None:
        return FigureKind("copies", f"{_METRICS.get(match[1], match[1])} {match[2] or ''}".strip())
    return None


INSTANCES = Protocol(
    name="instances",
    help="the same object, or a copied image: ROxford, RParis, Copydays, DISC21, or pairs of your own",
    add_options=_add_options,
    run=in_parallel(_work),
    open=_open,
    families=(
        Family("revisited", "Retrieval of landmarks: ROxford and RParis", "landmarks"),
        Family("copies", "Copy detection", "copies"),
    ),
    kind_of=_kind_of,
    labels="queries",
    headline="revisited_mAP_medium",
    cost=one_pass,
    result_fields=lambda settings, _kind: named(settings),
    group="frozen features",
    examples=(
        "instances --ckpt rn50_400ep --data roxford5k --mode longer --size 1024 --pooling gem",
        "instances --ckpt runs/a --data copydays --distractors yfcc10k --out copies.json",
    ),
)
