"""Tests of the k-NN protocol: its figures against a loop in NumPy, on a real network and images of every mode."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.results.result import ResultRecord
from excb.transfer.knn import protocol
from excb.transfer.knn.options import KnnOptions
from excb.transfer.knn.protocol import check_ks, measure
from excb.transfer.knn.record import KNN
from excb.transfer.task import Task
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import CLASSES, features_by_loop, knn_by_loop, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="FAISS is not installed")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, train images of seven classes, test images of all and of three of them."""
    place = tmp_path_factory.mktemp("knn")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_folder(place / "train", each=5, seed=1)
    write_folder(place / "test", each=3, seed=2)
    write_folder(place / "some", each=3, seed=3, classes=("bee", "dog", "gnu"))
    return place


def task(place: Path, test: str = "test", train: str = "train") -> Task:
    return Task.prepare(str(place / "run"), place / train, place / test, device="cpu", batch=8, workers=0)


def quiet(task: Task, **options: Any) -> ResultRecord:
    return measure(task, KnnOptions(**options), Reporter(quiet=True)).result


@pytest.mark.parametrize("temperature", [0.07, 0.003])  # the votes differ
def test_figures_are_those_of_the_loop(place: Path, temperature: float) -> None:
    ks = [1, 5, 20, 35]
    found = quiet(task(place), k=ks, temperature=[temperature], backend="torch").figures
    backbone = excb.load(place / "run")
    bank, queries = features_by_loop(backbone, place / "train"), features_by_loop(backbone, place / "test")
    expected: dict[str, float] = {}
    for k in ks:
        top1, top5 = knn_by_loop(*bank, *queries, k=k, temperature=temperature)
        expected |= {f"knn_top1_k{k}": top1, f"knn_top5_k{k}": top5}
    assert found == pytest.approx(expected, abs=1e-4)
    assert 0 < found["knn_top1_k5"] < found["knn_top5_k5"] < 100  # neither trivially right nor wrong


def test_test_set_without_some_classes_keeps_the_train_sets_indices(place: Path) -> None:
    found = quiet(task(place, "some"), k=[1, 5], backend="torch")
    backbone = excb.load(place / "run")
    bank, queries = features_by_loop(backbone, place / "train"), features_by_loop(backbone, place / "some")
    for k in (1, 5):
        top1, top5 = knn_by_loop(*bank, *queries, k=k, temperature=0.07)
        assert found.figures[f"knn_top1_k{k}"] == pytest.approx(top1, abs=1e-4)
        assert found.figures[f"knn_top5_k{k}"] == pytest.approx(top5, abs=1e-4)
    assert found.data["classes"] == len(CLASSES)


def test_an_image_finds_itself(place: Path) -> None:
    found = quiet(task(place, "train"), k=[1], backend="torch").figures
    assert found == {"knn_top1_k1": 100.0, "knn_top5_k1": 100.0}


@needs_faiss
def test_back_ends_give_equal_figures(place: Path) -> None:
    results = {name: quiet(task(place), k=[1, 5, 20], backend=name) for name in ("torch", "faiss", "auto")}
    assert results["torch"].figures == results["faiss"].figures == results["auto"].figures
    assert len({result.protocol_hash for result in results.values()}) == 1  # what changes no figure is not a setting
    for name in ("torch", "faiss"):
        assert any(f"neighbours by {name}" in note for note in results[name].notes)


def test_a_bank_that_would_fill_the_memory_is_read_in_tiles(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cached = Task.prepare(
        str(place / "run"), place / "train", place / "test", device="cpu", batch=8, workers=0, cache=tmp_path
    )
    figures = {}
    for memory in (2**40, 2**10):
        monkeypatch.setattr(protocol, "available_memory", lambda memory=memory: memory)
        figures[memory] = measure(cached, KnnOptions(k=(1, 5, 20)), Reporter()).result.figures
        assert ("read in tiles" in capsys.readouterr().err) == (memory == 2**10)
    assert figures[2**40] == figures[2**10]


def test_result_holds_all_that_is_needed_to_repeat_it(place: Path) -> None:
    result = quiet(task(place), k=[5, 1, 5], temperature=[0.1], backend="torch")
    assert result.protocol == "knn"
    assert result.settings["k"] == [1, 5]
    assert result.settings["temperature"] == [0.1]
    assert list(result.figures) == ["knn_top1_k1", "knn_top5_k1", "knn_top1_k5", "knn_top5_k5"]
    assert result.checkpoint["step"] == 5
    assert (result.data["train"]["images"], result.data["test"]["images"]) == (35, 21)
    assert result.seconds >= 0


def test_table_shows_the_figures(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = measure(task(place), KnnOptions(k=(1, 20), backend="torch"), Reporter())
    measured.show(Reporter())
    result = measured.result
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert title == "k-NN, 35 train and 21 test images, 7 classes, T = 0.07"
    assert header.split() == ["k", "top-1", "%", "95", "%", "interval", "top-5", "%"]
    shown = []
    for k in (1, 20):
        top1, top5 = (result.figures[f"knn_{top}_k{k}"] for top in ("top1", "top5"))
        low, high = result.intervals[f"knn_top1_k{k}"]
        shown.append([str(k), f"{top1:.2f}", f"{low:.1f}", "to", f"{high:.1f}", f"{top5:.2f}"])
    assert [row.split() for row in rows] == shown


def test_several_temperatures_in_one_search(place: Path) -> None:
    both = quiet(task(place), k=[5, 20], temperature=[0.07, 0.003], backend="torch").figures
    for temperature in (0.07, 0.003):
        alone = quiet(task(place), k=[5, 20], temperature=[temperature], backend="torch").figures
        assert {f"{name}_T{temperature:g}": value for name, value in alone.items()}.items() <= both.items()


def test_predictions_are_those_of_the_figures(place: Path) -> None:
    measured = measure(task(place), KnnOptions(k=(5,), backend="torch"), Reporter(quiet=True))
    result, predictions = measured.result, measured.scored
    right = predictions.values["knn_{}_k5"][:, 0] == predictions.targets
    assert result.figures["knn_top1_k5"] == pytest.approx(100 * right.double().mean().item(), abs=1e-4)
    assert list(predictions.names) == sorted(predictions.names)


def test_the_confusion_matrix_is_of_the_figure_that_pages_show_first(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    def draw(*_: Any, title: str) -> bytes:
        titles.append(title)
        return b""

    monkeypatch.setattr("excb.transfer.reporting.confusion.draw_confusion", draw)
    for ks in ([5, 10, 20], [5, 10]):
        measured = measure(task(place), KnnOptions(k=tuple(ks), backend="torch"), Reporter(quiet=True))
        result = measured.result
        measured.scored.picture()
        assert titles[-1].split(":")[0] == (KNN.headline if KNN.headline in result.figures else "knn_top1_k5")


@pytest.mark.parametrize("temperature", [0.0, -0.07, float("nan"), float("inf")])
def test_temperature_out_of_range_is_refused_before_any_work(
    place: Path, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = task(place)
    monkeypatch.setattr(Task, "features", lambda *_: pytest.fail("worked before it checked"))
    with pytest.raises(UserError, match="--temperature"):
        quiet(prepared, temperature=[temperature])


# ---------------------------------------------------------------------------------------------------------------------
# Numbers of neighbours
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "kept"),
    [(1000, [10, 20, 100, 200]), (200, [10, 20, 100, 200]), (199, [10, 20, 100]), (10, [10]), (9, [9]), (2, [2])],
)
def test_default_numbers_are_cut_to_the_train_images(
    images: int, kept: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_ks(None, images, Reporter()) == kept
    warning = capsys.readouterr().err
    if len(kept) == 4:
        assert warning == ""
    else:
        assert warning.startswith(f"warning: only {images} train images: k = {', '.join(map(str, kept))} instead of ")


def test_chosen_numbers_are_sorted_without_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_ks([20, 1, 20, 7], 20, Reporter()) == [1, 7, 20]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("wrong", [0, -1, 21])
def test_chosen_number_out_of_range_is_refused(wrong: int) -> None:
    with pytest.raises(UserError, match=f"--k {wrong} is out of range: there are 20 train images"):
        check_ks([5, wrong], 20, Reporter(quiet=True))
