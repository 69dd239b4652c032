"""Training images have one record of pixels, which a run keeps."""

import json
from pathlib import Path

import numpy as np
import pytest

import excb
from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.errors import UserError
from excb.images.image_set import CLIPPED
from excb.images.pixels import Pixels
from excb.images.scanning import scan_folder
from excb.ledger import Ledger
from excb.pretrain.loop import run_training
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.recipe import DataSettings
from excb.pretrain.run.run_folder import facts_of_images
from excb.pretrain.training.pixels import with_their_pixels
from tests.excb.images.deep_files import ramp, write
from tests.pretrain.small_runs import OVERRIDES

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")
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


def test_a_run_counts_the_images_outside_the_range_also_after_it_resumed(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / "images" / f"{number}.png", ramp(0, 90 + 20 * (number > 7), np.uint16, 40))
    (tmp_path / "images" / "notes.txt").write_text("no image")
    settings = ["data.range=0..100", "optim.epochs=2", "optim.batch=2", "method.clusters=4", "monitor.every_epochs=9"]
    recipe = apply(find_recipe("quickstart"), [*OVERRIDES, *settings, "efficiency.workers=1", "run.save_epochs=1"])
    out = tmp_path / "run"
    assert run_training(recipe, scan_folder(tmp_path / "images"), out, QUIET, table=False, verdict=False) == 0
    report = json.loads((out / "report.json").read_text())
    entries = {entry.reason: entry for entry in Ledger.from_dict(report["ledger"]).entries}
    assert entries[CLIPPED].count == 2
    assert set(entries[CLIPPED].names) == {"8.png", "9.png"}
    assert entries[".txt"].names == ("notes.txt",)
    assert json.loads((out / "recipe.json").read_text())["data"]["ledger"]["entries"][0]["reason"] == ".txt"

    contents = run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(out)[0])
    assert contents["clipped"].tolist() == [8, 9]
    (out / "report.json").unlink()
    assert run_training(recipe, scan_folder(tmp_path / "images"), out, QUIET, table=False, verdict=False) == 0
    assert json.loads((out / "report.json").read_text())["ledger"] == report["ledger"]  # no image was read again
    trained_on = excb.load(out).entry.training["ledger"]
    assert Ledger.from_dict(trained_on) == Ledger.from_dict(report["ledger"])
