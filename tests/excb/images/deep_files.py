"""Files of images of any depth, and colour profiles, for tests."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from PIL import Image

# sRGB's primaries in the profile connection space (D50), as every sRGB profile has them.
RED, GREEN, BLUE = (0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.71410)
WHITE = (0.9642, 1.0, 0.8249)


def write(file: Path, values: np.ndarray, **options: Any) -> Path:
    """Write stored values [H, W] or [H, W, 3] as a PNG (8 or 16 bits of grey), a TIFF or a .npy, by the file's name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".npy":
        np.save(file, values)
    elif file.suffix == ".png":
        Image.fromarray(values).save(file, **options)
    else:
        tifffile.imwrite(file, values, **options)
    return file


def ramp(low: float, high: float, kind: type, side: int = 16) -> np.ndarray:
    """Values that rise evenly from `low` to `high`, [side, side]."""
    return np.linspace(low, high, side * side).reshape(side, side).astype(kind)


def linear_profile(*primaries: tuple[float, float, float]) -> bytes:
    """A profile of three primaries, or of greys, whose values are in proportion to light (ICC.1:2001-04)."""

    def fixed(values: tuple[float, ...]) -> bytes:
        return b"".join(struct.pack(">i", round(value * 65536)) for value in values)

    curve = b"curv\0\0\0\0" + struct.pack(">I", 0)  # the identity
    names = (b"rXYZ", b"gXYZ", b"bXYZ", b"rTRC", b"gTRC", b"bTRC") if primaries else (b"kTRC",)
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", 5) + b"test\0" + b"\0" * 79,
        b"cprt": b"text\0\0\0\0none\0",
        b"wtpt": b"XYZ \0\0\0\0" + fixed(WHITE),
        **dict.fromkeys(names, curve),
        **{name: b"XYZ \0\0\0\0" + fixed(xyz) for name, xyz in zip(names, primaries, strict=False)},
    }
    start, table, body = 132 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        table += name + struct.pack(">II", start + len(body), len(data))
        body += data + b"\0" * (-len(data) % 4)
    size = start + len(body)
    header = (
        struct.pack(">I4sI4s4s4s", size, b"", 0x02400000, b"mntr", b"RGB " if primaries else b"GRAY", b"XYZ ")
        + b"\0" * 12
        + b"acsp"
    )
    return header.ljust(68, b"\0") + fixed(WHITE).ljust(60, b"\0") + table + body


def encoded(light: np.ndarray) -> np.ndarray:
    """sRGB's values 0 to 255 of light 0 to 1 (IEC 61966-2-1)."""
    return 255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * np.maximum(light, 0) ** (1 / 2.4) - 0.055)
