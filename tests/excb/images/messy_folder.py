"""A folder as people have them: images of every format, and files of every other kind."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

PICTURE = Image.fromarray(np.arange(40 * 50 * 3, dtype=np.uint32).astype(np.uint8).reshape(40, 50, 3))
# By extension, with the format that Pillow writes.
FORMATS = {
    ".jpg": "JPEG", ".JPEG": "JPEG", ".jpe": "JPEG", ".jfif": "JPEG", ".png": "PNG", ".apng": "PNG", ".webp": "WEBP",
    ".bmp": "BMP", ".dib": "DIB", ".gif": "GIF", ".tif": "TIFF", ".TIFF": "TIFF", ".ppm": "PPM", ".pnm": "PPM",
    ".jp2": "JPEG2000", ".j2k": "JPEG2000", ".avif": "AVIF", ".tga": "TGA", ".qoi": "QOI", ".pcx": "PCX",
    ".sgi": "SGI", ".ico": "ICO",
}  # fmt: skip
OTHERS = (
    *(
        "notes.txt",
        "labels.csv",
        "labels.json",
        "boxes.xml",
        "LICENSE",
        "README.md",
        "clip.mp4",
        "clip.MOV",
        "clip.avi",
    ),
    *("sound.wav", "paper.pdf", "drawing.svg", "drawing.eps", "weights.pth", "table.parquet", "old.zip", "old.tar.gz"),
    *("half.jpg.part", "IMG_1.AAE", "IMG_1.xmp", "Thumbs.db", "desktop.lnk", "noise.dat", "empty"),
)


def write_messy_folder(root: Path) -> set[str]:
    """Write about 60 files and links below two class folders; the paths of those that Pillow opens alone."""
    images = set[str]()
    for number, (extension, form) in enumerate(FORMATS.items()):
        images.add(_write(root, f"{'ab'[number % 2]}/{number}{extension}", form))
    images.add(_write(root, "a/lies.jpg", "PNG"))  # its extension lies
    images.add(_write(root, "a/without", "JPEG"))
    images.add(_write(root, "a/strange.dat", "WEBP"))
    images.add(_write(root, "b/phone.scan", "TIFF"))
    for name in OTHERS:
        (root / "b" / name).write_bytes(json.dumps(name).encode() if name != "empty" else b"")
    np.save(root / "b" / "features.npy", np.zeros((4, 8), np.float32))
    for name in ("a/._0.jpg", "a/.DS_Store", "b/.thumbs/0.jpg"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"hidden")
    for name in ("a/1.heic", "a/2.HEIF", "a/3.jxl", "b/4.nef", "b/5.CR2", "b/6.dng"):
        (root / name).write_bytes(b"needs an extra")
    (root / "a" / "up").symlink_to("..")
    (root / "a" / "again").symlink_to("../b")
    return images


def everything(root: Path) -> int:
    """Files and links below a folder; a hidden folder is one."""
    count = 0
    for entry in root.iterdir():
        inside = entry.is_dir() and not entry.is_symlink() and not entry.name.startswith(".")
        count += everything(entry) if inside else 1
    return count


def _write(root: Path, path: str, form: str) -> str:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    PICTURE.save(root / path, form)
    return path
