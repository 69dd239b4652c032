"""Tests of features in half precision: equal to autocast's, kept apart from others, refused beyond the bound."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from excb.console import Reporter
from excb.errors import UserError
from excb.features.precision import BOUND, check_precision
from excb.networks.preprocessing import Preprocessing
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.linear.probe import Probe
from excb.transfer.probes.recipes import PROTOCOLS
from excb.transfer.task import Task
from tests.run_files import TINY_VIT, tiny_recipe, write_run
from tests.transfer.labelled_images import write_folder

QUIET = Reporter(quiet=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("precision")
    write_run(place / "run", 5, recipe=tiny_recipe(TINY_VIT, eval_resize=48, eval_crop=48))
    for name in ("train", "test"):
        write_folder(place / name, each=2)
    return place


def prepare(place: Path, **options: Any) -> Task:
    return Task.prepare(str(place / "run"), place / "train", place / "test", device="cpu", workers=0, **options)


def test_features_are_those_of_autocast_within_the_bound(place: Path, tmp_path: Path) -> None:
    task = prepare(place, precision="bf16", cache=tmp_path)
    halved, _ = task.features(task.train, "train", QUIET)
    whole, _ = replace(task, precision="fp32").features(task.train, "train", QUIET)  # another place in the same cache
    images = torch.stack([task.preprocessing(task.train.open(number)) for number in range(len(task.train))])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = task.backbone(images)
    assert halved.dtype == torch.float32
    torch.testing.assert_close(halved, expected.float(), rtol=0.02, atol=0.02)
    assert not torch.equal(halved, whole)
    assert float((1 - cosine_similarity(halved, whole)).max()) < BOUND


def test_full_precision_keeps_its_place_in_the_cache(place: Path) -> None:
    task = prepare(place)
    assert "autocast" not in task.extraction(task.train).description()


class Cancelling(nn.Module):
    """Features that are small differences of large numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 3 * 32 * 32))

    def forward(self, images: Tensor) -> Tensor:
        rows = torch.nn.functional.linear(images.flatten(1), self.weight + torch.eye(8, 3 * 32 * 32))
        return rows - rows.mean(1, keepdim=True)


def test_a_network_that_half_precision_changes_is_refused(place: Path) -> None:
    images = prepare(place).train
    with pytest.raises(UserError, match=r"^bf16 changes .* more than 1e-03: use fp32$"):
        check_precision(Cancelling(), "bf16", images, Preprocessing(32, 32))
    with pytest.raises(UserError, match=r"^bf16 changes .* more than 1e-03: name another$"):
        check_precision(Cancelling(), "bf16", images, Preprocessing(32, 32), advice="name another")
    check_precision(Cancelling(), "fp32", images, Preprocessing(32, 32))
    wrong = Cancelling()
    wrong.weight.data.fill_(torch.nan)
    with pytest.raises(UserError, match="1 - cosine = nan"):
        check_precision(wrong, "bf16", images, Preprocessing(32, 32))
    with pytest.raises(UserError, match=r"^bf16 is for float32 weights, not torch.float64: use fp32$"):
        check_precision(wrong.double(), "bf16", images, Preprocessing(32, 32))


def test_linear_probing_passes_its_crops_in_half_precision(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = prepare(place, precision="bf16")
    under: list[bool] = []
    inner = task.backbone.forward

    def forward(images: torch.Tensor) -> torch.Tensor:
        under.append(torch.is_autocast_enabled("cpu"))
        return inner(images)

    monkeypatch.setattr(task.backbone, "forward", forward)
    plan = replace(PROTOCOLS["resnet"], epochs=1, batch=8)
    Probe(task, QUIET, plan, select="holdout", seed=0).through_backbone(None)
    assert under
    assert all(under)


def test_results_name_it_and_comparisons_warn(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"{precision}.json" for precision in ("fp32", "bf16")]
    sets = ["--train", str(place / "train"), "--test", str(place / "test")]
    for file in files:
        words = ["knn", "--ckpt", str(place / "run"), *sets, "--k", "3", "--no-cache", "--workers", "0", "--quiet"]
        assert main([*words, "--device", "cpu", "--feature-precision", file.stem, "--out", str(file)]) == 0
    assert "feature_precision" not in ResultRecord.read(files[0]).settings
    assert ResultRecord.read(files[1]).settings["feature_precision"] == "bf16"
    capsys.readouterr()
    assert main(["compare", *map(str, files)]) == 0
    shown = capsys.readouterr()
    assert "feature precision" in shown.out + shown.err
