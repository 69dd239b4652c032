"""Images/s that one core turns from JPEG files into 2 + 6 views: torchvision's PIL transforms against ours.

Run: python benchmarks/input_pipeline.py [--turns 15] [--choices 3] [--quality 95] [--large]

Images are the photographs of scikit-image and scikit-learn at ImageNet's usual size, 500 x 375, as JPEG files that the
system holds in memory. "torchvision" is what published codes run: Image.open, then for each view RandomResizedCrop
(bicubic), flip, ColorJitter, grayscale, GaussianBlur, solarize, ToTensor and Normalize. Its blur is torchvision's, as
in the authors' code, or Pillow's, as in DINO's. "crops" is what remains of ours on the CPU when a GPU augments: decode
once, cut eight crops and draw their parameters; "all" is this and the augmentation; "nvJPEG decodes" is what remains
where the GPU decodes and crops, too: read the file and draw.

One thread. Ways take turns at all images, with the same random choices in every turn, and the least processor time of
each image counts, because others may use the machine. --large takes mosaics of 2000 x 1500 pixels instead, and decodes
them at reduced size as well.
"""

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image, ImageFilter, ImageOps, features
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from excb.images.image_set import ImageSet
from excb.images.photographs import PHOTOGRAPHS, photograph
from excb.pretrain.data.augmentation import augment
from excb.pretrain.data.loader import TrainingViews
from excb.pretrain.data.sampler import SampleRef
from excb.pretrain.recipe import Recipe, ViewSettings
from excb.pretrain.recipes import RECIPES

WIDTH, HEIGHT = 500, 375
MOSAIC = 4  # photographs on each side of a large one

Way = Callable[[int, int], object]  # number of an image and of its random choices -> its views


class PillowBlur:
    """DINO's blur: Pillow's own, by a random radius."""

    def __init__(self, sigma: tuple[float, float]) -> None:
        self._sigma = sigma

    def __call__(self, image: Image.Image) -> Image.Image:
        """Blur."""
        return image.filter(ImageFilter.GaussianBlur(random.uniform(*self._sigma)))


def write_photographs(folder: Path, *, quality: int, large: bool) -> ImageSet:
    """The photographs, cropped to one shape and resized, as JPEG files; large ones are mosaics of them."""
    pictures = [ImageOps.fit(photograph(name), (WIDTH, HEIGHT), Image.Resampling.BICUBIC) for name in PHOTOGRAPHS]
    if large:
        pictures = [_mosaic(pictures[first:] + pictures[:first]) for first in range(0, len(pictures), 3)]
    for number, picture in enumerate(pictures):
        picture.save(folder / f"{number:02}.jpg", quality=quality)
    return ImageSet(folder, [f"{number:02}.jpg" for number in range(len(pictures))])


def _mosaic(pictures: list[Image.Image]) -> Image.Image:
    mosaic = Image.new("RGB", (MOSAIC * WIDTH, MOSAIC * HEIGHT))
    for place in range(MOSAIC * MOSAIC):
        mosaic.paste(pictures[place % len(pictures)], (place % MOSAIC * WIDTH, place // MOSAIC * HEIGHT))
    return mosaic


def published(images: ImageSet, settings: ViewSettings, *, pillow_blur: bool) -> Way:
    """The transforms of published codes, one pipeline for each view."""
    theirs = transforms.GaussianBlur(settings.blur_kernel, settings.blur_sigma)
    blur = PillowBlur(settings.blur_sigma) if pillow_blur else theirs
    jitter = transforms.ColorJitter(settings.brightness, settings.contrast, settings.saturation, settings.hue)

    def pipeline(view: int) -> transforms.Compose:
        is_global = view < settings.global_views
        return transforms.Compose(
            [
                transforms.RandomResizedCrop(
                    settings.global_size if is_global else settings.local_size,
                    scale=settings.scales(0, 1)[0 if is_global else 1],
                    interpolation=InterpolationMode.BICUBIC,
                ),
                transforms.RandomHorizontalFlip(settings.flip),
                transforms.RandomApply([jitter], settings.jitter),
                transforms.RandomGrayscale(settings.grey),
                transforms.RandomApply([blur], settings.blur[view % 2] if is_global else settings.blur_local),
                transforms.RandomSolarize(128, settings.solarize[view % 2] if is_global else 0.0),
                transforms.ToTensor(),
                transforms.Normalize(settings.mean, settings.std),
            ]
        )

    pipelines = [pipeline(view) for view in range(settings.global_views + settings.local_views)]

    def views(number: int, choice: int) -> object:
        random.seed(1000 * choice + number)
        torch.manual_seed(1000 * choice + number)
        with images.file(number).open("rb") as file:
            image = Image.open(file).convert("RGB")
        return [pipeline(image) for pipeline in pipelines]

    return views


def ours(images: ImageSet, settings: ViewSettings, *, everything: bool = False, **efficiency: Any) -> Way:
    """The work of a worker of ours with these options of `efficiency`, and perhaps the augmentation."""
    recipe = replace(Recipe(name=""), views=settings)
    recipe = recipe.change(optim={"epochs": 99}, efficiency=efficiency)
    crops_of = TrainingViews(images, recipe)

    def views(number: int, choice: int) -> object:
        arrays = crops_of[SampleRef(choice, 0, number)].arrays
        if not everything:
            return arrays
        tensors = [torch.from_numpy(array) for array in arrays]
        return [augment(*pair, settings) for pair in zip(tensors[::2], tensors[1::2], strict=True)]

    return views


def least_seconds(ways: dict[str, Way], images: int, *, choices: int, turns: int) -> dict[str, float]:
    """Processor seconds per image, each one's least."""
    least = {name: np.full((images, choices), np.inf) for name in ways}
    for _ in range(turns):
        for (name, views), choice, number in itertools.product(ways.items(), range(choices), range(images)):
            start = time.process_time()
            views(number, choice)
            least[name][number, choice] = min(least[name][number, choice], time.process_time() - start)
    return {name: float(seconds.mean()) for name, seconds in least.items()}


def main() -> None:
    """Print a table of times and ratios for the settings of the authors' code and of the paper."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("turns", 15), ("choices", 3), ("quality", 95)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    jpeg = f"libjpeg-turbo {features.version_feature('libjpeg_turbo')}"
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}, {jpeg}")
    with tempfile.TemporaryDirectory() as folder:
        images = write_photographs(Path(folder), quality=options.quality, large=options.large)
        size = sum(images.file(number).stat().st_size for number in range(len(images))) / len(images)
        print(f"{len(images)} photographs of {size / 1000:.0f} kB")
        for recipe in ("rn50_100ep_official", "rn50_100ep"):
            settings = RECIPES[recipe]().views
            ways = {
                "torchvision": published(images, settings, pillow_blur=False),
                "torchvision, Pillow's blur": published(images, settings, pillow_blur=True),
                "ours, nvJPEG decodes": ours(images, settings, decoder="nvjpeg"),
                "ours, crops": ours(images, settings),
                "ours, all": ours(images, settings, everything=True),
            }
            if options.large:
                ways["ours, crops, decoded smaller"] = ours(images, settings, scaled_decoding=True)
            seconds = least_seconds(ways, len(images), choices=options.choices, turns=options.turns)
            slow, slow_pillow = list(seconds.values())[:2]
            print(f"\n{recipe:30}{'ms':>8}{'images/s':>10}{'torchvision / it':>18}{'the same, Pillow blur':>23}")
            for name, taken in seconds.items():
                ratios = f"{slow / taken:18.2f}{slow_pillow / taken:23.2f}"
                print(f"{name:30}{1000 * taken:8.2f}{1 / taken:10.0f}{ratios}")


if __name__ == "__main__":
    main()
