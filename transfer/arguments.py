"""The arguments of `excb-eval`: one parser, with a function for what each protocol takes."""

import argparse
from pathlib import Path

from excb.cli import Parser, local_path
from excb.distributed.slurm import HELP as SLURM_HELP
from excb.version import __version__

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


def parser() -> Parser:
    """The parser of all commands; importing and making it loads neither torch nor a protocol."""
    whole = Parser(prog="excb-eval", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    whole.add_argument("--version", action="version", version=f"excb {__version__}")
    protocols = whole.add_subparsers(dest="protocol", metavar="COMMAND", required=True)

    def command(name: str, text: str) -> Parser:
        escaped = text.replace("%", "%%")  # argparse formats help, and leaves descriptions as they are
        made: Parser = protocols.add_parser(name, help=escaped, description=f"{text[0].upper()}{text[1:]}.")
        return made

    _add_knn(command("knn", "weighted k-nearest-neighbour vote on frozen features (DINO's protocol)"))
    _add_linear(command("linear", "linear heads on the frozen backbone"))
    _add_semisup(command("semisup", "fine-tuning on 1 % or 10 % of the labels"))
    _add_finetune(command("finetune", "fine-tuning on any share of the labels"))
    _add_detection(command("detection", "Mask R-CNN on COCO, or on any set in its format"))
    _add_clusters(command("clusters", "assign images to clusters: sizes, purity, and an atlas to see"))
    _add_all(command("all", "every protocol that applies, resumable, with one report page"))
    features = command("features", "compute, keep and export features")
    _add_common(features, result="FILE.npz")
    features.add_argument(
        "--kind", choices=("pooled", "last4_cls"), default="pooled", help="last4_cls: DINO's input of linear heads"
    )
    compare = command("compare", "is the difference of two results real? (McNemar, paired bootstrap)")
    compare.add_argument("first", type=Path, metavar="A.json")
    compare.add_argument("second", type=Path, metavar="B.json")
    compare.add_argument("--figure", metavar="NAME", help="one figure, or A:B where they are called otherwise")
    compare.add_argument("--json", action="store_true", help="print JSON instead of a table")
    _add_reproduce(command("reproduce", "check published figures: PASS, FAIL or CANNOT, and why"))
    _add_leaderboard(command("leaderboard", "results beside published figures: Markdown, CSV and a web page"))
    cache = command("cache", "what the feature cache holds; --clear empties it")
    cache.add_argument("--cache", type=Path, metavar="DIR", help="default: $EXCB_CACHE, else ~/.cache/excb")
    cache.add_argument("--clear", action="store_true", help="delete all features in it")
    return whole


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
    _add_machine(parser)
    add("--dry-run", action="store_true", help="say what it will take, and do nothing")
    add("--json", action="store_true", help="print the result as JSON instead of a table")
    add("--quiet", action="store_true", help="no notes, no progress")


def _add_machine(parser: argparse.ArgumentParser) -> None:
    """Where a pass over images runs, and what it keeps."""
    add = parser.add_argument
    add("--device", default="auto", metavar="NAME", help="cpu, cuda or auto (default)")
    add("--gpus", type=int, metavar="N", help="a process for each of N GPUs; the answer stays the same")
    add("--slurm", metavar="NAME=VALUE,...", help=SLURM_HELP)
    add("--batch-size", type=_batch, default=64, metavar="B", help="images at once, or auto (default: 64)")
    add("--workers", type=int, default=None, metavar="N", help="processes that read images")
    add("--cache", type=Path, metavar="DIR", help="keeps features (default: $EXCB_CACHE, else ~/.cache/excb)")
    add("--no-cache", action="store_true", help="keep no features")


def _batch(text: str) -> int | str:
    if text == "auto" or text.isdecimal():
        return text if text == "auto" else int(text)
    raise argparse.ArgumentTypeError(f"takes a number of images, or auto, not {text!r}")


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
    add(
        "--state",
        type=Path,
        metavar="FILE",
        help="keep the heads here after every epoch, and go on from it (protocols on features made once start anew)",
    )


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
    _add_machine(parser)
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
