"""`excb-eval`: the only parser of downstream evaluation; every protocol is imported when it runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from excb import __version__
from excb.cli import Parser, local_path
from excb.console import Reporter
from excb.errors import UserError, is_first, run
from excb.slurm import HELP as SLURM_HELP
from excb.slurm import submit_command

if TYPE_CHECKING:
    import torch

    from excb.claim import Data
    from excb.features import Kind
    from excb.results import Result

    from .clusters.command import Options
    from .detection.annotations import CocoSet
    from .detection.command import Request
    from .report import Predictions
    from .reproduce import Measured
    from .task import Task

DESCRIPTION = """\
Evaluate a checkpoint on downstream tasks. --ckpt takes what excb.load takes, or timm:NAME.

  excb-eval knn --ckpt runs/rn18_small --data DIR --out knn.json    DIR holds train/ and test/ (or val/)
  excb-eval linear --ckpt runs/rn18_small --data DIR --protocol fast
  excb-eval semisup --ckpt runs/rn18_small --data DIR --percent 10 --seeds 0 1 2
  excb-eval knn --ckpt timm:resnet50 --data torchvision:CIFAR10
  excb-eval knn --ckpt timm:resnet50 --train 'DIR/train-*.tar' --test 'DIR/val-*.tar'     tar shards, also s3:// ...
  excb-eval detection --ckpt rn50_400ep --data COCO --gpus 8         Mask R-CNN: six APs of boxes and masks
  excb-eval clusters --ckpt runs/rn18_small --data DIR --out DIR    what is in each cluster: figures and an atlas
  excb-eval all --ckpt runs/rn18_small --data DIR --out REPORT      every protocol that applies, and one report page
  excb-eval linear ... --slurm partition=gpu,gpus=8,time=4:00:00    as a Slurm job
  excb-eval compare a.json b.json                                   is the difference real?
  excb-eval reproduce table1/excb --data DIR                        do published figures hold? PASS, FAIL or CANNOT
  excb-eval leaderboard RESULTS --out DIR                           published and measured figures side by side"""


FAILED, NOTHING_CHECKED = 1, 3  # exit codes of `reproduce`


def main(argv: Sequence[str] | None = None) -> int:
    """Run `excb-eval` and return its exit code."""
    return run("excb-eval", lambda: _main(argv))


# ---------------------------------------------------------------------------------------------------------------------
# Command line
# ---------------------------------------------------------------------------------------------------------------------


def _parser() -> Parser:
    parser = Parser(prog="excb-eval", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"excb {__version__}")
    protocols = parser.add_subparsers(dest="protocol", metavar="COMMAND", required=True)
    _add_knn(protocols.add_parser("knn", help="weighted k-nearest-neighbour vote on frozen features (DINO's protocol)"))
    _add_linear(protocols.add_parser("linear", help="linear heads on the frozen backbone"))
    _add_semisup(protocols.add_parser("semisup", help="fine-tuning on 1 %% or 10 %% of the labels"))
    _add_finetune(protocols.add_parser("finetune", help="fine-tuning on any share of the labels"))
    _add_detection(protocols.add_parser("detection", help="Mask R-CNN on COCO, or on any set in its format"))
    _add_clusters(
        protocols.add_parser("clusters", help="assign images to clusters: sizes, purity, and an atlas to see")
    )
    _add_all(protocols.add_parser("all", help="every protocol that applies, resumable, with one report page"))
    features = protocols.add_parser("features", help="compute, keep and export features")
    _add_common(features, result="FILE.npz")
    features.add_argument(
        "--kind", choices=("pooled", "last4_cls"), default="pooled", help="last4_cls: DINO's input of linear heads"
    )
    compare = protocols.add_parser("compare", help="is the difference of two results real? (McNemar, paired bootstrap)")
    compare.add_argument("first", type=Path, metavar="A.json")
    compare.add_argument("second", type=Path, metavar="B.json")
    compare.add_argument("--figure", metavar="NAME", help="one figure, or A:B where they are called otherwise")
    compare.add_argument("--json", action="store_true", help="print JSON instead of a table")
    reproduce = protocols.add_parser("reproduce", help="check published figures: PASS, FAIL or CANNOT, and why")
    _add_reproduce(reproduce)
    board = protocols.add_parser("leaderboard", help="results beside published figures: Markdown, CSV and a web page")
    _add_leaderboard(board)
    cache = protocols.add_parser("cache", help="what the feature cache holds; --clear empties it")
    cache.add_argument("--cache", type=Path, metavar="DIR", help="default: $EXCB_CACHE, else ~/.cache/excb")
    cache.add_argument("--clear", action="store_true", help="delete all features in it")
    return parser


def _add_common(parser: argparse.ArgumentParser, *, result: str = "FILE.json") -> None:
    """Options of every protocol."""
    add = parser.add_argument
    add("--ckpt", required=True, metavar="PATH", help="run folder, checkpoint file, exported folder or timm:NAME")
    add(
        "--data",
        metavar="SOURCE",
        help="a folder or URL with train/ and test/ (or val/), of images or tar shards; torchvision:NAME; hf:ID of the "
        "Hugging Face Hub",
    )
    add("--train", metavar="DIR", help="labelled images: one sub-folder a class, or tar shards such as 'DIR/*.tar'")
    add("--test", metavar="DIR", help="the same classes, other images")
    add("--data-root", type=Path, metavar="DIR", help="where torchvision's data sets lie")
    add(
        "--rename",
        action="append",
        default=[],
        metavar="TEST=TRAIN",
        help="a test folder that is called otherwise in train (may be repeated)",
    )
    _add_pass(parser)
    add("--out", type=local_path, metavar=result, help="write the result here")


def _add_pass(parser: argparse.ArgumentParser) -> None:
    """Options of every protocol that passes images through a frozen backbone."""
    add = parser.add_argument
    add("--network", choices=("teacher", "student"), default="teacher", help="default: teacher")
    add("--resize", type=int, metavar="PIXELS", help="shorter side (default: the checkpoint's)")
    add("--crop", type=int, metavar="PIXELS", help="central square (default: the checkpoint's)")
    add("--device", default="auto", metavar="NAME", help="cpu, cuda or auto (default)")
    add("--gpus", type=int, metavar="N", help="a process for each of N GPUs; the answer stays the same")
    add("--slurm", metavar="NAME=VALUE,...", help=SLURM_HELP)
    add("--batch-size", type=_batch, default=64, metavar="B", help="images at once, or auto (default: 64)")
    add("--workers", type=int, default=None, metavar="N", help="processes that read images")
    add("--cache", type=Path, metavar="DIR", help="keeps features (default: $EXCB_CACHE, else ~/.cache/excb)")
    add("--no-cache", action="store_true", help="keep no features")
    add("--dry-run", action="store_true", help="say what it will take, and do nothing")
    add("--json", action="store_true", help="print the result as JSON instead of a table")
    add("--quiet", action="store_true", help="no notes, no progress")


def _batch(text: str) -> int | str:
    return text if text == "auto" else int(text)


def _add_knn(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    add = parser.add_argument
    add("--k", type=int, nargs="+", metavar="K", help="neighbours that vote (default: 10 20 100 200)")
    add("--temperature", type=float, nargs="+", default=[0.07], metavar="T", help="of the vote (default: 0.07)")
    add("--backend", choices=("auto", "faiss", "torch"), default="auto", help="search; the answers are equal")


def _add_linear(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    add = parser.add_argument
    add("--protocol", dest="recipe", default="fast", metavar="NAME", help="resnet, vit, moco, simsiam, fast, logreg")
    add("--epochs", type=int, metavar="N", help="instead of the protocol's")
    add("--train-batch", type=int, metavar="B", help="images per step, instead of the protocol's")
    add("--lr", type=float, nargs="+", metavar="LR", help="learning rates to try, instead of the protocol's")
    add("--wd", type=float, nargs="+", metavar="WD", help="weight decays to try, instead of the protocol's")
    add("--C", type=float, nargs="+", metavar="C", help="of logreg: inverse strengths of the penalty")
    add(
        "--select",
        choices=("holdout", "test"),
        default="holdout",
        help="what chooses among several heads: a held-out tenth of train (default), or the test images, as authors do",
    )
    add("--seed", type=int, default=0, metavar="S", help="default: 0")
    add("--state", type=Path, metavar="FILE", help="keep the heads here after every epoch, and go on from it")


def _add_training(parser: argparse.ArgumentParser) -> None:
    """Options of the protocols that fine-tune."""
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[0], metavar="S", help="trainings to average (default: 0)")
    add("--epochs", type=int, metavar="N", help="default: 50")
    add("--train-batch", type=int, metavar="B", help="images per step (default: 512)")
    add("--backbone-lr", type=float, metavar="LR", help="instead of the protocol's")
    add("--head-lr", type=float, metavar="LR", help="instead of the protocol's")
    add("--precision", choices=("fp32", "bf16"), help="default: fp32")
    add("--split-file", type=Path, metavar="FILE", help="names of the train images to use, one a line")
    add("--state", type=Path, metavar="DIR", help="keep unfinished trainings here, and go on from them")


def _add_semisup(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--percent", type=int, choices=(1, 10), required=True, help="of the labels")
    parser.add_argument("--frozen", action="store_true", help="logistic regression on frozen features instead")
    _add_training(parser)


def _add_finetune(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--fraction", type=float, default=1.0, metavar="F", help="of the labels (default: 1)")
    _add_training(parser)


def _add_detection(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ckpt", required=True, metavar="PATH", help="a ResNet-50, -101 or -152, as for the other protocols")
    add("--network", choices=("teacher", "student"), default="teacher", help="default: teacher")
    add(
        "--data",
        type=Path,
        metavar="DIR",
        help="holds annotations/instances_{train,val}2017.json, train2017/, val2017/",
    )
    for split in ("train", "val"):
        add(f"--{split}-json", type=Path, metavar="FILE", help=f"annotations of the {split} images, elsewhere")
        add(f"--{split}-images", type=Path, metavar="DIR", help=f"the {split} images")
    add("--check-all", action="store_true", help="open every image before training, not a sample of them")
    add("--schedule", default="1x", metavar="NAME", help="1x (default), 2x, smoke (minutes) or overfit (a few images)")
    add(
        "--recipe",
        default="ssl",
        metavar="NAME",
        help="ssl (default, as papers on pretraining) or stock (Detectron2's)",
    )
    add("--engine", choices=("detectron2", "torchvision"), default="detectron2", help="default: detectron2")
    add("--batch", type=int, metavar="B", help="images a step; lr and schedule follow in proportion (default: 16)")
    add("--set", action="append", default=[], metavar="OPTION=VALUE", help="any other option: --dry-run shows all")
    add("--run", type=Path, metavar="DIR", help="the run's folder (default: runs/detection-CKPT-SCHEDULE)")
    add("--preflight", action="store_true", default=None, help="learn a few images first (default for 1x and 2x)")
    add("--skip-preflight", dest="preflight", action="store_false", help="train at once")
    add("--device", default="auto", metavar="NAME", help="cpu, cuda or auto (default)")
    add("--gpus", type=int, metavar="N", help="a process for each of N GPUs; torchrun for many machines")
    add("--slurm", metavar="NAME=VALUE,...", help=SLURM_HELP)
    add("--workers", type=int, default=None, metavar="N", help="processes that read images")
    add("--dry-run", action="store_true", help="check everything, show every option, and train nothing")
    add("--out", type=local_path, metavar="FILE.json", help="write the result here as well")
    add("--json", action="store_true", help="print the result as JSON instead of a table")
    add("--quiet", action="store_true", help="no notes, no progress")


def _add_all(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, result="DIR")
    add = parser.add_argument
    add("--only", nargs="+", default=[], metavar="NAME", help="of knn, linear, semisup_1, semisup_10, detection")
    add("--linear", default="fast", metavar="NAME", help="protocol of the linear heads (default: fast)")
    add("--seeds", type=int, nargs="+", default=[0], metavar="S", help="of fine-tuning (default: 0)")
    add("--coco", type=Path, metavar="DIR", help="images for detection, in COCO's layout")
    add("--schedule", default="1x", metavar="NAME", help="of detection (default: 1x)")
    add("--engine", choices=("detectron2", "torchvision"), default="detectron2", help="of detection")


def _add_reproduce(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", nargs="?", metavar="WHAT", help="a claim, a table (or TABLE/ROW), or a checkpoint")
    add(
        "--data",
        action="append",
        default=[],
        metavar="[NAME=]DIR",
        help="the claim's images, as its protocol takes them; with NAME=, such as coco2017=, where claims need several",
    )
    add("--ckpt", metavar="PATH", help="check the claims on this checkpoint of yours instead of the published one")
    add("--claims", action="append", default=[], type=Path, metavar="FILE.toml", help="more claims, from your own file")
    add("--list", action="store_true", help="list claims, and which of them can be checked")
    for name in ("table", "method", "protocol"):
        add(f"--{name}", dest=f"of_{name}", metavar="NAME", help=f"claims of this {name} only")
    add("--status", choices=("runnable", "cannot"), help="only claims that can be checked, or that cannot")
    add("--dry-run", action="store_true", help="say what would be fetched, run and computed, and do nothing")
    add(
        "--out",
        type=local_path,
        metavar="DIR",
        help="write each evaluation's result here, with its claims and verdicts",
    )
    add("--json", action="store_true", help="print JSON instead of tables")
    add("--device", default="auto", metavar="NAME", help="cpu, cuda or auto (default)")
    add("--gpus", type=int, metavar="N", help="a process for each of N GPUs; the answer stays the same")
    add("--slurm", metavar="NAME=VALUE,...", help=SLURM_HELP)
    add("--batch-size", type=_batch, default=64, metavar="B", help="images at once, or auto (default: 64)")
    add("--workers", type=int, default=None, metavar="N", help="processes that read images")
    add("--cache", type=Path, metavar="DIR", help="keeps features (default: $EXCB_CACHE, else ~/.cache/excb)")
    add("--no-cache", action="store_true", help="keep no features")
    add("--quiet", action="store_true", help="no notes, no progress")


def _add_clusters(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--ckpt", required=True, metavar="PATH", help="with heads: a run, an export of one, the authors' or DINO's file"
    )
    add(
        "--data",
        required=True,
        metavar="SOURCE",
        help="images, or what holds train/; shards; torchvision:NAME; hf:ID",
    )
    add("--data-root", type=Path, metavar="DIR", help="where torchvision's data sets lie")
    _add_pass(parser)
    add("--out", type=local_path, metavar="DIR", help="write figures, assignments, picture and atlas into this folder")
    add("--compare", type=Path, nargs="+", default=[], metavar="DIR", help="earlier --out folders, for one picture")
    add("--duplicates", type=float, metavar="COSINE", help="above it two centroids are duplicates (default: 0.99)")
    add("--exemplars", type=int, metavar="N", help="images of a cluster in the atlas (default: 9, and 3 at its border)")
    add("--atlas-mb", dest="megabytes", type=float, metavar="MB", help="of pictures in the atlas (default: 48)")


def _add_leaderboard(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("results", nargs="*", type=Path, metavar="RESULTS", help="result files, or folders of them")
    add("--out", type=local_path, metavar="DIR", help="write leaderboard.md, .csv and .html here")
    add("--check", action="store_true", help="check that RESULTS may stand in a leaderboard, and write nothing")
    add(
        "--submit",
        type=Path,
        metavar="DIR",
        help="check RESULTS, and write them here without the paths of this machine",
    )
    add("--claims", action="append", default=[], type=Path, metavar="FILE.toml", help="more published figures")
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--quiet", action="store_true", help="no notes")


# ---------------------------------------------------------------------------------------------------------------------
# Work
# ---------------------------------------------------------------------------------------------------------------------


def _main(argv: Sequence[str] | None) -> int:
    chosen = _parser().parse_args(argv)
    if chosen.protocol == "compare":
        return _compare(chosen)
    if chosen.protocol == "cache":
        return _cache(chosen)
    if chosen.protocol == "leaderboard":
        from .leaderboard_command import leaderboard

        return leaderboard(chosen, Reporter(quiet=chosen.quiet))
    if chosen.protocol == "clusters":
        if chosen.out is not None and chosen.out.exists() and not chosen.out.is_dir():
            raise UserError(f"--out {chosen.out} is a file: name a folder", told=not is_first())
    elif chosen.protocol not in ("all", "reproduce") and chosen.out is not None and chosen.out.is_dir():
        raise UserError(f"--out {chosen.out} is a folder: name a file in it", told=not is_first())
    arguments = sys.argv[1:] if argv is None else argv
    jobs = Path("runs") / "slurm"
    code = submit_command("excb.transfer.cli", arguments, chosen.slurm, jobs, Reporter(), gpus=chosen.gpus)
    if code is not None:
        return code
    from excb.launch import launch_on_gpus
    from excb.parallel import run_joined

    answers = (FAILED, NOTHING_CHECKED) if chosen.protocol == "reproduce" else ()
    code = launch_on_gpus("excb.transfer.cli", arguments, chosen.gpus, answers=answers)
    if code is not None:
        return code
    works = {"all": _all, "clusters": _clusters, "detection": _detect, "reproduce": _reproduce}
    work = works.get(chosen.protocol, _evaluate)
    return run_joined("excb-eval", chosen.device, lambda device: work(chosen, device))


def _evaluate(chosen: argparse.Namespace, device: "torch.device") -> int:
    """Evaluate in this process, with the others if there are any."""
    reporter = Reporter(quiet=chosen.quiet or not is_first())
    task = _task(chosen, device, reporter)
    if chosen.dry_run:
        from .features import describe, plan

        found = plan(task, kind=_kind(chosen))
        if is_first():
            reporter.answer(describe(found))
        return 0
    if chosen.protocol == "features":
        from .features import export

        if chosen.out is None:
            raise UserError("name the file with --out FILE.npz", told=not is_first())
        reporter.note(f"wrote {export(task, chosen.out, reporter, kind=chosen.kind)}")
        return 0
    result, predictions = _run(chosen, task, reporter)
    if chosen.out is not None:
        from .report import write

        files = write(result, predictions, chosen.out)
        reporter.note(f"wrote {', '.join(map(str, files))}")
    if chosen.json and is_first():
        reporter.answer(result.to_json())
    return 0


def _detect(chosen: argparse.Namespace, device: "torch.device") -> int:
    """`excb-eval detection` in this process, with the others if there are any."""
    from excb.collectives import from_first, together

    from .detection import command

    reporter = Reporter(quiet=chosen.quiet or not is_first())
    request = _detection_request(chosen)
    command.check(request)  # before a large annotation file is read
    train, val = _detection_images(chosen)
    job = together(lambda: command.prepare(request, train, val, device, reporter))
    if chosen.dry_run:
        if is_first():
            command.show(request, job)
        return 0
    result = command.evaluate(request, job, table=not chosen.json)
    if isinstance(result, int):
        return result
    if chosen.out is not None:
        files = from_first(lambda: command.copy_result(result, job.folder, chosen.out))
        reporter.note(f"wrote {', '.join(map(str, files))}")
    if chosen.json and is_first():
        reporter.answer(result.to_json())
    return 0


def _detection_request(chosen: argparse.Namespace) -> "Request":
    """What is asked for."""
    from .detection.command import Request
    from .detection.settings import parse_option

    return Request(
        chosen.ckpt,
        network=chosen.network,
        schedule=chosen.schedule,
        recipe=chosen.recipe,
        engine=chosen.engine,
        batch=chosen.batch,
        options=dict(map(parse_option, chosen.set)),
        folder=chosen.run,
        workers=chosen.workers,
        preflight=chosen.preflight,
    )


def _detection_images(chosen: argparse.Namespace) -> "tuple[CocoSet, CocoSet]":
    """The images to train on, and those to find objects in."""
    from excb.collectives import together

    from .detection.coco import open_coco

    return together(
        lambda: open_coco(
            chosen.data,
            train_json=chosen.train_json,
            train_images=chosen.train_images,
            val_json=chosen.val_json,
            val_images=chosen.val_images,
            check_all=chosen.check_all,
        )
    )


def _all(chosen: argparse.Namespace, device: "torch.device") -> int:
    """`excb-eval all` in this process, with the others if there are any."""
    from . import suite_command

    reporter = Reporter(quiet=chosen.quiet or not is_first())
    shared = ["--ckpt", chosen.ckpt, "--network", chosen.network, "--json"]
    shared += [] if chosen.workers is None else ["--workers", str(chosen.workers)]
    task = _task(chosen, device, reporter)

    def run(command: Sequence[str], file: Path) -> list[Path]:
        from .report import write

        request = _parser().parse_args([*command, *shared])
        if command[0] != "detection":
            return write(*_run(request, task, reporter), file)
        result, write_detection = _detected(request, *_detection_images(request), device, reporter)
        return write_detection(result, file)

    def images(command: Sequence[str]) -> dict[str, str]:
        train, val = _detection_images(_parser().parse_args([*command, *shared]))
        return {"train": train.fingerprint, "val": val.fingerprint}

    return suite_command.evaluate_all(chosen, task, run, images, reporter)


def _reproduce(chosen: argparse.Namespace, device: "torch.device") -> int:
    """`excb-eval reproduce` in this process, with the others if there are any."""
    from .reproduce import reproduce

    reporter = Reporter(quiet=chosen.quiet or not is_first())
    shared = ["--json", *(["--quiet"] if chosen.quiet else [])]  # its figures are told with the claims
    shared += [] if chosen.workers is None else ["--workers", str(chosen.workers)]
    kept = ["--batch-size", str(chosen.batch_size), *(["--no-cache"] if chosen.no_cache else [])]
    kept += [] if chosen.cache is None else ["--cache", str(chosen.cache)]

    def measure(command: list[str], wanted: "Data") -> "Measured | str":
        options = shared if command[0] == "detection" else [*shared, *kept]
        request = _parser().parse_args([*command, *options])
        return (_measure_detection if command[0] == "detection" else _measure)(request, wanted, device, reporter)

    words = reproduce(chosen, measure, reporter)
    return FAILED if "FAIL" in words else 0 if "PASS" in words or not words else NOTHING_CHECKED


def _measure(
    chosen: argparse.Namespace, wanted: "Data", device: "torch.device", reporter: Reporter
) -> "Measured | str":
    """The result of a protocol on the images of a claim, and what writes it; or why these are other images."""
    from .report import write
    from .verdicts import other_images

    task = _task(chosen, device, reporter)
    if why := other_images(wanted, task.describe()["data"]):
        return why
    result, predictions = _run(chosen, task, reporter)
    return result, lambda told, file: write(told, predictions, file)


def _measure_detection(
    chosen: argparse.Namespace, wanted: "Data", device: "torch.device", reporter: Reporter
) -> "Measured | str":
    """As `_measure`, of detection."""
    from .detection import command
    from .verdicts import other_images

    try:
        command.check(_detection_request(chosen))
    except UserError as error:  # the engine is not installed here
        return str(error)
    train, val = _detection_images(chosen)
    images = {name: {"images": len(part)} for name, part in (("train", train), ("test", val))}
    if why := other_images(wanted, images | {"classes": len(val.classes)}):
        return why
    return _detected(chosen, train, val, device, reporter)


def _detected(
    chosen: argparse.Namespace, train: "CocoSet", val: "CocoSet", device: "torch.device", reporter: Reporter
) -> "Measured":
    """The result of detection, and what writes it."""
    from excb.collectives import from_first, together

    from .detection import command

    request = _detection_request(chosen)
    job = together(lambda: command.prepare(request, train, val, device, reporter))
    result = command.evaluate(request, job, table=False)
    if isinstance(result, int):
        raise UserError("detection was stopped: the same command goes on", told=not is_first())
    return result, lambda told, file: from_first(lambda: command.copy_result(told, job.folder, file))


def _clusters(chosen: argparse.Namespace, device: "torch.device") -> int:
    """`excb-eval clusters` in this process, with the others if there are any."""
    from excb.collectives import together
    from excb.home import cache_root

    from .clusters import command
    from .sources import images_of
    from .task import Task

    reporter = Reporter(quiet=chosen.quiet or not is_first())
    options = together(lambda: _cluster_options(chosen))
    images = together(lambda: images_of(chosen.data, data_root=chosen.data_root, note=reporter.note))
    task = together(
        lambda: Task.prepare(
            chosen.ckpt,
            images,
            images,
            network=chosen.network,
            resize=chosen.resize,
            crop=chosen.crop,
            device=device,
            batch=chosen.batch_size,
            workers=chosen.workers,
            cache=None if chosen.no_cache else chosen.cache or cache_root(),
            heads=True,
        )
    )
    heads = together(lambda: command.heads_of(task.backbone, source=chosen.ckpt))
    if chosen.dry_run:
        from .features import describe, plan

        found = plan(task, sets=("train",))
        if is_first():
            reporter.answer(describe(found))
        return 0
    clusters = command.evaluate(
        heads,
        task.stored(images, "images", reporter),
        images,
        checkpoint=task.describe_checkpoint(),
        device=device,
        reporter=reporter,
        options=options,
        table=not chosen.json,
    )
    result = clusters.result
    if chosen.out is not None:
        result, files = command.write(
            clusters, images, chosen.out, reporter, name=Path(chosen.ckpt).name, options=options
        )
        reporter.note(f"wrote {', '.join(map(str, files))}")
    if chosen.json and is_first():
        reporter.answer(result.to_json())
    return 0


def _cluster_options(chosen: argparse.Namespace) -> "Options":
    """What was said of the clusters; the rest is as `Options` has it."""
    from .clusters.command import Options

    said = {name: getattr(chosen, name) for name in ("duplicates", "exemplars", "megabytes", "compare")}
    return Options(**{name: value for name, value in said.items() if value is not None})


def _kind(chosen: argparse.Namespace) -> "Kind":
    """Which features a command uses."""
    if chosen.protocol == "linear":
        from .protocols import PROTOCOLS

        return PROTOCOLS[chosen.recipe].features if chosen.recipe in PROTOCOLS else "pooled"
    return "last4_cls" if getattr(chosen, "kind", "") == "last4_cls" else "pooled"


def _task(chosen: argparse.Namespace, device: "torch.device", reporter: Reporter) -> "Task":
    """Checkpoint and images, checked."""
    from excb.collectives import together
    from excb.home import cache_root

    from .sources import train_and_test
    from .task import Task

    train, test = train_and_test(
        chosen.data,
        chosen.train,
        chosen.test,
        rename=_renames(chosen.rename),
        data_root=chosen.data_root,
        note=reporter.note,
    )
    task = together(
        lambda: Task.prepare(
            chosen.ckpt,
            train,
            test,
            network=chosen.network,
            resize=chosen.resize,
            crop=chosen.crop,
            device=device,
            batch=chosen.batch_size,
            workers=chosen.workers,
            cache=None if chosen.no_cache else chosen.cache or cache_root(),
        )
    )
    for name, images in task.unknown.items():
        reporter.warn(
            f"no train image is of class {name}: its {images} test images count as wrong (--rename {name}=TRAIN_CLASS)"
        )
    return task


def _run(chosen: argparse.Namespace, task: "Task", reporter: Reporter) -> "tuple[Result, Predictions]":
    """One protocol."""
    table = not chosen.json and is_first()
    if chosen.protocol == "knn":
        from . import knn

        return knn.evaluate(
            task, reporter, ks=chosen.k, temperatures=chosen.temperature, backend=chosen.backend, table=table
        )
    if chosen.protocol == "linear":
        from . import linear

        return linear.evaluate(
            task,
            reporter,
            protocol=chosen.recipe,
            epochs=chosen.epochs,
            batch=chosen.train_batch,
            lr=chosen.lr,
            wd=chosen.wd,
            C=chosen.C,
            select=chosen.select,
            seed=chosen.seed,
            state=chosen.state,
            table=table,
        )
    return _fine_tune(chosen, task, reporter, table=table)


def _fine_tune(
    chosen: argparse.Namespace, task: "Task", reporter: Reporter, *, table: bool
) -> "tuple[Result, Predictions]":
    """semisup and finetune."""
    from dataclasses import replace

    from excb.home import cache_root

    from . import semisup
    from .splits import simclr_split

    semi = chosen.protocol == "semisup"
    changes = {
        "epochs": chosen.epochs,
        "batch": chosen.train_batch,
        "backbone_lr": chosen.backbone_lr,
        "head_lr": chosen.head_lr,
        "precision": chosen.precision,
    }
    settings = replace(
        semisup.SETTINGS[chosen.percent if semi else 10],
        **{name: value for name, value in changes.items() if value is not None},
    )
    split = None
    if chosen.split_file is not None or (semi and semisup.is_imagenet(task.train)):
        split = simclr_split(
            chosen.percent if semi else 10, task.train, file=chosen.split_file, cache=chosen.cache or cache_root()
        )
    if semi:
        return semisup.evaluate(
            task,
            reporter,
            percent=chosen.percent,
            split=split,
            seeds=chosen.seeds,
            frozen=chosen.frozen,
            settings=settings,
            state=chosen.state,
            table=table,
        )
    return semisup.evaluate_fraction(
        task,
        reporter,
        fraction=chosen.fraction,
        split=split,
        seeds=chosen.seeds,
        settings=settings,
        state=chosen.state,
        table=table,
    )


def _compare(chosen: argparse.Namespace) -> int:
    """`excb-eval compare`."""
    import json

    from .compare import compare

    reporter = Reporter()
    found = compare(chosen.first, chosen.second, reporter, figure=chosen.figure, table=not chosen.json)
    if chosen.json:
        reporter.answer(json.dumps(found, indent=2))
    return 0


def _cache(chosen: argparse.Namespace) -> int:
    """`excb-eval cache`."""
    from excb.home import cache_root

    from .cache import entries, remove

    root, reporter = chosen.cache or cache_root(), Reporter()
    if chosen.clear:
        reporter.answer(f"{remove(root) / 2**20:,.1f} MiB deleted from {root}")
        return 0
    rows = [
        [entry.architecture or "unfinished", entry.kind or "", f"{entry.images or 0:,}", f"{entry.bytes / 2**20:,.1f}"]
        for entry in entries(root)
    ]
    reporter.table(f"Features in {root}", ["network", "kind", "images", "MiB"], rows)
    return 0


def _renames(pairs: Sequence[str]) -> dict[str, str]:
    """`--rename TEST=TRAIN` as a mapping."""
    if wrong := [pair for pair in pairs if pair.count("=") != 1]:
        raise UserError(f"--rename {wrong[0]}: write TEST=TRAIN, the folder's name in test and its name in train")
    return dict(pair.split("=") for pair in pairs)


if __name__ == "__main__":
    sys.exit(main())
