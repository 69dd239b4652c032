"""From shared options to a `Task`: labelled images opened and checked, the checkpoint loaded onto its device."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from excb.console import Reporter
from excb.errors import UserError

from .options import LabelledImageOptions, LabelledOptions, PassOptions
from .protocol import COUNT_AS_WRONG, counted_as_wrong

if TYPE_CHECKING:
    import torch

    from excb.images.image_set import Images

    from .task import Task


def labelled(
    *, multilabel: bool = False, unknown: Callable[[Any], str] = counted_as_wrong
) -> "Callable[[Any, Any, torch.device, Reporter], Task]":
    """The `open` of a protocol on labelled train and test images.

    Args:
        multilabel: whether images may have a set of labels each.
        unknown: what happens to test images of classes that train lacks, given the protocol's own options, for the
            warning about them; empty where it is nothing.
    """

    def open_task(shared: LabelledOptions, own: Any, device: "torch.device", reporter: Reporter) -> "Task":
        train, test = labelled_images(shared, reporter, multilabel=multilabel)
        task = task_on(shared, train, test, device, reporter=reporter)
        warn_of_unknown(task, reporter, unknown(own))
        return task

    return open_task


def labelled_images(
    shared: LabelledImageOptions, reporter: Reporter, *, multilabel: bool = False
) -> "tuple[Images, Images]":
    """The train and the test images that options name; all ranks call this.

    Raises:
        UserError: images cannot be used, or only one of both sets has a set of labels per image, or both do and
            `multilabel` is false.
    """
    from excb.distributed.collectives import all_succeed, run_on_rank0
    from excb.images.image_set import ledger_of, with_doubts

    from .data.concerns import concerns
    from .data.multilabel import has_label_sets
    from .data.sources import refuse_idle_root, train_and_test

    all_succeed(lambda: refuse_idle_root(shared.data_root, shared.data, shared.train, shared.test))
    train, test = train_and_test(
        shared.data,
        shared.train,
        shared.test,
        rename=shared.rename,
        data_root=shared.data_root,
        note=reporter.note,
    )
    several = has_label_sets(train)
    if several != has_label_sets(test):
        raise UserError.on_all_ranks(
            "train or test images have a set of labels each, the others have one: use one kind"
        )
    if several and not multilabel:
        raise UserError.on_all_ranks(
            f"the images in {train.root} have a set of labels each, and this evaluation needs one class for each: "
            "knn and linear take sets of labels"
        )
    found = run_on_rank0(lambda: concerns(train, test))
    left_out = [ledger_of(images) for images in (train, test)]
    if train.root == test.root and left_out[0] == left_out[1]:  # one folder, whose images a table divides
        (left_out[0] + found).tell(reporter)
    else:
        (left_out[0].of("train") + left_out[1].of("test") + found).tell(reporter)
    return train, with_doubts(test, found)


def warn_of_unknown(task: "Task", reporter: Reporter, unknown: str = COUNT_AS_WRONG) -> None:
    """Warn of each class of test images that the train set lacks, unless nothing happens to them."""
    if not unknown:
        return
    for name, note in zip(task.unknown, task.unknown_notes(unknown), strict=True):
        reporter.warn(f"{note} (--rename {name}=TRAIN_CLASS)")


def task_on(
    shared: PassOptions | LabelledOptions,
    train: "Images",
    test: "Images",
    device: "torch.device",
    *,
    heads: bool = False,
    reporter: Reporter | None = None,
) -> "Task":
    """The checkpoint on its device, with these images and the cache that options name; all ranks call this."""
    from excb.distributed.collectives import all_succeed

    from .task import Task

    task = all_succeed(
        partial(
            Task.prepare,
            shared.ckpt,
            train,
            test,
            network=shared.network,
            resize=shared.resize,
            crop=shared.crop,
            device=device,
            batch=shared.batch_size,
            workers=shared.workers,
            cache=shared.features_folder,
            heads=heads,
            precision=shared.feature_precision,
            pixel_range=shared.range,
            channels=shared.channels,
            reporter=reporter,
        )
    )
    return task.calibrated()
