"""Tests of publishing: what is uploaded and recorded, and what may not be published, all without a hub."""

import hashlib
import json
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml  # type: ignore[import-untyped]
from safetensors.torch import load_file, save_file

import excb
from excb.checkpoint import exported
from excb.console import Reporter
from excb.errors import UserError
from excb.files.foreign import sha256_of
from excb.hub import catalogue, selftest
from excb.hub.catalogue import Checkpoint
from excb.networks.architecture import Architecture
from excb.networks.backbone import feature_width, weights_hash
from excb.results.result import ResultRecord
from excb.zoo import push as module
from excb.zoo.__main__ import main
from excb.zoo.push import package, push
from tests.run_files import TINY_RESNET, features, pictures, tiny_recipe, write_run

TAG = f"v{excb.__version__}-step7"
COMMIT = "c" * 40
OTHERS = Checkpoint(
    name="theirs",
    method="DINO",
    architecture=Architecture("timm:resnet10t", TINY_RESNET["options"]),
    preprocessing=tiny_recipe().views.preprocessing,
    source="https://theirs.example",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "tiny", 7)


@pytest.fixture(autouse=True)
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))
    monkeypatch.setenv("HF_TOKEN", "hf_any")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    return tmp_path / "zoo"


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny network never saw an image."""
    monkeypatch.setattr(selftest, "check_trained", lambda _backbone: None)


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The uploads that would have been made: arguments, and under "folder" a copy of the files."""
    found: list[dict[str, Any]] = []

    def publish(folder: Path, repo: str, **options: Any) -> str:
        kept = shutil.copytree(folder, tmp_path / "uploads" / str(len(found)) / folder.name)
        found.append({"folder": kept, "repo": repo} | options)
        return COMMIT

    monkeypatch.setattr(module, "publish", publish)
    return found


def result_file(run: Path, file: Path, **changes: Any) -> Path:
    """A result on a run's teacher, as the evaluation writes it."""
    values: dict[str, Any] = {
        "protocol": "knn",
        "figures": {"knn_top1_k20": 57.25},
        "settings": {"k": [20]},
        "checkpoint": {"source": "/home/someone/runs/tiny", "weights_sha256": weights_hash(excb.load(run).network)},
        "data": {
            part: {"root": f"/home/someone/set/{part}", "images": 3, "fingerprint": "f" * 64}
            for part in ("train", "test")
        },
        "seconds": 36.0,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(ResultRecord(**values | changes).to_json(), encoding="utf-8")
    return file


def quietly(source: Path | str, repo: str = "tester/tiny", **options: Any) -> Checkpoint:
    usual: dict[str, Any] = {"licence": "apache-2.0", "reporter": Reporter(quiet=True)}
    return push(str(source), repo, **usual | options)


# ---------------------------------------------------------------------------------------------------------------------
# What is uploaded and recorded
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("trained")
def test_everything_is_uploaded_at_once(run: Path, uploads: list[dict[str, Any]], tmp_path: Path) -> None:
    result = result_file(run, tmp_path / "out" / "k-NN on mine.json")
    quietly(run, results=[result], private=True)
    (upload,) = uploads
    assert (upload["repo"], upload["tag"], upload["private"]) == ("tester/tiny", TAG, True)
    folder: Path = upload["folder"]
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "config.json",
        "model.safetensors",
        "excb_head.safetensors",
        "selftest.safetensors",
        "README.md",
        "results/k-NN-on-mine.json",
    }
    assert torch.equal(features(excb.load(folder), pictures()), features(excb.load(run), pictures()))
    heads = load_file(folder / "excb_head.safetensors")
    assert {"teacher.centroids.weight", "student.predictor.0.weight"} <= set(heads)
    assert not any(".backbone." in name for name in heads)
    text = (folder / "results" / "k-NN-on-mine.json").read_text(encoding="utf-8")
    sent = ResultRecord.from_json(text)
    assert sent == replace(
        ResultRecord.from_json(result.read_text(encoding="utf-8")), data=sent.data, checkpoint=sent.checkpoint
    )
    assert "someone" not in text


@pytest.mark.usefixtures("trained")
def test_figures_on_a_set_of_the_hub_are_uploaded_as_it_collects_them(
    run: Path, uploads: list[dict[str, Any]], tmp_path: Path
) -> None:
    data = {part: {"root": "hf:ethz/food101", "images": 3, "fingerprint": "f" * 64} for part in ("train", "test")}
    files = [result_file(run, tmp_path / "food.json", data=data), result_file(run, tmp_path / "folder.json")]
    quietly(run, results=files)
    folder: Path = uploads[0]["folder"]
    assert [path.name for path in (folder / ".eval_results").iterdir()] == ["food.yaml"]
    (entry,) = yaml.safe_load((folder / ".eval_results" / "food.yaml").read_text(encoding="utf-8"))
    assert entry["source"] == {"url": "https://huggingface.co/tester/tiny", "name": "Model card"}
    assert (entry["dataset"], entry["value"]) == ({"id": "ethz/food101", "task_id": "knn_top1_k20"}, 57.25)
    assert {path.name for path in (folder / "results").iterdir()} == {"food.json", "folder.json"}


@pytest.mark.usefixtures("trained")
def test_card_and_config_tell_of_this_very_upload(run: Path, uploads: list[dict[str, Any]], tmp_path: Path) -> None:
    quietly(run, results=[result_file(run, tmp_path / "knn.json")], licence="CC BY 4.0")
    folder: Path = uploads[0]["folder"]
    text = (folder / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(text.split("\n---\n")[0])
    assert header["license"] == "cc-by-4.0"
    assert header["model-index"][0]["results"][0]["metrics"][0]["value"] == 57.25
    assert f'excb.load("hf-hub:tester/tiny@{TAG}")' in text
    assert "| number of images | 2 |" in text  # of the pretraining
    block = json.loads((folder / "config.json").read_text(encoding="utf-8"))["excb"]
    row = Checkpoint.from_dict(block["checkpoint"])
    assert row.locations == (f"hf-hub:tester/tiny@{TAG}",)
    assert row.licence == "CC BY 4.0"
    assert block["training"] == {"data": "images", "images": 2, "fingerprint": "0" * 64, "seconds": 1.0}


@pytest.mark.usefixtures("trained")
def test_row_of_the_catalogue_names_commit_and_hash(
    run: Path,
    uploads: list[dict[str, Any]],
    tmp_path: Path,
    zoo: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = result_file(run, tmp_path / "knn.json")
    words = ["push", str(run), "--repo", "tester/tiny", "--licence", "apache-2.0", "--results", str(result)]
    assert main(words) == 0
    printed, entry = tomllib.loads(capsys.readouterr().out), catalogue.find("tiny")
    assert entry is not None
    sha256 = hashlib.sha256((uploads[0]["folder"] / "model.safetensors").read_bytes()).hexdigest()
    assert entry.name == "tiny"
    assert entry.locations == (f"hf-hub:tester/tiny@{COMMIT}",)
    assert entry.digest == f"sha256:{sha256}"
    assert (entry.method, entry.source, entry.licence, entry.epochs) == ("ExCB + contrast", "own run", "apache-2.0", 1)
    assert [(each.name, each.value, each.images) for each in entry.figures] == [("knn_top1_k20", 57.25, "set")]
    assert Checkpoint.from_dict(printed["tiny"] | {"name": "tiny"}) == entry
    other = tmp_path / "elsewhere.toml"
    quietly(run, results=[result], catalogue=other)
    assert tomllib.loads(other.read_text(encoding="utf-8")) == printed
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"repository": "tester/tiny", "checkpoint": json.loads(json.dumps(entry.to_dict()))}


@pytest.mark.usefixtures("trained")
def test_tag_is_the_users_or_that_of_the_weights_where_no_step_is_known(
    run: Path, uploads: list[dict[str, Any]], tmp_path: Path
) -> None:
    quietly(run, tag="best")
    folder: Path = uploads[0]["folder"]
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    del config["excb"]["step"]
    file.write_text(json.dumps(config), encoding="utf-8")
    entry = quietly(folder, licence="apache-2.0")
    assert entry.digest is not None
    assert [upload["tag"] for upload in uploads] == ["best", entry.digest.removeprefix("sha256:")[:8]]


# ---------------------------------------------------------------------------------------------------------------------
# What is not published
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(uploads: list[dict[str, Any]], zoo: Path) -> Callable[..., str]:
    """Push and give the one line it is refused with; nothing is uploaded or recorded."""

    def ask(*arguments: Any, **options: Any) -> str:
        with pytest.raises(UserError) as error:
            quietly(*arguments, **options)
        assert uploads == []
        assert not (zoo / "catalogue.toml").exists()
        assert "\n" not in str(error.value)
        return str(error.value)

    return ask


def test_untrained_network(run: Path, refused: Callable[..., str]) -> None:
    message = refused(run)
    assert "hardly better than random ones" in message
    assert message.endswith("train it longer, or say why you publish it untested: --untested WHY")


def test_untested_weights_are_published_with_the_reason_on_their_card(
    run: Path, uploads: list[dict[str, Any]], refused: Callable[..., str]
) -> None:
    assert "--untested" in refused(run, untested=" ")
    quietly(run, untested="trained on *noise*,\nfor a test")
    folder: Path = uploads[0]["folder"]
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "**Not tested.** The self-test was not run before publishing: trained on \\*noise\\*, for a test" in text
    block = json.loads((folder / "config.json").read_text(encoding="utf-8"))["excb"]
    assert block["untested"] == "trained on *noise*, for a test"


@pytest.mark.usefixtures("trained")
def test_self_test_that_fails(run: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    read = exported.read_part

    def other(folder: Path, name: str) -> Any:
        stored = read(folder, name)
        return stored and (stored | {"network": 1.01 * stored["network"]} if name == exported.SELFTEST else stored)

    monkeypatch.setattr(exported, "read_part", other)
    assert "the network computes something else" in refused(run)
    monkeypatch.setattr(exported, "read_part", lambda _folder, _name: None)
    assert "no self-test" in refused(run)


@pytest.mark.usefixtures("trained")
def test_self_test_that_came_with_the_source(
    run: Path, refused: Callable[..., str], uploads: list[dict[str, Any]], tmp_path: Path
) -> None:
    quietly(run)
    folder: Path = uploads.pop()["folder"]
    (tmp_path / "zoo" / "catalogue.toml").unlink()
    file = folder / "selftest.safetensors"
    stored = load_file(file)
    save_file(stored | {"network": 1.01 * stored["network"]}, file)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["excb"]["sha256"]["selftest.safetensors"] = sha256_of(file)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "the network computes something else" in refused(folder)


@pytest.mark.usefixtures("trained")
def test_results_of_other_weights(run: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", 8)
    wrong = result_file(other, tmp_path / "other.json")
    line = refused(run, results=[result_file(run, tmp_path / "good.json"), wrong])
    assert str(wrong) in line
    assert "other weights" in line
    student = weights_hash(excb.load(run, network="student").network)
    assert "other weights" in refused(
        run, results=[result_file(run, tmp_path / "s.json", checkpoint={"weights_sha256": student})]
    )
    assert "other weights" in refused(run, results=[result_file(run, tmp_path / "n.json", checkpoint={})])


@pytest.mark.usefixtures("trained")
def test_results_that_are_none(run: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text("{}")
    assert "is not a result" in refused(run, results=[tmp_path / "text.json"])
    assert "cannot read" in refused(run, results=[tmp_path / "nowhere.json"])
    first, second = (result_file(run, tmp_path / folder / "knn.json") for folder in ("a", "b"))
    assert "two results would be called knn.json" in refused(run, results=[first, second])


def theirs(zoo: Path, run: Path, row: Checkpoint, **origin: str) -> Path:
    """Weights of somebody else, imported."""
    backbone = excb.load(run)
    return exported.write_exported(
        zoo / "imports" / row.name,
        tensors=backbone.network.state_dict(),
        architecture=row.architecture,
        preprocessing=row.preprocessing,
        width=feature_width(backbone.network),
        facts={"checkpoint": row.to_dict(), "origin": origin or None},
    )


@pytest.mark.parametrize(
    ("licence", "why"), [("CC BY-NC 4.0", "their licence is CC BY-NC 4.0"), (None, "their authors state no licence")]
)
@pytest.mark.usefixtures("trained")
def test_weights_that_may_not_be_passed_on(
    run: Path, refused: Callable[..., str], zoo: Path, licence: str | None, why: str
) -> None:
    line = refused(theirs(zoo, run, replace(OTHERS, licence=licence)))
    assert f"theirs may not be published: {why} (https://theirs.example)" in line


@pytest.mark.usefixtures("trained")
def test_named_weights_are_refused_before_they_are_fetched(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(excb.hub.loading, "read", None)
    assert "swav_rn50 may not be published" in refused("swav_rn50")


@pytest.mark.usefixtures("trained")
def test_file_of_somebody_else_under_another_name(
    run: Path, refused: Callable[..., str], zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = replace(OTHERS, digest="sha256:12345678", licence="CC BY-NC 4.0")
    monkeypatch.setattr(catalogue, "checkpoints", lambda _home=None: [published])
    mine = replace(OTHERS, name="mine", source="imported")
    folder = theirs(zoo, run, mine, file="w.pth", sha256="12345678" + "0" * 56, layout="torchvision")
    assert "theirs may not be published" in refused(folder)


@pytest.mark.usefixtures("trained")
def test_weights_that_may_be_passed_on_keep_their_licence(run: Path, uploads: list[dict[str, Any]], zoo: Path) -> None:
    folder = theirs(zoo, run, replace(OTHERS, licence="Apache-2.0", redistributable=True))
    with pytest.raises(UserError, match=r"theirs is under Apache-2\.0 .*--licence 'Apache-2\.0'"):
        quietly(folder, licence="mit")
    entry = quietly(folder, licence="apache-2.0")
    assert (entry.method, entry.source) == ("DINO", "https://theirs.example")
    assert len(uploads) == 1


def test_a_refused_package_leaves_nothing_and_an_earlier_one_as_it_was(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out" / "tiny"
    with pytest.raises(UserError, match="hardly better than random"):
        package(str(run), folder, licence="mit")
    assert list(folder.parent.iterdir()) == []

    monkeypatch.setattr(selftest, "check_trained", lambda _backbone: None)
    package(str(run), folder, licence="mit")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert {"README.md", "config.json", "model.safetensors"} <= set(before)

    results = [result_file(run, tmp_path / "knn.json", checkpoint={"weights_sha256": "0" * 64})]
    with pytest.raises(UserError, match="other weights"):
        package(str(run), folder, licence="mit", results=results)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert list(folder.parent.iterdir()) == [folder]


def test_a_folder_with_other_files_is_not_replaced(run: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"it holds other files \(thesis\.tex\)"):
        package(str(run), tmp_path, licence="mit", untested="a test")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_nothing_to_publish_and_no_token(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no checkpoint" in refused(tmp_path / "nowhere")
    assert "is not the name of a repository" in refused(tmp_path, "tiny")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert "needs a token" in refused(tmp_path)


def test_a_package_of_other_weights_stays_unless_it_may_be_replaced(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    package(str(run), folder, licence="mit", untested="a test")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    network = Architecture("resnet18").build().eval()
    torch.save(network.state_dict(), tmp_path / "other.pth")
    with pytest.raises(UserError, match="tiny has other weights: name another folder with --out, or replace it with"):
        package(str(tmp_path / "other.pth"), folder, licence="mit", untested="a test")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    package(str(tmp_path / "other.pth"), folder, licence="mit", untested="a test", overwrite=True)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} != before
