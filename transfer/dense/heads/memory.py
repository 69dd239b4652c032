"""The memory of patches: of all train images or a seeded part of them, at most as many patches as it may hold."""

from dataclasses import dataclass

import numpy as np

from excb.console import plural
from excb.errors import require
from excb.seeding import Purpose, generator

from ..patches.features import Patches
from ..patches.labels import PatchLabels
from ..patches.views import Views


@dataclass(frozen=True)
class Memory:
    """Chosen patches of train images, and the classes of all."""

    patches: Patches
    labels: PatchLabels


def part_of(images: int, part: int, seed: int) -> np.ndarray:
    """The images [n] int64 of a part, ascending: 1 / `part` of a set, rounded down. Parts of one seed are nested.

    Raises:
        UserError: the part has no image.
    """
    require(1 <= part <= images, f"--parts {part}: 1/{part} of {plural(images, 'image')} is none")
    order = generator(Purpose.PATCHES, seed).permutation(images)
    return np.sort(order[: images // part])


def choose_patches(labels: PatchLabels, views: Views, patches: int, *, part: int, most: int, seed: int) -> np.ndarray:
    """The numbers [M] of the patches to remember, ascending.

    All patches with a pixel that counts, if they are at most `most`; else as many of each view as would fill the memory
    if all had that many, drawn without regard to their classes.

    Args:
        labels: of all patches of the views.
        views: of the train images.
        patches: P, of a view.
        part: see `part_of`.
        most: patches.
        seed: names images and patches.

    Raises:
        UserError: the part has no image, or no patch with a class.
    """
    chosen = part_of(len(views.images), part, seed)
    numbers = labels.labelled()
    owners = np.searchsorted(views.ends, numbers // patches, side="right")
    numbers = numbers[np.isin(owners, chosen)]
    require(len(numbers) > 0, "no train image has a pixel of a class: check the masks")
    if len(numbers) <= most:
        return numbers
    of_views, firsts = np.unique(numbers // patches, return_index=True)
    each = most // len(of_views)
    require(each > 0, f"--memory {most} is less than a patch for each of {plural(len(of_views), 'view')}: raise it")
    kept = [
        own if len(own) <= each else np.sort(generator(Purpose.PATCHES, seed, view).choice(own, each, replace=False))
        for view, own in zip(of_views.tolist(), np.split(numbers, firsts[1:]), strict=True)
    ]
    return np.concatenate(kept)
