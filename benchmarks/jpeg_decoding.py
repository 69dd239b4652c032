"""Images/s that one thread decodes from JPEGs to arrays: simplejpeg, torchvision and Pillow; and nvJPEG's on a GPU.

Run: python -m benchmarks.jpeg_decoding [--data FOLDER] [--images 100] [--turns 15]
     python -m benchmarks.jpeg_decoding --before COPY --data FOLDER
     python -m benchmarks.jpeg_decoding --device cuda --data FOLDER --images 1024 --turns 5 [--json FILE]

Files are read into memory first; without --data they are the photographs of `input_pipeline.py`, 500 x 375. Decoders
take turns at all images, and the least processor time of each image counts, because others may use the machine. Each
time includes what pretraining does before it decodes: Pillow reads the header and EXIF. It fails where pixels differ.

With --before, images are read as training and as evaluation read them, by this version and by another, installed with
`pip install --no-deps --target COPY`. Both are in one process and take turns at each image.

With --device cuda all images also pass through nvJPEG (torchvision's `decode_jpeg`) in batches, by the clock. Its
pixels are compared with the others' and may differ: pretraining uses nvJPEG only with `efficiency.decoder=nvjpeg`.
"""

import argparse
import importlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from benchmarks.input_pipeline import write_photographs
from excb.errors import require
from excb.files.atomic import write_text
from excb.images import jpeg
from excb.images.decoding import open_image
from excb.images.scanning import scan_folder

BATCH = 64  # images that nvJPEG decodes at once


def decoded(coded: bytes, decoder: jpeg.Decoder) -> np.ndarray:
    """Pixels as pretraining gets them: by the decoder, or else by Pillow."""
    array = jpeg.decode_jpeg(io.BytesIO(coded), decoder)
    return np.asarray(open_image(io.BytesIO(coded))) if array is None else array


def readers(copy: Path | None, folder: Path) -> dict[str, Callable[[int], object]]:
    """How training and evaluation read a folder's image by number, in this version or in a copy of another."""
    mine = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "excb"}
    if copy is not None:
        for name in mine:
            del sys.modules[name]
        sys.path.insert(0, str(copy.resolve()))
    decoding, scanning = (importlib.import_module(f"excb.images.{name}") for name in ("jpeg", "scanning"))
    if copy is not None:
        sys.path.pop(0)
        require(Path(decoding.__file__ or "").is_relative_to(copy.resolve()), f"{copy} has no copy of excb")
        for name in [name for name in sys.modules if name.partition(".")[0] == "excb"]:
            del sys.modules[name]
        sys.modules.update(mine)
    images = scanning.scan_folder(folder)
    return {"training": lambda index: decoding.decode_jpeg(images.file(index)), "evaluation": images.open}


def beside(copy: Path, folder: Path, count: int, turns: int) -> None:
    """Print the time of reading an image, here and in a copy of another version, and their ratio."""
    sides, random = (readers(copy, folder), readers(None, folder)), np.random.default_rng(0)
    for use in sides[0]:
        seconds = np.full((2, count), np.inf)
        for _ in range(turns):
            for index in range(count):
                for side in random.permutation(2):
                    start = time.perf_counter()
                    sides[side][use](index)
                    seconds[side, index] = min(seconds[side, index], time.perf_counter() - start)
        before, now = 1000 * seconds.mean(1)
        print(f"{use:12} {now:6.3f} ms  before {before:6.3f} ms  ratio {now / before:.2f}")


def by_device(files: list[bytes], expected: list[np.ndarray], device: torch.device, turns: int) -> dict[str, Any]:
    """Time of torchvision's decoder for a device, in batches, and how far its pixels are from the expected ones."""
    coded = [torch.from_numpy(np.frombuffer(file, np.uint8).copy()) for file in files]
    seconds, images = np.inf, list[Tensor]()
    for _ in range(turns):
        start = time.perf_counter()
        images = []
        for first in range(0, len(coded), BATCH):
            images += decode_jpeg(coded[first : first + BATCH], ImageReadMode.RGB, device=str(device))
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = min(seconds, time.perf_counter() - start)
    apart = [
        np.abs(image.permute(1, 2, 0).cpu().numpy().astype(np.int16) - array)
        for image, array in zip(images, expected, strict=True)
    ]
    return {
        "device": device.type,
        "milliseconds": round(1000 * seconds / len(files), 4),
        "equal_images": sum(int(each.max() == 0) for each in apart),
        "largest_difference": max(int(each.max()) for each in apart),
        "mean_difference": round(float(np.mean([each.mean() for each in apart])), 4),
    }


def main() -> None:
    """Print images/s of every decoder."""
    parser = argparse.ArgumentParser(description="decoders of JPEGs")
    parser.add_argument("--data", type=Path, help="folder of JPEGs")
    parser.add_argument("--images", type=int, default=100, help="of the folder, evenly spaced")
    parser.add_argument("--turns", type=int, default=15, help="times that each image is decoded")
    parser.add_argument("--before", type=Path, metavar="COPY", help="time reading beside another version's copy")
    parser.add_argument("--device", type=torch.device, help="also decode in batches on this device: cuda is nvJPEG")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.before:
        beside(args.before, args.data, min(args.images, len(scan_folder(args.data))), args.turns)
        return
    jpeg.require_installed("simplejpeg")
    with tempfile.TemporaryDirectory() as name:
        images = scan_folder(args.data) if args.data else write_photographs(Path(name), quality=95, large=False)
        indices = np.linspace(0, len(images) - 1, min(args.images, len(images))).astype(int)
        files = [(images.root / images.paths[index]).read_bytes() for index in indices]
    decoders = [decoder for decoder in get_args(jpeg.Decoder) if decoder != "auto"]
    expected = [decoded(coded, "pillow") for coded in files]
    seconds = np.full((len(decoders), len(files)), np.inf)
    for _ in range(args.turns):
        for row, decoder in enumerate(decoders):
            for column, coded in enumerate(files):
                start = time.process_time()
                array = decoded(coded, decoder)
                seconds[row, column] = min(seconds[row, column], time.process_time() - start)
                assert np.array_equal(array, expected[column])
    height, width = np.median([array.shape[:2] for array in expected], axis=0)
    print(f"{len(files)} images, median {width:.0f} x {height:.0f}")
    for row, decoder in enumerate(decoders):
        mean = seconds[row].mean()
        ratio = seconds[decoders.index("torchvision")].mean() / mean
        print(f"{decoder:12} {1000 * mean:6.3f} ms  {1 / mean:7,.0f} images/s  {ratio:.2f} x torchvision")
    figures: dict[str, Any] = {
        "images": len(files),
        "milliseconds": {name: round(1000 * float(row.mean()), 4) for name, row in zip(decoders, seconds, strict=True)},
    }
    if args.device is not None:
        figures["batched"] = batched = by_device(files, expected, args.device, args.turns)
        print(f"{args.device.type:12} {batched['milliseconds']:6.3f} ms  in batches of {BATCH}; {batched}")
    if args.json:
        write_text(json.dumps(figures, indent=1) + "\n", args.json)


if __name__ == "__main__":
    main()
