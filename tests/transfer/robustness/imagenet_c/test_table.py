"""Tests of ImageNet-C's corruptions: against numbers from its authors' code, and against that code if it is there."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from excb.errors import UserError
from excb.transfer.robustness.imagenet_c import frost
from excb.transfer.robustness.imagenet_c.table import CORRUPTIONS, OPENCV, corrupted
from excb.transfer.robustness.names import ALL
from tests.transfer.robustness.imagenet_c.authors_code import authors_functions, beside_their_pictures, has_magick

pytestmark = pytest.mark.usefixtures("one_thread")
MAGICK = ("motion_blur", "snow")  # of theirs, that call ImageMagick
SEED, SIDE = 11, 224
# Every 32nd pixel across and down of their results for `picture()`: hexadecimal, by corruption and severity.
# `record` below made it with ImageMagick 6.9.13, OpenCV 5.0.0, SciPy 1.17.1 and scikit-image 0.26.0.
RECORDED = Path(__file__).with_name("recorded.json")


def picture(side: int = SIDE) -> np.ndarray:
    """Waves of three colours, edges and an even area, uint8 [side, side, 3]."""
    rows, columns = np.mgrid[:side, :side] / 224
    waves = [np.sin(turns * columns + 5 * rows * rows + turns) for turns in (9, 15, 21)]
    pixels = np.stack(waves, 2) * 90 + 128
    pixels[side // 8 : side // 3, side // 8 : side // 2] = (200, 30, 90)
    return np.where((rows + columns < 1.6)[..., None], pixels, 255).astype(np.uint8)


def sample(pixels: np.ndarray) -> np.ndarray:
    return pixels[5::32, 5::32]


def require_for(name: str) -> None:
    """Skip the test where the corruption needs what is not installed."""
    if name in OPENCV and importlib.util.find_spec("cv2") is None:
        pytest.skip(f"{name} needs OpenCV")
    if name == "frost":
        try:
            frost.photographs()
        except UserError as error:
            pytest.skip(str(error))


def theirs(name: str, severity: int, pixels: np.ndarray, seed: int) -> np.ndarray:
    from PIL import Image

    functions = authors_functions()
    with beside_their_pictures():
        np.random.seed(seed)  # noqa: NPY002
        return np.asarray(functions[name](Image.fromarray(pixels), severity)).astype(np.uint8)


def record() -> None:
    """Write `RECORDED`, by `python -c "from tests...test_table import record; record()"` beside their code."""
    values = {
        name: {severity: sample(theirs(name, severity, picture(), SEED)).tobytes().hex() for severity in (1, 2, 5)}
        for name in ALL
    }
    RECORDED.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", ALL)
def test_results_are_those_recorded_of_the_authors_code(name: str) -> None:
    require_for(name)
    for severity, values in json.loads(RECORDED.read_text(encoding="utf-8"))[name].items():
        made = sample(corrupted(picture(), name, int(severity), SEED))
        expected = np.frombuffer(bytes.fromhex(values), np.uint8).reshape(made.shape)
        apart = np.abs(made.astype(int) - expected)
        # Libraries round differently on other processors: where a value is next to a whole number, that shows.
        assert apart.max() <= 1, (severity, apart.max())
        assert (apart > 0).mean() <= 0.02


@pytest.mark.parametrize("name", ALL)
def test_results_are_those_of_the_authors_code(name: str) -> None:
    require_for(name)
    authors_functions()
    if name in MAGICK and not has_magick():
        pytest.skip("ImageMagick is not installed")
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    for pixels in (picture(), noise):
        for severity in range(1, 6):
            made = corrupted(pixels, name, severity, severity)
            assert np.array_equal(made, theirs(name, severity, pixels, severity)), severity


@pytest.mark.parametrize("name", ALL)
def test_every_corruption_takes_other_sizes_and_grows(name: str) -> None:
    require_for(name)
    pixels = picture(80)
    near, far = (corrupted(pixels, name, severity, 3) for severity in (1, 5))
    assert near.shape == far.shape == pixels.shape
    assert near.dtype == np.uint8
    assert np.array_equal(far, corrupted(pixels, name, 5, 3))
    first, last = (np.abs(made.astype(int) - pixels).mean() for made in (near, far))
    assert 0 < first < last or (name == "elastic_transform" and 0 < last < first)  # its first severities move far


def test_the_table_has_all_names() -> None:
    assert tuple(CORRUPTIONS) == ALL


def test_fog_takes_images_larger_than_its_map() -> None:
    assert corrupted(picture(260), "fog", 1, 0).shape == (260, 260, 3)


def test_frost_draws_from_five_photographs() -> None:
    require_for("frost")
    shapes = {frost.cut_of_frost(64, 48, np.random.RandomState(seed)).shape for seed in range(30)}
    assert shapes == {(64, 48, 3)}
    assert len(frost.photographs()) == 5
    with pytest.raises(UserError, match="frost is defined below"):
        frost.cut_of_frost(3000, 3000, np.random.RandomState(0))
