"""Reading annotations of LVIS's size: processor time and memory by the number of objects, each read in a new process.

Run: python -m benchmarks.annotations DIR [--shares 0.0625 0.125 0.25 0.5 1]     keeps what it wrote in DIR

The whole is 100,000 images with 1.2 million objects of 1,203 categories, in polygons with 4 to 110 corners. Its 1.25 GB
take EXCB_MEMORY_LIMIT=2. All images are one file.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

IMAGES, OBJECTS, CATEGORIES = 100_000, 1_200_000, 1203
AT_ONCE = 1000  # objects that are drawn together
LINKS = 50_000  # names that a disk gives one file
READ = """
import resource, sys, time
from pathlib import Path
from excb.transfer.coco.reading import read_coco
before = time.process_time()
images = read_coco(Path(sys.argv[1]), Path(sys.argv[2]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
print(sum(len(image.annotations) for image in images.images), time.process_time() - before, peak)
"""


def main() -> None:
    """Write and read each share, and print a row for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0625, 0.125, 0.25, 0.5, 1.0])
    args = parser.parse_args()
    for share in args.shares:
        images, file = args.folder / f"{share:g}", args.folder / f"{share:g}.json"
        if not file.exists():
            write(file, images, share)
        read = subprocess.run(
            [sys.executable, "-c", READ, str(file), str(images)],
            env={**os.environ, "EXCB_MEMORY_LIMIT": "2"},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        objects, seconds, peak = map(float, read.stdout.split())
        size = file.stat().st_size / 1e6
        print(
            f"{objects:9,.0f} objects  {size:7,.0f} MB  {seconds:6.1f} CPU s  {peak:7,.0f} MB at most, "
            f"{peak / size:.1f} times the file",
            flush=True,
        )


def write(file: Path, folder: Path, share: float) -> None:
    """A share of the images and objects, in LVIS's layout."""
    random, images, objects = np.random.default_rng(0), int(IMAGES * share), int(OBJECTS * share)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(images):
        image, original = folder / f"{number + 1:012}.jpg", folder / f"{number // LINKS * LINKS + 1:012}.jpg"
        if image == original:
            Image.new("RGB", (640, 480)).save(image)
        else:
            image.hardlink_to(original)
    names = (f"{number:012}.jpg" for number in range(1, images + 1))
    entries = [
        {"id": number, "width": 640, "height": 480, "file_name": name, "neg_category_ids": [1, 2, 3, 4]}
        for number, name in enumerate(names, 1)
    ]
    categories = [{"id": number, "name": f"thing {number}"} for number in range(1, CATEGORIES + 1)]
    unfinished = file.with_suffix(".part")
    with unfinished.open("w", encoding="utf-8") as stream:
        stream.write(f'{{"images": {json.dumps(entries)}, "categories": {json.dumps(categories)}, "annotations": [')
        for first in range(0, objects, AT_ONCE):
            texts = (annotation(first + each + 1, images, random) for each in range(min(AT_ONCE, objects - first)))
            stream.write((", " if first else "") + ", ".join(texts))
        stream.write("]}")
    unfinished.rename(file)


def annotation(number: int, images: int, random: np.random.Generator) -> str:
    """A polygon around a circle."""
    angles = np.linspace(0, 2 * np.pi, random.integers(4, 110), endpoint=False)
    (left, top), radius = random.uniform(60, 420, 2), random.uniform(5, 55)
    points = np.stack([left + radius * np.cos(angles), top + radius * np.sin(angles)], 1).round(2)
    low, high = points.min(0), points.max(0)
    entry = {
        "id": number,
        "image_id": int(random.integers(1, images + 1)),
        "category_id": int(random.integers(1, CATEGORIES + 1)),
        "area": round(np.pi * radius**2, 2),
        "bbox": np.concatenate([low, high - low]).round(2).tolist(),
        "segmentation": [points.ravel().tolist()],
    }
    return json.dumps(entry)


if __name__ == "__main__":
    main()
