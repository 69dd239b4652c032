"""A copy-detection set from any folder of images: edited copies as queries, the originals as references, and the pairs.

Run: python examples/make_copies.py photos copies [--queries 500]
Then: excb-eval instances --ckpt conv4_photos --data copies

Every fifth query is a copy of an image that is not a reference: nothing found for it is right. The same images
give the same set: which image is edited in which way depends on its place in the sorted list only.
"""

import argparse
import csv
import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from excb.images.scanning import scan_folder


def cropped(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """A box with half of the image's area."""
    width, height = (round(side * 0.5**0.5) for side in image.size)
    left, top = int(random.integers(image.width - width + 1)), int(random.integers(image.height - height + 1))
    return image.crop((left, top, left + width, top + height))


def compressed(image: Image.Image, _random: np.random.Generator) -> Image.Image:
    """JPEG of quality 8."""
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=8)
    return Image.open(stream).convert("RGB")


def flipped(image: Image.Image, _random: np.random.Generator) -> Image.Image:
    """Left for right."""
    return ImageOps.mirror(image)


def strong(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """A flipped crop in other colours, compressed."""
    colours = ImageEnhance.Brightness(cropped(flipped(image, random), random)).enhance(float(random.uniform(0.5, 1.6)))
    return compressed(ImageEnhance.Color(colours).enhance(float(random.uniform(0, 2))), random)


EDITS = {"crop": cropped, "jpeg": compressed, "flip": flipped, "strong": strong}


def main() -> None:
    """Write queries/EDIT/, references/ and ground_truth.csv."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("images", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--queries", type=int, default=500)
    args = parser.parse_args()

    images = scan_folder(args.images)
    edited = np.linspace(0, len(images) - 1, min(args.queries, len(images))).astype(int).tolist()
    unknown = set(edited[4::5])
    for folder in ("references", *(f"queries/{edit}" for edit in EDITS)):
        (args.out / folder).mkdir(parents=True, exist_ok=True)
    for index in range(len(images)):
        if index not in unknown:
            images.open(index).save(args.out / "references" / f"R{index:06}.png")
    with (args.out / "ground_truth.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["query_id", "reference_id"])
        for number, index in enumerate(edited):
            edit = [*EDITS][number % len(EDITS)]
            copy = EDITS[edit](images.open(index), np.random.default_rng(index))
            copy.save(args.out / "queries" / edit / f"Q{index:06}.png")
            writer.writerow([f"Q{index:06}", "" if index in unknown else f"R{index:06}"])
    print(f"{len(edited)} queries, {len(unknown)} of them without a reference, {len(images) - len(unknown)} references")


if __name__ == "__main__":
    main()
