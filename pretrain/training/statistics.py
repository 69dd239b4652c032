"""Mean and standard deviation of every channel, measured on the images of a run."""

from collections.abc import Callable

import numpy as np

from excb.console import plural
from excb.errors import require
from excb.images.decoding import BrokenImageError
from excb.images.image_set import Images
from excb.references.untrained import evenly_spread

from ..recipe import Recipe

IMAGES, VALUES = 1000, 2**14  # measured at most, evenly spread; of each channel of an image, about
LEAST = 1 / 255  # deviation of a channel that is the same everywhere
DIGITS = 4


def measured(recipe: Recipe, images: Images, note: Callable[[str], None]) -> Recipe:
    """The recipe with `views.mean` and `views.std`, measured where it has none.

    Args:
        recipe: for images of these channels.
        images: the run's; at most `IMAGES` of them are read.
        note: called with a message that says the figures.

    Raises:
        UserError: none of the images can be read.
    """
    views = recipe.views
    if views.mean and views.std:
        return recipe
    mean, std, count = channel_statistics(images)
    figures = [", ".join(f"{value:.3g}" for value in values) for values in (mean, std)]
    note(f"channels of {plural(count, 'image')}: mean {figures[0]}; standard deviation {figures[1]}")
    return recipe.change(views={"mean": views.mean or mean, "std": views.std or std})


def channel_statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...], int]:
    """Mean and standard deviation of every channel, in [0, 1], over pixels of images that count alike.

    Returns:
        Means, standard deviations, and the number of images read.
    """
    rows, squares = list[np.ndarray](), list[np.ndarray]()
    some = evenly_spread(images, IMAGES)
    for index in range(len(some)):
        try:
            pixels = np.asarray(some.open(index))
        except BrokenImageError:
            continue
        step = max(1, int((pixels.shape[0] * pixels.shape[1] / VALUES) ** 0.5))
        values = pixels[::step, ::step].reshape(-1, pixels.shape[-1]) / 255
        rows.append(values.mean(0))
        squares.append(np.square(values).mean(0))
    require(bool(rows), f"no image of {images.root} can be read, so its channels have no mean: look at the files")
    mean = np.mean(rows, axis=0)
    std = np.sqrt(np.maximum(np.mean(squares, axis=0) - mean**2, LEAST**2))
    rounded = [tuple(round(float(value), DIGITS) for value in values) for values in (mean, std)]
    return rounded[0], rounded[1], len(rows)
