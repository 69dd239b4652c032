"""`excb-eval features`: make and export the features of a task, or say beforehand what that will take."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from excb.console import Reporter, duration
from excb.distributed.collectives import rank, run_on_rank0, world_size
from excb.errors import UserError
from excb.files.atomic import new_file
from excb.images.image_set import Images
from excb.networks.features import Inputs, Kind, in_batches, stream

from .task import Task

TIMED = 16  # images that the estimate of the time is taken from


def export(task: Task, file: Path, reporter: Reporter, *, kind: Kind = "pooled") -> Path:
    """Write the features of both sets into one .npz file; all processes call this, process 0 writes.

    The file holds, for SET `train` and `test`, SET_rows [N, D] float32, SET_labels [N] int64 and SET_names [N] (paths
    below the set's folder), and `classes`, the names of the labels: train's, then what only test has. It is read
    without pickle.

    Raises:
        UserError: an image cannot be read, or the file not be written.
    """
    if file.suffix != ".npz" or file.is_dir():
        raise UserError(f"--out {file}: features are written to a file that ends in .npz")
    arrays: dict[str, np.ndarray] = {"classes": np.array(task.test.classes)}
    for name, images in (("train", task.train), ("test", task.test)):
        rows, labels = task.features(images, name, reporter, kind=kind)
        arrays |= {f"{name}_rows": rows.numpy(), f"{name}_labels": labels.numpy(), f"{name}_names": _names(images)}
    run_on_rank0(lambda: _write(arrays, file))
    if rank() == 0:
        reporter.note(f"wrote {file}")
    return file


def _names(images: Images) -> np.ndarray:
    return np.array(list(images.paths))


def _write(arrays: dict[str, np.ndarray], file: Path) -> None:
    with new_file(file, advice="name another file") as made, made.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def plan(task: Task, *, kind: Kind = "pooled", sets: Sequence[str] = ("train", "test")) -> dict[str, Any]:
    """What the features of a task will take; reads and passes a few images, and computes nothing that is kept.

    Args:
        task: backbone and images.
        kind: which features.
        sets: of the task that are wanted.

    Returns:
        `width`; `seconds_per_image`, timed on a few of the train images, or None where nothing is left to compute;
        `seconds`, the estimate for all that is left; and for `train` and `test` the number of `images`, how many of
        these are `cached`, and the `bytes` of all their features.

    Raises:
        UserError: the backbone has no such features, or an image cannot be read.
    """
    found = {name: _plan_set(task, getattr(task, name), kind) for name in sets}
    left = sum(entry["images"] - entry["cached"] for entry in found.values())
    pace = _seconds_per_image(task, kind) if left else None
    seconds = left * (pace or 0.0) / world_size()
    return {"width": task.extraction(task.train, kind).width, "seconds_per_image": pace, "seconds": seconds, **found}


def _plan_set(task: Task, images: Images, kind: Kind) -> dict[str, int]:
    extraction = task.extraction(images, kind)
    cached = 0
    if task.cache is not None:
        missing = extraction.store(task.cache, extraction.description()).missing(lambda _line: None)
        cached = len(images) - sum(len(extraction.shards[number]) for number in missing)
    return {"images": len(images), "cached": cached, "bytes": len(images) * extraction.width * 4}


def _seconds_per_image(task: Task, kind: Kind) -> float:
    """Seconds from file to feature, in the processes that will read; starting these does not count."""
    extraction = task.extraction(task.train, kind)
    few = range(0, len(task.train), max(1, len(task.train) // TIMED))[:TIMED]  # of all classes: sizes may differ
    inputs = Inputs(task.train, task.preprocessing, chosen=few)
    batches = in_batches(range(len(few)), task.batch)
    for part in stream(extraction.reader, inputs, batches[:1], device=task.device):  # warms up, and finds the files
        if part.broken:
            path, reason = next(iter(part.broken.items()))
            raise UserError(f"{path} cannot be read ({reason}): mend or remove it")
    start = time.perf_counter()
    items = [inputs[number][1] for number in range(len(few))]
    read = (time.perf_counter() - start) / max(1, task.workers)
    good = torch.stack([item for item in items if isinstance(item, torch.Tensor)])[: task.batch].to(task.device)
    start = time.perf_counter()
    with torch.no_grad():
        extraction.reader(good).cpu()
    # Workers read while the network computes, so that the slower of the two counts; alone, it is one after the other.
    compute = (time.perf_counter() - start) * len(few) / len(good)
    return (max(read, compute) if task.workers else read + compute) / len(few)


def describe(found: dict[str, Any]) -> str:
    """A plan as people read it, for `--dry-run`."""
    lines = []
    for name in (name for name in ("train", "test") if name in found):
        entry = found[name]
        cached = f"{entry['cached']:,} of them cached" if entry["cached"] else "none cached"
        lines.append(f"{name}: {entry['images']:,} images, {cached}, {entry['bytes'] / 2**20:,.1f} MiB of features")
    pace = found["seconds_per_image"]
    if pace is None:
        return "\n".join([*lines, "nothing to compute: all features are cached"])
    return "\n".join(
        [*lines, f"estimate: {duration(found['seconds'])} at {1000 * pace:.1f} ms an image, timed on a few of them"]
    )
