"""Folders of small unlabelled pictures for the tests of embeddings, and a network that embeds them."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import excb
from tests.run_files import tiny_recipe, write_run


def write_photos(folder: Path, count: int = 11, *, seed: int = 0) -> Path:
    """Pictures of many sizes, some in folders below others, one of them there twice."""
    random = np.random.default_rng(seed)
    for number in range(count):
        side = 30 + 3 * number
        target = folder / ("a/b" if number % 3 == 0 else "" if number % 3 == 1 else "c")
        target.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (side, side + 5, 3)) // 2 + 60 * random.integers(0, 3, 3)
        Image.fromarray(pixels.astype(np.uint8)).save(target / f"{number:02}.png")
    (folder / "c" / "twin.png").write_bytes((folder / "a" / "b" / "03.png").read_bytes())
    return folder


def write_network(folder: Path) -> Path:
    """A run of a tiny network."""
    return write_run(folder, 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))


def by_loop(run: Path, folder: Path) -> dict[str, np.ndarray]:
    """The vector of every picture by its path, one at a time."""
    backbone = excb.load(run)
    vectors = {}
    for file in sorted(folder.rglob("*.png")):
        with Image.open(file) as image, torch.no_grad():
            vectors[file.relative_to(folder).as_posix()] = backbone(backbone.transform(image)[None])[0].numpy()
    return vectors


class Means(nn.Module):
    """[B, 3, H, W] -> [B, 3]: a network whose vectors one can compute by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    @staticmethod
    def transform(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image.resize((8, 8)))).permute(2, 0, 1) / 255

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3)) * self.scale
