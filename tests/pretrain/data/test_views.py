"""Views against torchvision: crops in distribution and pixels, rates as set; what a view depends on."""

import dataclasses
import io
import itertools
import math
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch.nn import functional as F

from excb import seeding
from excb.images.decoding import open_image, open_smaller
from excb.images.photographs import photograph
from excb.images.random_crops import BOX_DRAWS, Box, crop_box
from excb.pretrain.data import views
from excb.pretrain.data.augmentation import (
    BRIGHTNESS,
    CONTRAST,
    FLIP,
    GREYED,
    HUE,
    JITTER,
    ORDER,
    ORDERS,
    SATURATION,
    SIGMA,
    SOLARIZE,
)
from excb.pretrain.data.views import ViewMaker, resize
from excb.pretrain.recipe import ViewSettings
from excb.pretrain.recipes import OFFICIAL_VIEWS, RECIPES

pytestmark = pytest.mark.usefixtures("one_thread")

LEAST_P = 1e-3  # inputs are fixed: a test that passes once passes always


# ---------------------------------------------------------------------------------------------------------------------
# Crops
# ---------------------------------------------------------------------------------------------------------------------


def noisy_picture(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def settings_of(**changes: Any) -> ViewSettings:
    return dataclasses.replace(ViewSettings(global_size=24, local_size=16, local_views=3), **changes)


def box_of(settings: ViewSettings, size: tuple[int, int], view: int, *, epoch: int = 2) -> Box:
    """Left, top, right, bottom of a view, from the numbers of its name: seed 3, this epoch, sample 9."""
    draws = seeding.generator(seeding.Purpose.VIEW, 3, epoch, 9, view).random(BOX_DRAWS).tolist()
    scales = settings.global_scale if view < settings.global_views else settings.local_scale
    return crop_box(size, scales, settings.ratio, draws)


def pillows(piece: Image.Image, side: int, interpolation: str) -> np.ndarray:
    """torchvision's result for a PIL image: rows first, as Pillow before 13.

    Newer versions begin with columns where these shrink more, and round otherwise.
    """
    method = Image.Resampling[interpolation.upper()]
    return np.asarray(piece.resize((side, piece.height), method).resize((side, side), method)).astype(int)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(120, 90), (17, 40), (1, 1), (300, 8), (9, 200)])
def test_pixels_of_crops_are_torchvisions(interpolation: str, size: tuple[int, int]) -> None:
    """Noise is the hardest: no two of its pixels round alike."""
    settings, image = settings_of(interpolation=interpolation), noisy_picture(*size)
    for chosen, side in ((range(2), 24), (range(2, 5), 16)):
        crops, _ = ViewMaker(settings, seed=3, epochs=1).cut(image, epoch=2, sample=9, views=chosen)
        assert crops.shape == (len(chosen), side, side, 3)
        assert crops.dtype == np.uint8
        for crop, view in zip(crops.astype(int), chosen, strict=True):
            piece = image.crop(box_of(settings, size, view))
            expected = pillows(piece, side, interpolation)
            assert np.abs(crop - expected).max() <= 2
            assert (crop != expected).mean() < 0.06
            # The exact answer, and how far from it both are: 8 bits cost a quarter of a step on average.
            pixels = torch.from_numpy(np.array(piece)).permute(2, 0, 1)[None].double()
            exact = F.interpolate(pixels, (side, side), mode=interpolation, antialias=True)[0].clamp(0, 255)
            at_once = np.asarray(piece.resize((side, side), Image.Resampling[interpolation.upper()]))
            ours, theirs = (np.abs(one - exact.permute(1, 2, 0).numpy()).mean() for one in (crop, at_once))
            assert ours < max(0.35, 1.2 * theirs)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("name", ["astronaut", "coffee", "gravel", "temple"])
def test_less_than_one_value_in_a_hundred_of_photographs_differs_from_pillows(interpolation: str, name: str) -> None:
    settings, image = settings_of(interpolation=interpolation, global_size=224, local_size=96), photograph(name)
    steps = []
    for chosen, side in ((range(2), 224), (range(2, 5), 96)):
        for epoch in range(3):
            crops, _ = ViewMaker(settings, seed=3, epochs=3).cut(image, epoch=epoch, sample=9, views=chosen)
            for crop, view in zip(crops, chosen, strict=True):
                piece = image.crop(box_of(settings, image.size, view, epoch=epoch))
                steps.append(np.abs(crop - pillows(piece, side, interpolation)))
                assert (steps[-1] > 0).mean() < 0.03
                assert steps[-1].max() <= 2
    assert np.mean([(step > 0).mean() for step in steps]) < 0.01
    assert np.mean([(step > 1).mean() for step in steps]) < 1e-4


@pytest.mark.parametrize("image", [noisy_picture(50, 40), np.asarray(noisy_picture(50, 40))])
def test_an_image_and_its_pixels_give_the_same_crops(image: Any) -> None:
    crops, parameters = ViewMaker(settings_of(), seed=1, epochs=10).cut(image, epoch=2, sample=3, views=range(1, 2))
    expected, expected_parameters = view_of()
    assert np.array_equal(crops[0], expected)
    assert np.array_equal(parameters[0], expected_parameters)


# ---------------------------------------------------------------------------------------------------------------------
# Images decoded smaller
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 2, 6, 12])
def test_every_channel_is_cropped_as_one_of_a_colour_image(channels: int) -> None:
    """Kernels for other numbers of channels round otherwise: by one of 255 at most."""
    pixels = np.concatenate([np.asarray(noisy_picture(60 + number, 50))[:, :60] for number in range(4)], axis=2)
    maker = ViewMaker(settings_of(), seed=3, epochs=5)
    crops = maker.cut(pixels[..., :channels], epoch=2, sample=9, views=range(2))[0]
    assert crops.shape == (2, 24, 24, channels)
    for channel in range(channels):
        colours = pixels[..., [channel] * 3]
        expected = maker.cut(colours, epoch=2, sample=9, views=range(2))[0][..., 0]
        assert np.abs(crops[..., channel].astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("side", [20, 47, 48, 60, 100, 150, 200, 400, 900])
def test_an_image_is_decoded_smaller_as_far_as_every_crop_has_the_views_pixels(side: int) -> None:
    settings, size = settings_of(), (side * 4 // 3, side)
    boxes = [box_of(settings, size, view) for view in range(5)]
    ratios = [
        min(right - left, bottom - top) / (24 if view < 2 else 16)
        for view, (left, top, right, bottom) in enumerate(boxes)
    ]
    expected = max(divisor for divisor in (1, 2, 4, 8) if divisor == 1 or min(ratios) >= divisor)
    maker = ViewMaker(settings, seed=3, epochs=1)
    assert maker.shrink(size, epoch=2, sample=9) == expected


def test_every_divisor_occurs_and_is_a_function_of_the_views_name() -> None:
    names = list(itertools.product((60, 200, 400), range(3), range(20)))

    def found() -> list[int]:
        maker = ViewMaker(settings_of(), seed=3, epochs=9)
        return [maker.shrink((side + 40, side), epoch=epoch, sample=sample) for side, epoch, sample in names]

    assert set(found()) == {1, 2, 4, 8}
    assert found() == found()
    assert ViewMaker(settings_of(), seed=3, epochs=9).shrink((3000, 2600), epoch=0, sample=0) == 8


def as_jpeg(image: Image.Image) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=95)
    return file


@pytest.mark.parametrize("name", ["coffee", "astronaut", "temple", "motorcycle"])
def test_crops_of_an_image_decoded_smaller_are_near_those_of_the_whole(name: str) -> None:
    """Of 255: less than 2 on average, less than 5 in any view, for photographs; the parameters are the same."""
    picture = photograph(name)
    picture = picture.crop((0, 0, picture.width - 3, picture.height - 5))  # no multiple of anything
    settings, file = settings_of(global_size=64, local_size=32), as_jpeg(picture)
    maker, whole = ViewMaker(settings, seed=3, epochs=99), open_image(file)
    distances, divisors = [], set()
    for epoch in range(20):
        smaller, size = open_smaller(file, partial(maker.shrink, epoch=epoch, sample=9))
        assert size == picture.size
        divisor = round(picture.width / smaller.width)
        divisors.add(divisor)
        for chosen in (range(2), range(2, 5)):
            crops, parameters = maker.cut(smaller, epoch=epoch, sample=9, views=chosen, size=size)
            assert np.array_equal(parameters, maker.cut(whole, epoch=epoch, sample=9, views=chosen)[1])
            for crop, view in zip(crops, chosen, strict=True):
                left, top, right, bottom = (
                    divisor * round(edge / divisor) for edge in box_of(settings, size, view, epoch=epoch)
                )
                piece = whole.crop((left, top, min(right, size[0]), min(bottom, size[1])))
                expected = np.asarray(piece.resize(crop.shape[:2], Image.Resampling.BICUBIC))
                distances.append(np.abs(crop.astype(int) - expected).mean())
    assert divisors >= {2, 4}
    assert np.mean(distances) < 2
    assert np.max(distances) < 5


@pytest.mark.parametrize("divisor", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [(640, 480), (641, 487), (97, 65)])
def test_edges_move_to_those_of_the_nearest_pixels(size: tuple[int, int], divisor: int) -> None:
    smaller = noisy_picture(-(-size[0] // divisor), -(-size[1] // divisor))
    settings = settings_of(global_scale=(0.9, 1.0), local_scale=(0.5, 0.8))
    for chosen in (range(2), range(2, 5)):
        crops, _ = ViewMaker(settings, seed=3, epochs=1).cut(smaller, epoch=2, sample=9, views=chosen, size=size)
        for crop, view in zip(crops, chosen, strict=True):
            box = [round(edge / divisor) for edge in box_of(settings, size, view)]
            piece = np.asarray(smaller)[box[1] : box[3], box[0] : box[2]]
            assert np.array_equal(crop, resize(piece, len(crop), "bicubic"))


# ---------------------------------------------------------------------------------------------------------------------
# Parameters
# ---------------------------------------------------------------------------------------------------------------------


def cut(
    settings: ViewSettings, *, samples: int, seed: int = 0, epoch: int = 0, side: int = 12
) -> tuple[np.ndarray, np.ndarray]:
    """Crops' centres [samples, views, 2] of a ramp image, and parameters [samples, views, P]."""
    ramp = np.zeros((side, side, 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = np.arange(side) * 20, np.arange(side)[:, None] * 20
    image, maker = Image.fromarray(ramp), ViewMaker(settings, seed=seed, epochs=1)
    count = settings.global_views
    centres, parameters = [], []
    for sample in range(samples):
        pieces = [maker.cut(image, epoch=epoch, sample=sample, views=range(count))]
        if settings.local_views:
            views = range(count, count + settings.local_views)
            pieces.append(maker.cut(image, epoch=epoch, sample=sample, views=views))
        centres.append([crop.mean((0, 1))[:2] for crops, _ in pieces for crop in crops])
        parameters.append(np.concatenate([rows for _, rows in pieces]))
    return np.array(centres), np.array(parameters)


SAMPLES = 2500
SMALL_SIDES: dict[str, Any] = {"global_size": 8, "local_size": 8}


@pytest.fixture(scope="module")
def paper() -> tuple[np.ndarray, np.ndarray]:
    """Three global and two local views with the paper's settings, but for a flip that is not one half."""
    return cut(ViewSettings(**SMALL_SIDES, global_views=3, local_views=2, flip=0.3), samples=SAMPLES)


def assert_rate(values: np.ndarray, rate: float) -> None:
    if rate in (0, 1):
        assert values.mean() == rate
    else:
        assert stats.binomtest(int(values.sum()), values.size, rate).pvalue > LEAST_P


@pytest.mark.parametrize("view", range(5))
def test_rates_of_augmentations_are_those_set(paper: tuple[np.ndarray, np.ndarray], view: int) -> None:
    rows = paper[1][:, view]
    for column, rate in ((FLIP, 0.3), (JITTER, 0.8), (GREYED, 0.2)):
        assert set(np.unique(rows[:, column])) == {0, 1}
        assert_rate(rows[:, column], rate)
    # Odd and even global views are blurred and solarized by turns; local views are never solarized.
    assert_rate(rows[:, SIGMA] > 0, (1.0, 0.1, 1.0, 0.5, 0.5)[view])
    assert_rate(rows[:, SOLARIZE] > 0, (0.0, 0.2, 0.0, 0.0, 0.0)[view])


@pytest.mark.parametrize("name", ["rn50_100ep_official", "rn50_100ep_2x224_official", "vits16_100ep_official"])
def test_official_rates(name: str) -> None:
    settings = RECIPES[name]().views
    changes = {"local_views": min(1, settings.local_views), **SMALL_SIDES}
    _, parameters = cut(dataclasses.replace(settings, **changes), samples=600)
    blurred, solarized = parameters[..., SIGMA] > 0, parameters[..., SOLARIZE] > 0
    assert_rate(blurred[:, 0], 0.0)
    assert_rate(blurred[:, 1], 0.9)
    assert_rate(solarized[:, 0], 0.0)
    assert_rate(solarized[:, 1], 0.2)
    assert not blurred[:, 2:].any()
    assert not solarized[:, 2:].any()
    assert settings.blur_kernel == OFFICIAL_VIEWS["blur_kernel"] == 9


@pytest.mark.parametrize(
    ("column", "low", "high"), [(BRIGHTNESS, 0.6, 1.4), (CONTRAST, 0.6, 1.4), (SATURATION, 0.8, 1.2), (HUE, -0.1, 0.1)]
)
def test_strengths_of_jitter_are_uniform(
    paper: tuple[np.ndarray, np.ndarray], column: int, low: float, high: float
) -> None:
    values = paper[1][..., column].flatten()
    assert values.min() >= np.float32(low)
    assert values.max() <= np.float32(high)
    assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > LEAST_P


def test_sigma_is_uniform(paper: tuple[np.ndarray, np.ndarray]) -> None:
    for view in (0, 3):
        values = paper[1][:, view, SIGMA]
        values = values[values > 0]
        assert stats.kstest(values, stats.uniform(0.1, 1.9).cdf).pvalue > LEAST_P


def test_every_order_of_jitter_is_as_likely(paper: tuple[np.ndarray, np.ndarray]) -> None:
    assert sorted(map(tuple, ORDERS.tolist())) == sorted(itertools.permutations(range(4)))
    counts = np.bincount(paper[1][..., ORDER].flatten().astype(int), minlength=24)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > LEAST_P


def test_choices_are_independent_of_each_other_and_of_the_crop(paper: tuple[np.ndarray, np.ndarray]) -> None:
    centres, parameters = paper
    for view in range(5):
        columns = np.concatenate([parameters[:, view], centres[:, view]], axis=1).T
        columns = columns[columns.std(1) > 0]  # a rate of 0 or 1 varies with nothing
        assert len(columns) >= 10
        correlations = np.asarray(np.corrcoef(columns))[np.triu_indices(len(columns), 1)]
        assert np.abs(correlations).max() < 4.5 / math.sqrt(SAMPLES)


def test_views_of_an_image_are_independent(paper: tuple[np.ndarray, np.ndarray]) -> None:
    for values in (paper[1][..., HUE], paper[1][..., JITTER], paper[0][..., 0]):
        correlations = np.asarray(np.corrcoef(values.T))[np.triu_indices(5, 1)]
        assert np.abs(correlations).max() < 4.5 / math.sqrt(SAMPLES)


@pytest.mark.parametrize(("name", "value"), [("jitter", 0.0), ("flip", 1.0), ("grey", 1.0), ("blur_local", 1.0)])
def test_certain_choices_are_certain(name: str, value: float) -> None:
    changes: dict[str, Any] = {"global_views": 1, "local_views": 1, name: value}
    settings = ViewSettings(**changes, **SMALL_SIDES)
    _, parameters = cut(settings, samples=50)
    column = {"jitter": JITTER, "flip": FLIP, "grey": GREYED, "blur_local": SIGMA}[name]
    assert ((parameters[:, 1, column] > 0) == (value == 1)).all()


def test_no_strength_is_the_identity() -> None:
    settings = ViewSettings(**SMALL_SIDES, local_views=0, brightness=0, contrast=0, saturation=0, hue=0)
    _, parameters = cut(settings, samples=20)
    assert (parameters[..., [BRIGHTNESS, CONTRAST, SATURATION]] == 1).all()
    assert (parameters[..., HUE] == 0).all()


# ---------------------------------------------------------------------------------------------------------------------
# What a view depends on
# ---------------------------------------------------------------------------------------------------------------------


def view_of(seed: int = 1, epoch: int = 2, sample: int = 3, view: int = 1) -> tuple[np.ndarray, np.ndarray]:
    maker = ViewMaker(settings_of(), seed=seed, epochs=10)
    crops, parameters = maker.cut(noisy_picture(50, 40), epoch=epoch, sample=sample, views=range(view, view + 1))
    return crops[0], parameters[0]


@pytest.mark.parametrize("changed", [{"seed": 2}, {"epoch": 3}, {"sample": 4}, {"view": 0}, {"view": 3}])
def test_every_part_of_a_views_name_counts(changed: dict[str, int]) -> None:
    crop, parameters = view_of()
    other_crop, other_parameters = view_of(**changed)
    assert not np.array_equal(crop, other_crop)
    assert (parameters != other_parameters).sum() >= 5


def test_nothing_else_counts() -> None:
    """Neither what was cut before, nor with which other views, nor any global random state, nor the run's length."""
    crop, parameters = view_of()
    for number in range(2):
        random.seed(number)
        np.random.seed(number)  # noqa: NPY002 - the global state is what this test is about
        torch.manual_seed(number)
        maker = ViewMaker(settings_of(), seed=1, epochs=99)
        image = noisy_picture(50, 40)
        if number:
            maker.cut(image, epoch=7, sample=3, views=range(2))
        crops, rows = maker.cut(image, epoch=2, sample=3, views=range(2))
        assert np.array_equal(crops[1], crop)
        assert np.array_equal(rows[1], parameters)
    assert np.array_equal(np.asarray(image), np.asarray(noisy_picture(50, 40)))


@pytest.mark.parametrize(
    ("epoch", "moved"), [(0, 0.26), (5, 0.2), (10, 0.14), (2, 0.14 + 0.06 * (1 + math.cos(0.2 * math.pi)))]
)
def test_scale_end_moves_both_shares_on_a_cosine(epoch: int, moved: float) -> None:
    settings = ViewSettings(global_scale=(0.26, 1.0), local_scale=(0.05, 0.26), scale_end=0.14)
    assert [*itertools.chain(*settings.scales(epoch, 11))] == pytest.approx([moved, 1.0, 0.05, moved])
    assert ViewSettings().scales(epoch, 11) == ((0.2, 1.0), (0.05, 0.2))  # without it nothing moves
    assert [*itertools.chain(*settings.scales(0, 1))] == pytest.approx([0.26, 1.0, 0.05, 0.26])


def test_crops_follow_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(global_scale=(0.5, 1.0), local_scale=(0.05, 0.5), scale_end=0.1)
    asked: list[tuple[float, float]] = []

    def record(size: Any, scales: tuple[float, float], ratios: Any, draws: list[float]) -> Box:
        asked.append(scales)
        return crop_box(size, scales, ratios, draws)

    monkeypatch.setattr(views, "crop_box", record)
    maker = ViewMaker(settings, seed=0, epochs=5)
    for epoch in (0, 4):
        for chosen in (range(1), range(2, 3)):
            maker.cut(noisy_picture(9, 9), epoch=epoch, sample=0, views=chosen)
    assert [*itertools.chain(*asked)] == pytest.approx([0.5, 1.0, 0.05, 0.5, 0.1, 1.0, 0.05, 0.1])
