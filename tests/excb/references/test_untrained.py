"""Untrained networks: weights of a seed, and the BatchNorm statistics of the images."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from excb.images.decoding import open_image
from excb.images.scanning import scan_folder
from excb.networks.architecture import Architecture
from excb.references import untrained
from excb.references.baselines import PIXELS

TINY = Architecture("conv4", {"widths": [4, 4, 8, 8]})


def noise(folder: Path, count: int = 6) -> Path:
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        Image.fromarray(random.integers(0, 256, (20, 20, 3), np.uint8)).save(folder / f"{number}.png")
    return folder


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first, again, other = (untrained.build_untrained(TINY, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    weights = [next(network.parameters()) for network in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not first.training


def test_estimated_statistics_are_those_of_the_images_and_dropout_is_off(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
    images = scan_folder(noise(tmp_path / "set"))
    (tmp_path / "set" / "0.png").write_bytes(b"broken")
    untrained.estimate_batchnorm(network, images, PIXELS)
    inputs = torch.stack([PIXELS(open_image(images.file(index))) for index in range(1, 6)])
    torch.testing.assert_close(network[2].running_mean, network[1](inputs).mean((0, 2, 3)))
    assert not network.training


def test_images_are_spread_over_the_set(tmp_path: Path) -> None:
    images = scan_folder(noise(tmp_path / "set"))
    assert list(untrained.evenly_spread(images, 4).paths) == ["0.png", "2.png", "4.png"]
    assert len(untrained.evenly_spread(images)) == 6
