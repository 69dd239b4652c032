"""The cost of the checks of files: processor time of reading sound files by this package and by their libraries alone.

Run: python -m benchmarks.door DIR [--rounds 7]     writes the files to DIR, and keeps them there

Both read a file once in every round, in turn, to arrays or values that may be changed. Time counts in this process and
in its children.
"""

import argparse
import csv
import gc
import io
import json
import pickle
import statistics
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from PIL import Image
from pyarrow import parquet
from safetensors import safe_open
from safetensors.torch import load_file
from torchvision.models import resnet50

import excb
from benchmarks.reads import IMAGES, LABELS, PATHS, WIDTH, T, processor_seconds, ratio, write_files
from excb.checkpoint import untrusted as checkpoints
from excb.checkpoint.run_checkpoint import read_run_checkpoint, write_run_checkpoint
from excb.checkpoint.untrusted import read_untrusted
from excb.files import json_text, toml
from excb.files.csv_text import read_listing, read_rows
from excb.files.foreign import read_bytes
from excb.files.parquet import read_parquet
from excb.images.decoding import open_image
from excb.transfer.embeddings.table.vectors import ArrayRows
from excb.transfer.instances.layouts.plain_pickle import read_pickle


class Case(NamedTuple):
    """A kind of file, and two ways to read it."""

    name: str
    file: Path
    plain: Callable[[Path], Any]
    ours: Callable[[Path], Any]
    times: int = 1  # that it is read in a round


def main() -> None:
    """Measure every kind of file, and print a row for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=7, choices=sorted(T))
    args = parser.parse_args()
    write_files(args.folder)
    gc.disable()  # it comes at any time
    for case in cases(args.folder):
        seconds = list[tuple[float, float]]()
        for turn in range(args.rounds + 1):  # the first one also imports
            pair = (spent(case.plain, case), spent(case.ours, case))
            if turn:
                seconds.append(pair)
        before, after = zip(*seconds, strict=True)
        plain, ours = (1e3 * statistics.mean(column) / case.times for column in (before, after))
        size = case.file.stat().st_size / 1e6
        print(
            f"| {case.name} | {size:,.2f} MB | {plain:,.1f} ms | {ours:,.1f} ms | {ratio(before, after)} |", flush=True
        )


def spent(read: Callable[[Path], Any], case: Case) -> float:
    """Processor time of reading a file."""
    gc.collect()
    before = processor_seconds()
    for _ in range(case.times):
        read(case.file)
    return processor_seconds() - before


def cases(folder: Path) -> list[Case]:
    """All kinds, with their files; those that the package writes are written here."""
    random = np.random.default_rng(0)
    rows = ArrayRows(random.standard_normal((IMAGES, WIDTH)).astype(np.float32))
    made = excb.Embeddings(rows, PATHS, "photos", {"name": "some"}, labels=LABELS)
    for ending in ("npz", "parquet", "safetensors"):
        made.save(folder / f"e.{ending}", overwrite=True)
    write_run_checkpoint({"model": resnet50().state_dict(), "step": 1}, folder / "step-1.pt")
    boxes = [{"id": n, "image_id": n % 999, "bbox": random.random(4).tolist(), "area": n / 7} for n in range(100_000)]
    (folder / "a.json").write_text(json.dumps({"annotations": boxes}), encoding="utf-8")
    return [
        Case("embeddings `.npz`", folder / "e.npz", plain_npz, embeddings),
        Case("embeddings `.parquet`", folder / "e.parquet", plain_parquet, embeddings),
        Case("embeddings `.safetensors`", folder / "e.safetensors", plain_safetensors, embeddings),
        Case("table of labels `.parquet`", folder / "l.parquet", parquet.read_table, read_parquet),
        Case("table of labels `.csv`", folder / "l.csv", plain_csv, table_rows),
        Case("checkpoint `.pth`", folder / "w.pth", plain_torch, untrusted),
        Case("`excb.load` of it; the same without checks", folder / "w.pth", load_unchecked, excb.load),
        Case("checkpoint `.safetensors`", folder / "w.safetensors", plain_load_file, untrusted),
        Case("checkpoint of a run", folder / "step-1.pt", plain_run, read_run_checkpoint),
        Case("annotations", folder / "a.json", plain_json, parsed),
        Case("sets in TOML", folder / "s.toml", lambda file: tomllib.loads(file.read_text()), toml.read_toml, 20),
        Case("ground truth of ROxford", folder / "g.pkl", plain_pickle, read_pickle, 20),
        Case("JPEG, 512 x 384", folder / "i.jpg", plain_image, open_image, 50),
        Case("PNG, 512 x 384", folder / "i.png", plain_image, open_image, 50),
    ]


def table_rows(file: Path) -> Any:
    """By this package."""
    return read_rows(io.StringIO(read_listing(file), newline=""))


def untrusted(file: Path) -> Any:
    """By this package."""
    return copied(read_untrusted(file))


def parsed(file: Path) -> Any:
    """By this package."""
    return json_text.parse(read_bytes(file), bounded=False)


def plain_pickle(file: Path) -> Any:
    """By Python, which would run code."""
    return pickle.loads(file.read_bytes())  # noqa: S301 - written here


def embeddings(file: Path) -> Any:
    """By this package."""
    made = excb.Embeddings.load(file)
    return made.vectors, list(made.paths), made.labels


def plain_npz(file: Path) -> Any:
    """By NumPy, which compares the checksums of zip."""
    with np.load(file) as arrays:
        return arrays["vectors"], arrays["paths"].tolist(), arrays["labels"].tolist()


def plain_parquet(file: Path) -> Any:
    """By pyarrow."""
    table = parquet.read_table(file)
    vectors = table.column("vector").combine_chunks().flatten().to_numpy()
    return vectors, table.column("path").to_pylist(), table.column("label").to_pylist()


def plain_safetensors(file: Path) -> Any:
    """By safetensors."""
    with safe_open(file, framework="np") as opened:
        vectors = opened.get_tensor("vectors")
        texts = [opened.get_tensor(name).tobytes().decode().split("\0") for name in ("paths", "labels")]
    return vectors, *texts


def plain_csv(file: Path) -> Any:
    """By Python."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.reader(stream))


def plain_json(file: Path) -> Any:
    """By Python."""
    return json.loads(file.read_bytes())


def copied(tensors: dict[str, torch.Tensor]) -> Any:
    """Copies, as a network's `load_state_dict` makes them: mapped files are read only then."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def load_unchecked(file: Path) -> Any:
    """By this package, but for the checks of a zip archive of torch."""
    with mock.patch.object(checkpoints, "_check_archive"):
        return excb.load(file)


def plain_torch(file: Path) -> Any:
    """By torch, mapped."""
    return copied(torch.load(file, weights_only=True, mmap=True))


def plain_run(file: Path) -> Any:
    """By torch, read."""
    return torch.load(file, weights_only=True)


def plain_load_file(file: Path) -> Any:
    """By safetensors."""
    return copied(load_file(file))


def plain_image(file: Path) -> Any:
    """By Pillow."""
    with Image.open(file) as image:
        return image.convert("RGB")


if __name__ == "__main__":
    main()
