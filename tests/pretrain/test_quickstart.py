"""The quickstart: its report sets the run beside its references."""

import json
from pathlib import Path

import pytest

from excb.images import photographs
from excb.pretrain.__main__ import main
from tests.pretrain.small_runs import OVERRIDES, write_images


def test_the_report_compares_features_with_their_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(photographs, "TRAIN", 4)
    monkeypatch.setattr(photographs, "TEST", 2)
    command = ["quickstart", "--out", str(tmp_path / "run"), *OVERRIDES, "optim.epochs=1"]
    assert main(command) == 0
    said = capsys.readouterr().out
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["knn"].keys() == {"pixels", "colour_histogram", "patches", "untrained", "excb"}
    assert all(0 <= figure <= 100 for figure in report["knn"].values())
    assert report["seconds"] >= report["training_seconds"] > 0
    figures = report["knn"]
    for name, key in (
        ("raw pixels", "pixels"),
        ("untrained network", "untrained"),
        ("colour histogram", "colour_histogram"),
        ("whitened patches with k-means", "patches"),
    ):
        lead = f"{figures['excb'] - figures[key]:+.1f}"
        assert any(line.split() == [*name.split(), f"{figures[key]:.1f}", lead] for line in said.splitlines())
    best = max(figures[key] for key in figures.keys() - {"excb"})
    assert f"{abs(figures['excb'] - best):.1f} points {'ahead of' if figures['excb'] > best else 'behind'}" in said
    assert (tmp_path / "run" / "references.png").read_bytes().startswith(b"\x89PNG")
    assert f'excb.load("{tmp_path / "run"}")' in said

    assert main([*command, "--json"]) == 0  # a finished run is judged again, with the same figures
    again = json.loads(capsys.readouterr().out)
    assert again == report


@pytest.mark.parametrize("words", [["--against", "conv4_photos"], ["--dry-run"]])
def test_the_quickstart_on_photographs_refuses_what_it_would_not_read(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quickstart", "--out", str(tmp_path / "run"), *words]) == 2
    assert f"{words[0]} is for a run on images of yours: name them with --data DIR" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_dry_run_of_the_quickstart_on_images_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_images(tmp_path / "images")
    assert main(["quickstart", "--data", str(images), "--out", str(tmp_path / "run"), "--dry-run", *OVERRIDES]) == 0
    assert "it can run" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
