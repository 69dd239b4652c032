"""Broken files: reads the headers of all images, and decodes a sample or all of them."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from excb.console import Reporter, plural
from excb.images.decoding import BrokenImageError, Source, open_smaller, stored_and_upright_size
from excb.images.image_set import CodedImages, ImageSet
from excb.images.pixels import pixels_of
from excb.images.survey import evenly

from .finding import Finding, such_as

SAMPLE = 500  # images that are decoded by default
READERS = 8  # threads: reading waits for the disk, and decoding releases the GIL
CHUNK = 1024  # files that are queued at once
LARGE_VIEWS, LARGE = 8, 1_000  # views in a median image's side, and its pixels, from which decoding is most of the work


def check_files(
    images: CodedImages, reporter: Reporter, *, max_share: float, side: int | None = None, everything: bool = False
) -> list[Finding]:
    """Read every header, and decode a sample or all of the images. In shards, headers are sampled too.

    A run tolerates the share `max_share` of broken images; `side` is that of a view in pixels, where a recipe is given.
    """
    shorter, pixels = list[int](), pixels_of(images)

    def header(source: Source) -> None:
        shorter.append(min(stored_and_upright_size(source)[0]))

    def decode(source: Source) -> None:
        shorter.append(min(open_smaller(source, lambda _size: 1, pixels)[1]))

    # An image in a shard is always read as a whole, so its header is no cheaper than its pixels.
    indices = range(len(images)) if everything or isinstance(images, ImageSet) else evenly(range(len(images)), SAMPLE)
    sample = list(indices) if everything else evenly(indices, SAMPLE)
    broken = _try_all(images, sorted(set(indices) - set(sample)), header, "headers", reporter)
    damaged = _try_all(images, sample, decode, "decoding", reporter)
    # Of what is not decoded, the header may be broken, or what follows it.
    broken |= _try_all(images, sorted(damaged), header, "headers of what is broken", reporter) if damaged else {}
    findings = [_judge("headers", broken, len(indices), max_share, of=len(images))]
    damaged = {index: reason for index, reason in damaged.items() if index not in broken}
    decoded = len(set(sample) - broken.keys())
    findings.append(_judge("pixels", damaged, decoded, max_share, of=len(images) - len(broken)))
    if side is not None and shorter:
        findings.append(_sizes(shorter, side))
    return findings


def _try_all(
    images: CodedImages, indices: Sequence[int], read: Callable[[Source], None], title: str, reporter: Reporter
) -> dict[int, str]:
    """Read files in threads and return the reason for every broken one, by its index."""
    broken: dict[int, str] = {}

    def attempt(index: int) -> None:
        try:
            read(images.source(index))
        except BrokenImageError as error:
            broken[index] = f"{images.paths[index]} ({error})"

    if not indices:
        return broken
    with ThreadPoolExecutor(READERS) as threads, reporter.progress(title, len(indices)) as bar:
        for start in range(0, len(indices), CHUNK):
            for _ in threads.map(attempt, indices[start : start + CHUNK]):
                bar.advance()
    return broken


def _judge(name: str, broken: dict[int, str], indices: int, max_share: float, *, of: int | None = None) -> Finding:
    sampled = of is not None and indices < of
    counted = f"{indices:,} of {plural(of or 0, 'image')}" if sampled else f"all {plural(indices, 'image')}"
    more = "; --all decodes every image" if sampled else ""
    if not broken:
        return Finding(name, "ok", f"{counted}: none broken{more}")
    names = tuple(broken[index] for index in sorted(broken))
    too_many = len(broken) > max_share * indices
    consequence = f"a run refuses more than {max_share:.0%}" if too_many else "a run replaces them by others"
    return Finding(
        name,
        "error" if too_many else "warning",
        f"{counted}: {plural(len(broken), 'is broken', 'are broken')}{such_as(names)}",
        f"repair or remove them ({consequence}){more}",
        names,
    )


def _sizes(shorter: Sequence[int], side: int) -> Finding:
    small = sum(pixels < side for pixels in shorter)
    found = f"shorter side {min(shorter):,} to {max(shorter):,} pixels, median {int(np.median(shorter)):,}"
    if small:
        found = f"{found}; {small / len(shorter):.0%} are smaller than a view's {side}"
    if np.median(shorter) >= max(LARGE_VIEWS * side, LARGE):
        return Finding(
            "image sizes",
            "warning",
            f"{found}; views have {side}, so decoding takes most of the time",
            f"copy them once: excb-pretrain shrink --data DIR --out DIR2 --side {4 * side}, and train on DIR2",
        )
    return Finding("image sizes", "ok", found)
