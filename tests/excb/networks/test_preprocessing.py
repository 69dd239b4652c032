"""Evaluation's preprocessing: equal to torchvision's own pipeline, kept by JSON and pickle, for images of any mode."""

import json
import pickle
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from torchvision import transforms
from torchvision.models import ResNet50_Weights
from torchvision.transforms import functional as tvf

from excb.checkpoint import timm_format
from excb.networks.preprocessing import IMAGENET_MEAN, IMAGENET_STD, CropMode, Interpolation, Preprocessing

SETTINGS = [
    Preprocessing(),
    Preprocessing(resize=40, crop=32, interpolation="bicubic"),
    Preprocessing(resize=32, crop=32, mean=(0.1, 0.2, 0.3), std=(0.9, 0.5, 0.228)),
    Preprocessing(resize=29, crop=32),  # timm has a few whose crop is larger than the resized side
]


def picture(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def torchvisions(settings: Preprocessing) -> transforms.Compose:
    names = {"bilinear": transforms.InterpolationMode.BILINEAR, "bicubic": transforms.InterpolationMode.BICUBIC}
    return transforms.Compose(
        [
            transforms.Resize(settings.resize, names[settings.interpolation], antialias=True),
            transforms.CenterCrop(settings.crop),
            transforms.ToTensor(),
            transforms.Normalize(settings.mean, settings.std),
        ]
    )


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("size", [(80, 50), (50, 80), (300, 299), (33, 400), (1, 1), (320, 5), (5, 321)])
def test_equals_torchvisions_pipeline(settings: Preprocessing, size: tuple[int, int]) -> None:
    output = settings(picture(*size))
    assert output.dtype == torch.float32
    assert output.shape == (3, settings.crop, settings.crop)
    assert torch.equal(output, torchvisions(settings)(picture(*size)))


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("length", [641, 642, 2_999])
def test_the_middle_of_a_strip_is_that_of_the_whole(length: int, upright: bool) -> None:
    wave = 127 + 127 * np.sin(np.arange(length) / 5)  # where it is steepest, 4 of 255 are a sixth of a pixel
    pixels = np.broadcast_to(wave[:, None] if upright else wave, (length, 10) if upright else (10, length))
    image = Image.fromarray(pixels.astype(np.uint8))
    settings = Preprocessing(resize=40, crop=32, mean=(0, 0, 0), std=(1, 1, 1))
    torch.testing.assert_close(settings(image), torchvisions(settings)(image.convert("RGB")), rtol=0, atol=4 / 255)


@pytest.mark.parametrize("size", [(1, 2**20), (2**20, 1), (3, 5_000_000)])
def test_a_strip_without_end_needs_no_gigabytes(size: tuple[int, int]) -> None:
    colour = Preprocessing(mean=(0, 0, 0), std=(1, 1, 1))(Image.new("RGB", size, (51, 102, 153)))
    assert colour.shape == (3, 224, 224)
    assert torch.equal(colour, torch.tensor([0.2, 0.4, 0.6]).view(3, 1, 1).expand(3, 224, 224))


def test_equals_pillow_and_numpy() -> None:
    """Resize so that the shorter side has the wanted length, cut the centre, scale and normalise, by hand."""
    image = picture(120, 60)
    resized = np.asarray(image.resize((96, 48), Image.Resampling.BILINEAR), dtype=np.float64)
    cut = resized[8:40, 32:64] / 255
    expected = ((cut - IMAGENET_MEAN) / IMAGENET_STD).transpose(2, 0, 1)
    output = Preprocessing(resize=48, crop=32)(image)
    torch.testing.assert_close(output.double(), torch.from_numpy(expected), rtol=0, atol=1e-5)


def test_imagenets_statistics_are_torchvisions() -> None:
    weights = ResNet50_Weights.IMAGENET1K_V1.transforms()
    assert weights.mean == list(IMAGENET_MEAN)
    assert weights.std == list(IMAGENET_STD)
    assert (weights.resize_size, weights.crop_size) == ([Preprocessing().resize], [Preprocessing().crop])


@pytest.mark.parametrize("settings", SETTINGS)
def test_json_and_back(settings: Preprocessing) -> None:
    values = json.loads(json.dumps(settings.to_dict()))
    assert {"crop_mode", "corner"}.isdisjoint(values)  # older hashes and files stay as they are
    again = Preprocessing.from_dict(values)
    assert again == settings
    assert hash(again) == hash(settings)  # tuples, not lists
    assert torch.equal(again(picture(50, 60)), settings(picture(50, 60)))


def test_dictionary_holds_every_setting() -> None:
    assert Preprocessing(resize=9, crop=8, mean=(0, 0.5, 1), std=(1, 2, 3), interpolation="bicubic").to_dict() == {
        "resize": 9,
        "crop": 8,
        "mean": [0, 0.5, 1],
        "std": [1, 2, 3],
        "interpolation": "bicubic",
    }


OTHERS = [
    Preprocessing(resize=r, crop=32, mean=(0.5, 0.2, 0.9), interpolation=interpolation, crop_mode=mode)
    for mode in get_args(CropMode)
    for r, interpolation in zip((29, 32, 33, 40, 45, 50), get_args(Interpolation), strict=True)
]


@pytest.mark.parametrize("settings", OTHERS, ids=lambda settings: settings.in_short)
@pytest.mark.parametrize("size", [(80, 50), (50, 81), (64, 64), (33, 10), (1, 1)])
def test_equals_timms_pipeline(settings: Preprocessing, size: tuple[int, int]) -> None:
    """Of every crop mode and interpolation, `timm.data.create_transform` gives the same bits."""
    theirs: Any = create_transform(
        settings.crop,
        crop_pct=timm_format._crop_share(settings.crop, settings.resize),
        crop_mode=settings.crop_mode,
        interpolation=settings.interpolation,
        mean=settings.mean,
        std=settings.std,
    )
    assert torch.equal(settings(picture(*size)), theirs(picture(*size)))
    assert Preprocessing.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize("side", range(28, 40))
def test_a_corner_between_pixels_is_rounded_down_as_pillows_users_do(side: int) -> None:
    image = picture(side, side)
    output = Preprocessing(resize=side, crop=32, mean=(0,) * 3, std=(1,) * 3, corner="down")(image)
    expected = np.zeros((3, 32, 32), np.uint8)
    start, kept = (side - 32) // 2, slice(max(0, (side - 32) // 2), max(0, (side - 32) // 2) + 32)
    pixels = np.moveaxis(np.asarray(image), -1, 0)[:, kept, kept]
    place = slice(max(0, -start), max(0, -start) + pixels.shape[1])
    expected[:, place, place] = pixels
    assert torch.equal((output * 255).round().byte(), torch.from_numpy(expected))


def test_a_border_around_a_strip_without_end() -> None:
    settings = Preprocessing(32, 32, (0.2, 0.4, 0.6), (1, 1, 1), crop_mode="border")
    output = settings(Image.new("RGB", (2**20, 1), (255, 0, 0)))
    assert torch.equal((output.abs() > 1e-6).any(0).any(1).nonzero().flatten(), torch.tensor([15]))


def test_pickles_before_and_after_use() -> None:
    settings = Preprocessing(resize=40, crop=32)
    fresh = pickle.loads(pickle.dumps(settings))
    expected = settings(picture(50, 60))
    used = pickle.loads(pickle.dumps(settings))
    assert fresh == used == settings
    assert torch.equal(fresh(picture(50, 60)), expected)
    assert torch.equal(used(picture(50, 60)), expected)
    assert settings.to_dict() == Preprocessing(resize=40, crop=32).to_dict()  # use leaves no trace


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_modes_are_converted_as_pillow_does(mode: str) -> None:
    image = picture(50, 60).convert(mode)
    settings = Preprocessing(resize=40, crop=32)
    assert torch.equal(settings(image), settings(image.convert("RGB")))
    assert image.mode == mode


def test_a_partly_transparent_palette_gives_no_warning() -> None:
    image = picture(50, 60).quantize(16)
    plain = Preprocessing(resize=40, crop=32)(image)
    image.info["transparency"] = bytes(range(16))
    with pytest.warns(UserWarning, match="Transparency"):
        image.convert("RGB")  # so this test can fail
    assert torch.equal(Preprocessing(resize=40, crop=32)(image), plain)


def test_output_is_the_pixels_in_order() -> None:
    """Channels first, red first, rows before columns."""
    image = Image.new("RGB", (8, 8))
    image.putpixel((5, 2), (255, 0, 0))
    image.putpixel((1, 6), (0, 0, 255))
    output = Preprocessing(resize=8, crop=8, mean=(0, 0, 0), std=(1, 1, 1))(image)
    assert output.nonzero().tolist() == [[0, 2, 5], [2, 6, 1]]
    assert torch.equal(output, tvf.to_tensor(image))
