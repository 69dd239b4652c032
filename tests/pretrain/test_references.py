"""The references: a histogram by hand, BatchNorm statistics of the images, one line for every image."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from excb.images.decoding import open_image
from excb.images.scanning import scan_folder
from excb.pretrain import references
from tests.pretrain.small_runs import write_images


def test_colour_histogram_counts_colours() -> None:
    image = Image.fromarray(np.array([[[0, 0, 0], [255, 255, 255]], [[70, 130, 200], [10, 20, 30]]], np.uint8))
    expected = torch.zeros(64)
    expected[[0, 63, 16 * 1 + 4 * 2 + 3]] = torch.tensor([2.0, 1.0, 1.0]).sqrt()
    torch.testing.assert_close(references.colour_histogram(image), expected)


def test_references_without_network_have_a_row_an_image(tmp_path: Path) -> None:
    images = scan_folder(write_images(tmp_path / "set", classes=2, each=3))
    pictures = [open_image(images.file(index)) for index in range(6)]
    pixels = references.features_without_network("pixels", images)
    resized = torch.stack([references.PIXELS(picture).flatten() for picture in pictures])
    torch.testing.assert_close(pixels.rows, resized)
    histogram = references.features_without_network("colour_histogram", images)
    torch.testing.assert_close(histogram.rows, torch.stack([references.colour_histogram(one) for one in pictures]))


def test_estimated_statistics_are_those_of_the_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    photographs_of_noise = tmp_path / "set"
    photographs_of_noise.mkdir()
    random = np.random.default_rng(0)
    for number in range(6):
        Image.fromarray(random.integers(0, 256, (20, 20, 3), np.uint8)).save(photographs_of_noise / f"{number}.png")
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
    images = scan_folder(photographs_of_noise)
    references.estimate_batchnorm(network, images, references.PIXELS)
    inputs = torch.stack([references.PIXELS(open_image(images.file(index))) for index in range(6)])
    torch.testing.assert_close(network[1].running_mean, network[0](inputs).mean((0, 2, 3)))
    assert not network.training
