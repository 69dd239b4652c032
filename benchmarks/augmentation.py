"""Milliseconds an image that augmentation takes on a CPU, one image at a time against many together, by their side.

Run: OMP_NUM_THREADS=1 python -m benchmarks.augmentation [--turns 7] [--recipe photos]

The two ways take turns on the same noise with the same parameters, drawn as the recipe's first global view draws them.
The least processor time of each counts, because others may use the machine. A ratio above 1: together is faster.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from excb.pretrain.data.augmentation import in_chunks, one_by_one
from excb.pretrain.data.views import ViewMaker
from excb.pretrain.overrides import find_recipe

SIDES, IMAGES = (32, 48, 64, 96, 128, 224), 64


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--recipe", default="photos")
    args = parser.parse_args()
    print("side | one by one, ms | together, ms | ratio | largest difference")
    for side in SIDES:
        crops, parameters = drawn(args.recipe, side)
        kernel = find_recipe(args.recipe).views.blur_kernel
        times = {"one": [0.0], "together": [0.0]}
        views = {}
        for turn in range(args.turns):
            for name, way in (("one", one_by_one), ("together", in_chunks)):
                start = time.process_time()
                views[name] = collected(way, crops, parameters, kernel)
                times[name][turn:] = [time.process_time() - start, 0.0]
        one, together = (1e3 * min(times[name][:-1]) / IMAGES for name in times)
        difference = (views["one"] - views["together"]).abs().max()
        print(f"{side} | {one:.3f} | {together:.3f} | {one / together:.2f} | {difference:.1e}")


def drawn(recipe: str, side: int) -> tuple[Tensor, Tensor]:
    """Crops uint8 [R, C, S, S] of noise, and the parameters [R, P] of their augmentation."""
    settings = replace(find_recipe(recipe).views, global_size=side)
    maker, noise = ViewMaker(settings, seed=0, epochs=1), np.random.default_rng(0)
    crops, rows = [], []
    for number in range(IMAGES):
        image = Image.fromarray(noise.integers(0, 256, (side, side, 3), dtype=np.uint8))
        crop, parameters = maker.cut(image, epoch=0, sample=number, views=range(1))
        crops.append(torch.from_numpy(crop[0]))
        rows.append(torch.from_numpy(parameters[0]))
    return torch.stack(crops).permute(0, 3, 1, 2), torch.stack(rows)


def collected(way: Callable[..., object], crops: Tensor, parameters: Tensor, kernel: int) -> Tensor:
    """The augmented images of all rows."""
    views = torch.empty(crops.shape)
    for rows, images in way(crops, parameters, kernel):  # type: ignore[attr-defined]
        views[rows] = images
    return views


if __name__ == "__main__":
    main()
