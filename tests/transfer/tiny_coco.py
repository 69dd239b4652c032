"""A small set in COCO's format: coloured shapes whose masks are polygons and run-length codes, with all that is odd."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

CATEGORIES = {3: "square", 7: "disc", 90: "bar"}  # ids with gaps, as COCO's
COLOURS = {3: (220, 40, 40), 7: (40, 200, 60), 90: (50, 70, 230)}
SIZES = ((96, 64), (60, 88), (100, 72), (72, 72), (64, 96), (112, 60))  # width and height, in turn


def write_coco(folder: Path, *, train: int = 6, val: int = 4, year: str = "2017", seed: int = 0) -> Path:
    """Write annotations/instances_{train,val}YEAR.json and the images.

    In both sets the last image has no object, and the first one a crowd. Discs have run-length codes, compressed and
    not in turn, squares and bars polygons, some bars two of them. File order is not the order of ids.
    """
    random = np.random.default_rng(seed)
    for split, number in (("train", train), ("val", val)):
        (folder / f"{split}{year}").mkdir(parents=True)
        write_split(folder / f"annotations/instances_{split}{year}.json", folder / f"{split}{year}", number, random)
    return folder


def write_split(file: Path, images: Path, number: int, random: np.random.Generator) -> None:
    """Write one annotation file and its images."""
    entries, annotations = [], []
    for index in range(number):
        width, height = SIZES[index % len(SIZES)]
        identity = 500 - 7 * index
        name = f"{identity:06}.png"
        picture = Image.fromarray(random.integers(90, 130, (height, width, 3), dtype=np.uint8))
        entries.append({"id": identity, "file_name": name, "width": width, "height": height})
        if index < number - 1:
            for place, category in enumerate(CATEGORIES):
                mask, segmentation = _draw(picture, category, place, index, random)
                annotations.append(_annotation(mask, segmentation, identity, category, crowd=False))
        if index == 0:
            crowd = np.zeros((height, width), dtype=bool)
            crowd[-12:, :30] = True
            annotations.append(_annotation(crowd, run_length(crowd), identity, 3, crowd=True))
        picture.save(images / name)
    for count, annotation in enumerate(annotations):
        annotation["id"] = 1000 + count
    categories = [{"id": number, "name": name, "supercategory": "shape"} for number, name in CATEGORIES.items()]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"images": entries, "annotations": annotations, "categories": categories[::-1]}))


def contents(file: Path) -> dict[str, Any]:
    """Read an annotation file."""
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def change(file: Path, **values: Any) -> None:
    """Replace entries of an annotation file, such as annotations=[...]."""
    file.write_text(json.dumps(contents(file) | values))


def run_length(mask: np.ndarray) -> dict[str, Any]:
    """COCO's uncompressed code: lengths of runs down the columns, of zeros first."""
    flat = np.concatenate(([0], mask.T.reshape(-1).astype(np.int8), [0]))
    edges = np.flatnonzero(np.diff(flat))
    counts = np.diff(np.concatenate(([0], edges, [mask.size]))).tolist()
    return {"size": list(mask.shape), "counts": counts}


def _draw(
    picture: Image.Image, category: int, place: int, index: int, random: np.random.Generator
) -> tuple[np.ndarray, Any]:
    """Paint one shape in its third of the picture, and give its mask and COCO's description of it."""
    third = picture.width // 3
    side = int(random.integers(third // 2, third - 1))
    left = place * third + int(random.integers(third - side))
    top = int(random.integers(picture.height - side))
    right, bottom = left + side, top + side
    mask = Image.new("1", picture.size)
    if category == 7:
        for canvas, colour in ((picture, COLOURS[category]), (mask, 1)):
            ImageDraw.Draw(canvas).ellipse((left, top, right - 1, bottom - 1), fill=colour)
        code = run_length(np.asarray(mask))
        return np.asarray(mask), code if index % 2 else _compressed(code)
    # A bar may be cut in two, as objects are that something hides.
    parts = [(top, bottom)] if category == 3 or index % 2 else [(top, top + side // 3), (bottom - side // 3, bottom)]
    polygons = []
    for start, stop in parts:
        for canvas, colour in ((picture, COLOURS[category]), (mask, 1)):
            ImageDraw.Draw(canvas).rectangle((left, start, right - 1, stop - 1), fill=colour)
        polygons.append([left, start, right, start, right, stop, left, stop])
    return np.asarray(mask), polygons


def _compressed(code: dict[str, Any]) -> dict[str, Any]:
    from pycocotools import mask as coco

    packed = coco.frPyObjects(code, *code["size"])
    return {"size": list(packed["size"]), "counts": packed["counts"].decode()}


def _annotation(mask: np.ndarray, segmentation: Any, image: int, category: int, *, crowd: bool) -> dict[str, Any]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    left, top = int(columns[0]), int(rows[0])
    return {
        "image_id": image,
        "category_id": category,
        "bbox": [left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top],
        "area": float(mask.sum()),
        "iscrowd": int(crowd),
        "segmentation": segmentation,
    }
