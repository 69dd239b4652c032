"""`excb-eval knn`, `linear`, `semisup`, `finetune`, `features`: from arguments to a result."""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from excb.console import Reporter
from excb.errors import UserError, is_rank0

if TYPE_CHECKING:
    import torch

    from excb.images.image_set import Images
    from excb.networks.features import Kind
    from excb.results.result import Result

    from .reporting.report import Predictions
    from .task import Task


def evaluate(chosen: argparse.Namespace, device: "torch.device") -> int:
    """Evaluate in this process, with the others if there are any."""
    reporter = Reporter(quiet=chosen.quiet or not is_rank0())
    _check_options(chosen)
    task = task_of(chosen, device, reporter, results=None if chosen.out is None else chosen.out.parent)
    if chosen.dry_run:
        from .export import describe, plan

        found = plan(task, kind=_kind(chosen))
        if is_rank0():
            reporter.answer(describe(found))
        return 0
    if chosen.protocol == "features":
        from .export import export

        if chosen.out is None:
            raise UserError.on_all_ranks("name the file with --out FILE.npz")
        file = export(task, chosen.out, reporter, kind=chosen.kind)
        if chosen.json and is_rank0():
            told = {"file": str(file), "kind": chosen.kind, "train": len(task.train), "test": len(task.test)}
            reporter.answer(json.dumps(told, indent=2))
        return 0
    result, predictions = run_protocol(chosen, task, reporter)
    if chosen.out is not None:
        from .reporting.report import write

        files = write(result, predictions, chosen.out)
        reporter.note(f"wrote {', '.join(map(str, files))}")
    if chosen.json and is_rank0():
        reporter.answer(result.to_json())
    return 0


def _kind(chosen: argparse.Namespace) -> "Kind":
    """Which features a command uses."""
    if chosen.protocol == "linear":
        from .linear.recipes import PROTOCOLS

        return PROTOCOLS[chosen.recipe].features if chosen.recipe in PROTOCOLS else "pooled"
    return "last4_cls" if getattr(chosen, "kind", "") == "last4_cls" else "pooled"


def task_of(chosen: argparse.Namespace, device: "torch.device", reporter: Reporter, *, results: Path | None) -> "Task":
    """Checkpoint and images, checked; `results` is the folder for what is found, if anything is to be written."""
    from excb.distributed.collectives import all_succeed
    from excb.images.scanning import refuse_among

    from .data.sources import train_and_test

    train, test = train_and_test(
        chosen.data,
        chosen.train,
        chosen.test,
        rename=_renames(chosen.rename),
        data_root=chosen.data_root,
        note=reporter.note,
    )
    if results is not None:
        for part in (train, test):
            all_succeed(partial(refuse_among, part, results))
    task = prepared(chosen, train, test, device)
    for name, images in task.unknown.items():
        reporter.warn(
            f"no train image is of class {name}: its {images} test images count as wrong (--rename {name}=TRAIN_CLASS)"
        )
    return task


def prepared(
    chosen: argparse.Namespace, train: "Images", test: "Images", device: "torch.device", *, heads: bool = False
) -> "Task":
    """The checkpoint on its device, with images and cache as the arguments say; checked by all processes together."""
    from excb.distributed.collectives import all_succeed
    from excb.remote.home import cache_root

    from .task import Task

    return all_succeed(
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
            heads=heads,
        )
    )


def _renames(pairs: Sequence[str]) -> dict[str, str]:
    """`--rename TEST=TRAIN` as a mapping."""
    if wrong := [pair for pair in pairs if pair.count("=") != 1]:
        raise UserError(f"--rename {wrong[0]}: write TEST=TRAIN, the folder's name in test and its name in train")
    return dict(pair.split("=") for pair in pairs)


def run_protocol(chosen: argparse.Namespace, task: "Task", reporter: Reporter) -> "tuple[Result, Predictions]":
    """One protocol."""
    table = not chosen.json and is_rank0()
    if chosen.protocol == "knn":
        from .knn import protocol as knn

        return knn.evaluate(
            task, reporter, ks=chosen.k, temperatures=chosen.temperature, backend=chosen.backend, table=table
        )
    if chosen.protocol == "linear":
        from .linear import protocol as linear

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


def _check_options(chosen: argparse.Namespace) -> None:
    """Options that what is asked for has no use for are refused, not passed over."""
    training = ("epochs", "train_batch", "backbone_lr", "head_lr", "precision", "state")
    if getattr(chosen, "frozen", False) and (given := [one for one in training if getattr(chosen, one) is not None]):
        option = f"--{given[0].replace('_', '-')}"
        raise UserError.on_all_ranks(f"--frozen fits a logistic regression, which has no {option}: leave it out")
    if chosen.protocol == "linear" and chosen.state is not None and chosen.state.is_dir():
        raise UserError.on_all_ranks(f"--state {chosen.state} is a folder: name a file in it")
    if getattr(chosen, "fraction", 1) != 1 and chosen.split_file is not None:
        raise UserError.on_all_ranks(
            "--split-file names the images of the share, so --fraction has no use: leave one out",
        )


def _fine_tune(
    chosen: argparse.Namespace, task: "Task", reporter: Reporter, *, table: bool
) -> "tuple[Result, Predictions]":
    """semisup and finetune."""
    from dataclasses import replace

    from excb.remote.home import cache_root

    from .data.splits import simclr_split
    from .finetuning import protocol as semisup

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
