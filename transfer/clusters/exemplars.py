"""The images that represent a cluster, and their pictures: small JPEGs within a budget of bytes."""

import base64
import io
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from PIL import Image, ImageOps

from excb.images.decoding import BrokenImageError
from excb.images.image_set import Images
from excb.images.picture import visible_rgb

from .assignment import ClusterAssignment

SIDE = 112  # pixels of a picture's side
QUALITY = 70  # of JPEG


def choose_exemplars(assignment: ClusterAssignment, most: int) -> tuple[list[list[int]], list[list[int]]]:
    """Exemplars of every cluster: the most similar to its centroid, and of the others those with the smallest margin.

    Args:
        assignment: of the images.
        most: number of the first kind per cluster; of the second kind a third as many, rounded up.

    Returns:
        Indices of images by cluster: most similar first, and smallest margin first.
    """
    ends = np.cumsum(assignment.sizes)
    nearest, border = list[list[int]](), list[list[int]]()
    by_similarity = np.lexsort((np.arange(len(assignment.first)), -assignment.similarity, assignment.first))
    for end, size in zip(ends.tolist(), assignment.sizes.tolist(), strict=True):
        members = by_similarity[end - size : end]
        nearest.append(members[:most].tolist())
        rest = members[most:]
        border.append(rest[np.lexsort((rest, assignment.margin[rest]))][: -(-most // 3)].tolist())
    return nearest, border


def in_turn(nearest: Sequence[Sequence[int]], border: Sequence[Sequence[int]], sizes: np.ndarray) -> Iterator[int]:
    """All exemplars in the order in which a budget is spent on them.

    The first of every cluster, the largest cluster first, then the second of each, and so on; those at the border last.
    """
    order = np.argsort(-sizes, kind="stable").tolist()
    for lists in (nearest, border):
        for turn in range(max(map(len, lists), default=0)):
            yield from (lists[cluster][turn] for cluster in order if turn < len(lists[cluster]))


def pictures(
    images: Images, wanted: Sequence[int], *, budget: int, progress: Callable[[int], None] = lambda _done: None
) -> dict[int, str]:
    """Pictures in base64 of as many images as the budget holds, in their order.

    Args:
        images: the set.
        wanted: indices, the most important first.
        budget: characters.
        progress: called after every picture.
    """
    encoded, spent = dict[int, str](), 0
    for index in wanted:
        try:
            picture = base64.b64encode(jpeg(images.open(index))).decode()
        except BrokenImageError:  # its features came from the cache, or it changed since
            continue
        spent += len(picture)
        if spent > budget:
            break
        encoded[index] = picture
        progress(1)
    return encoded


def jpeg(image: Image.Image | np.ndarray) -> bytes:
    """The central square of an image, as people see it, as a small JPEG without metadata."""
    buffer = io.BytesIO()
    square = ImageOps.fit(visible_rgb(image), (SIDE, SIDE), Image.Resampling.BICUBIC)
    square.save(buffer, "JPEG", quality=QUALITY, optimize=True, exif=b"", icc_profile=None)
    return buffer.getvalue()
