"""`excb-eval all` and `reproduce`: commands that run protocols as their own commands would."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from excb.console import Reporter
from excb.errors import UserError, is_rank0

from .arguments import FAILED, NOTHING_CHECKED, parser
from .detection.cli import detected, images_of, request_of
from .task_command import run_protocol, task_of

if TYPE_CHECKING:
    import torch

    from .published.claim import Data
    from .published.reproduce import Measured


def evaluate_all(chosen: argparse.Namespace, device: "torch.device") -> int:
    """`excb-eval all` in this process, with the others if there are any."""
    from .every import command as suite_command

    reporter = Reporter(quiet=chosen.quiet or not is_rank0())
    shared = ["--ckpt", chosen.ckpt, "--network", chosen.network, "--json"]
    shared += [] if chosen.workers is None else ["--workers", str(chosen.workers)]
    task = task_of(chosen, device, reporter, results=chosen.out)

    def run(command: Sequence[str], file: Path) -> list[Path]:
        from .reporting.report import write

        request = parser().parse_args([*command, *shared])
        if command[0] != "detection":
            return write(*run_protocol(request, task, reporter), file)
        result, write_detection = detected(request, *images_of(request), device, reporter)
        return write_detection(result, file)

    def images(command: Sequence[str]) -> dict[str, str]:
        train, val = images_of(parser().parse_args([*command, *shared]))
        return {"train": train.fingerprint, "val": val.fingerprint}

    return suite_command.evaluate_all(chosen, task, run, images, reporter)


def reproduce_claims(chosen: argparse.Namespace, device: "torch.device") -> int:
    """`excb-eval reproduce` in this process, with the others if there are any."""
    from .published.reproduce import reproduce

    reporter = Reporter(quiet=chosen.quiet or not is_rank0())
    shared = ["--json", *(["--quiet"] if chosen.quiet else [])]  # its figures are told with the claims
    shared += [] if chosen.workers is None else ["--workers", str(chosen.workers)]
    kept = ["--batch-size", str(chosen.batch_size), *(["--no-cache"] if chosen.no_cache else [])]
    kept += [] if chosen.cache is None else ["--cache", str(chosen.cache)]

    def measure(command: list[str], wanted: "Data") -> "Measured | str":
        options = shared if command[0] == "detection" else [*shared, *kept]
        request = parser().parse_args([*command, *options])
        if command[0] == "detection":
            return _measure_detection(request, wanted, device, reporter)
        return _measure(request, wanted, device, reporter, results=chosen.out)

    words = reproduce(chosen, measure, reporter)
    return FAILED if "FAIL" in words else 0 if "PASS" in words or not words else NOTHING_CHECKED


def _measure(
    chosen: argparse.Namespace, wanted: "Data", device: "torch.device", reporter: Reporter, *, results: Path | None
) -> "Measured | str":
    """The result of a protocol on the images of a claim, and what writes it; or why these are other images."""
    from .published.verdicts import other_images
    from .reporting.report import write

    task = task_of(chosen, device, reporter, results=results)
    if why := other_images(wanted, task.describe()["data"]):
        return why
    result, predictions = run_protocol(chosen, task, reporter)
    return result, lambda told, file: write(told, predictions, file)


def _measure_detection(
    chosen: argparse.Namespace, wanted: "Data", device: "torch.device", reporter: Reporter
) -> "Measured | str":
    """As `_measure`, of detection."""
    from .detection import command
    from .published.verdicts import other_images

    try:
        command.check(request_of(chosen))
    except UserError as error:  # the engine is not installed here
        return str(error)
    train, val = images_of(chosen)
    images = {name: {"images": len(part)} for name, part in (("train", train), ("test", val))}
    if why := other_images(wanted, images | {"classes": len(val.classes)}):
        return why
    return detected(chosen, train, val, device, reporter)
