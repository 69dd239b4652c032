"""`excb-eval dense`: its options and its record."""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.cli import Parser
from excb.console import Reporter
from excb.errors import is_rank0

from ..old_protocol import Evaluation, InSuite, Measured, Protocol, SuiteStep
from ..options import CKPT, add_machine_options, add_out, add_untrained
from ..parallel import in_parallel
from ..protocol import Family, Fields, FigureKind, one_pass
from ..reporting.fields import named
from ..task_command import finish
from .heads.recipes import LINEAR, LOGISTIC, SETTINGS, options

if TYPE_CHECKING:
    import torch

    from ..inference.paired import Paired
    from ..task import Task
    from .protocol import Request
    from .setup import DenseTask

_FIGURE = re.compile(r"dense_(knn|linear|logreg)_(miou|pixel_accuracy)(?:_1of(\d+))?")
_METRICS = {"miou": "mIoU", "pixel_accuracy": "pixel accuracy"}
_HEADS = ("knn", "linear", "logreg")


def _add_options(parser: Parser) -> None:
    add = parser.add_argument_group("checkpoint and images").add_argument
    add("--ckpt", required=True, metavar="PATH", help=CKPT)
    add("--network", choices=("teacher", "student"), default="teacher", help="default: teacher")
    add("--data", type=Path, required=True, metavar="DIR", help="images and masks, in a layout of docs/dense.md")
    add("--layout", metavar="NAME", help="coco, coco-super, voc, voc-aug, pascal-context, ... (default: found)")
    add = parser.add_argument_group("what is measured").add_argument
    add("--settings", metavar="NAME", help=f"a paper's settings: {', '.join(SETTINGS)}; other options override them")
    add("--heads", nargs="+", choices=_HEADS, metavar="HEAD", help=f"{', '.join(_HEADS)} (default: knn linear)")
    add("--k", type=int, metavar="K", help="neighbours that vote (default: 30)")
    add("--temperature", type=float, metavar="T", help="temperature of the vote (default: 0.02)")
    add("--parts", type=int, nargs="+", default=[1], metavar="P", help="k-NN with 1/P of the train images (default: 1)")
    add(
        "--memory",
        type=int,
        default=10_240_000,
        metavar="PATCHES",
        help="at most this many train patches (default: 10240000)",
    )
    add(
        "--seeds",
        type=int,
        nargs="+",
        default=[0],
        metavar="SEED",
        help="seeds; figures are means over them (default: 0)",
    )
    add("--linear", metavar="NAME", help=f"recipe of the linear head: {', '.join(LINEAR)} (default: fast)")
    add("--logistic", metavar="NAME", help=f"for logreg: {', '.join(LOGISTIC)} (default: fast)")
    add("--backend", choices=("auto", "faiss", "torch"), default="auto", help="search backend; all give the same")
    add = parser.add_argument_group("images, masks and maps").add_argument
    add("--mode", choices=("resize", "crop", "window"), help="the whole image (default), its centre, or windows")
    add("--size", type=int, metavar="PIXELS", help="side of the network's input (default: the checkpoint's)")
    add("--resize", type=int, metavar="PIXELS", help="shorter side before crop or windows (default: --size)")
    add("--step", type=int, metavar="PIXELS", help="step between windows (default: two thirds of --size)")
    add("--stride", type=int, metavar="PIXELS", help="stride of the network's map (default: that of its last map)")
    add("--interpolation", choices=("bilinear", "bicubic"), help="interpolation of images (default: the checkpoint's)")
    add("--mask-size", choices=("original", "input"), help="resolution at which masks are scored (default: original)")
    add("--upsampling", choices=("bilinear", "nearest"), help="upsampling of predictions (default: bilinear)")
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
    dense, request = _opened(args, device, reporter)
    if args.dry_run:
        _forecast(args, dense, request, reporter)
        return 0
    return finish(_measured(args, dense, request, reporter, table=not args.json), args, reporter)


def _open(
    args: argparse.Namespace,
    device: "torch.device",
    reporter: Reporter,
    *,
    task: "Task | None" = None,  # noqa: ARG001 - see `protocol.OpenEvaluation`
    results: Path | None = None,  # noqa: ARG001
) -> Evaluation:
    dense, request = _opened(args, device, reporter)
    sets = {"train": dense.train.images, "test": dense.test.images}.items()
    data: dict[str, Any] = {name: {"images": len(part), "fingerprint": part.fingerprint} for name, part in sets}
    return Evaluation(
        data | {"classes": len(dense.test.classes)},
        lambda table: _measured(args, dense, request, reporter, table=table),
    )


def _opened(args: argparse.Namespace, device: "torch.device", reporter: Reporter) -> "tuple[DenseTask, Request]":
    from excb.distributed.collectives import all_succeed
    from excb.remote.home import cache_root

    from .protocol import Request
    from .setup import prepare

    values = options(vars(args), args.settings)
    request = Request(
        heads=tuple(dict.fromkeys(values["heads"])),
        parts=tuple(args.parts),
        memory=args.memory,
        seeds=tuple(dict.fromkeys(args.seeds)),
        backend=args.backend,
        **{name: values[name] for name in ("k", "temperature", "linear", "logistic")},
    )
    request.check()  # before anything is loaded
    same = {name: getattr(args, name) for name in ("layout", "stride", "network", "workers")}
    dense = all_succeed(
        lambda: prepare(
            args.ckpt,
            args.data,
            options=values,
            reporter=reporter,
            device=device,
            batch=args.batch_size,
            precision=args.feature_precision,
            cache=None if args.no_cache else args.cache or cache_root(),
            **same,
        )
    )
    return dense.calibrated(), request


def _measured(
    args: argparse.Namespace, dense: "DenseTask", request: "Request", reporter: Reporter, *, table: bool
) -> Measured:
    from .files import DenseFiles
    from .protocol import evaluate

    result, measured = evaluate(dense, request, reporter, untrained=args.untrained, pixels=args.pixels, table=table)
    return result, DenseFiles(dense, measured)


def _forecast(args: argparse.Namespace, dense: "DenseTask", request: "Request", reporter: Reporter) -> None:
    from excb.console import duration

    from ..features.export import describe, plan

    sets = {"train": dense.extraction(dense.train), "test": dense.extraction(dense.test)}
    planned = plan(sets, dense.task.cache, timed=sets["train"])
    grid = dense.grid
    then = [f"{grid.height} x {grid.width} patches of stride {grid.stride} a view; heads: {', '.join(request.heads)}"]
    then += ["all of that once more with the same network untrained"] if args.untrained else []
    if is_rank0():
        reporter.answer(f"it can run: about {duration(planned['seconds'])} for features here, by the time of a few")
        reporter.answer(describe(planned, then))


def _kind_of(figure: str) -> FigureKind | None:
    if (match := _FIGURE.fullmatch(figure)) is None:
        return None
    settings = (("part", f"1/{match[3]}"),) if match[3] else ()
    return FigureKind(f"dense_{match[1]}", _METRICS[match[2]], settings)


def _result_fields(settings: Mapping[str, Any], kind: FigureKind) -> Fields:
    """What defines a figure: the settings of all heads, and those of its own."""
    shared = {name: value for name, value in settings.items() if name not in _HEADS}
    return named(shared | settings.get(kind.family.removeprefix("dense_"), {}) | dict(kind.settings))


def _read_paired(file: Path) -> "Paired":
    from .comparison import read

    return read(file)


def _add_suite_options(parser: Parser) -> None:
    parser.add_argument("--masks", type=Path, metavar="DIR", help="images and masks for dense evaluation")


def _steps(_task: "Task", args: argparse.Namespace, depends_on: Mapping[str, Any]) -> list[SuiteStep]:
    if args.masks is None:
        why = "name images and masks for it with --masks DIR"
        return [SuiteStep("dense", "Dense", ["dense"], skipped=why)]
    from .layouts.table import layout_of, train_and_test

    sets = train_and_test(args.masks, layout_of(args.masks))
    depends_on = {name: depends_on[name] for name in ("weights", "network", "version")}
    depends_on |= {"masks": [images.fingerprint for images in sets]}
    command = ["dense", "--data", str(args.masks)]
    return [SuiteStep("dense", "Dense", command, depends_on=depends_on)]


DENSE = Protocol(
    name="dense",
    help="semantic segmentation on frozen maps: patch k-NN, a linear head, logistic regression",
    add_options=_add_options,
    run=in_parallel(_work),
    open=_open,
    families=(
        Family("dense_knn", "Dense: k-NN of patches", "dense k-NN"),
        Family("dense_linear", "Dense: linear segmentation", "dense linear"),
        Family("dense_logreg", "Dense: logistic regression of patches", "dense logistic"),
    ),
    kind_of=_kind_of,
    labels="masks",
    headline="dense_knn_miou",
    cost=one_pass,
    result_fields=_result_fields,
    read_paired=_read_paired,
    in_suite=InSuite(names=("dense",), steps=_steps, add_options=_add_suite_options),
    group="frozen features",
    examples=(
        "dense --ckpt rn50_400ep --data VOCdevkit/VOC2012 --out dense.json",
        "dense --ckpt timm:vit_small_patch14_dinov2 --data ADEChallengeData2016 --settings hummingbird --size 504",
    ),
)
