"""`excb.evaluate` and what takes its results: the figures of the command line, for names, backbones and networks."""

import csv
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.networks.preprocessing import Preprocessing
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.task import Task
from tests.forked import launch
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import write_folder

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK: dict[str, Any] = {"workers": 0, "batch_size": 8, "quiet": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("evaluate")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_run(place / "other", 6, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_folder(place / "data" / "train", each=4, seed=1)
    write_folder(place / "data" / "test", each=3, seed=2)
    return place


def by_command(place: Path, protocol: str, *words: str) -> ResultRecord:
    """The result that the command line writes."""
    file = place / f"{protocol}.json"
    options = ["--ckpt", str(place / "run"), "--data", str(place / "data"), "--workers", "0", "--batch-size", "8"]
    assert main([protocol, *options, "--out", str(file), "--quiet", "--json", *words]) == 0
    return ResultRecord.read(file)


def prepare(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image.resize((24, 24)))).permute(2, 0, 1) / 255


class Normalised:
    """The same, which says how it normalises."""

    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)

    def __call__(self, image: Image.Image) -> Tensor:
        return prepare(image)


class Network(nn.Module):
    """A network of the user's own."""

    def __init__(self, transform: Callable[[Image.Image], Tensor] = prepare) -> None:
        super().__init__()
        self.transform = transform
        layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        self.body = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        rows: Tensor = self.body(images)
        return rows


@pytest.mark.parametrize(
    ("protocol", "words", "options"),
    [
        ("knn", ["--k", "3", "5", "--temperature", "0.1"], {"k": [3, 5], "temperature": [0.1]}),
        ("retrieval", ["--gallery", "test"], {"gallery": "test"}),
        ("linear", ["--protocol", "logreg", "--C", "1"], {"protocol": "logreg", "C": [1.0]}),
        ("semisup", ["--percent", "10", "--frozen"], {"percent": 10, "frozen": True}),
    ],
)
def test_figures_and_settings_are_those_of_the_command_line(
    place: Path, capsys: pytest.CaptureFixture[str], protocol: str, words: list[str], options: dict[str, Any]
) -> None:
    expected = by_command(place, protocol, *words)
    capsys.readouterr()
    result = excb.evaluate(place / "run", protocol, data=place / "data", **QUICK, **options)
    assert capsys.readouterr() == ("", "")
    assert result.figures == expected.figures
    assert result.intervals == expected.intervals
    assert result.record.protocol_hash == expected.protocol_hash
    assert result.record.checkpoint == expected.checkpoint


def test_a_loaded_backbone_has_the_figures_of_its_name(place: Path) -> None:
    options = {"train": place / "data" / "train", "test": place / "data" / "test", "k": [3], **QUICK}
    named = excb.evaluate(place / "run", "knn", **options)
    backbone = excb.load(place / "run").train()
    loaded = excb.evaluate(backbone, "knn", **options)
    assert (loaded.figures, loaded.record.checkpoint) == (named.figures, named.record.checkpoint)
    assert backbone.training
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.mul_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    changed = excb.evaluate(backbone, "knn", **options)  # not the features that the cache has of the file
    assert changed.record.checkpoint["weights_sha256"] != named.record.checkpoint["weights_sha256"]


@pytest.mark.parametrize("protocol", ["knn", "retrieval", "linear", "finetune"])
def test_a_network_with_a_transform_is_evaluated_as_it_is(place: Path, protocol: str) -> None:
    torch.manual_seed(0)
    network = Network(Normalised()).train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    options: dict[str, Any] = {"epochs": 1, "train_batch": 8} if protocol == "finetune" else {}
    result = excb.evaluate(network, protocol, data=place / "data", **QUICK, **options)
    assert result.record.checkpoint["name"] == "Network in memory"
    assert network.training
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    if protocol == "knn":
        rows = {}
        network.eval()
        for part in ("train", "test"):
            files = sorted((place / "data" / part).rglob("*.*"))
            with torch.no_grad():
                prepared = [network.transform(Image.open(file).convert("RGB")) for file in files]
                rows[part] = nn.functional.normalize(network(torch.stack(prepared)).double(), dim=1).numpy()
            rows[f"{part} labels"] = np.array([file.parent.name for file in files])
        nearest = (rows["test"] @ rows["train"].T).argmax(1)
        hits = rows["train labels"][nearest] == rows["test labels"]
        one = excb.evaluate(network, "knn", data=place / "data", k=[1], **QUICK)
        assert one.figures["knn_top1_k1"] == pytest.approx(100 * hits.mean(), abs=1e-3)


def test_crops_need_a_known_normalisation(place: Path) -> None:
    network = Network()
    with pytest.raises(UserError, match="does not say how: give it the attributes mean and std"):
        excb.evaluate(network, "finetune", data=place / "data", epochs=1, **QUICK)
    with pytest.raises(UserError, match="the network's own transform says the size of images"):
        excb.evaluate(network, "knn", data=place / "data", crop=16, **QUICK)


def test_predictions_are_columns_and_agree_with_the_figure(place: Path) -> None:
    result = excb.evaluate(place / "run", "knn", data=place / "data", k=[3, 20], **QUICK)
    for figure in (None, "knn_top1_k3", "knn_top5_k3"):
        columns = result.predictions(figure)
        assert set(map(len, columns.values())) == {21}
        assert [path.split("/")[0] for path in columns["path"]] == columns["class"]
        name = figure or "knn_top1_k20"
        assert 100 * np.mean(columns["correct"]) == pytest.approx(result.figures[name], abs=1e-3)
    columns = result.predictions("knn_top1_k3")
    right = [guess == true for guess, true in zip(columns["predicted"], columns["class"], strict=True)]
    assert right == columns["correct"]
    scores = excb.evaluate(place / "run", "retrieval", data=place / "data", **QUICK)
    assert 100 * np.nanmean(scores.predictions()["score"]) == pytest.approx(scores.figures["retrieval_mAP"], abs=1e-3)
    with pytest.raises(UserError, match="no predictions of knn_top1_k4; did you mean 'knn_top1_k3'"):
        result.predictions("knn_top1_k4")


def test_a_saved_result_is_the_commands_and_compares_and_ranks(place: Path, tmp_path: Path) -> None:
    first = excb.evaluate(place / "run", "knn", data=place / "data", k=[3], **QUICK)
    second = excb.evaluate(place / "other", "knn", data=place / "data", k=[3], **QUICK)
    files = first.save(tmp_path / "a.json")
    assert [file.name for file in files] == ["a.json", "a.npz", "a.confusion.png"]
    assert ResultRecord.read(files[0]).figures == first.figures
    second.save(tmp_path / "b.json")
    in_memory, on_disk = excb.compare(first, second), excb.compare(tmp_path / "a.json", str(tmp_path / "b.json"))
    assert in_memory["figures"] == on_disk["figures"]
    assert in_memory["first"] == "run step 5, knn"
    board = excb.leaderboard([first, tmp_path / "b.json"], out=tmp_path / "board")
    with (tmp_path / "board" / "leaderboard.csv").open(encoding="utf-8") as stream:
        assert {"run step 5", "other step 6"} <= {row["model"] for row in csv.DictReader(stream)}
    assert "run step 5" in json.dumps(board.to_dict())
    with pytest.raises(UserError, match=r"a result is saved to a file that ends in \.json"):
        first.save(tmp_path / "a")


def test_a_result_shows_itself(place: Path) -> None:
    result = excb.evaluate(place / "run", "knn", data=place / "data", k=[3], **QUICK)
    assert repr(result).splitlines()[0] == "Result of run step 5, knn"
    assert f"knn_top1_k3  {result.figures['knn_top1_k3']:.2f}" in repr(result)
    page = result._repr_html_()
    assert f"<td>{result.figures['knn_top5_k3']:.2f}</td>" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("ckpt", "protocol", "options", "message"),
    [
        ("run", "kn", {}, "no protocol is called 'kn'; did you mean 'knn'"),
        ("run", "knn", {"data": None}, "name the images with --data DIR"),
        ("run", "knn", {"kk": [3]}, "knn has no option kk; did you mean 'k'"),
        ("run", "knn", {"k": "x"}, "k takes a whole number, not 'x'"),
        ("run", "knn", {"k": []}, "k is empty: give one value at least, or leave it out"),
        ("run", "knn", {"gpus": 2}, "gpus is not an option in Python: start the script with torchrun"),
        ("run", "knn", {"out": "x"}, r"out is not an option in Python: the result has \.save"),
        ("network", "detection", {}, "detection builds a detector on a checkpoint: save the network"),
        ("network", "clusters", {}, "this network has no heads"),
    ],
)
def test_mistakes_are_one_clear_error(
    place: Path, ckpt: str, protocol: str, options: dict[str, Any], message: str
) -> None:
    subject = Network() if ckpt == "network" else place / ckpt
    with pytest.raises(UserError, match=message):
        excb.evaluate(subject, protocol, **{"data": place / "data"} | options)


def test_clusters_of_a_backbone_with_heads(place: Path) -> None:
    named = excb.evaluate(place / "run", "clusters", data=place / "data", **QUICK)
    loaded = excb.evaluate(excb.load(place / "run", heads=True), "clusters", data=place / "data", **QUICK)
    assert loaded.figures == named.figures


def test_cluster_assignments_are_columns_and_agree_with_the_file(place: Path, tmp_path: Path) -> None:
    result = excb.evaluate(place / "run", "clusters", data=place / "data", **QUICK)
    columns = result.predictions()
    assert [path.split("/")[0] for path in columns["path"]] == columns["label"]
    assert max(Counter(columns["cluster"]).values()) == result.figures["largest_images"]

    result.save(tmp_path / "clusters.json")
    with (tmp_path / "clusters" / "assignments.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["cluster"]) for row in rows] == columns["cluster"]
    assert [float(row["similarity"]) for row in rows] == pytest.approx(columns["similarity"], abs=1e-6)


def test_a_result_without_predictions_says_so(place: Path) -> None:
    result = excb.Result(excb.evaluate(place / "run", "knn", data=place / "data", k=[3], **QUICK).record)
    with pytest.raises(UserError, match="knn makes no prediction for each image"):
        result.predictions()


def test_a_network_with_our_preprocessing_takes_other_sizes(place: Path) -> None:
    result = excb.evaluate(Network(Preprocessing(36, 32)), "knn", data=place / "data", crop=24, **QUICK)
    assert result.record.checkpoint["preprocessing"]["crop"] == 24


def test_reproduce_judges_claims(tmp_path: Path) -> None:
    verdicts = excb.reproduce("table1/excb", data=tmp_path, quiet=True, ckpt="tiny_grocery")
    assert {verdict.word for verdict in verdicts} == {"CANNOT"}
    assert all(verdict.why for verdict in verdicts)


SCRIPT = """
import json, sys
import excb
if __name__ == "__main__":
    run, data, out = sys.argv[1:]
    first = excb.evaluate(run, "knn", data=data, k=[3], device="cpu", workers=0, quiet=True, no_cache=True)
    second = excb.evaluate(run, "retrieval", data=data, device="cpu", workers=0, quiet=True, no_cache=True)
    open(out + "/" + __import__("os").environ["RANK"], "w").write(json.dumps(first.figures | second.figures))
"""


def test_all_ranks_of_torchrun_have_the_figures_of_one_process(place: Path, tmp_path: Path) -> None:
    (tmp_path / "excb_two_ranks.py").write_text(SCRIPT)
    (tmp_path / "out").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}:{Path(excb.__file__).parents[1]}")
        assert launch("excb_two_ranks", [str(place / "run"), str(place / "data"), str(tmp_path / "out")], 2) == 0
    expected = excb.evaluate(place / "run", "knn", data=place / "data", k=[3], **QUICK).figures
    expected |= excb.evaluate(place / "run", "retrieval", data=place / "data", **QUICK).figures
    for rank in "01":
        assert json.loads((tmp_path / "out" / rank).read_text()) == pytest.approx(expected)


def test_what_was_left_out_or_doubted_stays_with_the_result(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "data", tmp_path / "data")
    shutil.copy(tmp_path / "data" / "train" / "bee" / "0.png", tmp_path / "data" / "test" / "bee" / "copy.png")
    (tmp_path / "data" / "train" / "bee" / "clip.mp4").write_bytes(b"video")
    result = excb.evaluate(place / "run", "knn", data=tmp_path / "data", k=[3], **QUICK)
    assert result.record.ledger.lines()[:2] == [
        "left out of train: 1 .mp4",
        "test: 1 of 22 images is among the train images too, such as bee/copy.png = bee/0.png: figures on copies say "
        "nothing about new images",
    ]
    assert "left out of train: 1 .mp4" in repr(result)
    file, *_ = result.save(tmp_path / "result.json")
    assert ResultRecord.read(file).ledger == result.record.ledger


@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        ("linear", {}),
        ("linear", {"protocol": "fast", "epochs": 1}),
        ("retrieval", {}),
        ("layers", {}),
        ("robustness", {"corruptions": ["brightness"], "severities": [1]}),
        ("finetune", {"epochs": 1}),
    ],
)
def test_every_protocol_of_classes_keeps_the_same_ledger(
    place: Path, tmp_path: Path, protocol: str, options: dict[str, Any]
) -> None:
    shutil.copytree(place / "data", tmp_path / "data")
    shutil.copy(tmp_path / "data" / "train" / "bee" / "0.png", tmp_path / "data" / "test" / "bee" / "copy.png")
    (tmp_path / "data" / "train" / "bee" / "clip.mp4").write_bytes(b"video")
    found = [
        excb.evaluate(place / "run", name, data=tmp_path / "data", **QUICK, **given).record.ledger.lines()[:2]
        for name, given in (("knn", {"k": [3]}), (protocol, options))
    ]
    assert found[1] == found[0]
    assert len(found[0]) == 2


def test_features_that_are_not_finite_are_doubted(place: Path) -> None:
    class Damaged(Network):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images).index_fill(0, torch.tensor([0]), torch.nan)

    data = place / "data"
    task = Task.prepare(Damaged(), data / "train", data / "test", device="cpu", batch=8, workers=0)
    task.features(task.test, "test", Reporter(quiet=True))
    (entry,) = task.ledger.entries
    assert (entry.of, entry.reason, entry.count) == ("test", "rows of features that are not finite", 3)  # of 8, 8, 5
    assert entry.names[0] == "ant/0.png"
