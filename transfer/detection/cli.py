"""`excb-eval detection`: from arguments to a result."""

import argparse
from typing import TYPE_CHECKING

from excb.console import Reporter
from excb.errors import UserError, is_rank0

if TYPE_CHECKING:
    import torch

    from ..published.reproduce import Measured
    from .coco.annotations import CocoSet
    from .command import Request


def detect(chosen: argparse.Namespace, device: "torch.device") -> int:
    """`excb-eval detection` in this process, with the others if there are any."""
    from excb.distributed.collectives import all_succeed, run_on_rank0

    from . import command

    reporter = Reporter(quiet=chosen.quiet or not is_rank0())
    request = request_of(chosen)
    command.check(request)  # before a large annotation file is read
    train, val = images_of(chosen)
    job = all_succeed(lambda: command.prepare(request, train, val, device, reporter))
    if chosen.dry_run:
        if is_rank0():
            command.show(request, job)
        return 0
    result = command.evaluate(request, job, table=not chosen.json)
    if isinstance(result, int):
        return result
    if chosen.out is not None:
        files = run_on_rank0(lambda: command.copy_result(result, job.folder, chosen.out))
        reporter.note(f"wrote {', '.join(map(str, files))}")
    if chosen.json and is_rank0():
        reporter.answer(result.to_json())
    return 0


def detected(
    chosen: argparse.Namespace, train: "CocoSet", val: "CocoSet", device: "torch.device", reporter: Reporter
) -> "Measured":
    """The result of detection, and what writes it."""
    from excb.distributed.collectives import all_succeed, run_on_rank0

    from . import command

    request = request_of(chosen)
    job = all_succeed(lambda: command.prepare(request, train, val, device, reporter))
    result = command.evaluate(request, job, table=False)
    if isinstance(result, int):
        raise UserError.on_all_ranks("detection was stopped: the same command goes on")
    return result, lambda told, file: run_on_rank0(lambda: command.copy_result(told, job.folder, file))


def request_of(chosen: argparse.Namespace) -> "Request":
    """What is asked for."""
    from .command import Request
    from .core.settings import parse_option

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


def images_of(chosen: argparse.Namespace) -> "tuple[CocoSet, CocoSet]":
    """The images to train on, and those to find objects in."""
    from excb.distributed.collectives import all_succeed

    from .coco.reading import open_coco

    return all_succeed(
        lambda: open_coco(
            chosen.data,
            train_json=chosen.train_json,
            train_images=chosen.train_images,
            val_json=chosen.val_json,
            val_images=chosen.val_images,
            check_all=chosen.check_all,
        )
    )
