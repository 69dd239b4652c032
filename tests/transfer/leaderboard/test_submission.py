"""Tests of submissions: a sound result passes, and each thing that is wrong with another is named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from excb.errors import UserError
from excb.files import foreign
from excb.inference.accuracy import accuracy_interval, share_interval
from excb.inference.basis import AS_HITS, BOOTSTRAP
from excb.inference.means import mean_interval
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.leaderboard.gather import gather
from excb.transfer.leaderboard.submission import check_result, submit, tolerance
from excb.transfer.reporting.predictions import Predictions
from excb.transfer.reporting.report import write_result as write_all
from tests.transfer.result_files import result, write

FIGURES = {"knn_top1_k20": 50.0, "knn_top5_k20": 100.0}


def test_a_sound_result_is_recounted(tmp_path: Path) -> None:
    found = predicted(FIGURES, tmp_path)
    assert checked(found) == [
        "schema 2",
        f"protocol knn {read(found).protocol_hash}",
        "2 figures recounted from 6 predictions",
    ]
    found.with_name("mine.npz").unlink()
    assert len(checked(found)) == 2


def predicted(figures: dict[str, float], folder: Path, **changed: tuple[float, float]) -> Path:
    """A result whose predictions have half of six images right at once, and all among five."""
    targets = torch.tensor([0, 1, 2, 0, 1, 2])
    top5 = torch.stack([torch.tensor([0, 0, 2, 0, 0, 0]), (targets + 0)], dim=1)
    top5[:, 1] = torch.where(top5[:, 0] == targets, (targets + 1) % 3, targets)
    ranked = {"knn_top1_k20": top5[:, :1], "knn_top5_k20": top5}
    intervals = {name: accuracy_interval((each == targets[:, None]).any(1)) for name, each in ranked.items()}
    predictions = Predictions(targets, [f"{n}.png" for n in range(6)], ("a", "b", "c"), {"knn_{}_k20": top5})
    return write_all(replace(result(figures), intervals=intervals | changed), predictions, folder / "mine.json")[0]


def read(file: Path) -> ResultRecord:
    return ResultRecord.read(file)


def checked(file: Path) -> list[str]:
    return check_result(file, read(file))


def test_a_figure_that_its_predictions_do_not_give(tmp_path: Path) -> None:
    file = predicted({"knn_top1_k20": 50.4, "knn_top5_k20": 100.0}, tmp_path)
    with pytest.raises(UserError, match=r"knn_top1_k20 is 50\.4, and its predictions give 50\.0"):
        checked(file)


def test_an_interval_that_its_predictions_do_not_give(tmp_path: Path) -> None:
    file = predicted(FIGURES, tmp_path, knn_top1_k20=(0.0, 100.0))  # it would bear out any claim
    with pytest.raises(UserError, match=r"knn_top1_k20 has the interval \(0\.0, 100\.0\), and its predictions give"):
        checked(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"k": [10], "temperature": [0.07]}}, "its settings are not those of its protocol_hash"),
        ({"schema": 1}, "has schema 1, not 2"),
        ({"extra": 1}, r"lacks or adds fields of schema 2 \(extra\)"),
        ({"figures": {"knn_top1_k20": 150.0}, "intervals": {}}, "lies between 0 and 100"),
        ({"figures": {"knn_top1_k20": 60.0}}, "outside its interval 49.0 to 51.0"),
        ({"figures": {"speed": 60.0}}, "holds no figure that a leaderboard shows"),
        ({"figures": {"purity_percent": 60.0}, "data": {}}, "holds no figure that a leaderboard shows"),
        ({"checkpoint": {"weights_sha256": "abc"}}, "checkpoint.weights_sha256 is not a sha256"),
        ({"predictions": {}}, "predictions.sha256 is not a sha256"),
        ({"data": {"train": {}}}, "has a field of another form"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = write(tmp_path, "mine.json", result({"knn_top1_k20": 50.0}))
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        checked(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"figures": {"knn_top1_k20": 150.0}, "intervals": {}},
            r"knn_top1_k20 is 150\.0: a figure lies between 0 and 100",
        ),
        ({"figures": {"knn_top1_k20": 60.0}}, r"knn_top1_k20 is 60\.0, outside its interval 49\.0 to 51\.0"),
        ({"intervals": {"knn_top1_k20": [90, 80]}}, r"knn_top1_k20 is 50\.0, outside its interval 90 to 80"),
        ({"checkpoint": {}}, "does not say which weights and which test images it is of"),
        ({"data": {}}, "does not say which weights and which test images it is of"),
    ],
)
def test_a_board_shows_nothing_that_cannot_be(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = write(tmp_path, "mine.json", result({"knn_top1_k20": 50.0}))
    assert gather([file], tmp_path)[0]
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(UserError, match=f"mine.json.*{message}.*: measure again"):
        gather([file], tmp_path)


def test_results_that_no_board_shows_are_passed_over_in_folders_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "runs", "knn.json", result({"knn_top1_k20": 50.0}))
    clusters = write(tmp_path / "runs", "clusters.json", result({"purity_percent": 50.0}, protocol="clusters"))
    assert len(gather([tmp_path / "runs"], tmp_path)[0]) == 1 + len(gather([], tmp_path)[0])
    assert main(["leaderboard", str(tmp_path / "runs"), "--out", str(tmp_path / "board")]) == 0
    assert f"1 result has no figure that a leaderboard shows, such as {clusters}" in capsys.readouterr().err
    assert main(["leaderboard", str(clusters), "--out", str(tmp_path / "board")]) == 2
    assert "clusters.json holds no figure that a leaderboard shows: leave it out" in capsys.readouterr().err


def test_runs_that_measure_nothing(tmp_path: Path) -> None:
    smoke = result({"bbox_AP": 1.0}, protocol="detection", settings={"schedule": "smoke", "recipe": "ssl"})
    with pytest.raises(UserError, match="schedule smoke shows that the machinery works"):
        checked(write(tmp_path, "smoke.json", smoke))
    with pytest.raises(UserError, match="protocol 'guess' is none of this version"):
        checked(write(tmp_path, "guess.json", result({"knn_top1_k20": 1.0}, protocol="guess")))


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predicted(FIGURES, tmp_path)
    opened, opener = list[str](), foreign._open_regular

    def opening(path: str, flags: int) -> int:
        opened.append(Path(path).name)
        return opener(path, flags)

    monkeypatch.setattr(foreign, "_open_regular", opening)
    for words in (["--check"], ["--submit", str(tmp_path / "board")]):
        opened.clear()
        assert main(["leaderboard", str(tmp_path / "mine.json"), *words]) == 0
        assert sorted(opened) == ["mine.json", "mine.npz"]


def test_a_submission_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    file = write(
        tmp_path / "runs", "mine.json", result({"semisup_10pct_top1": 50.0}, protocol="semisup", name="a/b run")
    )
    place = submit(read(file), tmp_path / "results")
    assert place.name == "a-b-run-semisup_10pct.json"
    assert "someone" not in place.read_text(encoding="utf-8")
    assert read(place).figures == read(file).figures
    assert checked(submit(read(file), tmp_path / "results")) == checked(file)
    other = write(
        tmp_path / "runs", "other.json", result({"semisup_10pct_top1": 51.0}, protocol="semisup", name="a/b run")
    )
    with pytest.raises(UserError, match="is another result: rename one of them"):
        submit(read(other), tmp_path / "results")


def test_intervals_of_earlier_versions_are_held() -> None:
    scores = torch.cat([torch.zeros(27), torch.full((3,), 0.1)]).double()
    now, before = mean_interval(scores), share_interval(float(scores.mean()), 30)  # which they had at most
    apart = max(abs(own - then) for own, then in zip(now, before, strict=True))
    assert tolerance(now, AS_HITS.method, AS_HITS.method) < apart
    assert tolerance(now, AS_HITS.method, None) == tolerance(now, AS_HITS.method, AS_HITS.method)
    few = torch.cat([torch.zeros(24), torch.linspace(0.1, 0.9, 6)]).double()
    now, before = mean_interval(few), share_interval(float(few.mean()), 30)
    apart = max(abs(own - then) for own, then in zip(now, before, strict=True))
    assert apart < tolerance(now, AS_HITS.method, BOOTSTRAP.method)
