"""Broken files: the headers of all images, and a sample or all of them decoded in full."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from excb.console import Reporter
from excb.images.decoding import BrokenImageError, Source, open_image, stored_and_upright_size
from excb.images.image_set import CodedImages, ImageSet

from .finding import Finding, plural, such_as

SAMPLE = 500  # images decoded where not all are
READERS = 8  # threads: reading waits for the disk, and decoding does not hold Python's lock
TOGETHER = 1024  # files handed to the threads at once
SMALL_SHARE = 0.2  # of images smaller than a view, from which on it is worth a word


def check_files(
    images: CodedImages, reporter: Reporter, *, bearable: float, side: int | None = None, everything: bool = False
) -> list[Finding]:
    """Read every header, and decode a sample or all of the images; of shards, headers of a sample too.

    Args:
        images: the training images.
        reporter: shows progress.
        bearable: share of broken images that a run goes on with.
        side: of a view in pixels, where a recipe is given.
        everything: decode every image.
    """
    shorter: list[int] = []
    # Of an image in a tar there is no header alone: all of its bytes are read.
    looked_at = (
        range(len(images)) if everything or isinstance(images, ImageSet) else _spread(range(len(images)), SAMPLE)
    )
    broken = _try_all(images, looked_at, lambda source: shorter.append(_shorter_side(source)), "headers", reporter)
    checks = [_judge("headers", broken, len(looked_at), bearable, of=len(images))]
    sound = sorted(set(range(len(images))) - broken.keys())
    chosen = sound if everything else _spread(sound, SAMPLE)
    damaged = _try_all(images, chosen, _decode, "decoding", reporter)
    checks.append(_judge("pixels", damaged, len(chosen), bearable, of=len(sound)))
    if side is not None and shorter:
        checks.append(_sizes(shorter, side))
    return checks


def _try_all(
    images: CodedImages, indices: Sequence[int], read: Callable[[Source], None], title: str, reporter: Reporter
) -> dict[int, str]:
    """Read files in threads; the reason for every one that is broken, by its index."""
    broken: dict[int, str] = {}

    def attempt(index: int) -> None:
        try:
            read(images.source(index))
        except BrokenImageError as error:
            broken[index] = f"{images.paths[index]} ({error})"

    with ThreadPoolExecutor(READERS) as threads, reporter.progress(title, len(indices)) as bar:
        for start in range(0, len(indices), TOGETHER):
            for _ in threads.map(attempt, indices[start : start + TOGETHER]):
                bar.advance()
    return broken


def _shorter_side(source: Source) -> int:
    return min(stored_and_upright_size(source)[0])


def _decode(source: Source) -> None:
    open_image(source).close()


def _spread(indices: Sequence[int], count: int) -> list[int]:
    """So many of them, evenly over the whole, so over all classes."""
    if len(indices) <= count:
        return list(indices)
    return [indices[int(place)] for place in np.linspace(0, len(indices) - 1, count)]


def _judge(name: str, broken: dict[int, str], looked_at: int, bearable: float, *, of: int | None = None) -> Finding:
    sampled = of is not None and looked_at < of
    whole = f"{looked_at:,} of {of:,} images" if sampled else f"all {looked_at:,} images"
    more = "; --all looks at every one" if sampled else ""
    if not broken:
        return Finding(name, "ok", f"{whole}: none is broken{more}")
    names = tuple(broken[index] for index in sorted(broken))
    too_many = len(broken) > bearable * looked_at
    consequence = (
        f"a run refuses more than {bearable:.0%}" if too_many else "a run goes on without them, others take their place"
    )
    return Finding(
        name,
        "error" if too_many else "warning",
        f"{whole}: {plural(len(broken), 'is broken', 'are broken')}{such_as(names)}",
        f"fix or remove them ({consequence}){more}",
        names,
    )


def _sizes(shorter: Sequence[int], side: int) -> Finding:
    """Whether images have the pixels of the views that are cut from them."""
    small = sum(pixels < side for pixels in shorter)
    found = f"shorter side {min(shorter):,} to {max(shorter):,} pixels, median {int(np.median(shorter)):,}"
    if small > SMALL_SHARE * len(shorter):
        return Finding(
            "image sizes",
            "warning",
            f"{found}; {small / len(shorter):.0%} have fewer than a view's {side}",
            "lower views.global_size: enlarged images cost time and show nothing more",
        )
    return Finding("image sizes", "ok", found)
