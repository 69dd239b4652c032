"""Files that earlier versions wrote still load, resume, evaluate and compare: see old_files/README.md."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import excb
from excb.pretrain.__main__ import main as pretrain
from excb.transfer.cli import main as evaluate
from tests.pretrain.small_runs import OVERRIDES, write_images

OLD = Path(__file__).with_name("old_files")


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files in the current folder, beside the images that they were made from."""
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    write_images(tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def losses(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record["loss"] for record in map(json.loads, lines) if record["kind"] == "step"]


def test_an_old_run_loads_with_every_tensor(old: Path) -> None:
    for network in ("teacher", "student"):
        backbone = excb.load(old / "finished", network=network, heads=True)
        saved = torch.load(old / "finished/checkpoints/step-9.pt", weights_only=True)["model"]
        for name, tensor in backbone.network.state_dict().items():
            assert torch.equal(tensor, saved[f"{network}.backbone.{name}"]), name
        assert backbone.heads is not None


def test_an_old_run_resumes_to_the_figures_it_would_have_had(old: Path) -> None:
    # Values of the recipe that has changed.
    former = ["views.jitter=0.5", "views.hue=0.02", "run.save_steps=1000", "optim.base_lr=0.15"]
    assert pretrain(["quickstart", "--data", "images", "--out", "stopped", "--quiet", *OVERRIDES, *former]) == 0
    assert losses(old / "stopped") == pytest.approx(losses(old / "finished"), rel=1e-4)  # other CPUs round differently
    assert len(losses(old / "stopped")) == 9


def test_an_old_run_gives_the_old_figures(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("train", "test"):
        shutil.copytree(old / "images", old / "labelled" / part)
    options = ["--ckpt", "finished", "--data", "labelled", "--no-cache", "--workers", "0", "--device", "cpu"]
    assert evaluate(["knn", "--k", "3", "5", *options, "--out", "new.json", "--quiet"]) == 0
    before, after = (json.loads((old / file).read_text()) for file in ("results/knn.json", "new.json"))
    for part in ("protocol", "data"):
        assert after[part] == before[part], part
    # Old top-5 also counted classes without a vote, so that it is another protocol; top-1 is the same.
    assert after["settings"] == before["settings"] | {"top5": "classes with a vote"}
    assert after["figures"] == pytest.approx(before["figures"], abs=100 / 27)  # one image of 27, where rounding differs
    capsys.readouterr()
    assert evaluate(["compare", "results/knn.json", "new.json", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["images"] == 27
    assert all(warning.startswith("second only: ") for warning in compared["warnings"])  # old results kept no ledger
    assert not any(figure["real"] for figure in compared["figures"].values())


def test_an_old_linear_result_is_ranked(old: Path) -> None:
    assert evaluate(["leaderboard", "results", "--out", "board", "--quiet"]) == 0
    table = (old / "board" / "leaderboard.md").read_text(encoding="utf-8")
    assert "70.37" in table
    assert "finished step 9" in table
