"""Images for the parts, where there is no network: noise of photographs' size, and a small set in COCO's format.

Run: python -m benchmarks.gpu.images DIR [--photos 2048] [--classes 16] [--coco 24] [--json FILE]

Noise of three scales gives JPEG files about as large as photographs, so that reading them takes about as long. Classes
differ in colour. The other set shows rectangles of three kinds, a third as many in its validation images.
"""

import argparse
import json
import multiprocessing
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from excb.files.atomic import write_text

WIDTH, HEIGHT = 500, 375
SCALES = ((6, 0.5), (40, 0.3), (HEIGHT, 0.18))  # rows of the noise, and how much of it replaces what is coarser
QUALITY = 90
COLOURS = ((220, 40, 40), (40, 200, 60), (50, 70, 230))  # of the kinds of rectangles
COCO_WIDTH, COCO_HEIGHT = 320, 240


def noise(width: int, height: int, *, seed: Sequence[int]) -> Image.Image:
    """An RGB image of noise, equal for equal seeds; the first number of the seed decides the colour."""
    random, colour = np.random.default_rng(seed), np.random.default_rng(seed[0]).integers(60, 200, 3)
    image = Image.new("RGB", (width, height), tuple(colour.tolist()))
    for rows, share in SCALES:
        pixels = random.integers(0, 256, (rows, rows * width // height, 3), dtype=np.uint8)
        image = Image.blend(image, Image.fromarray(pixels).resize(image.size, Image.Resampling.BICUBIC), share)
    return image


def write_photo(folder: Path, classes: int, number: int) -> int:
    """Write one image below the folder of its class, and return its bytes."""
    file = folder / f"class{number % classes:02}" / f"{number:05}.jpg"
    noise(WIDTH, HEIGHT, seed=(number % classes, number)).save(file, quality=QUALITY)
    return file.stat().st_size


def write_photos(folder: Path, count: int, classes: int) -> int:
    """Write images with all cores, and return their mean bytes."""
    for number in range(classes):
        (folder / f"class{number:02}").mkdir(parents=True, exist_ok=True)
    work = partial(write_photo, folder, classes)
    if count < 64:  # processes would take longer to start
        sizes = [work(number) for number in range(count)]
    else:
        with multiprocessing.Pool() as pool:
            sizes = pool.map(work, range(count), chunksize=16)
    return round(sum(sizes) / max(1, count))


def write_coco(folder: Path, split: str, count: int) -> None:
    """Write images and their annotations in COCO's layout."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    (folder / f"{split}2017").mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        seed = len(split), number
        image, random = noise(COCO_WIDTH, COCO_HEIGHT, seed=seed), np.random.default_rng(seed)
        for kind, colour in enumerate(COLOURS):
            width, height = random.integers(60, 100), random.integers(60, 200)
            left, top = kind * 105 + random.integers(5), random.integers(COCO_HEIGHT - height)
            box = [int(side) for side in (left, top, width, height)]
            image.paste(colour, (box[0], box[1], box[0] + box[2], box[1] + box[3]))
            annotations.append(_annotation(len(annotations) + 1, number, kind, box))
        name = f"{number:06}.jpg"
        image.save(folder / f"{split}2017" / name, quality=QUALITY)
        images.append({"id": number, "file_name": name, "width": COCO_WIDTH, "height": COCO_HEIGHT})
    categories = [{"id": kind + 1, "name": f"kind {kind + 1}"} for kind in range(len(COLOURS))]
    contents = {"images": images, "annotations": annotations, "categories": categories}
    write_text(json.dumps(contents), folder / "annotations" / f"instances_{split}2017.json")


def _annotation(number: int, image: int, kind: int, box: Sequence[int]) -> dict[str, Any]:
    left, top, width, height = box
    right, bottom = left + width, top + height
    outline = [left, top, right, top, right, bottom, left, bottom]
    ids = {"id": number, "image_id": image, "category_id": kind + 1, "iscrowd": 0}
    return {**ids, "bbox": list(box), "area": width * height, "segmentation": [outline]}


def main() -> None:
    """Write both sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, default in (("photos", 2048), ("classes", 16), ("coco", 24)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    options = parser.parse_args()
    size = write_photos(options.folder / "photos", options.photos, options.classes)
    for split, count in (("train", options.coco), ("val", max(1, options.coco // 3))):
        write_coco(options.folder / "coco", split, count)
    figures = {"photos": options.photos, "bytes": size, "coco": options.coco + max(1, options.coco // 3)}
    print(f"{options.photos} images of {size / 1000:.0f} kB")
    if options.json:
        write_text(json.dumps(figures, indent=2) + "\n", options.json)


if __name__ == "__main__":
    main()
