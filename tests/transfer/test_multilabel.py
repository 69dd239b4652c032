"""Tests of `knn` and `linear` on images with a set of labels each: oracles in loops, files, and what refuses them."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.metrics import label_ranking_average_precision_score, precision_recall_curve

import excb
from excb.errors import UserError
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.compare import Side
from excb.transfer.data.multilabel import MultiLabelImages
from excb.transfer.data.sources import train_and_test
from excb.transfer.leaderboard.submission import check_result
from excb.transfer.reporting.average_precision import of_labels
from excb.transfer.reporting.label_scores import LabelScores
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import features_by_loop, write_folder
from tests.transfer.multilabel_images import CLASSES, write_lists

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("multilabel")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_lists(place / "data")
    lines = (place / "data" / "train.csv").read_text().splitlines()
    (place / "data" / "train.csv").write_text("\n".join([f"{lines[0]},?red", *lines[1:]]), encoding="utf-8")
    return place


def evaluate(place: Path, name: str, *words: str) -> int:
    usual = ["--ckpt", str(place / "run"), "--data", f"multilabel:{place / 'data'}", "--cache", str(place / "cache")]
    return int(main([name, *usual, "--workers", "0", "--device", "cpu", *words]))


def votes_by_loop(place: Path, k: int, temperature: float) -> np.ndarray:
    """A weighted share of the neighbours for each class, one query at a time."""
    train, _ = train_and_test(f"multilabel:{place / 'data'}")
    assert isinstance(train, MultiLabelImages)
    targets = train.targets
    backbone = excb.load(place / "run")
    (bank, _), (queries, _) = (features_by_loop(backbone, place / "data" / part) for part in ("train", "test"))
    scores = np.zeros((len(queries), len(CLASSES)))
    bank = bank / np.linalg.norm(bank, axis=1, keepdims=True)
    for number, query in enumerate(queries):
        cosines = bank @ (query / np.linalg.norm(query))
        nearest = sorted(range(len(bank)), key=lambda row: (-cosines[row], row))[:k]
        for label in range(len(CLASSES)):
            voters = [row for row in nearest if targets[row, label] >= 0]
            weights = {row: np.exp(cosines[row] / temperature) for row in voters}
            scores[number, label] = sum(weights[row] * targets[row, label] for row in voters) / sum(weights.values())
    return scores


def test_knn_votes_for_each_class_on_its_own(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "knn.json"
    assert evaluate(place, "knn", "--k", "5", "10", "--untrained", "--out", str(file)) == 0
    assert "knn_mAP11_k5" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert list(result["figures"]) == ["knn_mAP_k5", "knn_mAP11_k5", "knn_mAP_k10", "knn_mAP11_k10"]
    saved = load_file(tmp_path / "knn.safetensors")
    np.testing.assert_allclose(saved["knn_{}_k5"], votes_by_loop(place, 5, 0.07), atol=1e-5)
    assert result["intervals"] == {}  # of 18 images
    majority = result["references"]["majority"]["knn_mAP_k5"]
    assert majority == pytest.approx(100 * saved["targets"].mean(), abs=1e-3)  # constant scores: shares of the classes
    assert set(result["references"]["untrained"]) == set(result["figures"])
    assert set(result["per_class"]["knn_mAP_k5"]) == set(CLASSES)
    assert check_result(file, ResultRecord.read(file))[-1] == "predictions are there"


def test_linear_fits_a_regression_for_each_class(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "linear.json"
    assert evaluate(place, "linear", "--protocol", "logreg", "--out", str(file), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["figures"]["linear_mAP"] > result["references"]["majority"]["linear_mAP"]
    assert len(result["settings"]["sweep"]) == 12
    assert load_file(tmp_path / "linear.safetensors")["linear_{}"].shape == (18, 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("linear", "--protocol", "fast"), "images with a set of labels each need --protocol logreg"),
        (("linear", "--protocol", "logreg", "--lr", "1"), "logreg has no --lr"),
        (("linear", "--protocol", "logreg", "--select", "test"), "have no use for --select: held-out images choose"),
        (("linear", "--protocol", "logreg", "--C", "0"), "--C must be above 0"),
        (("retrieval",), "this evaluation needs one class for each: knn and linear take sets of labels"),
        (("all",), "this evaluation needs one class for each: knn and linear take sets of labels"),
        (("knn", "--k", "99"), "--k 99 is out of range"),
    ],
)
def test_what_takes_no_sets_of_labels_says_so(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    out = () if words[0] != "all" else ("--out", str(tmp_path))
    assert evaluate(place, *words, *out) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_dry_runs_say_what_they_take(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(place, "knn", "--dry-run") == 0
    assert evaluate(place, "linear", "--protocol", "logreg", "--dry-run") == 0
    assert "logistic regressions on these features: 12, each of all classes" in capsys.readouterr().out


def test_from_python_every_class_has_a_score(place: Path) -> None:
    result = excb.evaluate(place / "run", "knn", data=f"multilabel:{place / 'data'}", k=[3], workers=0, quiet=True)
    columns = result.predictions()
    _, test = train_and_test(f"multilabel:{place / 'data'}")
    assert list(columns) == ["path", "classes", *CLASSES]
    assert columns["path"] == list(test.paths)
    assert isinstance(test, MultiLabelImages)
    assert [[name in own for name in CLASSES] for own in columns["classes"]] == (test.targets == 1).tolist()
    np.testing.assert_allclose(
        np.stack([columns[name] for name in CLASSES], 1), votes_by_loop(place, 3, 0.07), atol=1e-5
    )
    assert result.predictions("knn_mAP11_k3") == columns
    with pytest.raises(UserError, match="did you mean 'knn_mAP_k3'"):
        result.predictions("knn_mAP_k4")
    same = excb.compare(result, result)["figures"]["knn_mAP_k3"]
    assert (same["difference"], same["p_value"], same["words"]) == (0, 1, "both score the same")


def test_results_are_compared_by_their_mean_average_precision(place: Path, tmp_path: Path) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file, k in zip(files, ("1", "10"), strict=True):
        assert evaluate(place, "knn", "--k", k, "--out", str(file)) == 0
    compared = excb.compare(*files, figure="knn_mAP_k1:knn_mAP_k10")["figures"]["knn_mAP_k1:knn_mAP_k10"]
    one, two = (Side.of(file).scored for file in files)
    assert isinstance(one, LabelScores)
    assert isinstance(two, LabelScores)
    first, second = one.values["knn_{}_k1"], two.values["knn_{}_k10"]

    def value(scores: np.ndarray, images: np.ndarray) -> float:
        """mAP of images that may be drawn several times, class by class."""
        each = []
        for label in range(len(CLASSES)):
            known = images[one.targets[images, label] >= 0]
            own = one.targets[known, label] == 1
            if own.any():
                curve = precision_recall_curve(own, scores[known, label])
                precision, recall = np.maximum.accumulate(curve[0]), curve[1]
                each.append(float(-(np.diff(recall) * precision[:-1]).sum()))
        return float(np.mean(each)) if each else np.nan

    everyone = np.arange(len(one.names))
    assert compared["first"] == pytest.approx(100 * value(first, everyone), abs=1e-3)
    assert compared["second"] == pytest.approx(100 * value(second, everyone), abs=1e-3)
    assert (compared["interval"], compared["p_value"]) == (None, 1)  # of 18 images


def test_labels_among_all_are_scikit_learns(place: Path) -> None:
    random = np.random.default_rng(0)
    scores, targets = random.integers(4, size=(60, 5)).astype(float), random.integers(2, size=(60, 5))
    mean = of_labels(scores, targets).mean()
    assert mean == pytest.approx(label_ranking_average_precision_score(targets, scores))
    targets[:, 0] = -1
    assert of_labels(scores, targets) == pytest.approx(of_labels(scores[:, 1:], targets[:, 1:]))


def test_only_results_of_a_kind_on_equal_labels_are_compared(place: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"k": [3], "workers": 0, "quiet": True}
    several = excb.evaluate(place / "run", "knn", data=f"multilabel:{place / 'data'}", **options)
    write_folder(tmp_path / "train", each=3)
    write_folder(tmp_path / "test", each=3)
    one = excb.evaluate(place / "run", "knn", data=tmp_path, **options)
    with pytest.raises(UserError, match="one judges several labels per image, the other one class per image"):
        excb.compare(several, one)
    assert isinstance(several.scored, LabelScores)
    changed = replace(several, scored=replace(several.scored, targets=1 - np.abs(several.scored.targets)))
    with pytest.raises(UserError, match=r"the labels of .* differ"):
        excb.compare(several, changed)


@pytest.mark.parametrize("change", ["bytes", "classes"])
def test_scores_that_are_damaged_are_refused(place: Path, tmp_path: Path, change: str) -> None:
    file = tmp_path / "knn.json"
    assert evaluate(place, "knn", "--k", "3", "--out", str(file)) == 0
    scored = Side.of(file).scored
    assert isinstance(scored, LabelScores)
    packed = b"nothing" if change == "bytes" else replace(scored, classes=scored.classes[1:]).pack()
    file.with_suffix(".safetensors").write_bytes(packed)
    contents = json.loads(file.read_text())
    contents["predictions"]["sha256"] = hashlib.sha256(packed).hexdigest()
    file.write_text(json.dumps(contents))
    with pytest.raises(UserError, match=r"knn\.safetensors holds no scores .*: evaluate again"):
        excb.compare(file, file)
