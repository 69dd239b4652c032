"""Reading users' files before and after a change: the same calls of this package by two checkouts of it.

Run: python -m benchmarks.reads DIR --before CHECKOUT [--rounds 10]     writes the files to DIR, and keeps them there

Each checkout reads in a process of its own, in turn. Files that the package itself writes are written by each checkout,
all others by their libraries. Processor time counts, in the process and in its children.
"""

import argparse
import gc
import json
import math
import os
import pickle
import resource
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

IMAGES, WIDTH = 50_000, 768
PATHS = [f"class{number % 100}/{number:07}.jpg" for number in range(IMAGES)]
LABELS = [path.partition("/")[0] for path in PATHS]
T = {5: 2.776, 7: 2.447, 10: 2.262, 15: 2.145, 20: 2.093}  # of Student's distribution, by the number of rounds
NAMES = ("e.npz", "e.parquet", "e.safetensors", "step-1.pt")  # of files that the package writes


def main() -> None:
    """Measure all reads in turn, and print a row for each; as a child, read once with one checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="a checkout of an older state")
    parser.add_argument("--rounds", type=int, default=10, choices=sorted(T))
    parser.add_argument("--coco", type=Path, metavar="DIR", help="annotations/ and train2017/ of a set like COCO")
    parser.add_argument("--only", default="", metavar="TEXT", help="reads whose name has it")
    parser.add_argument("--own", type=Path, metavar="DIR", help="for a child: where its own files are")
    args = parser.parse_args()
    if args.own is not None:
        print(json.dumps(read_all(args.folder, args.own, args.coco, args.only)))
        return
    if args.before is None:
        parser.error("name the other checkout with --before")
    write_files(args.folder)
    checkouts = {"before": args.before.resolve(), "after": Path(__file__).resolve().parents[1]}
    rounds = [{name: child(args, name, checkout) for name, checkout in checkouts.items()} for _ in range(args.rounds)]
    for read in rounds[0]["after"]:
        before, after = ([each[name][read] for each in rounds] for name in checkouts)
        means = f"{statistics.mean(before):,.1f} ms | {statistics.mean(after):,.1f} ms"
        print(f"| {read} | {means} | {ratio(before, after)} |")


def ratio(before: Sequence[float], after: Sequence[float]) -> str:
    """The mean of ratios, as many as rounds, and its 95 % interval."""
    logarithms = [math.log(new / old) for old, new in zip(before, after, strict=True)]
    mean = statistics.mean(logarithms)
    half = T[len(logarithms)] * statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    return f"{math.exp(mean):.2f} ({math.exp(mean - half):.2f} to {math.exp(mean + half):.2f})"


def child(args: argparse.Namespace, name: str, checkout: Path) -> dict[str, float]:
    """Milliseconds of every read by one checkout."""
    words = [args.folder.resolve(), "--own", args.folder.resolve() / name, f"--only={args.only}"]
    words += ["--coco", args.coco.resolve()] if args.coco else []
    command = [sys.executable, __file__, *map(str, words)]
    ended = subprocess.run(command, cwd=checkout, env=os.environ | {"PYTHONPATH": str(checkout)}, stdout=-1, check=True)
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


def write_files(folder: Path) -> None:
    """Write files as their libraries do."""
    import pyarrow
    import torch
    from PIL import Image
    from pyarrow import parquet
    from safetensors.torch import save_file
    from torchvision.models import resnet50

    folder.mkdir(parents=True, exist_ok=True)
    random, weights = np.random.default_rng(0), resnet50().state_dict()
    torch.save(weights, folder / "w.pth")
    save_file(weights, folder / "w.safetensors")
    parquet.write_table(pyarrow.table({"path": PATHS, "label": LABELS}), folder / "l.parquet")
    lines = "".join(f"{path},{label}\n" for path, label in zip(PATHS, LABELS, strict=True))
    (folder / "l.csv").write_text(f"path,label\n{lines}", encoding="utf-8")
    tables = "".join(f'[[set]]\nname = "set{n}"\ndata = "data/{n}"\n\n' for n in range(200))
    (folder / "s.toml").write_text(tables, encoding="utf-8")
    truth = [{"bbx": [1.0, 2.0, 3.0, 4.0]} | {n: random.integers(0, 5000, 80) for n in ("easy", "hard", "junk")}] * 70
    names = {"imlist": [f"all_souls_{n:06}" for n in range(5000)], "qimlist": [f"q_{n}" for n in range(70)]}
    (folder / "g.pkl").write_bytes(pickle.dumps(names | {"gnd": truth}, protocol=2))
    noise = np.kron(random.integers(0, 256, (48, 64, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    for ending in ("jpg", "png"):
        Image.fromarray(noise).save(folder / f"i.{ending}")


def read_all(folder: Path, own: Path, coco: Path | None, only: str) -> dict[str, float]:
    """Milliseconds of every read by the checkout that Python finds."""
    import torch

    torch.set_num_threads(1)
    write_own(own)
    gc.disable()  # it comes at any time
    found = reads(folder, own, coco)
    return {name: milliseconds(*found[name]) for name in found if only in name}


def write_own(own: Path) -> None:
    """Files as this checkout writes them."""
    if all((own / name).exists() for name in NAMES):
        return
    from torchvision.models import resnet50

    import excb
    from excb.checkpoint.run_checkpoint import write_run_checkpoint
    from excb.transfer.embeddings.table.vectors import ArrayRows

    own.mkdir(exist_ok=True)
    rows = ArrayRows(np.random.default_rng(0).standard_normal((IMAGES, WIDTH)).astype(np.float32))
    made = excb.Embeddings(rows, PATHS, "photos", {"name": "some"}, labels=LABELS)
    for name in NAMES[:3]:
        made.save(own / name)
    write_run_checkpoint({"model": resnet50().state_dict(), "step": 1}, own / NAMES[3])


def reads(folder: Path, own: Path, coco: Path | None) -> dict[str, tuple[Callable[[], Any], int]]:
    """The reads that are timed, and how often each is repeated."""
    import excb
    from excb.checkpoint.run_checkpoint import read_run_checkpoint
    from excb.files import toml
    from excb.images.decoding import open_image
    from excb.transfer.coco.reading import read_coco
    from excb.transfer.instances.layouts.plain_pickle import read_pickle
    from excb.transfer.map.columns import read_columns

    def embeddings(name: str) -> Any:
        made = excb.Embeddings.load(own / name)
        return np.array(made.vectors), list(made.paths), made.labels

    def sets() -> Any:  # before there was a function for it
        file = folder / "s.toml"
        return toml.read_toml(file) if hasattr(toml, "read_toml") else tomllib.loads(file.read_text(encoding="utf-8"))

    found: dict[str, tuple[Callable[[], Any], int]] = {
        "embeddings `.npz`": (lambda: embeddings(NAMES[0]), 3),
        "embeddings `.parquet`": (lambda: embeddings(NAMES[1]), 2),
        "embeddings `.safetensors`": (lambda: embeddings(NAMES[2]), 3),
        "table of labels `.parquet`": (lambda: read_columns(folder / "l.parquet", PATHS, "photos"), 2),
        "table of labels `.csv`": (lambda: read_columns(folder / "l.csv", PATHS, "photos"), 2),
        "`excb.load` of `.pth`": (lambda: excb.load(str(folder / "w.pth")), 4),
        "`excb.load` of `.safetensors`": (lambda: excb.load(str(folder / "w.safetensors")), 4),
        "checkpoint of a run": (lambda: read_run_checkpoint(own / NAMES[3]), 6),
        "sets in TOML": (sets, 20),
        "ground truth of ROxford": (lambda: read_pickle(folder / "g.pkl"), 20),
        "JPEG, 512 x 384": (lambda: open_image(folder / "i.jpg"), 200),
        "PNG, 512 x 384": (lambda: open_image(folder / "i.png"), 200),
    }
    if coco is not None:
        file = coco / "annotations" / "instances_train2017.json"
        found["annotations, with their folder"] = (lambda: read_coco(file, coco / "train2017"), 5)
    return found


def milliseconds(read: Callable[[], Any], times: int) -> float:
    """Processor time of a read; the first one, which also imports, apart."""
    read()
    gc.collect()
    before = processor_seconds()
    for _ in range(times):
        read()
    return (processor_seconds() - before) / times * 1e3


def processor_seconds() -> float:
    """Of this process and its children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)


if __name__ == "__main__":
    main()
