"""Baselines: a histogram by hand, one row for every image, and the same from a network's inputs."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from excb.images.decoding import open_image
from excb.images.pixels import Pixels
from excb.images.scanning import scan_folder
from excb.networks.preprocessing import Preprocessing
from excb.references import baselines
from tests.pretrain.small_runs import write_images


def test_colour_histogram_counts_colours() -> None:
    image = Image.fromarray(np.array([[[0, 0, 0], [255, 255, 255]], [[70, 130, 200], [10, 20, 30]]], np.uint8))
    expected = torch.zeros(64)
    expected[[0, 63, 16 * 1 + 4 * 2 + 3]] = torch.tensor([2.0, 1.0, 1.0]).sqrt()
    torch.testing.assert_close(baselines.colour_histogram(image), expected)


def test_references_without_network_have_a_row_an_image(tmp_path: Path) -> None:
    images = scan_folder(write_images(tmp_path / "set", classes=2, each=3))
    pictures = [open_image(images.file(index)) for index in range(6)]
    pixels = baselines.features_without_network("pixels", images)
    resized = torch.stack([baselines.PIXELS(picture).flatten() for picture in pictures])
    torch.testing.assert_close(pixels.rows, resized)
    histogram = baselines.features_without_network("colour_histogram", images)
    torch.testing.assert_close(histogram.rows, torch.stack([baselines.colour_histogram(one) for one in pictures]))


def test_rows_of_inputs_are_those_of_the_images() -> None:
    """An image that fits the network is not resized, so that its inputs hold every pixel."""
    random = np.random.default_rng(3)
    image = Image.fromarray(random.integers(0, 256, (32, 32, 3), np.uint8))
    inputs = baselines.PIXELS(image)[None]
    histogram = baselines.HistogramRows(baselines.PIXELS.mean, baselines.PIXELS.std)
    torch.testing.assert_close(histogram(inputs)[0], baselines.colour_histogram(image))
    torch.testing.assert_close(baselines.PixelRows()(inputs)[0], baselines.pixel_row(image))
    smaller = baselines.PixelRows()(Preprocessing(64, 64)(image.resize((64, 64)))[None])
    assert smaller.shape == (1, 3 * 32 * 32)


def test_any_channels_have_pixels_and_a_histogram_each() -> None:
    image = np.random.default_rng(3).integers(0, 256, (32, 32, 5), np.uint8)
    row = baselines.colour_histogram(image)
    counts = np.stack([np.histogram(image[..., channel], 16, (0, 256))[0] for channel in range(5)])
    torch.testing.assert_close(row, torch.from_numpy(counts).float().sqrt().flatten())
    prepared = Preprocessing(32, 32, (0.3,) * 5, (0.2,) * 5, pixels=Pixels(5))
    inputs = prepared(image)[None]
    torch.testing.assert_close(baselines.rows_of_inputs("colour_histogram", prepared)(inputs)[0], row)
    assert baselines.pixel_row(image).shape == baselines.rows_of_inputs("pixels", prepared)(inputs)[0].shape == (5120,)
