"""The functions of ImageNet-C's own code, from a checkout of github.com/hendrycks/robustness, with today's libraries.

Only functions and classes are taken from the file, since running it would write ImageNet-C. Three things that
libraries have changed since 2018 are as they were then: `np.float_`, scikit-image's `multichannel`, and its random
numbers of salt and pepper (`skimage/util/noise.py` at v0.14.0).
"""

import ast
import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from skimage import color, filters

CHECKOUT = "EXCB_ROBUSTNESS_CHECKOUT"  # names the folder of the checkout
_LEFT_OUT = ("DistortImageFolder", "save_distorted")


class _NumPy:
    """NumPy with names of old versions."""

    float_ = np.float64
    fromstring = staticmethod(np.frombuffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _gaussian(image: np.ndarray, sigma: float = 1, multichannel: bool | None = None, **options: Any) -> Any:
    return filters.gaussian(image, sigma, channel_axis=-1 if multichannel else None, **options)


def _salt_and_pepper(image: np.ndarray, mode: str, amount: float) -> np.ndarray:
    assert mode == "s&p"
    choice = np.random.choice
    flipped = choice([True, False], size=image.shape, p=[amount, 1 - amount])
    salted = choice([True, False], size=image.shape, p=[0.5, 0.5])
    return np.where(flipped, salted * 1.0, image)


def authors_functions() -> dict[str, Callable[..., Any]]:
    """Their functions by name; a test that asks for them is skipped where there is no checkout or OpenCV."""
    if CHECKOUT not in os.environ:
        pytest.skip(f"{CHECKOUT} names no checkout of github.com/hendrycks/robustness")
    cv2 = pytest.importorskip("cv2", reason="their code needs OpenCV")
    source = (_folder() / "make_imagenet_c.py").read_text(encoding="utf-8")
    noise = SimpleNamespace(random_noise=_salt_and_pepper)
    names: dict[str, Any] = {
        "np": _NumPy(),
        "cv2": cv2,
        "sk": SimpleNamespace(color=color, util=noise),
        "gaussian": _gaussian,
        "scizoom": ndimage.zoom,
        "map_coordinates": ndimage.map_coordinates,
        "BytesIO": BytesIO,
        "PILImage": Image,
        "ctypes": ctypes,
        **_wand(),
    }
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in _LEFT_OUT:
            exec(compile(ast.Module([node], []), "make_imagenet_c.py", "exec"), names)
    return names


def _wand() -> dict[str, Any]:
    """The part of ImageMagick that they call; without it, two of their functions do not work."""
    try:
        from wand.api import library
        from wand.image import Image as WandImage
    except ImportError:
        return {"WandImage": object}
    library.MagickMotionBlurImage.argtypes = (ctypes.c_void_p, *3 * (ctypes.c_double,))
    return {"WandImage": WandImage, "wandlibrary": library}


def has_magick() -> bool:
    """Whether ImageMagick is installed with its Python binding."""
    return "wandlibrary" in _wand()


@contextlib.contextmanager
def beside_their_pictures() -> Iterator[None]:
    """Run where their code expects the photographs of frost."""
    with contextlib.chdir(_folder()):
        yield


def _folder() -> Path:
    return Path(os.environ[CHECKOUT]) / "ImageNet-C" / "create_c"
