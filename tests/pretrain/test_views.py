"""Views against torchvision: crops in distribution and pixels, every augmentation pixel by pixel, rates as set."""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as tvf

from excb import seeding
from excb.pretrain import views
from excb.pretrain.recipes import OFFICIAL_VIEWS, RECIPES, ViewSettings
from excb.pretrain.views import (
    BRIGHTNESS,
    CONTRAST,
    CROP_ATTEMPTS,
    FLIP,
    GREYED,
    HUE,
    JITTER,
    ORDER,
    ORDERS,
    PARAMETERS,
    SATURATION,
    SIGMA,
    SOLARIZE,
    ViewMaker,
    augment,
    crop_box,
    gaussian_blur,
)

LEAST_P = 1e-3  # inputs are fixed: a test that passes once passes always
DRAWS = 2 * CROP_ATTEMPTS + 2
PLAIN = ViewSettings(mean=(0, 0, 0), std=(1, 1, 1))  # shows the augmented pixels themselves


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are tiny: on a busy machine more threads take ten times as long
    yield
    torch.set_num_threads(threads)


# ---------------------------------------------------------------------------------------------------------------------
# Crops
# ---------------------------------------------------------------------------------------------------------------------

Box = tuple[int, int, int, int]


def our_boxes(count: int, size: tuple[int, int], scales: tuple[float, float], ratios: tuple[float, float]) -> list[Box]:
    """Boxes as left, top, width, height."""
    numbers = np.random.default_rng(0).random((count, DRAWS))
    boxes = (crop_box(size, scales, ratios, draws) for draws in numbers)
    return [(left, top, right - left, bottom - top) for left, top, right, bottom in boxes]


def torchvision_boxes(
    count: int, size: tuple[int, int], scales: tuple[float, float], ratios: tuple[float, float]
) -> list[Box]:
    image = torch.empty(3, size[1], size[0], device="meta")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        boxes = [RandomResizedCrop.get_params(image, list(scales), list(ratios)) for _ in range(count)]
    return [(left, top, width, height) for top, left, height, width in boxes]


BYOL, TINY, WIDE = (3 / 4, 4 / 3), (0.05, 0.2), (0.2, 1.0)


@pytest.mark.parametrize(
    ("size", "scales", "ratios"),
    [
        ((5000, 4000), WIDE, BYOL),
        ((5000, 4000), TINY, BYOL),
        ((4000, 6000), (0.14, 1.0), BYOL),
        ((2000, 6000), WIDE, BYOL),  # many attempts fail
        ((6000, 2000), (0.5, 1.0), BYOL),  # most fail
        ((4000, 4000), (0.08, 0.5), (0.2, 5.0)),
    ],
)
def test_crops_are_distributed_as_torchvisions(
    size: tuple[int, int], scales: tuple[float, float], ratios: tuple[float, float]
) -> None:
    ours, theirs = (np.array(boxes(3000, size, scales, ratios)) for boxes in (our_boxes, torchvision_boxes))
    for boxes in (ours, theirs):
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, :2] + boxes[:, 2:] <= size).all()
        assert (boxes[:, 2:] > 0).all()

    def figures(boxes: np.ndarray) -> dict[str, np.ndarray]:
        left, top, width, height = boxes.T.astype(float)
        return {
            "share of the area": width * height / (size[0] * size[1]),
            "log ratio": np.log(width / height),
            "left": left / np.maximum(1, size[0] - width),
            "top": top / np.maximum(1, size[1] - height),
            "width": width,
        }

    others = figures(theirs)
    for name, values in figures(ours).items():
        assert stats.ks_2samp(values, others[name]).pvalue > LEAST_P, name


@pytest.mark.parametrize("scales", [WIDE, TINY])
def test_crops_that_always_fit_have_uniform_area_and_log_ratio(scales: tuple[float, float]) -> None:
    scales = (scales[0], min(scales[1], 0.7))  # 0.7 of a square fits at any ratio up to 4 / 3
    boxes = np.array(our_boxes(3000, (9000, 9000), scales, BYOL)).astype(float)
    share, log_ratio = boxes[:, 2] * boxes[:, 3] / 9000**2, np.log(boxes[:, 2] / boxes[:, 3])
    assert stats.kstest(share, stats.uniform(scales[0], scales[1] - scales[0]).cdf).pvalue > LEAST_P
    assert stats.kstest(log_ratio, stats.uniform(-math.log(4 / 3), 2 * math.log(4 / 3)).cdf).pvalue > LEAST_P
    left, top = (boxes[:, axis] / (9000 - boxes[:, 2 + axis]) for axis in (0, 1))
    table = np.array([share, log_ratio, left, top])
    assert np.abs(np.asarray(np.corrcoef(table))[np.triu_indices(4, 1)]).max() < 4 / math.sqrt(3000)


@pytest.mark.parametrize(
    ("size", "scales"), [((7, 5), WIDE), ((4, 4), TINY), ((3, 9), WIDE), ((9, 3), TINY), ((2, 2), WIDE), ((8, 1), WIDE)]
)
def test_every_box_of_a_small_image_is_as_likely_as_torchvisions(
    size: tuple[int, int], scales: tuple[float, float]
) -> None:
    """Rounding, rejection and places: a table of all boxes."""
    ours, theirs = (boxes(4000, size, scales, BYOL) for boxes in (our_boxes, torchvision_boxes))
    kinds = sorted({*ours, *theirs})
    table = np.array([[boxes.count(kind) for kind in kinds] for boxes in (ours, theirs)])
    rare = table.sum(0) < 20
    table = np.concatenate([table[:, ~rare], table[:, rare].sum(1, keepdims=True)], axis=1)
    table = table[:, table.sum(0) > 0]
    assert table.shape[1] == 1 or stats.chi2_contingency(table).pvalue > LEAST_P


@pytest.mark.parametrize(
    "size", [(1000, 10), (10, 1000), (1000, 11), (37, 1000), (1000, 700), (700, 1000), (500, 500), (1, 900), (900, 1)]
)
@pytest.mark.parametrize("ratios", [BYOL, (1.0, 1.0), (0.9, 2.1)])
def test_where_no_crop_fits_the_centre_is_torchvisions(size: tuple[int, int], ratios: tuple[float, float]) -> None:
    # Crops of four times the area never fit.
    expected = torchvision_boxes(1, size, (4.0, 4.0), ratios)
    assert our_boxes(1, size, (4.0, 4.0), ratios) == expected


def test_the_first_attempt_that_fits_is_taken() -> None:
    draws = np.full(DRAWS, 0.5)
    draws[:6:2] = 1  # the whole area of a wide image fits at no ratio near 1: three attempts fail
    draws[6:8] = 0.25, 0.5
    draws[8:10] = 0.75, 0.1  # not reached
    side = round(math.sqrt(0.4 * 800 * 400))
    left, top = (800 - side + 1) // 2, (400 - side + 1) // 2
    assert crop_box((800, 400), WIDE, BYOL, draws) == (left, top, left + side, top + side)


@pytest.mark.parametrize("last", [0.0, 1 - 2**-53])
def test_places_reach_both_edges(last: float) -> None:
    draws = np.full(DRAWS, 0.5)
    draws[-2:] = last
    left, top, right, bottom = crop_box((90, 80), (0.25, 0.25), BYOL, draws)
    assert (left, top) == (0, 0) if last == 0 else (right, bottom) == (90, 80)


def noisy_picture(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def settings_of(**changes: Any) -> ViewSettings:
    return dataclasses.replace(ViewSettings(global_size=24, local_size=16, local_views=3), **changes)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(120, 90), (17, 40), (1, 1), (300, 8)])
def test_pixels_of_crops_are_torchvisions(interpolation: str, size: tuple[int, int]) -> None:
    settings = settings_of(interpolation=interpolation)
    image = noisy_picture(*size)
    for chosen, side, scales in ((range(2), 24, WIDE), (range(2, 5), 16, TINY)):
        crops, _ = ViewMaker(settings, seed=3, epochs=1).cut(image, epoch=2, sample=9, views=chosen)
        assert crops.shape == (len(chosen), side, side, 3)
        assert crops.dtype == np.uint8
        for crop, view in zip(crops, chosen, strict=True):
            draws = seeding.generator(seeding.Purpose.VIEW, 3, 2, 9, view).random(DRAWS)
            left, top, right, bottom = crop_box(size, scales, BYOL, draws)
            box = (top, left, bottom - top, right - left)
            expected = tvf.resized_crop(image, *box, [side, side], InterpolationMode(interpolation))  # type: ignore[arg-type]
            assert np.array_equal(crop, np.asarray(expected))


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


def test_augmenting_draws_nothing() -> None:
    crops, rows = noisy_crops(6), random_rows(6)
    before = torch.get_rng_state()
    first = augment(crops, rows, ViewSettings())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    assert torch.equal(augment(crops, rows, ViewSettings()), first)


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

    def record(size: Any, scales: tuple[float, float], ratios: Any, draws: np.ndarray) -> Box:
        asked.append(scales)
        return crop_box(size, scales, ratios, draws)

    monkeypatch.setattr(views, "crop_box", record)
    maker = ViewMaker(settings, seed=0, epochs=5)
    for epoch in (0, 4):
        for chosen in (range(1), range(2, 3)):
            maker.cut(noisy_picture(9, 9), epoch=epoch, sample=0, views=chosen)
    assert [*itertools.chain(*asked)] == pytest.approx([0.5, 1.0, 0.05, 0.5, 0.1, 1.0, 0.05, 0.1])


# ---------------------------------------------------------------------------------------------------------------------
# Augmentation, each operation by itself
# ---------------------------------------------------------------------------------------------------------------------

SIDE = 28


def noisy_crops(count: int, side: int = SIDE) -> Tensor:
    """uint8 [count, side, side, 3]: smooth pictures, noise, and the corners of colour space, in turn."""
    random_numbers = np.random.default_rng(7)
    crops = []
    for number in range(count):
        if number % 3 == 0:
            small = random_numbers.integers(0, 256, (5, 5, 3), dtype=np.uint8)
            pixels = np.asarray(Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC))
        elif number % 3 == 1:
            pixels = random_numbers.integers(0, 256, (side, side, 3), dtype=np.uint8)
        else:
            pixels = random_numbers.choice(np.array([0, 127, 128, 255], np.uint8), (side, side, 3))
        crops.append(pixels)
    return torch.from_numpy(np.stack(crops))


def row(**columns: float) -> Tensor:
    """Parameters that change nothing but what is named."""
    values = torch.zeros(PARAMETERS)
    values[[BRIGHTNESS, CONTRAST, SATURATION]] = 1
    for name, value in columns.items():
        values[getattr(views, name)] = value
    return values


def in_double(crop: Tensor) -> Tensor:
    """A crop as torchvision's float pixels [3, S, S], precise."""
    return crop.permute(2, 0, 1).double() / 255


def random_rows(count: int) -> Tensor:
    """Parameters in which everything happens to about half of the rows."""
    settings = ViewSettings(
        **SMALL_SIDES,
        local_views=0,
        jitter=0.5,
        grey=0.3,
        blur=(0.5, 0.5),
        solarize=(0.5, 0.5),
        saturation=0.8,
        hue=0.5,
    )
    return torch.from_numpy(cut(settings, samples=count)[1][:, 1])


FACTORS = (0.0, 0.2, 0.6, 0.93, 1.0, 1.07, 1.4, 2.0)
TURNS = (-0.5, -0.37, -0.1, -0.013, 0.0, 0.04, 0.1, 1 / 6, 0.25, 0.5)


class Operation(NamedTuple):
    """One operation of ours and torchvision's, and how far apart they may be at any pixel and on average.

    Pillow rounds after each operation, the mean grey of contrast to a whole number, and turns hues in HSV of 8 bits:
    there, one step of hue changes a channel by up to 6 of 255.
    """

    name: str
    parameters: Tensor
    function: Any
    arguments: tuple[Any, ...] = ()
    tolerance: float = 2e-6  # between float pixels in [0, 1]
    steps: float = 0.01  # from Pillow's pixels, of 255
    mean_steps: float = 0.01

    def __repr__(self) -> str:
        return self.name


def solarize(image: Any) -> Any:
    return tvf.solarize(image, 128 if isinstance(image, Image.Image) else 128 / 255)


def jitter_operations() -> Iterator[Operation]:
    functions = {
        "BRIGHTNESS": tvf.adjust_brightness,
        "CONTRAST": tvf.adjust_contrast,
        "SATURATION": tvf.adjust_saturation,
    }
    for (name, function), factor in itertools.product(functions.items(), FACTORS):
        parameters = row(JITTER=1, **{name: factor})
        yield Operation(f"{name.lower()} {factor}", parameters, function, (factor,), steps=1.5, mean_steps=0.8)
    for turn in TURNS:
        yield Operation(
            f"hue {turn:.3f}", row(JITTER=1, HUE=turn), tvf.adjust_hue, (turn,), tolerance=5e-6, steps=16, mean_steps=2
        )


OPERATIONS = [
    Operation("nothing", row(), lambda image: image),
    Operation("flip", row(FLIP=1), tvf.hflip),
    Operation("grey", row(GREYED=1), tvf.rgb_to_grayscale, (3,), steps=0.6, mean_steps=0.3),
    Operation("solarize", row(SOLARIZE=1), solarize),
    *jitter_operations(),
    *(
        Operation(f"blur {s}", row(SIGMA=s), tvf.gaussian_blur, ([23, 23], [s, s]), steps=0.51, mean_steps=0.3)
        for s in (0.1, 0.37, 1.0, 2.0)
    ),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_every_operation_equals_torchvisions(operation: Operation) -> None:
    crops = noisy_crops(6)
    output = augment(crops, operation.parameters.expand(6, -1), PLAIN)
    assert output.dtype == torch.float32
    assert output.shape == (6, 3, SIDE, SIDE)
    for crop, image in zip(crops, output, strict=True):
        expected = operation.function(in_double(crop), *operation.arguments)
        assert (image - expected).abs().max().item() <= operation.tolerance
        expected = np.array(operation.function(Image.fromarray(crop.numpy()), *operation.arguments))
        steps = (255 * image.permute(1, 2, 0) - torch.from_numpy(expected)).abs()
        assert steps.max().item() <= operation.steps
        assert steps.mean().item() <= operation.mean_steps


def test_normalisation_equals_torchvisions() -> None:
    crops = noisy_crops(4)
    for mean, std in (((0.485, 0.456, 0.406), (0.228, 0.224, 0.225)), ((0.1, 0.5, 0.9), (1.0, 2.0, 0.5))):
        output = augment(crops, row().expand(4, -1), ViewSettings(mean=mean, std=std))
        expected = tvf.normalize(crops.permute(0, 3, 1, 2).double() / 255, list(mean), list(std))
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kernel", [1, 3, 9, 23])
def test_blur_equals_torchvisions_for_every_rows_sigma(kernel: int) -> None:
    images = noisy_crops(5).permute(0, 3, 1, 2).double() / 255
    sigma = torch.tensor([0.1, 0.5, 1.0, 1.7, 2.0], dtype=torch.float64)
    output = gaussian_blur(images, sigma, kernel)
    for image, value, blurred in zip(images, sigma.tolist(), output, strict=True):
        expected = tvf.gaussian_blur(image, [kernel, kernel], [value, value])
        torch.testing.assert_close(blurred, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("side", [1, 2, 5, 11])
def test_blur_of_small_images_uses_the_largest_kernel_that_reflects(side: int) -> None:
    images = noisy_crops(2, side).permute(0, 3, 1, 2).double() / 255
    half = side - 1
    weights = np.exp(-0.5 * (np.arange(-half, half + 1) / 1.3) ** 2)
    weights /= weights.sum()
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (half, half), (half, half)), mode="reflect")
    expected = np.zeros(images.shape)
    for down, right in itertools.product(range(2 * half + 1), repeat=2):
        expected += weights[down] * weights[right] * padded[..., down : down + side, right : right + side]
    output = gaussian_blur(images, torch.full((2,), 1.3, dtype=torch.float64), 23)
    np.testing.assert_allclose(output.numpy(), expected, rtol=0, atol=1e-9)


def test_the_settings_kernel_is_used() -> None:
    crops = noisy_crops(1)
    for kernel in (3, 9):
        output = augment(crops, row(SIGMA=2.0)[None], dataclasses.replace(PLAIN, blur_kernel=kernel))[0]
        expected = tvf.gaussian_blur(in_double(crops[0]), [kernel, kernel], [2.0, 2.0])
        assert (output - expected).abs().max() < 1e-6


# ---------------------------------------------------------------------------------------------------------------------
# Augmentation, all together
# ---------------------------------------------------------------------------------------------------------------------

JITTERS: list[Callable[[Any, float], Any]] = [
    tvf.adjust_brightness,
    tvf.adjust_contrast,
    tvf.adjust_saturation,
    tvf.adjust_hue,
]


def torchvision_view(image: Any, parameters: Tensor, *, kernel: int) -> Any:
    """One view of a tensor or PIL image by torchvision's functions, in BYOL's order."""
    values = parameters.tolist()
    if values[FLIP]:
        image = tvf.hflip(image)
    if values[JITTER]:
        for operation in list(itertools.permutations(range(4)))[int(values[ORDER])]:
            image = JITTERS[operation](image, values[(BRIGHTNESS, CONTRAST, SATURATION, HUE)[operation]])
    if values[GREYED]:
        image = tvf.rgb_to_grayscale(image, 3)
    if values[SIGMA]:
        image = tvf.gaussian_blur(image, [kernel, kernel], [values[SIGMA], values[SIGMA]])
    return solarize(image) if values[SOLARIZE] else image


@pytest.mark.parametrize("order", range(24))
def test_jitter_follows_every_order(order: int) -> None:
    crops = noisy_crops(3)
    parameters = row(JITTER=1, ORDER=order, BRIGHTNESS=1.35, CONTRAST=0.65, SATURATION=1.8, HUE=0.17)
    output = augment(crops, parameters.expand(3, -1), PLAIN)
    for crop, image in zip(crops, output, strict=True):
        expected = in_double(crop)
        for operation in ORDERS[order].tolist():
            expected = JITTERS[operation](expected, (1.35, 0.65, 1.8, 0.17)[operation])
        assert (image - expected).abs().max() < 2e-5


def test_orders_give_different_pictures() -> None:
    rows = [row(JITTER=1, ORDER=k, BRIGHTNESS=1.35, CONTRAST=0.65, SATURATION=1.8, HUE=0.17) for k in range(24)]
    output = augment(noisy_crops(1).expand(24, -1, -1, -1), torch.stack(rows), PLAIN)
    distances = (output[:, None] - output[None]).abs().amax((2, 3, 4))
    assert (distances > 1e-3).sum() > 24 * 23 * 0.8  # some neighbours commute


def test_whole_views_equal_torchvisions() -> None:
    crops, rows = noisy_crops(60), random_rows(60)
    output = augment(crops, rows, dataclasses.replace(PLAIN, blur_kernel=9))
    near = []
    for crop, parameters, image in zip(crops, rows, output, strict=True):
        expected = torchvision_view(in_double(crop), parameters, kernel=9)
        # Where a value meets solarization's threshold, one rounding more decides on which side it is.
        close = (image - expected).abs() < 5e-5
        assert close.double().mean() > 0.999
        near.append(bool(close.all()))
    assert sum(near) >= 58


def test_whole_views_look_like_pillows() -> None:
    """The pipeline of 8 bits rounds after each operation: near on average, not at any pixel."""
    crops, rows = noisy_crops(60)[::3], random_rows(60)[::3]
    rows[:, SOLARIZE] = 0
    output = augment(crops, rows, dataclasses.replace(PLAIN, blur_kernel=9))
    for crop, parameters, image in zip(crops, rows, output, strict=True):
        expected = torchvision_view(Image.fromarray(crop.numpy()), parameters, kernel=9)
        steps = 255 * image.permute(1, 2, 0) - torch.from_numpy(np.array(expected)).float()
        assert steps.abs().mean() < 2.5


def test_a_mixed_batch_equals_its_rows_one_by_one() -> None:
    crops, rows = noisy_crops(40), random_rows(40)
    settings = ViewSettings()
    together = augment(crops, rows, settings)
    for number in range(40):
        alone = augment(crops[number : number + 1], rows[number : number + 1], settings)[0]
        assert (together[number] - alone).abs().max() < 1e-5
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(augment(crops[order], rows[order], settings), together[order], rtol=0, atol=1e-5)


def test_values_stay_between_0_and_1() -> None:
    output = augment(noisy_crops(60), random_rows(60), PLAIN)
    assert output.min() >= -1e-6
    assert output.max() <= 1 + 1e-6


def test_inputs_are_not_touched_and_memory_is_channels_last() -> None:
    crops, rows = noisy_crops(12), random_rows(12)
    crops_before, rows_before = crops.clone(), rows.clone()
    output = augment(crops, rows, ViewSettings())
    assert torch.equal(crops, crops_before)
    assert torch.equal(rows, rows_before)
    assert output.is_contiguous(memory_format=torch.channels_last)


def test_no_rows_are_no_images() -> None:
    assert augment(noisy_crops(3)[:0], random_rows(1)[:0], ViewSettings()).shape == (0, 3, SIDE, SIDE)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_views() -> None:
    crops, rows = noisy_crops(60), random_rows(60)
    rows[:, SOLARIZE] = 0  # a value at its threshold may fall on either side
    there = augment(crops.cuda(), rows, PLAIN)
    assert there.is_cuda
    assert (there.cpu() - augment(crops, rows, PLAIN)).abs().max() < 0.5 / 255  # convolutions may run in TF32
