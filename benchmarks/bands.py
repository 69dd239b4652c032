"""Twelve bands from end to end: pretrained, adapted from a network of colours, embedded, evaluated and exported.

Run: python -m benchmarks.bands COCO OUT [--epochs N]

The images are the objects of a folder in COCO's layout (train2017, val2017 and their instances), cut as squares of 64
pixels. Each of their twelve bands is a mixture of the three colours through a filter of its own, with a brightness of
its own, as uint16 values of 0 to 10,000 in multi-band TIFFs. Needs tifffile; without onnxruntime the features of the
exported network are not compared.
"""

import argparse
import importlib.util
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import excb
from excb.zoo.export import export

BANDS, TOP, SIDE, SMALLEST = 12, 10_000, 64, 32
EACH = 10  # objects of a class in either split, at least


def filters() -> np.ndarray:
    """The share of each colour in each band, [3, 12]."""
    shares: np.ndarray = np.random.default_rng(1).dirichlet(np.ones(3), BANDS).T
    return shares


def in_bands(image: Image.Image) -> np.ndarray:
    """An RGB image as twelve bands, uint16 [H, W, 12]."""
    mixed = (np.asarray(image) / 255) @ filters()
    values: np.ndarray = (TOP * mixed ** np.linspace(0.5, 2, BANDS)).astype(np.uint16)
    return values


def objects(coco: Path, split: str) -> list[tuple[str, Path, tuple[float, ...]]]:
    """Class, file and box of every object that is large enough."""
    contents: dict[str, Any] = json.loads((coco / "annotations" / f"instances_{split}2017.json").read_text("utf-8"))
    names = {each["id"]: each["name"].replace(" ", "_") for each in contents["categories"]}
    files = {each["id"]: coco / f"{split}2017" / each["file_name"] for each in contents["images"]}
    return [
        (names[each["category_id"]], files[each["image_id"]], tuple(each["bbox"]))
        for each in contents["annotations"]
        if min(each["bbox"][2:]) >= SMALLEST and not each.get("iscrowd")
    ]


def write_set(coco: Path, out: Path) -> dict[str, int]:
    """Write OUT/train and OUT/test with a folder for each class, and return how many images each has."""
    import tifffile

    splits = {"train": objects(coco, "train"), "test": objects(coco, "val")}
    counts = [Counter(name for name, _, _ in each) for each in splits.values()]
    classes = sorted(name for name in counts[0] if min(each[name] for each in counts) >= EACH)
    written = dict.fromkeys(splits, 0)
    for split, found in splits.items():
        for number, (name, file, (left, top, width, height)) in enumerate(found):
            if name in classes:
                square = Image.open(file).convert("RGB").crop((left, top, left + width, top + height))
                place = out / split / name / f"{number:04}.tif"
                place.parent.mkdir(parents=True, exist_ok=True)
                bands = in_bands(square.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
                tifffile.imwrite(place, bands, photometric="minisblack", planarconfig="contig")
                written[split] += 1
    print(f"{written['train']} train and {written['test']} test images of {len(classes)} classes: {', '.join(classes)}")
    return written


def evaluated(run: Path, data: Path, what: str, **options: Any) -> None:
    """Print k-NN accuracy of a run."""
    result = excb.evaluate(run, "knn", data=str(data), k=[20], workers=0, quiet=True, **options)
    low, high = result.record.intervals["knn_top1_k20"]
    references = {name: round(figures["knn_top1_k20"], 1) for name, figures in result.record.references.items()}
    print(
        f"{what}: k-NN top-1 {result.figures['knn_top1_k20']:.1f} ({low:.1f} to {high:.1f}), {references}", flush=True
    )


def exported(run: Path, data: Path, out: Path) -> None:
    """Export a run for ONNX, and print how far its features are from the run's own."""
    file = export(str(run), out / "network.onnx", format="onnx")
    if importlib.util.find_spec("onnxruntime") is None:
        print("exported; onnxruntime is not installed, so features are not compared")
        return
    runtime: Any = __import__("onnxruntime")
    backbone, files = excb.load(run), sorted((data / "test").rglob("*.tif"))[:16]
    inputs = torch.stack([backbone.transform(each) for each in files])
    (rows,) = runtime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"images": inputs.numpy()})
    ours = backbone.embed(files)
    apart = float(((torch.from_numpy(rows) - ours).norm(dim=1) / ours.norm(dim=1)).max())
    print(f"ONNX: inputs {list(inputs.shape)}, features at most {apart:.1e} from the network's")


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("coco", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=30, help="of either run")
    options = parser.parse_args()
    data, out = options.out / "bands", options.out
    images = write_set(options.coco, data)
    shared: dict[str, Any] = {
        "efficiency": {"workers": 0, "device": "cpu"},
        "monitor": {"every_epochs": options.epochs},
    }
    for name, init in (("photos_small", None), ("adapt", "conv4_photos")):
        began, optim = time.perf_counter(), {"epochs": options.epochs, "batch": 64}
        method = {"kmeans_samples": images["train"] // 64 * 64}
        excb.train(name, init=init, data=str(data / "train"), out=out / name, optim=optim, method=method, **shared)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        evaluated(out / name, data, name, untrained=True, pixels=True)
        vectors = excb.embed(out / name, str(data / "test"), workers=0, quiet=True)
        pixels = vectors.model["preprocessing"]["pixels"]
        print(f"{name}: {len(vectors)} vectors of {vectors.vectors.shape[1]} numbers, {pixels}")
        exported(out / name, data, out / name)


if __name__ == "__main__":
    main()
