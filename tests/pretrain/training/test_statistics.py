"""Statistics of channels against all pixels at once."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from excb.errors import UserError
from excb.images.decoding import BrokenImageError
from excb.images.image_set import ImageSet
from excb.pretrain.recipes import RECIPES
from excb.pretrain.training.statistics import LEAST, channel_statistics, measured


@dataclass(frozen=True)
class Arrays(ImageSet):
    """Images in memory; those without a pixel are broken."""

    arrays: tuple[np.ndarray, ...] = ()

    def open(self, index: int) -> np.ndarray:
        if not self.arrays[index].size:
            raise BrokenImageError("empty")
        return self.arrays[index]


def arrays(*values: np.ndarray) -> Arrays:
    return Arrays(Path("memory"), [str(number) for number in range(len(values))], arrays=values)


def test_they_are_those_of_all_pixels() -> None:
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (20, 30, 5)).astype(np.uint8) // (number + 1) for number in range(4)]
    mean, std, count = channel_statistics(arrays(*images, np.zeros((0, 0, 5), np.uint8)))
    pixels = np.concatenate(images).reshape(-1, 5) / 255
    assert count == 4
    np.testing.assert_allclose(mean, pixels.mean(0), atol=1e-4)
    np.testing.assert_allclose(std, pixels.std(0), atol=1e-4)


def test_a_constant_channel_has_a_deviation() -> None:
    mean, std, _ = channel_statistics(arrays(np.full((9, 9, 2), 51, np.uint8)))
    assert mean == (0.2, 0.2)
    assert std == (round(LEAST, 4),) * 2


def test_given_values_stay() -> None:
    notes = list[str]()
    recipe = RECIPES["conv4_tiny"]()
    images = arrays(np.full((9, 9, 3), 51, np.uint8))
    assert measured(recipe, images, notes.append) is recipe
    found = measured(recipe.change(views={"mean": ()}), images, notes.append)
    assert found.views.mean == (0.2, 0.2, 0.2)
    assert found.views.std == recipe.views.std
    assert len(notes) == 1


def test_without_a_readable_image_there_are_none() -> None:
    with pytest.raises(UserError, match="no image of memory can be read"):
        channel_statistics(arrays(np.zeros((0, 0, 3), np.uint8)))
