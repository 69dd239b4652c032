"""Labelled sets with unlike cues, for studies of small data: grey photographs, solar cells, objects cut out by boxes.

Run: python benchmarks/labelled_sets.py OUT [--photographs DIR] [--coco DIR]
DIR of --photographs has parts (train, test) of class folders: OUT/grey has the same images without colour.
DIR of --coco is in COCO's layout: OUT/objects has one folder per category, train/ and test/ from its two parts;
OUT/kinds has one per supercategory, with at most 60 images of it in each part, the first by their number.
OUT/cells needs `pip install elpv-dataset` (CC BY-NC-SA 4.0: for studies only): module type x defect, a third held out.
"""

import argparse
import csv
import importlib.util
import json
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 128  # pixels of the shorter side of solar cells
SMALLEST = 24  # pixels of an object's shorter side
LARGEST_KIND = 60  # images of a supercategory in one part: without a limit every fourth image is a person
QUALITY = 95


def main() -> None:
    """Write the sets and print how many images each part has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--coco", type=Path)
    args = parser.parse_args()
    if args.photographs:
        grey(args.photographs, args.out / "grey")
    if args.coco:
        objects(args.coco, args.out / "objects", "name", limit=None)
        objects(args.coco, args.out / "kinds", "supercategory", limit=LARGEST_KIND)
    if importlib.util.find_spec("elpv_dataset"):
        cells(args.out / "cells")
    for part in sorted(args.out.glob("*/*")):
        print(part, sum(1 for _ in part.glob("*/*")))


def save(image: Image.Image, file: Path) -> None:
    """Write a JPEG in its class's folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file, quality=QUALITY)


def grey(photographs: Path, out: Path) -> None:
    """The same images without colour, in three equal channels."""
    for file in sorted(photographs.glob("*/*/*.jpg")):
        save(Image.open(file).convert("L").convert("RGB"), out / file.relative_to(photographs))


def objects(coco: Path, out: Path, label: str, *, limit: int | None) -> None:
    """Cut out the boxes of COCO's annotations, crowds left out; at most so many of a class in a part."""
    for part, name in (("train2017", "train"), ("val2017", "test")):
        annotations = json.loads((coco / "annotations" / f"instances_{part}.json").read_text())
        category = {entry["id"]: entry[label] for entry in annotations["categories"]}
        file = {entry["id"]: entry["file_name"] for entry in annotations["images"]}
        written = Counter[str]()
        for entry in sorted(annotations["annotations"], key=lambda entry: entry["id"]):
            left, top, width, height = entry["bbox"]
            if entry["iscrowd"] or min(width, height) < SMALLEST:
                continue
            label_of_box = category[entry["category_id"]]
            written[label_of_box] += 1
            if limit is not None and written[label_of_box] > limit:
                continue
            photograph = Image.open(coco / part / file[entry["image_id"]]).convert("RGB")
            crop = photograph.crop((int(left), int(top), round(left + width), round(top + height)))
            save(crop, out / name / label_of_box / f"{entry['id']}.jpg")


def cells(out: Path) -> None:
    """Electroluminescence images of solar cells: mono- or polycrystalline, sound or probably defective."""
    spec = importlib.util.find_spec("elpv_dataset")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pip install elpv-dataset")
    data = Path(spec.submodule_search_locations[0]) / "data"
    rows = list(csv.reader((data / "labels.csv").open(), delimiter=" ", skipinitialspace=True))
    held_out = np.random.default_rng(0).permutation(len(rows)) < len(rows) // 3
    for (file, defect, kind), test in zip(rows, held_out, strict=True):
        label = f"{kind}-{'defective' if float(defect) > 0.5 else 'sound'}"
        image = Image.open(data / file).convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS).convert("RGB")
        save(image, out / ("test" if test else "train") / label / f"{Path(file).stem}.jpg")


if __name__ == "__main__":
    main()
