"""MNIST's files with a few random images, as torchvision reads them: it does not compare hashes of these."""

from pathlib import Path

import numpy as np


def write_mnist(root: Path, *, train: int = 20, test: int = 4) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Write both splits below a folder of data sets; return pixels uint8 [N, 28, 28] and labels of train and test."""
    random, written = np.random.default_rng(0), dict[str, tuple[np.ndarray, np.ndarray]]()
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for split, name, count in (("train", "train", train), ("test", "t10k", test)):
        pixels = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = random.integers(0, 10, count).astype(np.uint8)
        for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
            (folder / f"{name}-{kind}-ubyte").write_bytes(head + values.tobytes())
        written[split] = pixels, labels
    return written
