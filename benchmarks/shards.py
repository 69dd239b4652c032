"""Tar shards against the same images as files: time to index and to open them, and reading speed.

Run: python benchmarks/shards.py [--images 100000] [--shards 100] [--side 16] [--workers 0] [--folder DIR]
     python benchmarks/shards.py --read 20000        the last part on this many of the images

The images are tiny JPEGs, so that costs other than decoding show. "Start" is a new Python process that opens
the set with the index in the cache. An epoch decodes every image once in random order, in this process or in workers.
Memory at its start, middle and end is private to this process or to its workers. It grows where workers copy pages that
they shared with this process, such as those of lists of texts.
"""

import argparse
import io
import multiprocessing
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from excb.images import jpeg
from excb.images.image_set import CodedImages
from excb.images.scanning import scan_folder
from excb.images.shards import open_shards

START = """
import sys, time
start = time.perf_counter()
from excb.images.shards import open_shards
loaded = time.perf_counter()
images = open_shards(sys.argv[1])
images.fingerprint
print(time.perf_counter() - loaded, time.perf_counter() - start)
"""


class Pixels(Dataset[int]):
    """Decodes the images of a set in random order."""

    def __init__(self, images: CodedImages, count: int) -> None:
        self._images, self._order = images, np.random.default_rng(0).permutation(len(images))[:count]

    def __len__(self) -> int:
        """Images that are read."""
        return len(self._order)

    def __getitem__(self, item: int) -> int:
        """Decode one."""
        pixels = jpeg.decode_jpeg(self._images.source(int(self._order[item])))
        assert pixels is not None
        return int(pixels.size)


def write(folder: Path, shards: Path, *, images: int, count: int, side: int) -> None:
    """The same images as files in class folders and as shards in WebDataset's layout."""
    random = np.random.default_rng(0)
    coded = []
    for _ in range(64):
        stream = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(stream, "JPEG")
        coded.append(stream.getvalue())
    for label in range(100):
        (folder / f"{label:02}").mkdir(parents=True)
    shards.mkdir()
    for number, keys in enumerate(np.array_split(np.arange(images), count)):
        with tarfile.open(shards / f"{number:05}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for key in keys.tolist():
                content = coded[key % len(coded)]
                (folder / f"{key % 100:02}" / f"{key:08}.jpg").write_bytes(content)
                for name, data in ((f"{key:08}.jpg", content), (f"{key:08}.cls", str(key % 100).encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))


def private() -> float:
    """Memory of the worker processes, or of this one where there are none, that no other process shares, MiB."""
    total = 0
    for process in [str(child.pid) for child in multiprocessing.active_children()] or ["self"]:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return total / 1024


def timed(what: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of this process's processor time."""
    clock, processor = time.perf_counter(), time.process_time()
    what()
    return time.perf_counter() - clock, time.process_time() - processor


def epoch(name: str, images: CodedImages, count: int, workers: int) -> float:
    """Read images once; the time that counts: this process's processor seconds, or the clock's where workers read."""
    pixels = Pixels(images, count)
    batches = DataLoader(pixels, batch_size=250, num_workers=workers)
    memory: list[float] = []

    def read() -> None:
        for number, _ in enumerate(batches):
            if number in (len(batches) // 10, len(batches) // 2, len(batches) - 9):
                memory.append(private())

    clock, processor = timed(read)
    seconds = clock if workers else processor
    sizes = ", ".join(f"{value:.1f}" for value in memory)
    print(f"{name}: {len(pixels) / clock:,.0f} images/s ({len(pixels) / seconds:,.0f} counted); {sizes} MiB")
    return seconds


def main() -> None:
    """Print what each step takes."""
    parser = argparse.ArgumentParser(description="tar shards against files")
    for name, default in (
        ("images", 100_000),
        ("shards", 100),
        ("side", 16),
        ("workers", 0),
        ("read", 0),
        ("turns", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, help="where to write (default: the folder for temporary files)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder, shards = Path(name) / "files", Path(name) / "shards"
        os.environ["EXCB_CACHE"] = f"{name}/cache"
        write(folder, shards, images=args.images, count=args.shards, side=args.side)
        clock, processor = timed(lambda: open_shards(str(shards)))
        print(f"indexing {args.images:,} images in {args.shards} shards: {clock:.2f} s ({processor:.2f} s processor)")
        size = sum(file.stat().st_size for file in Path(name, "cache").rglob("*.npz"))
        print(f"index: {size / 2**20:.2f} MiB, {size / args.images:.1f} bytes per image")
        command = [sys.executable, "-c", START, str(shards)]
        alone, total = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        print(f"start with the index: {float(alone):.2f} s, {float(total):.2f} s with imports")
        clock, processor = timed(lambda: scan_folder(folder).fingerprint)
        print(f"the same as files, scanned at every start: {clock:.2f} s ({processor:.2f} s processor)")
        sets: dict[str, CodedImages] = {"files": scan_folder(folder), "shards": open_shards(str(shards))}
        best: dict[str, float] = {}
        for _ in range(args.turns):
            for kind, images in sets.items():
                seconds = epoch(kind, images, args.read or args.images, args.workers)
                best[kind] = min(best.get(kind, seconds), seconds)
        print(f"shards are read {best['files'] / best['shards']:.2f} times as fast as files")


if __name__ == "__main__":
    main()
