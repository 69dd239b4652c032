"""Training images have one record of pixels, which a run keeps."""

import json
from pathlib import Path

import numpy as np
import pytest

from excb.console import Reporter
from excb.errors import UserError
from excb.images.pixels import Pixels
from excb.images.scanning import scan_folder
from excb.pretrain.recipe import DataSettings
from excb.pretrain.run.run_folder import facts_of_images
from excb.pretrain.training.pixels import with_their_pixels
from tests.excb.images.deep_files import ramp, write

QUIET = Reporter(quiet=True)


def test_a_run_that_resumes_keeps_its_range(tmp_path: Path) -> None:
    write(tmp_path / "images" / "1.png", ramp(0, 4095, np.uint16))
    images = with_their_pixels(scan_folder(tmp_path / "images"), DataSettings(), QUIET)
    assert images.pixels == Pixels(3, (0.0,), (4095.0,), "measured")
    begun = tmp_path / "recipe.json"
    begun.write_text(json.dumps({"data": facts_of_images(images)}))
    write(tmp_path / "images" / "2.png", ramp(0, 9000, np.uint16))
    again = with_their_pixels(scan_folder(tmp_path / "images"), DataSettings(), QUIET, begun=begun)
    assert again.pixels == images.pixels
    declared = with_their_pixels(scan_folder(tmp_path / "images"), DataSettings(range="0..100"), QUIET, begun=begun)
    assert declared.pixels.range == "0..100"


def test_ordinary_images_leave_no_record(tmp_path: Path) -> None:
    write(tmp_path / "1.png", ramp(0, 255, np.uint8))
    images = scan_folder(tmp_path)
    assert with_their_pixels(images, DataSettings(), QUIET) is images
    assert "pixels" not in facts_of_images(images)
    with pytest.raises(UserError, match=r"leave data\.range out"):
        with_their_pixels(images, DataSettings(range="0..100"), QUIET)
