"""Images/s that one thread decodes from JPEG files to arrays: simplejpeg, torchvision and Pillow.

Run: python -m benchmarks.jpeg_decoding [--data FOLDER] [--images 100] [--turns 15]

Files are read into memory first; without --data they are the photographs of `input_pipeline.py`, 500 x 375. Decoders
take turns at all images, and the least processor time of each image counts, because others may use the machine. Each
time includes what pretraining does before it decodes: Pillow reads the header and EXIF. It fails where pixels differ.
"""

import argparse
import io
import tempfile
import time
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from benchmarks.input_pipeline import write_photographs
from excb.images import jpeg
from excb.images.decoding import open_image
from excb.images.scanning import scan_folder


def decoded(coded: bytes, decoder: jpeg.Decoder) -> np.ndarray:
    """Pixels as pretraining gets them: by the decoder, or else by Pillow."""
    array = jpeg.pixels(io.BytesIO(coded), decoder)
    return np.asarray(open_image(io.BytesIO(coded))) if array is None else array


def main() -> None:
    """Print images/s of every decoder."""
    parser = argparse.ArgumentParser(description="decoders of JPEGs")
    parser.add_argument("--data", type=Path, help="folder of JPEGs")
    parser.add_argument("--images", type=int, default=100, help="of the folder, evenly spaced")
    parser.add_argument("--turns", type=int, default=15, help="times that each image is decoded")
    args = parser.parse_args()
    torch.set_num_threads(1)
    jpeg.require_installed("simplejpeg")
    with tempfile.TemporaryDirectory() as name:
        images = scan_folder(args.data) if args.data else write_photographs(Path(name), quality=95, large=False)
        chosen = np.linspace(0, len(images) - 1, min(args.images, len(images))).astype(int)
        files = [(images.root / images.paths[index]).read_bytes() for index in chosen]
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


if __name__ == "__main__":
    main()
