"""The quickstart: its report says what the issue of a run was."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from excb.images import photographs
from excb.images.decoding import open_image
from excb.images.scanning import scan_folder
from excb.pretrain import quickstart
from excb.pretrain.__main__ import main
from tests.pretrain.small_runs import OVERRIDES


def test_colour_histogram_counts_colours() -> None:
    image = Image.fromarray(np.array([[[0, 0, 0], [255, 255, 255]], [[70, 130, 200], [10, 20, 30]]], np.uint8))
    histogram = quickstart.colour_histogram(image)
    expected = torch.zeros(64)
    expected[[0, 63, 16 * 1 + 4 * 2 + 3]] = torch.tensor([2.0, 1.0, 1.0]).sqrt()
    torch.testing.assert_close(histogram, expected)


def test_the_report_compares_four_kinds_of_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(photographs, "TRAIN", 4)
    monkeypatch.setattr(photographs, "TEST", 2)
    command = ["quickstart", "--out", str(tmp_path / "run"), *OVERRIDES, "optim.epochs=1"]
    assert main(command) == 0
    said = capsys.readouterr().out
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["knn"].keys() == {"pixels", "colour_histogram", "untrained", "excb"}
    assert all(0 <= figure <= 100 for figure in report["knn"].values())
    assert report["seconds"] >= report["training_seconds"] > 0
    for name, key in (("raw pixels", "pixels"), ("untrained network", "untrained"), ("ExCB", "excb")):
        assert any(line.split() == [*name.split(), f"{report['knn'][key]:.1f}"] for line in said.splitlines())
    assert f'excb.load("{tmp_path / "run"}")' in said

    assert main([*command, "--json"]) == 0  # a finished run is judged again, with the same figures
    again = json.loads(capsys.readouterr().out)
    assert again["knn"] == report["knn"]


def test_settled_statistics_are_those_of_the_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    photographs_of_noise = tmp_path / "set"
    photographs_of_noise.mkdir()
    random = np.random.default_rng(0)
    for number in range(6):
        Image.fromarray(random.integers(0, 256, (20, 20, 3), np.uint8)).save(photographs_of_noise / f"{number}.png")
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
    images = scan_folder(photographs_of_noise)
    quickstart.estimate_batchnorm(network, images, quickstart.PIXELS)
    inputs = torch.stack([quickstart.PIXELS(open_image(images.file(index))) for index in range(6)])
    torch.testing.assert_close(network[1].running_mean, network[0](inputs).mean((0, 2, 3)))
    assert not network.training
