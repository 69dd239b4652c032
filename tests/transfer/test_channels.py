"""Evaluation of networks of twelve bands: protocols and references work, and what needs colours refuses by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.images.image_set import ImageSet
from excb.images.subset import Subset
from excb.pages.gallery import thumbnail
from excb.transfer.protocols import PROTOCOLS
from excb.transfer.task import Task, require_colours
from tests.pretrain.banded import BANDS, PIXELS, band_images
from tests.run_files import tiny_recipe, write_run

pytestmark = pytest.mark.usefixtures("one_thread")

QUIET = Reporter(quiet=True)


@pytest.fixture(scope="module")
def bands(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return band_images(tmp_path_factory.mktemp("bands"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    off: dict[str, Any] = {"saturation": 0.0, "hue": 0.0, "grey": 0.0}
    model = {"backbone": "conv4", "options": {"widths": [8, 8, 8, 16], "in_chans": BANDS}}
    recipe = tiny_recipe(model, mean=(0.4,) * BANDS, std=(0.2,) * BANDS, eval_resize=32, eval_crop=32, **off)
    prepared = replace(recipe.views.preprocessing, pixels=PIXELS).to_dict()
    return write_run(tmp_path_factory.mktemp("runs") / "run", 10, recipe=recipe, preprocessing=prepared)


@pytest.fixture(scope="module")
def task(run: Path, bands: ImageSet) -> Task:
    even, odd = (Subset(bands, np.arange(first, len(bands), 2)) for first in (0, 1))
    return Task.prepare(str(run), even, odd, device="cpu", batch=8, workers=0)


@pytest.mark.parametrize(("name", "options"), [("knn", {"k": (3,)}), ("linear", {}), ("retrieval", {})])
def test_protocols_give_figures(task: Task, name: str, options: dict[str, Any]) -> None:
    protocol = PROTOCOLS[name]
    result = protocol.measure(task, protocol.options(**options), QUIET).result
    assert all(0 <= value <= 100 for value in result.figures.values())
    assert result.checkpoint["preprocessing"]["pixels"] == PIXELS.to_dict()


@pytest.mark.parametrize(("option", "width"), [("pixels", BANDS * 1024), ("histogram", BANDS * 16), ("patches", 1600)])
def test_references_see_the_same_channels(task: Task, option: str, width: int) -> None:
    rows, _ = task.reference(option)[1]().features(task.train, "train", QUIET)
    assert rows.shape == (len(task.train), width)
    assert torch.isfinite(rows).all()


def test_the_untrained_network_has_them_too(task: Task) -> None:
    rows, _ = task.untrained().features(task.test, "test", QUIET)
    assert rows.shape == (len(task.test), 16)


def test_other_numbers_of_channels_are_refused(run: Path, bands: ImageSet) -> None:
    colours = Task.prepare("conv4_photos", bands, bands, device="cpu", batch=8, workers=0)
    with pytest.raises(UserError, match="have 12 channels, and the network takes 3: adapt a network to them"):
        colours.features(bands, "train", QUIET)
    pictures = replace(bands, root=bands.root.parent / "pictures", pixels=excb.load("conv4_photos").transform.pixels)
    with pytest.raises(UserError, match="have 3 channels, and the network takes 12"):
        Task.prepare(str(run), pictures, pictures, device="cpu", batch=8, workers=0).features(pictures, "train", QUIET)


def test_what_needs_colours_refuses_by_name(run: Path) -> None:
    with pytest.raises(UserError, match="robustness takes networks of 3 channels, and this one takes images of 12"):
        require_colours(excb.load(run), "robustness")
    require_colours(excb.load("conv4_photos"), "robustness")


@pytest.mark.parametrize("channels", [1, 2, 3, 12])
def test_pages_show_any_channels(channels: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (20, 30, channels), np.uint8)
    assert thumbnail(image).startswith("data:image/jpeg")
