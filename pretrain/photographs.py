"""A small labelled set of real photographs that comes with pip: patches of pictures shipped by two packages.

The class of a patch is its photograph. Photographs are divided like chessboards: train patches lie on black squares,
test patches on white ones, so that no pixel is in both.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from excb import seeding
from excb.errors import UserError
from excb.images import open_image

# Real photographs only, one a class; their licences are CC0, public domain or BSD (see both packages' README files).
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


def write_patches(folder: Path, progress: Callable[[int], None] = lambda _done: None) -> None:
    """Write the patches as `folder/train/CLASS/N.png` and `folder/test/CLASS/N.png`; the same ones at every call.

    Args:
        folder: where to; complete sets are left alone.
        progress: told of every patch.

    Raises:
        UserError: a photograph is not installed, or the folder cannot be written.
    """
    done = folder / ".complete"
    if done.exists():
        return
    for number, (name, place) in enumerate(PHOTOGRAPHS.items()):
        photograph = open_image(_find(place))
        tiles = [
            (column, row) for row in range(photograph.height // TILE) for column in range(photograph.width // TILE)
        ]
        for parity, (split, count) in enumerate({"train": TRAIN, "test": TEST}.items()):
            random = seeding.generator(seeding.Purpose.PHOTOGRAPHS, number, parity)
            squares = [tile for tile in tiles if sum(tile) % 2 == parity]
            target = folder / split / name
            try:
                target.mkdir(parents=True, exist_ok=True)
                for patch in range(count):
                    column, row = squares[random.integers(len(squares))]
                    left = column * TILE + int(random.integers(TILE - SIDE + 1))
                    top = row * TILE + int(random.integers(TILE - SIDE + 1))
                    photograph.crop((left, top, left + SIDE, top + SIDE)).save(target / f"{patch:03}.png")
                    progress(1)
            except OSError as error:
                raise UserError(f"cannot write {target}: {error}") from None
    done.touch()


def _find(place: str) -> Path:
    """A file inside an installed package, without importing the package."""
    package, _, inside = place.partition("/")
    spec = find_spec(package)
    file = Path(spec.origin).parent / inside if spec is not None and spec.origin is not None else None
    if file is None or not file.is_file():
        raise UserError(f"the photograph {place} is not installed: run `pip install scikit-image scikit-learn`")
    return file
