"""Real photographs that two pip packages ship, and patches of them: a small labelled set of images.

The class of a patch is its photograph. Photographs are divided like chessboards: train patches come from black squares,
test patches from white ones, so that no pixel is in both.
"""

import itertools
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

from excb import seeding
from excb.errors import UserError
from excb.images.decoding import BrokenImageError, open_image

# Real photographs only, one per class; their licences are CC0, public domain or BSD (see both packages' README files).
PHOTOGRAPHS = {
    "astronaut": "skimage/data/astronaut.png",
    "camera": "skimage/data/camera.png",
    "cat": "skimage/data/chelsea.png",
    "coffee": "skimage/data/coffee.png",
    "coins": "skimage/data/coins.png",
    "flower": "sklearn/datasets/images/flower.jpg",
    "grass": "skimage/data/grass.png",
    "gravel": "skimage/data/gravel.png",
    "moon": "skimage/data/moon.png",
    "motorcycle": "skimage/data/motorcycle_left.png",
    "rocket": "skimage/data/rocket.jpg",
    "temple": "sklearn/datasets/images/china.jpg",
    "tissue": "skimage/data/ihc.png",
}
SIDE = 48  # of a patch, in pixels
TILE = 96  # of a square of the chessboard, in pixels
TRAIN, TEST = 220, 80  # patches per photograph
SPLITS = ("train", "test")  # from the black and from the white squares


class PhotographError(UserError):
    """A photograph is missing or has been changed, so that no result can be based on it."""


def photograph(name: str) -> Image.Image:
    """One of `PHOTOGRAPHS` as 8-bit RGB. Raises PhotographError if it is not installed or damaged."""
    place = PHOTOGRAPHS[name]
    package, _, inside = place.partition("/")
    spec = find_spec(package)  # which does not import the package
    file = Path(spec.origin).parent / inside if spec is not None and spec.origin is not None else None
    if file is None or not file.is_file():
        raise PhotographError(f"the photograph {place} is not installed: run `pip install scikit-image scikit-learn`")
    try:
        return open_image(file)
    except BrokenImageError as error:
        raise PhotographError(f"the photograph {file} is damaged ({error}): install {package} again") from None


def patches(name: str, split: str, count: int, side: int = SIDE) -> Iterator[Image.Image]:
    """Cut patches from the squares of one of `PHOTOGRAPHS`, the same ones at every call. They may overlap.

    Args:
        name: of the photograph.
        split: "train" or "test".
        count: number of patches.
        side: of a patch, in pixels, at most `TILE`.

    Raises:
        PhotographError: as `photograph`.
    """
    image, parity = photograph(name), SPLITS.index(split)
    places = itertools.product(range(image.height // TILE), range(image.width // TILE))
    squares = [(column, row) for row, column in places if (column + row) % 2 == parity]
    random = seeding.generator(seeding.Purpose.PHOTOGRAPHS, list(PHOTOGRAPHS).index(name), parity)
    for _ in range(count):
        column, row = squares[random.integers(len(squares))]
        left = column * TILE + int(random.integers(TILE - side + 1))
        top = row * TILE + int(random.integers(TILE - side + 1))
        yield image.crop((left, top, left + side, top + side))


def write_patches(
    folder: str | Path,
    progress: Callable[[int], None] = lambda _done: None,
    *,
    train: int | None = None,
    test: int | None = None,
) -> None:
    """Write patches as `folder/train/CLASS/N.png` and `folder/test/CLASS/N.png`, unless the folder is complete.

    Args:
        folder: one for each choice of counts.
        progress: called with 1 for every patch.
        train: train patches per photograph, by default `TRAIN`.
        test: test patches per photograph, by default `TEST`.

    Raises:
        UserError: a photograph is not installed, or the folder cannot be written.
    """
    done = Path(folder) / ".complete"
    if done.exists():
        return
    counts = (TRAIN if train is None else train, TEST if test is None else test)
    for name in PHOTOGRAPHS:
        for split, count in zip(SPLITS, counts, strict=True):
            target = Path(folder) / split / name
            try:
                target.mkdir(parents=True, exist_ok=True)
                for number, patch in enumerate(patches(name, split, count)):
                    patch.save(target / f"{number:03}.png")
                    progress(1)
            except OSError as error:
                raise UserError(f"cannot write {target}: {error}") from None
    done.touch()
