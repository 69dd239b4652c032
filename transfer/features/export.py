"""Export features, and estimate beforehand what computing them takes."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from excb.console import Reporter, duration, plural
from excb.distributed.collectives import rank, run_on_rank0, world_size
from excb.errors import UserError
from excb.features.extraction import Extraction, features_of
from excb.files import json_text, npy
from excb.files.atomic import new_file
from excb.networks.backbone import weights_hash
from excb.networks.features import Inputs, in_batches, stream
from excb.results.replacing import ADVICE, has_content

META = "meta"  # the array that says what features are of
TIMED = 16  # images that are timed for the estimate


def export_features(sets: Mapping[str, Extraction], cache: Path | None, file: Path, reporter: Reporter) -> Path:
    """Write the features of labelled sets to one .npz file; all ranks call this, rank 0 writes.

    For each SET the file holds SET_rows [N, D] float32, SET_labels [N] int64 and SET_names [N] (paths below the set's
    folder), and `classes`, the names of the labels. `meta` is JSON: the network, the SHA-256 of its weights, and the
    fingerprints of the images. Reading it needs no pickle.

    Args:
        sets: by name; the last one has all classes.
        cache: folder of cached features; None caches nothing.
        file: FILE.npz.
        reporter: for messages and progress.

    Raises:
        UserError: an image cannot be read, or the file cannot be written.
    """
    check_features_file(file)
    arrays: dict[str, np.ndarray] = {"classes": np.array([*sets.values()][-1].images.classes)}
    arrays[META] = np.array(json.dumps(_meta(sets)))
    reporter = reporter if rank() == 0 else Reporter(quiet=True)
    for name, extraction in sets.items():
        images = extraction.images
        assert images.labels is not None
        rows = features_of(extraction, cache, reporter, name=name).all()
        arrays |= {
            f"{name}_rows": rows.numpy(),
            f"{name}_labels": images.labels,
            f"{name}_names": np.array(list(images.paths)),
        }
    run_on_rank0(lambda: _write(arrays, file))
    reporter.note(f"wrote {file}")
    return file


def refuse_other_features(sets: Mapping[str, Extraction], file: Path) -> None:
    """Refuse to replace features of another network or of other images, or another file.

    Raises:
        UserError: it is one.
    """
    if not has_content(file):
        return
    rows = [f"{name}_rows" for name in sets]
    try:
        before = json_text.parse(str(npy.read_npz(file, but=rows)[META]))
        weights, images = before["weights_sha256"], before["images"]
    except npy.DAMAGE:
        raise UserError(
            f"{file} is there, and `excb-eval features` of this version did not write it: {ADVICE}"
        ) from None
    now = _meta(sets)
    if weights != now["weights_sha256"]:
        raise UserError(f"{file} has features of other weights, {before.get('name')}: {ADVICE}")
    if other := [name for name in sets if images.get(name) != now["images"][name]]:
        raise UserError(f"{file} has features of other images ({other[0]}): {ADVICE}")


def _meta(sets: Mapping[str, Extraction]) -> dict[str, Any]:
    """The network and the images of features: where they differ, features are not replaced unasked."""
    backbone = next(iter(sets.values())).backbone
    return {
        "name": str(backbone.entry.source),
        "weights_sha256": weights_hash(backbone.network),
        "images": {name: extraction.images.fingerprint for name, extraction in sets.items()},
    }


def check_features_file(file: Path) -> None:
    """Raise UserError if features cannot be exported to a file of this name."""
    if file.suffix != ".npz" or file.is_dir():
        raise UserError(f"--out {file}: features are written to a file that ends in .npz")


def _write(arrays: dict[str, np.ndarray], file: Path) -> None:
    with new_file(file, advice="name another file") as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def plan_features(
    sets: Mapping[str, Extraction],
    cache: Path | None,
    *,
    timed: Extraction | None = None,
    passes: float = 0.0,
    making: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Estimate what features take, by timing a few images; nothing is cached.

    Args:
        sets: by name.
        cache: folder of cached features; None caches nothing.
        timed: of the images to time; by default of the first set.
        passes: images that pass through the network beside these features.
        making: seconds that a core takes to make an image from a file that is read, such as a corrupted one, by set.

    Returns:
        `width`; `seconds_per_image`, or None if no image is left to pass through the network; `seconds`, the estimate
        for all that is left; and for each set the number of `images`, how many of these are `cached`, and the `bytes`
        of all their features.

    Raises:
        UserError: the backbone has no such features, or an image cannot be read.
    """
    timed = timed or next(iter(sets.values()))
    planned = {name: _plan_set(extraction, cache) for name, extraction in sets.items()}
    left = {name: entry["images"] - entry["cached"] for name, entry in planned.items()}
    pace = _seconds_per_image(timed) if any(left.values()) or passes else None
    made = sum(left[name] * seconds for name, seconds in (making or {}).items()) / max(1, timed.workers)
    return {
        "width": timed.width,
        "seconds_per_image": pace,
        "seconds": ((sum(left.values()) + passes) * (pace or 0.0) + made) / world_size(),
        "sets": planned,
    }


def _plan_set(extraction: Extraction, cache: Path | None) -> dict[str, int]:
    cached, images = 0, len(extraction.images)
    if cache is not None:
        store = extraction.store(cache, extraction.description())
        missing = store.missing(lambda _line: None)
        kept = sum(map(len, store.kept(missing, lambda _line: None).values()))
        cached = images - sum(len(extraction.shards[number]) for number in missing) + kept
    return {"images": images, "cached": cached, "bytes": images * extraction.width * 4}


def _seconds_per_image(extraction: Extraction) -> float:
    """Seconds from file to feature with these workers, without starting them."""
    images, device = extraction.images, extraction.device
    few = range(0, len(images), max(1, len(images) // TIMED))[:TIMED]  # spread over all classes: sizes may differ
    inputs = Inputs(images, extraction.preprocessing, indices=few)
    batches = in_batches(range(len(few)), extraction.batch)
    for part in stream(extraction.network, inputs, batches[:1], device=device):  # warms up, and opens the files
        if part.broken:
            path, reason = next(iter(part.broken.items()))
            raise UserError(f"{path} cannot be read ({reason}): fix or remove it")
    start = time.perf_counter()
    items = [inputs[number][1] for number in range(len(few))]
    read = (time.perf_counter() - start) / max(1, extraction.workers)
    good = torch.stack([item for item in items if isinstance(item, torch.Tensor)])[: extraction.batch].to(device)
    start = time.perf_counter()
    with torch.no_grad():
        extraction.network(good).cpu()
    # Workers read while the network computes, so that the slower of the two counts. Without workers they alternate.
    compute = (time.perf_counter() - start) * len(few) / len(good)
    return (max(read, compute) if extraction.workers else read + compute) / len(few)


def answer_plan(planned: dict[str, Any], reporter: Reporter, *, then: Sequence[str] = (), as_json: bool) -> None:
    """Print a plan, for `--dry-run`: as text, or with `--json` as JSON with the lines of `then` as a list."""
    if as_json:
        reporter.answer(json.dumps({"can_run": True, **planned, "then": list(then)}, indent=2))
    else:
        reporter.answer(describe_plan(planned, then))


def describe_plan(planned: dict[str, Any], then: Sequence[str] = ()) -> str:
    """A plan as text, for `--dry-run`; `then` are lines about what is computed beside features."""
    lines = []
    for name, entry in planned["sets"].items():
        cached = f"{entry['cached']:,} of them cached" if entry["cached"] else "none cached"
        lines.append(
            f"{name}: {plural(entry['images'], 'image')}, {cached}, {entry['bytes'] / 2**20:,.1f} MiB of features"
        )
    lines += then
    pace = planned["seconds_per_image"]
    if pace is None:
        return "\n".join([*lines, "no image passes through the network: all features are cached"])
    return "\n".join(
        [*lines, f"estimate: {duration(planned['seconds'])} at {1000 * pace:.1f} ms an image, timed on a few of them"]
    )
