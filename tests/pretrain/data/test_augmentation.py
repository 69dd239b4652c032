"""Augmentation against torchvision: every operation and whole views pixel by pixel, and their distribution."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as tvf

from benchmarks.kernels import ARCHITECTURES, compile_augmentation
from excb.distributed.machine import triton_obstacle
from excb.images.photographs import photograph
from excb.pretrain.data import augmentation, fused_augmentation
from excb.pretrain.data.augmentation import (
    BRIGHTNESS,
    CONTRAST,
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
    augment,
    gaussian_blur,
)
from excb.pretrain.data.fused_augmentation import augment_fused
from excb.pretrain.data.views import ViewMaker
from excb.pretrain.recipe import ViewSettings
from tests.cuda_waits import no_waiting_for_a_gpu
from tests.interpreted import interpret, needs_triton

pytestmark = pytest.mark.usefixtures("one_thread")

LEAST_P = 1e-3  # inputs are fixed: a test that passes once passes always
Way = Callable[[Tensor, Tensor, int], Iterator[tuple[slice, Tensor]]]
PLAIN = ViewSettings(mean=(0, 0, 0), std=(1, 1, 1))  # shows the augmented pixels themselves


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
        values[getattr(augmentation, name)] = value
    return values


def in_double(crop: Tensor) -> Tensor:
    """A crop as torchvision's float pixels [3, S, S], precise."""
    return crop.permute(2, 0, 1).double() / 255


def random_rows(count: int) -> Tensor:
    """Parameters in which everything happens to about half of the rows."""
    settings = ViewSettings(
        global_size=8,
        local_views=0,
        jitter=0.5,
        grey=0.3,
        blur=(0.5, 0.5),
        solarize=(0.5, 0.5),
        saturation=0.8,
        hue=0.5,
    )
    maker, nothing = ViewMaker(settings, seed=0, epochs=1), np.zeros((9, 9, 3), np.uint8)
    rows = [maker.cut(nothing, epoch=0, sample=sample, views=range(1, 2))[1] for sample in range(count)]
    return torch.from_numpy(np.concatenate(rows))


def augmented(way: Way, crops: Tensor, parameters: Tensor) -> Tensor:
    """Augmentation the CPU's or the GPU's way, on the CPU, without normalisation."""
    views = torch.full((len(crops), 3, *crops.shape[1:3]), torch.nan)
    for rows, images in way(crops.permute(0, 3, 1, 2), parameters, PLAIN.blur_kernel):
        views[rows] = images
    return views


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


@pytest.mark.parametrize("way", [augmentation.one_by_one, augmentation.together])
@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_every_operation_equals_torchvisions(operation: Operation, way: Way) -> None:
    crops = noisy_crops(6)
    output = augmented(way, crops, operation.parameters.expand(6, -1))
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


def figures(view: np.ndarray) -> list[float]:
    """Numbers of a view [3, S, S] that every operation moves: colours, spread, sharpness, brightest side, inversion."""
    grey = view.mean(0)
    return [
        *view.mean((1, 2)),
        grey.std(),
        view.std(0).mean(),
        np.abs(np.diff(grey)).mean(),
        grey[:, : grey.shape[1] // 2].mean() - grey.mean(),
        np.median(grey) - grey.mean(),
    ]


@pytest.mark.parametrize("view", [0, 1, 2])
def test_whole_views_are_distributed_as_those_of_torchvisions_transforms(view: int) -> None:
    image = photograph("astronaut").resize((100, 80))
    settings = ViewSettings(local_views=1, global_size=32, local_size=24, blur_kernel=9, mean=(0, 0, 0), std=(1, 1, 1))
    jitter = transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)
    pipeline = transforms.Compose(
        [
            transforms.RandomResizedCrop(
                (32, 32, 24)[view], ((0.2, 1.0), (0.05, 0.2))[view == 2], interpolation=InterpolationMode.BICUBIC
            ),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([jitter], 0.8),
            transforms.RandomGrayscale(0.2),
            transforms.RandomApply([transforms.GaussianBlur(9, (0.1, 2.0))], (1.0, 0.1, 0.5)[view]),
            transforms.RandomSolarize(128, (0.0, 0.2, 0.0)[view]),
            transforms.ToTensor(),
        ]
    )
    maker, ours, theirs = ViewMaker(settings, seed=0, epochs=1), [], []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for sample in range(500):
            crops, parameters = maker.cut(image, epoch=0, sample=sample, views=range(view, view + 1))
            ours.append(figures(augment(torch.from_numpy(crops), torch.from_numpy(parameters), settings)[0].numpy()))
            theirs.append(figures(pipeline(image).numpy()))
    for mine, others in zip(np.transpose(ours), np.transpose(theirs), strict=True):
        assert stats.ks_2samp(mine, others).pvalue > LEAST_P


@pytest.mark.parametrize("side", [SIDE, augmentation.SMALL_SIDE, augmentation.SMALL_SIDE + 1])
def test_views_are_the_same_in_a_batch_of_any_size(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augmentation, "PIXELS_AT_ONCE", 7 * side * side)
    noise = torch.Generator().manual_seed(0)
    crops, rows = torch.randint(0, 256, (40, side, side, 3), dtype=torch.uint8, generator=noise), random_rows(40)
    settings = ViewSettings()
    views = augment(crops, rows, settings)
    for number in range(40):
        assert torch.equal(augment(crops[number : number + 1], rows[number : number + 1], settings)[0], views[number])
    order = torch.randperm(40, generator=noise)
    assert torch.equal(augment(crops[order], rows[order], settings), views[order])


def test_a_gpus_way_gives_the_same_views() -> None:
    crops, rows = noisy_crops(60), random_rows(60)
    rows[:, SOLARIZE] = 0  # a value at its threshold may fall on either side
    expected = augmented(augmentation.one_by_one, crops, rows)
    assert (augmented(augmentation.together, crops, rows) - expected).abs().max() < 1e-5
    for number in range(0, 60, 7):  # operations that no row wants are left out
        alone = augmented(augmentation.together, crops[number : number + 1], rows[number : number + 1])
        assert (alone - expected[number]).abs().max() < 1e-5


def test_nothing_waits_for_the_device() -> None:
    """Tensors on the meta device have shapes but no values: whoever asks for one fails."""
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(torch.zeros((), device="meta"))  # so this test can fail
    views = augment(noisy_crops(60).to("meta"), random_rows(60), ViewSettings())
    assert views.shape == (60, 3, SIDE, SIDE)
    assert views.is_meta
    assert views.is_contiguous(memory_format=torch.channels_last)


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


def test_augmenting_draws_nothing() -> None:
    crops, rows = noisy_crops(6), random_rows(6)
    before = torch.get_rng_state()
    first = augment(crops, rows, ViewSettings())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    assert torch.equal(augment(crops, rows, ViewSettings()), first)


@pytest.mark.gpu
@pytest.mark.parametrize("function", [augment, augment_fused])
def test_a_gpu_gives_the_same_views(function: Callable[..., Tensor]) -> None:
    crops, rows = noisy_crops(60), random_rows(60)
    rows[:, SOLARIZE] = 0  # a value at its threshold may fall on either side
    there = function(crops.cuda(), rows, PLAIN)
    assert there.is_cuda
    assert (there.cpu() - augment(crops, rows, PLAIN)).abs().max() < 0.5 / 255  # the blur's products may run in TF32


@pytest.mark.gpu
@pytest.mark.parametrize("function", [augment, augment_fused])
def test_a_gpu_is_never_waited_for(function: Callable[..., Tensor]) -> None:
    crops, rows = noisy_crops(60), random_rows(60)
    there = crops.cuda()
    function(there, rows, ViewSettings())  # what is computed once, such as kernels, is there afterwards
    with no_waiting_for_a_gpu():
        function(there, rows, ViewSettings())


# ---------------------------------------------------------------------------------------------------------------------
# The kernels
# ---------------------------------------------------------------------------------------------------------------------


@needs_triton
def test_kernels_interpreted(tmp_path: Path) -> None:
    interpret(__name__, kernels_agree.__name__, cache=tmp_path)


def kernels_agree() -> None:
    """Compare Triton's interpretation of the kernels with torchvision's functions, and with the other way."""
    torch.set_num_threads(1)
    fused_augmentation.BLOCK = 256  # a crop has 784 pixels: four tiles, the last in part
    every_order = [row(JITTER=1, ORDER=k, BRIGHTNESS=1.35, CONTRAST=0.65, SATURATION=1.8, HUE=0.17) for k in range(24)]
    parameters = torch.stack([*(operation.parameters for operation in OPERATIONS), *every_order])
    crops = noisy_crops(len(parameters))
    output = augment_fused(crops, parameters, PLAIN)
    for crop, operation, image in zip(crops, OPERATIONS, output, strict=False):
        expected = operation.function(in_double(crop), *operation.arguments)
        assert (image - expected).abs().max().item() <= operation.tolerance, operation.name
    for crop, values, image in zip(crops[len(OPERATIONS) :], every_order, output[len(OPERATIONS) :], strict=True):
        assert (image - torchvision_view(in_double(crop), values, kernel=23)).abs().max() < 2e-5

    settings = dataclasses.replace(ViewSettings(), blur_kernel=9)
    for side in (SIDE, 5):
        crops, rows = noisy_crops(16, side), random_rows(16)
        views, expected = augment_fused(crops, rows, settings), augment(crops, rows, settings)
        assert views.is_contiguous(memory_format=torch.channels_last)
        assert (
            (views - expected).abs() < 1e-5
        ).double().mean() > 0.999  # at solarization's threshold one rounding tells
    for rows in (random_rows(1)[:0], row()[None]):  # none, and one that nothing changes
        crops = noisy_crops(1)[: len(rows)]
        torch.testing.assert_close(augment_fused(crops, rows, settings), augment(crops, rows, settings))


@pytest.mark.kernels
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiled_kernels_neither_spill_nor_exceed_their_gpu(architecture: int) -> None:
    compiled = list(compile_augmentation(architecture))
    assert {kernel: fault for kernel in compiled if (fault := kernel.fault())} == {}
    assert [kernel.kernel for kernel in compiled] == ["colour_kernel", "finish_kernel"]


@needs_triton
@pytest.mark.parametrize(
    ("device", "capability", "why"),
    [("cpu", (9, 0), "CUDA device"), ("cuda", (7, 5), "8.0"), ("cuda", (8, 0), ""), ("cuda", (12, 0), "")],
)
def test_where_the_kernels_run(
    device: str, capability: tuple[int, int], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    found = triton_obstacle(torch.device(device))
    assert why in found
    assert bool(found) == bool(why)


# ---------------------------------------------------------------------------------------------------------------------
# Images of other than three channels
# ---------------------------------------------------------------------------------------------------------------------

ANY_CHANNELS = [
    (row(FLIP=1), tvf.hflip),
    (row(JITTER=1, BRIGHTNESS=1.4), lambda image: tvf.adjust_brightness(image, 1.4)),
    (row(SIGMA=1.3), lambda image: tvf.gaussian_blur(image, [23, 23], [1.3, 1.3])),
    (row(SOLARIZE=1), solarize),
    # Operations on colours change nothing, and contrast is around the mean of all channels.
    (row(JITTER=1, SATURATION=0.1, HUE=0.4), lambda image: image),
    (row(GREYED=1), lambda image: image),
    (row(JITTER=1, CONTRAST=0.3), lambda image: 0.3 * image + 0.7 * image.mean()),
]


@pytest.mark.parametrize("way", [augmentation.one_by_one, augmentation.together])
@pytest.mark.parametrize("operation", ANY_CHANNELS, ids=lambda each: "")
@pytest.mark.parametrize("channels", [1, 2, 7])
def test_operations_on_any_channels_are_torchvisions_on_each(operation: Any, way: Way, channels: int) -> None:
    crops = torch.cat([noisy_crops(4), noisy_crops(4).flip(0, 3), noisy_crops(4)], 3)[..., :channels]
    parameters, function = operation
    for rows, images in way(crops.permute(0, 3, 1, 2), parameters.expand(4, -1), PLAIN.blur_kernel):
        for crop, image in zip(crops[rows], images, strict=True):
            expected = torch.cat([function(plane[None]) for plane in in_double(crop)])
            if function is ANY_CHANNELS[-1][1]:
                expected = function(in_double(crop))
            torch.testing.assert_close(image.double(), expected, rtol=0, atol=2e-6)


def test_any_channels_are_normalised_by_their_own_statistics() -> None:
    crops = torch.cat([noisy_crops(2), noisy_crops(2)], 3)[..., :4]
    settings = ViewSettings(mean=(0.1, 0.2, 0.3, 0.4), std=(1.0, 0.5, 2.0, 0.1))
    expected = tvf.normalize(crops.permute(0, 3, 1, 2).double() / 255, list(settings.mean), list(settings.std))
    output = augment(crops, row().expand(2, -1), settings)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-5)
