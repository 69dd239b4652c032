"""Which files are images: by their extension, and where that says nothing by their first bytes."""

import os
from enum import Enum
from functools import cache

from PIL import Image

from excb.files import npy
from excb.files.bands import NPY
from excb.files.foreign import open_file
from excb.images.formats.plugins import HEIC, JXL, RAW, Extra

# What Pillow's decoders have been seen to raise for files with changed or missing bytes, and related errors.
DAMAGE = (*npy.DAMAGE, RuntimeError, Image.DecompressionBombError)

# What every Pillow opens; other extensions are asked of its registered plugins.
EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"),
    *(".jp2", ".avif"),
)
EXTRAS = (HEIC, RAW, JXL)

# Not opened although Pillow knows them: Ghostscript or Windows draws them, or nothing does.
_NOT_OPENED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "PDF", "WMF"}

# Files beside images that are never opened to look at their first bytes: a set may have one for each image.
_OTHER = (
    ".txt .json .jsonl .csv .tsv .xml .yaml .yml .toml .ini .cfg .md .rst .html .htm .css .js .log .py .ipynb .sh "
    ".cls .mp4 .mov .avi .mkv .webm .m4v .mpg .mpeg .wmv .3gp .mp3 .wav .flac .ogg .m4a .pdf .doc .docx .ppt .pptx "
    ".xls .xlsx .parquet .arrow .h5 .hdf5 .mat .npz .pt .pth .ckpt .safetensors .onnx .pkl .db .sqlite .bin .tar .zip "
    ".gz .tgz .bz2 .xz .7z .rar .zst .part .tmp .crdownload .lock .aae .xmp .thm .lrv .eps .ps .wmf .emf .svg"
)

HEAD = 32  # first bytes that tell
_SIGNATURES = (
    *(b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    *(b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51", b"8BPS\0\1", b"qoif"),
)
_JXL = (b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a")
_AVIF = (b"avif", b"avis")
_HEIF = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
_BITMAP_HEADERS = (12, 40, 52, 56, 64, 108, 124)  # bytes of BMP's second header


class Kind(Enum):
    """The kind of a file, by its extension or its first bytes."""

    IMAGE = "image"
    ARRAY = "array"  # an image where a folder holds no other
    OTHER = "no image"
    UNKNOWN = "unknown"  # the first bytes tell


def extension_of(name: str) -> str:
    """A file's extension in lower case with its dot; empty where it has none."""
    start, dot, end = name.rpartition(".")
    return f".{end.lower()}" if dot and start else ""


@cache
def kind_of_extension(extension: str) -> Kind | Extra:
    """The kind of files with an extension, or the extra that is missing here to open such images."""
    if extension in EXTENSIONS:
        return Kind.IMAGE
    if extension == NPY:
        return Kind.ARRAY
    if extension in _OTHER.split():
        return Kind.OTHER
    if (extra := next((extra for extra in EXTRAS if extension in extra.extensions), None)) is not None:
        return Kind.IMAGE if extra.register() else extra
    Image.init()
    name = Image.EXTENSION.get(extension)
    return Kind.IMAGE if name in Image.OPEN and name not in _NOT_OPENED else Kind.UNKNOWN


def kind_of_head(head: bytes) -> Kind | Extra:
    """The kind of a file by its first bytes: an image, another file, or the extra that is missing here to open it.

    Args:
        head: `HEAD` of them.
    """
    if head.startswith(_SIGNATURES) or _is_webp_or_bitmap(head) or (head[4:8] == b"ftyp" and head[8:12] in _AVIF):
        return Kind.IMAGE
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF:
        return Kind.IMAGE if HEIC.register() else HEIC
    if head.startswith(_JXL):
        return Kind.IMAGE if JXL.register() else JXL
    return Kind.OTHER


def _is_webp_or_bitmap(head: bytes) -> bool:
    return (head[:4] == b"RIFF" and head[8:12] == b"WEBP") or (
        head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BITMAP_HEADERS
    )


def kind_of_file(entry: "os.DirEntry[str]") -> Kind | Extra:
    """The kind of a file by its first bytes, which are read; a file that cannot be read is no image."""
    try:
        if not entry.is_file():  # reading a pipe would wait for a writer
            return Kind.OTHER
        with open_file(entry.path) as stream:
            return kind_of_head(stream.read(HEAD))
    except OSError:
        return Kind.OTHER
