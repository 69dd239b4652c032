"""Tests of reports and their files: figures of known predictions, hashes that move with what they name, pictures."""

import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from excb.errors import UserError
from excb.networks.backbone import weights_hash
from excb.results.result import ResultRecord
from excb.transfer.reporting import confusion
from excb.transfer.reporting.predictions import Predictions
from excb.transfer.reporting.report import make_result, scored_beside, write_result
from excb.transfer.task import Task
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import write_folder

KNOWN = Predictions(
    targets=torch.tensor([0, 0, 1, 1, 3]),
    names=["ant/0.png", "ant/1.png", "bee/ü.png", "bee/\udcff.png", "yak/0.png"],
    classes=("ant", "bee", "cat", "yak"),
    values={
        "knn_{}_k1": torch.tensor([[0, 1, 2], [1, 0, 2], [1, 0, 2], [2, 0, 1], [0, 1, 2]]),
        "knn_{}_k2": torch.tensor([[0], [0], [1], [1], [2]]),
    },
)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    place = tmp_path_factory.mktemp("report")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    for name in ("train", "test"):
        write_folder(place / name, each=1, classes=("ant", "bee", "cat"))
    return Task.prepare(str(place / "run"), place / "train", place / "test", device="cpu", workers=0)


def reported(task: Task, **values: Any) -> ResultRecord:
    given: dict[str, Any] = {"protocol": "knn", "settings": {"k": [1, 2]}, "scored": KNOWN, "seconds": 1.2345}
    return make_result(task, **given | values)


def test_report_holds_the_figures_of_known_predictions(task: Task) -> None:
    found = reported(task, notes=["a note"])
    assert found.figures == {"knn_top1_k1": 40.0, "knn_top5_k1": 80.0, "knn_top1_k2": 80.0, "knn_top5_k2": 80.0}
    assert list(found.figures) == ["knn_top1_k1", "knn_top5_k1", "knn_top1_k2", "knn_top5_k2"]
    assert found.per_class == {
        "knn_top1_k1": {"ant": 50.0, "bee": 50.0, "cat": None, "yak": 0.0},
        "knn_top1_k2": {"ant": 100.0, "bee": 100.0, "cat": None, "yak": 0.0},
    }
    assert found.intervals.keys() == found.figures.keys()
    assert all(low <= found.figures[name] <= high for name, (low, high) in found.intervals.items())
    assert (found.notes, found.seconds, found.settings) == (["a note"], 1.2, {"k": [1, 2]})


def test_report_names_weights_and_lists_of_files(task: Task) -> None:
    found = reported(task)
    assert found.checkpoint["weights_sha256"] == weights_hash(task.backbone.network)
    assert found.checkpoint["step"] == 5
    assert found.data["test"]["fingerprint"] == task.test.fingerprint


def test_weights_hash_is_that_of_the_written_out_recipe() -> None:
    network = nn.BatchNorm1d(2)  # floats, and an integer without dimensions
    digest = hashlib.sha256()
    for name in ("bias", "num_batches_tracked", "running_mean", "running_var", "weight"):
        value = network.state_dict()[name].numpy()
        digest.update(f"{name} torch.{value.dtype} {tuple(value.shape)}\n".encode() + value.tobytes())
    assert weights_hash(network) == digest.hexdigest()


def test_weights_hash_moves_with_any_weight_name_type_or_shape() -> None:
    def linear(**values: torch.Tensor) -> str:
        network = nn.Module()
        for name, value in values.items():
            network.register_buffer(name, value)
        return weights_hash(network)

    first = torch.arange(6.0).view(2, 3)
    hashes = {
        linear(a=first),
        linear(b=first),
        linear(a=first.view(3, 2)),
        linear(a=first + torch.eye(2, 3) * 1e-6),
        linear(a=first.bfloat16()),
        linear(a=first.view(torch.int32)),
    }
    assert len(hashes) == 6
    assert linear(a=first, b=first + 1) == linear(b=first + 1, a=first)
    assert linear(a=first.T.contiguous().T) == linear(a=first)  # strides are not part of it


def test_what_was_written_is_read_again(task: Task, tmp_path: Path) -> None:
    result = reported(task)
    files = write_result(result, KNOWN, tmp_path / "deep" / "knn.json")
    assert [file.name for file in files] == ["knn.json", "knn.npz", "knn.confusion.png"]
    assert sorted(tmp_path.glob("deep/*")) == sorted(files)
    found = ResultRecord.read(files[0])
    predictions = scored_beside(found, files[0])
    assert isinstance(predictions, Predictions)
    digest = hashlib.sha256(files[1].read_bytes()).hexdigest()
    assert found == replace(result, predictions={"file": "knn.npz", "sha256": digest})
    assert (predictions.names, predictions.classes) == (KNOWN.names, KNOWN.classes)
    assert torch.equal(predictions.targets, KNOWN.targets)
    assert list(predictions.values) == list(KNOWN.values)
    assert all(torch.equal(predictions.values[name], KNOWN.values[name]) for name in KNOWN.values)
    with Image.open(files[2]) as image:
        assert image.format == "PNG"


def test_equal_predictions_make_equal_files(task: Task, tmp_path: Path) -> None:
    files = [write_result(reported(task), KNOWN, tmp_path / name)[1] for name in ("a.json", "b.v2")]
    assert files[1].name == "b.v2.npz"
    assert files[0].read_bytes() == files[1].read_bytes()


def test_files_that_do_not_belong_together_are_refused(task: Task, tmp_path: Path) -> None:
    file, arrays, _ = write_result(reported(task), KNOWN, tmp_path / "a.json")
    arrays.write_bytes(arrays.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"a\.npz does not hold the predictions of .*a\.json"):
        scored_beside(ResultRecord.read(file), file)
    arrays.unlink()
    with pytest.raises(UserError, match="keep both files together"):
        scored_beside(ResultRecord.read(file), file)
    file.write_text(reported(task).to_json(), encoding="utf-8")
    with pytest.raises(UserError, match="names no predictions: evaluate again with --out"):
        scored_beside(ResultRecord.read(file), file)


def test_json_is_written_last(task: Task, tmp_path: Path) -> None:
    (tmp_path / "knn.confusion.png").mkdir()  # in the way
    with pytest.raises(UserError, match="cannot write"):
        write_result(reported(task), KNOWN, tmp_path / "knn.json")
    assert not (tmp_path / "knn.json").exists()
    (tmp_path / "knn.confusion.png").rmdir()
    file, *_ = write_result(reported(task), KNOWN, tmp_path / "knn.json")
    assert json.loads(file.read_text(encoding="utf-8"))["predictions"]["file"] == "knn.npz"


@pytest.mark.parametrize(
    "values",
    [
        {"names": ["a"]},
        {"classes": ("ant", "bee", "cat")},
        {"values": {"knn_top1": torch.zeros(5, 1, dtype=torch.int64)}},
        {"values": {"knn_{}": torch.zeros(4, 1, dtype=torch.int64)}},
        {"values": {"knn_{}": torch.full((5, 1), 4)}},
    ],
)
def test_predictions_must_fit_together(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        replace(KNOWN, **values)


# ---------------------------------------------------------------------------------------------------------------------
# The picture
# ---------------------------------------------------------------------------------------------------------------------


def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that the pictures of this test show, collected when they are saved."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    shown: list[str] = []
    save = Figure.savefig

    def collect(figure: Figure, *values: Any, **options: Any) -> None:
        save(figure, *values, **options)
        shown.extend(text.get_text() for text in figure.findobj(Text) if text.get_text() and text.get_visible())

    monkeypatch.setattr(Figure, "savefig", collect)
    return shown


SCALE = ("0", "1", "5", "10", "25", "50", "100")  # beside the colours


def test_picture_of_few_classes_names_them_and_their_percentages(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = texts(monkeypatch)
    counts = np.array([[3, 1, 0], [0, 0, 0], [0, 2, 6]])
    assert confusion.draw_confusion(counts, ("a$b$", "日本\udcff", "c" * 50), title="figure").startswith(b"\x89PNG")
    assert shown.count("a$b$") == shown.count("日本?") == shown.count("c" * 23 + "…") == 2
    cells = [text for text in shown if text.isdecimal()]
    assert Counter(cells) - Counter(SCALE) == Counter(["75", "25", "25", "75"])  # of four and of eight images


def test_picture_of_many_classes_lists_the_most_frequent_confusions(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = texts(monkeypatch)
    counts = np.eye(81, dtype=np.int64) * 9
    counts[7, 3], counts[80, 0] = 3, 5
    confusion.draw_confusion(counts, [f"class {index}" for index in range(81)], title="figure")
    (listed,) = [text for text in shown if "Most frequent" in text]
    assert listed.split("\n\n")[1:] == [
        "class 80\n   as class 0: 5 of 14",
        "class 7\n   as class 3: 3 of 12",
    ]
    assert "class 5" not in shown


def test_most_confused_are_the_loops() -> None:
    counts = np.random.default_rng(0).integers(0, 30, (9, 9))
    cells = [(t, p, int(counts[t, p])) for t in range(9) for p in range(9) if t != p and counts[t, p]]
    assert confusion.most_confused(counts) == sorted(cells, key=lambda cell: -cell[2])[:10]
    assert confusion.most_confused(np.eye(50, dtype=np.int64)) == []
