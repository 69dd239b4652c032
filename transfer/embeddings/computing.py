"""Compute the embeddings of a set: cached, resumable, over several processes, in flat memory."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from excb.console import Reporter, plural
from excb.distributed.collectives import all_succeed, rank
from excb.errors import UserError, require
from excb.features.cache import CachedFeatures
from excb.features.extraction import Extraction, features_of
from excb.hub.resolve import lasting
from excb.images.decoding import BrokenImageError
from excb.images.image_set import Images, clipped_ledger, ledger_of, share_clipped
from excb.neighbours.unit_rows import Rows

from ..data.sources import refuse_idle_root
from ..opening import task_on
from ..task import Task
from .embeddings import Embeddings
from .options import AnyImagesOptions
from .sources import any_images, class_names
from .table.vectors import AT_ONCE, ChosenRows

if TYPE_CHECKING:
    import torch

NAMED = 3  # unreadable images that a warning names


def open_embedding(
    options: AnyImagesOptions, device: "torch.device", reporter: Reporter, images: Images | None = None
) -> Task:
    """Load the checkpoint and open the images that the options of `embed` and `search` name; all ranks call this."""
    all_succeed(lambda: refuse_idle_root(options.data_root, options.data))
    data = images or all_succeed(
        lambda: any_images(
            options.data, options.listed, every=options.every, data_root=options.data_root, note=reporter.note
        )
    )
    ledger_of(data).tell(reporter)
    return task_on(options, data, data, device, reporter=reporter)


def extraction_of(task: Task) -> Extraction:
    """The computation that embeds all images of a task; unreadable ones are left out, not refused."""
    return replace(task.extraction(task.train), unreadable="nan")


def compute(
    task: Task,
    cache: Path | None,
    reporter: Reporter,
    *,
    loads: str | os.PathLike[str] = "",
    name: str = "images",
    name_unreadable: bool = True,
) -> Embeddings:
    """The embeddings of a task's images; all ranks call this together.

    Rows go to the cache as they are computed, so that an interrupted call continues where it was, and nothing needs
    memory for all of them. Unreadable images are left out, with a warning.

    Args:
        task: backbone and images.
        cache: the folder that keeps rows; None keeps them in memory.
        reporter: prints notes and progress.
        loads: what `excb.load` takes to load the same network again; empty for one in memory.
        name: of the images, for messages.
        name_unreadable: warn of images that cannot be read.

    Raises:
        UserError: no image can be read, or the cache cannot be written.
    """
    images, own_reporter = task.train, reporter if rank() == 0 else Reporter(quiet=True)
    rows = features_of(extraction_of(task), cache, own_reporter, name=name)
    kept = _readable(rows)
    unreadable = _reasons(images, np.setdiff1d(np.arange(len(images)), kept))
    if unreadable:
        require(len(kept) > 0, f"no image of {images.root} can be read, such as {next(iter(unreadable.items()))}")
        some = "; ".join(f"{path} ({why})" for path, why in list(unreadable.items())[:NAMED])
        if name_unreadable:
            own_reporter.warn(
                f"{len(unreadable):,} of {plural(len(images), 'image')} cannot be read and have no vector: {some}"
            )
    readable: Rows = rows if len(kept) == len(images) else ChosenRows(rows, kept)
    paths: Sequence[str] = (
        images.paths if len(kept) == len(images) else [images.paths[index] for index in kept.tolist()]
    )
    backbone = task.backbone
    model = task.describe_checkpoint()
    model["loads"] = lasting(loads) if loads else ""
    root = os.fspath(images.root)
    root = os.path.abspath(root) if Path(root).is_dir() else root  # noqa: PTH100 - as the user wrote it, links and all
    own = _with(backbone, task.preprocessing)
    share_clipped(images)
    clipped = clipped_ledger(images)
    clipped.tell(own_reporter)
    labels = class_names(images, kept)
    return Embeddings(readable, paths, root, model, unreadable, ledger_of(images) + clipped, labels, backbone=own)


def _with(backbone: Any, preprocessing: Any) -> Any:
    """A backbone that prepares images as the embedded ones were; the user's own is not changed."""
    if backbone.transform == preprocessing:
        return backbone
    from excb.hub.backbone import Backbone

    return Backbone(backbone.network, preprocessing, backbone.entry, features=backbone.features).eval()


def _readable(rows: CachedFeatures) -> np.ndarray:
    """The numbers of the rows that images have, ascending int64: others are NaN."""
    ends = range(0, len(rows), AT_ONCE)
    parts = [~np.isnan(rows.rows(start, min(start + AT_ONCE, len(rows)))[:, 0].numpy()) for start in ends]
    return np.flatnonzero(np.concatenate(parts)).astype(np.int64)


def _reasons(images: Images, missing: np.ndarray) -> dict[str, str]:
    """Why images without a row cannot be read, by path. Raises UserError if one can: then the network gave NaN."""
    reasons = {}
    for index in missing.tolist():
        try:
            images.open(index)
        except BrokenImageError as error:
            reasons[images.paths[index]] = str(error)
        else:
            raise UserError(
                f"the network gives NaN for {images.paths[index]}, which can be read: its weights are damaged, or the "
                "image has changed since (excb-eval cache --clear)"
            )
    return reasons
