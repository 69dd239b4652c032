"""Crops of the photographs that pip packages ship: images that the bundled `conv4_photos` was trained on.

Run: python benchmarks/photograph_crops.py OUT
OUT gets one folder per photograph with 400 JPEGs of 128 x 128 pixels, the same ones at every call.
"""

import argparse
import random
from pathlib import Path

from PIL import Image

from excb.images.photographs import PHOTOGRAPHS, photograph

COUNT = 400  # crops of a photograph
SIDES = (0.2, 0.9)  # of a crop, as shares of the photograph's shorter side
SMALLEST = 64  # pixels of a crop's side
SIDE = 128  # pixels of a crop as it is saved
QUALITY = 92


def main() -> None:
    """Write the crops."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    numbers = random.Random(0)
    for name in PHOTOGRAPHS:
        folder = out / name
        folder.mkdir(parents=True)
        image = photograph(name)
        for number in range(COUNT):
            side = max(SMALLEST, int(min(image.size) * numbers.uniform(*SIDES)))
            left, top = numbers.randint(0, image.width - side), numbers.randint(0, image.height - side)
            crop = image.crop((left, top, left + side, top + side))
            crop.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / f"{number:04}.jpg", quality=QUALITY)


if __name__ == "__main__":
    main()
