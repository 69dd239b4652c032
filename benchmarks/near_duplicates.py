"""Planted copies among photographs: how many near-duplicates find, and how much of what they find is a copy.

python -m benchmarks.near_duplicates FOLDER --ckpt mobilenetv2 tiny_grocery --out near.json

Each seed draws images of the folder and writes one changed copy of each: JPEG at quality 60, a crop of 86 % of the
area, half the sides, mirrored, or other colours. A pair of images in one group is right if one is the planted copy of
the other; two different originals are wrong, also where they are nearly alike. `--imagededup` needs that package.
"""

import argparse
import importlib
import itertools
import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats

import excb
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.transfer.embeddings.embeddings import Embeddings

FIXED = 0.98  # a cosine that is no network's in particular
KINDS = ("JPEG", "crop", "half", "flip", "colour")
Pair = frozenset[str]


def changed(image: Image.Image, kind: str, random: np.random.Generator) -> Image.Image:
    """A copy of an image, changed in one way; JPEG is applied where it is written."""
    if kind == "crop":
        width, height = (round(side * math.sqrt(0.86)) for each in [image.size] for side in each)
        left, top = int(random.integers(image.width - width + 1)), int(random.integers(image.height - height + 1))
        return image.crop((left, top, left + width, top + height))
    if kind == "half":
        return image.resize((max(1, image.width // 2), max(1, image.height // 2)), Image.Resampling.LANCZOS)
    if kind == "flip":
        return ImageOps.mirror(image)
    if kind == "colour":
        image = ImageEnhance.Brightness(image).enhance(random.choice([0.88, 1.12]))
        return ImageEnhance.Color(image).enhance(random.choice([0.8, 1.2]))
    return image


def plant(images: ImageSet, folder: Path, count: int, seed: int) -> dict[str, tuple[str, str]]:
    """Write copies of some images into a folder; each copy's name with its original's path and its kind."""
    random = np.random.default_rng(seed)
    planted = {}
    for number, row in enumerate(random.choice(len(images), count, replace=False).tolist()):
        kind = KINDS[number % len(KINDS)]
        copy = changed(images.open(row), kind, random)
        name = f"{number:04}.jpg" if kind == "JPEG" else f"{number:04}.png"
        copy.save(folder / name, quality=60)  # which PNG has not
        planted[name] = images.paths[row], kind
    return planted


def score(pairs: Iterable[Pair], planted: Mapping[str, tuple[str, str]]) -> dict[str, float]:
    """Precision and recall in percent, also recall by kind; NaN precision where there is no pair."""
    right = {frozenset((name, original)): kind for name, (original, kind) in planted.items()}
    reported = set(pairs)
    hit = [kind for pair, kind in right.items() if pair in reported]
    kinds = list(right.values())
    by_kind = {f"recall {kind}": 100 * hit.count(kind) / kinds.count(kind) for kind in KINDS}
    precision = 100 * len(hit) / len(reported) if reported else math.nan
    return {"precision": precision, "recall": 100 * len(hit) / len(right), "pairs": len(reported)} | by_kind


def in_groups(groups: Iterable[Sequence[str]]) -> list[Pair]:
    """All pairs of images that share a group."""
    return [frozenset(pair) for group in groups for pair in itertools.combinations(group, 2)]


def imagededup_pairs(embeddings: Mapping[str, Embeddings], names: Mapping[str, str]) -> dict[str, list[Pair]]:
    """Pairs that imagededup reports at its defaults: PHash of files, and its CNN's cosine on our vectors."""
    methods: Any = importlib.import_module("imagededup.methods")
    model: Any = importlib.import_module("imagededup.utils").CustomModel

    hashing = methods.PHash(verbose=False)
    ckpt, made = next(iter(embeddings.items()))
    hashes = {names[path]: hashing.encode_image(image_file=made.files([path])[0]) for path in made.paths}
    hashes = {name: value for name, value in hashes.items() if value is not None}
    found = {"imagededup PHash": hashing.find_duplicates(encoding_map=hashes, num_dist_workers=0)}
    same = methods.CNN(verbose=False, model_config=model("vectors", torch.nn.Identity(), lambda image: image))
    vectors = dict(zip((names[path] for path in made.paths), made.vectors, strict=True))
    found[f"imagededup CNN, {ckpt}"] = same.find_duplicates(encoding_map=vectors, num_sim_workers=0)
    return {
        name: [frozenset((first, second)) for first, others in each.items() for second in others]
        for name, each in found.items()
    }


def one_seed(
    images: ImageSet, checkpoints: Sequence[str], count: int, seed: int, *, others: bool
) -> dict[str, dict[str, float]]:
    """The scores of every method on one draw of copies."""
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        planted = plant(images, Path(place), count, seed)
        every, names = dict[str, Embeddings](), dict[str, str]()
        for ckpt in checkpoints:
            made = excb.embed(ckpt, images, quiet=True, workers=0)
            copies = excb.embed(ckpt, place, quiet=True, workers=0, no_cache=True)
            every[ckpt] = both = Embeddings.concatenate([made, copies])
            names = dict(zip(both.paths, [*made.paths, *copies.paths], strict=True))
            near = both.near_duplicates(quiet=True)
            found = [[names[path] for path in group] for group in near]
            assert near.threshold is not None
            results[ckpt] = score(in_groups(found), planted) | {
                "cosine": near.cosine,
                "stated recall": near.threshold.found_percent,
                "stated alarms": 100 * near.threshold.alarms,
                "largest group": max(map(len, found), default=0),
            }
            groups = [[names[path] for path in group] for group in both.near_duplicates(FIXED)]
            results[f"{ckpt} at {FIXED}"] = score(in_groups(groups), planted)
        if others:
            reported = imagededup_pairs(every, names)
            results |= {name: score(pairs, planted) for name, pairs in reported.items()}
    return results


def summary(seeds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Mean and half of the 95 % interval (t) over seeds, by method and figure."""
    factor = stats.t.ppf(0.975, len(seeds) - 1) / math.sqrt(len(seeds)) if len(seeds) > 1 else math.nan
    return {
        method: {
            figure: [
                float(np.mean(values := [seed[method][figure] for seed in seeds])),
                float(factor * np.std(values, ddof=1)) if len(seeds) > 1 else math.nan,
            ]
            for figure in seeds[0][method]
        }
        for method in seeds[0]
    }


def main() -> None:
    """Measure, print a line for every method, and write the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ckpt", nargs="+", default=["tiny_grocery"])
    parser.add_argument("--copies", type=int, default=300)
    parser.add_argument("--most", type=int, help="images of the folder at most, drawn at random")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--imagededup", action="store_true", help="also measure imagededup, which must be installed")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    images = scan_folder(chosen.folder)
    if chosen.most is not None and chosen.most < len(images):
        rows = np.sort(np.random.default_rng(0).choice(len(images), chosen.most, replace=False))
        images = ImageSet(images.root, [images.paths[row] for row in rows.tolist()])
    runs = []
    for seed in chosen.seeds:
        runs.append(one_seed(images, chosen.ckpt, chosen.copies, seed, others=chosen.imagededup))
        print(seed, json.dumps(runs[-1]), flush=True)
    for method, figures in summary(runs).items():
        print(method, "; ".join(f"{name} {mean:.2f} ± {half:.2f}" for name, (mean, half) in figures.items()))
    if chosen.out is not None:
        chosen.out.write_text(json.dumps({"images": len(images), "seeds": runs}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
