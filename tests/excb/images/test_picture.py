"""Images as callers pass them: each kind gives the pixels that Pillow gives, and anything else a clear error."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from excb.errors import UserError
from excb.images.picture import as_rgb, is_picture

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
OPAQUE = np.concatenate([PIXELS, np.full((6, 9, 1), 255, np.uint8)], axis=2)


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        (Image.fromarray(PIXELS), PIXELS),
        (PIXELS, PIXELS),
        (PIXELS[:, ::-1], PIXELS[:, ::-1]),  # a view
        (OPAQUE, PIXELS),
        (PIXELS[..., 0], PIXELS[..., [0, 0, 0]]),
        (PIXELS[..., :1], PIXELS[..., [0, 0, 0]]),
    ],
    ids=["PIL", "RGB", "view", "RGBA", "grey", "one channel"],
)
def test_every_kind_gives_its_pixels(picture: Any, expected: np.ndarray) -> None:
    assert is_picture(picture)
    image = as_rgb(picture)
    assert image.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(image), expected)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_is_opened_upright(tmp_path: Path, kind: type) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by half a turn
    Image.fromarray(PIXELS).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(np.asarray(as_rgb(kind(tmp_path / "a.png"))), PIXELS[::-1, ::-1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.zeros(3, 4, 4), "not a torch.Tensor: normalised tensors [B, 3, H, W] go into backbone(tensors)"),
        ([PIXELS], "not a list: pass several to backbone.embed(images)"),
        (None, "an image is a PIL image, a uint8 array [H, W, 3] or the path of a file, not a NoneType"),
        (b"bytes", "not a bytes"),
        (PIXELS / 255, "not float64 [6, 9, 3]: scale its values to 0..255"),
        (PIXELS.transpose(2, 0, 1), "not uint8 [3, 6, 9]: move its axes"),
        (PIXELS[None], "not uint8 [1, 6, 9, 3]: move its axes, or pass one image"),
        (PIXELS[:0], "not uint8 [0, 9, 3]"),
    ],
    ids=["tensor", "list", "None", "bytes", "float", "axes", "batch", "empty"],
)
def test_anything_else_is_told_clearly(wrong: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        as_rgb(wrong)


def test_a_file_that_is_no_image_is_told_clearly(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("no image")
    with pytest.raises(UserError, match=r"a\.jpg cannot be read as an image \(.+\): fix it, or leave it out"):
        as_rgb(tmp_path / "a.jpg")
    with pytest.raises(UserError, match=r"b\.jpg cannot be read as an image \(FileNotFoundError"):
        as_rgb(str(tmp_path / "b.jpg"))


def test_a_folder_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a folder, and an image is needed: name its files, or use excb\.embed$"):
        as_rgb(tmp_path)
