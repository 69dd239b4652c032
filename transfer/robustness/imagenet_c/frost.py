"""The five photographs of frost that ImageNet-C was made with, from the package that carries them."""

import hashlib
from functools import cache
from importlib import metadata

import numpy as np
from numpy.random import RandomState

from excb.errors import UserError

PACKAGE = "imagecorruptions-imaug"  # its module has another name, and is not imported
# SHA-256 of the files, in the order in which the authors draw them. Their sixth is never drawn: `randint(5)`.
PICTURES = {
    "frost1.png": "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
    "frost2.png": "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
    "frost3.png": "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
    "frost4.jpg": "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
    "frost5.jpg": "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
}


def cut_of_frost(height: int, width: int, draws: RandomState) -> np.ndarray:
    """A random cut of a random photograph, uint8 [height, width, 3].

    Raises:
        UserError: the photographs are not there, or all of them are smaller.
    """
    picture = photographs()[draws.randint(len(PICTURES))]
    room = picture.shape[0] - height, picture.shape[1] - width
    if min(room) <= 0:
        smallest = min(min(each.shape[:2]) for each in photographs())
        raise UserError(f"frost is defined below {smallest} pixels: --crop {max(height, width)} is larger")
    top, left = draws.randint(room[0]), draws.randint(room[1])
    return picture[top : top + height, left : left + width]


@cache
def photographs() -> tuple[np.ndarray, ...]:
    """The photographs, RGB uint8 [H, W, 3] each.

    Raises:
        UserError: the package is not installed, or its files are not those of ImageNet-C.
    """
    try:
        files = {file.name: file for file in metadata.files(PACKAGE) or ()}
    except metadata.PackageNotFoundError:
        raise UserError(f"frost needs the photographs of {PACKAGE}: run `pip install 'excb[robustness]'`") from None
    return tuple(_picture(files.get(name), name, digest) for name, digest in PICTURES.items())


def _picture(file: metadata.PackagePath | None, name: str, digest: str) -> np.ndarray:
    data = b"" if file is None else file.read_binary()
    if hashlib.sha256(data).hexdigest() != digest:
        raise UserError(f"{name} of {PACKAGE} is not ImageNet-C's: install version 1.1.5 of it")
    import cv2

    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return np.ascontiguousarray(decoded[..., ::-1])
