"""Options that several evaluations share, as dataclasses; each protocol's own extend them."""

import argparse
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from excb.cli import Command, Parser, local_path
from excb.distributed.slurm import HELP as SLURM_HELP
from excb.errors import UserError, nearest_name
from excb.options import REQUIRED, option

if TYPE_CHECKING:
    from torch import nn

# Options that only a command line has use for.
FROM_SHELL = {
    **dict.fromkeys(("gpus", "slurm"), "start the script with torchrun, or use the command excb-eval"),
    **dict.fromkeys(("json", "out"), "the result has .save(FILE), .figures and .record"),
    **dict.fromkeys(("dry_run", "help"), "that is the command line's"),
}

# References that no network makes: options that ask for them, and what these evaluate.
BASELINES = {
    "pixels": "raw pixels",
    "histogram": "colour histograms",
    "patches": "whitened patches with k-means, fitted on the train images",
}
# The names of references in results, by the options that ask for them.
REFERENCES = {"untrained": "untrained", "pixels": "pixels", "histogram": "colour_histogram", "patches": "patches"}
CKPT = "run folder, checkpoint file, exported folder, name of `excb-zoo list`, timm:NAME or untrained:NAME"
_MACHINE, _IMAGES, _PREPROCESSING = "machine", "images", "preprocessing"


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Where a pass over images runs, and what it caches."""

    device: str = option("auto", "cpu, cuda or auto (default)", metavar="NAME", group=_MACHINE)
    feature_precision: Literal["fp32", "bf16"] = option(
        "fp32", "precision of the frozen network; bf16 is autocast, for GPUs (default: fp32)", group=_MACHINE
    )
    batch_size: int | Literal["auto"] = option(
        64, "images per batch, or auto (default: 64)", metavar="B", group=_MACHINE
    )
    workers: int | None = option(None, "processes that read images", metavar="N", group=_MACHINE)
    cache: Path | None = option(
        None, "folder for features (default: $EXCB_CACHE, else ~/.cache/excb)", metavar="DIR", group=_MACHINE
    )
    no_cache: bool = option(False, "keep no features", group=_MACHINE)

    @property
    def features_folder(self) -> Path | None:
        """The folder where features are kept; None keeps none."""
        from excb.remote.home import cache_root

        return None if self.no_cache else self.cache or cache_root()


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """A checkpoint, or a network that is evaluated as it is."""

    ckpt: Any = option(REQUIRED, CKPT, metavar="PATH", group="checkpoint and images")
    network: Literal["teacher", "student"] = option("teacher", "default: teacher", group="checkpoint and images")


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """Sizes of inputs, instead of those that the checkpoint has."""

    resize: int | None = option(
        None, "shorter side (default: the checkpoint's)", metavar="PIXELS", group=_PREPROCESSING
    )
    crop: int | None = option(
        None, "central square (default: the checkpoint's)", metavar="PIXELS", group=_PREPROCESSING
    )


# The order of base classes is that of groups in `--help`, from the last to the first.
@dataclass(frozen=True, kw_only=True)
class PassOptions(MachineOptions, SizeOptions, CheckpointOptions):
    """A pass of images through a frozen backbone."""


@dataclass(frozen=True, kw_only=True)
class LabelledImageOptions:
    """Labelled train and test images."""

    data: str | None = option(
        None,
        "a folder or URL with train/ and test/ (or val/); torchvision:NAME; hf:ID",
        metavar="SOURCE",
        group=_IMAGES,
    )
    train: str | None = option(
        None,
        "labelled images: one sub-folder per class, or tar shards such as 'DIR/*.tar'",
        metavar="DIR",
        group=_IMAGES,
    )
    test: str | None = option(None, "the same classes, other images", metavar="DIR", group=_IMAGES)
    data_root: Path | None = option(None, "folder with torchvision's data sets", metavar="DIR", group=_IMAGES)
    rename: Mapping[str, str] = option(
        (), "a class that has another name in the train set; repeatable", metavar="TEST=TRAIN", group=_IMAGES
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "rename", dict(self.rename))  # a dataclass takes no dictionary as a default


@dataclass(frozen=True, kw_only=True)
class LabelledOptions(MachineOptions, SizeOptions, LabelledImageOptions, CheckpointOptions):
    """A pass of labelled images through a frozen backbone."""


@dataclass(frozen=True, kw_only=True)
class UntrainedOption:
    """The reference that takes as long as the evaluation itself."""

    untrained: bool = option(False, "also evaluate the same network untrained, as a reference")


@dataclass(frozen=True, kw_only=True)
class PixelsOption:
    """The reference of protocols that pixels can serve without a row of features an image."""

    pixels: bool = option(False, f"also evaluate {BASELINES['pixels']}, as a reference")


@dataclass(frozen=True, kw_only=True)
class BaselineOptions(PixelsOption, UntrainedOption):
    """References of protocols on one row of features per image."""

    histogram: bool = option(False, f"also evaluate {BASELINES['histogram']}, as a reference")
    patches: bool = option(False, f"also evaluate {BASELINES['patches']}, as a reference")


@dataclass(frozen=True, kw_only=True)
class TaskOptions(UntrainedOption, LabelledOptions):
    """Of protocols on labelled images."""


@dataclass(frozen=True, kw_only=True)
class FrozenOptions(BaselineOptions, TaskOptions):
    """Of protocols on labelled images with one row of features each."""


# TODO(38): below goes when every protocol is a dataclass of options.
def add_task_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every protocol on labelled images: checkpoint, images, how they are read, --out."""
    parser.add_argument_group("checkpoint and images").add_argument("--ckpt", required=True, metavar="PATH", help=CKPT)
    add_data_options(parser)
    add_untrained(parser)
    add_out(parser, "FILE.json")


def add_untrained(parser: argparse.ArgumentParser) -> None:
    """Add the reference that takes as long as the evaluation itself."""
    parser.add_argument(
        "--untrained", action="store_true", help="also evaluate the same network untrained, as a reference"
    )


def add_baselines(parser: argparse.ArgumentParser) -> None:
    """Add the references that no network makes, for protocols on one row of features an image."""
    for name, words in BASELINES.items():
        parser.add_argument(f"--{name}", action="store_true", help=f"also evaluate {words}, as a reference")


def add_out(parser: argparse.ArgumentParser, result: str) -> None:
    """Add where the result is written."""
    parser.add_argument("--out", type=local_path, metavar=result, help="write the result here")


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add labelled images, and how they pass through a frozen backbone."""
    add = parser.add_argument_group("images").add_argument
    add("--data", metavar="SOURCE", help="a folder or URL with train/ and test/ (or val/); torchvision:NAME; hf:ID")
    add("--train", metavar="DIR", help="labelled images: one sub-folder per class, or tar shards such as 'DIR/*.tar'")
    add("--test", metavar="DIR", help="the same classes, other images")
    add("--data-root", type=Path, metavar="DIR", help="folder with torchvision's data sets")
    rename = "a class that has another name in the train set; repeatable"
    add("--rename", action="append", default=[], metavar="TEST=TRAIN", help=rename)
    add_pass_options(parser)


def add_pass_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a pass of images through a frozen backbone."""
    add = parser.add_argument_group("preprocessing").add_argument
    add("--network", choices=("teacher", "student"), default="teacher", help="default: teacher")
    add("--resize", type=int, metavar="PIXELS", help="shorter side (default: the checkpoint's)")
    add("--crop", type=int, metavar="PIXELS", help="central square (default: the checkpoint's)")
    add_machine_options(parser)
    add = parser.add_argument
    add("--dry-run", action="store_true", help="say what it will take, and do nothing")
    add("--json", action="store_true", help="print the result as JSON instead of a table")
    add("--quiet", action="store_true", help="print neither notes nor progress")


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add where a pass over images runs, and what it caches."""
    add = parser.add_argument_group("machine").add_argument
    add("--device", default="auto", metavar="NAME", help="cpu, cuda or auto (default)")
    add("--gpus", type=int, metavar="N", help="GPUs to use, with one process each; the answer stays the same")
    add("--slurm", metavar="NAME=VALUE,...", help=SLURM_HELP)
    add(
        "--feature-precision",
        choices=("fp32", "bf16"),
        default="fp32",
        help="precision of the frozen network; bf16 is autocast, for GPUs (default: fp32)",
    )
    add("--batch-size", type=_batch, default=64, metavar="B", help="images per batch, or auto (default: 64)")
    add("--workers", type=int, default=None, metavar="N", help="processes that read images")
    add("--cache", type=Path, metavar="DIR", help="folder for features (default: $EXCB_CACHE, else ~/.cache/excb)")
    add("--no-cache", action="store_true", help="keep no features")


def _batch(text: str) -> int | str:
    if text == "auto" or text.isdecimal():
        return text if text == "auto" else int(text)
    raise argparse.ArgumentTypeError(f"takes a number of images, or auto, not {text!r}")


def namespace(
    command: Command, values: Mapping[str, Any], *, words: Collection[str] = (), refused: Mapping[str, str]
) -> argparse.Namespace:
    """A command's options from Python values, checked as on its command line.

    Args:
        command: of `excb-eval`.
        values: by the options' names, with _ for -. True sets a switch, False and None leave an option out, a list
            gives several values, and a mapping NAME=VALUE for each item.
        words: positional arguments.
        refused: names that Python may not set, and what to do instead.

    Raises:
        UserError: there is no such option, or it does not take this value.
    """
    parser = Parser(prog=f"excb-eval {command.name}", allow_abbrev=False)
    command.add_options(parser)
    line, known = list(words), [flag for action in parser._actions for flag in action.option_strings]
    for name, value in values.items():
        if name in refused:
            raise UserError(f"{name} is no option in Python: {refused[name]}")
        flag = f"--{name.replace('_', '-')}"
        if value is not None and flag not in known:
            names = [each.lstrip("-").replace("-", "_") for each in known]
            raise UserError(f"{command.name} has no option {name}{nearest_name(name, names)}")
        if value is True:
            line.append(flag)
        elif isinstance(value, Mapping):
            line += [f"{flag}={key}={_text(item)}" for key, item in value.items()]
        elif isinstance(value, list | tuple | range):
            line += [flag, *map(_text, value)]
        elif value is not None and value is not False:
            line.append(f"{flag}={_text(value)}")
    return parser.parse_args(line)


def take_network(args: argparse.Namespace, network: "nn.Module", *, choose: bool) -> None:
    """Evaluate a network instead of the checkpoint of these options; `choose` computes on the device that it is on."""
    args.ckpt = network
    if choose and (parameter := next(network.parameters(), None)) is not None:
        args.device = str(parameter.device)


def _text(value: Any) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
