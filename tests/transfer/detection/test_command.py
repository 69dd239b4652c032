"""`excb-eval detection` around an engine that is none: checks, run folders, files of the result, bad input."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import excb
from excb.distributed.signals import StopRequest
from excb.errors import UserError
from excb.hub.backbone import Backbone, Entry
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.transfer.cli import main
from excb.transfer.coco.annotations import CocoSet
from excb.transfer.coco.reading import open_coco
from excb.transfer.detection import engines
from excb.transfer.detection import preflight as preflights
from excb.transfer.detection import task as tasks
from excb.transfer.detection.setup.job import Job
from excb.transfer.detection.setup.settings import OVERFIT_IMAGES
from tests.transfer.tiny_coco import change, contents, write_coco

pytest.importorskip("pycocotools", reason="COCO's tools are not installed")


class Perfect:
    """An engine that learns nothing and sees exactly what is annotated."""

    differences = ("it is a stub",)

    def __init__(self) -> None:
        self.trained: list[Job] = []
        self.losses = [4.0 - step / 10 for step in range(preflights.STEPS)]
        self.finishes = True
        self.first: list[Job] = []

    def train_detector(self, job: Job, stop: StopRequest) -> bool:
        self.trained.append(job)
        return self.finishes

    def predict(self, job: Job, images: CocoSet) -> list[dict[str, Any]]:
        from pycocotools import mask as coco

        found = []
        for image in images.images:
            for annotation in image.annotations:
                if not images.masks and not annotation.crowd:
                    found.append(
                        {
                            "image_id": image.id,
                            "category_id": images.category_ids[annotation.label],
                            "bbox": list(annotation.box),
                            "score": 0.9,
                        }
                    )
                elif annotation.trainable:
                    mask = annotation.mask_at(np.ones(2), image.height, image.width, flip=False)
                    code = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
                    found.append(
                        {
                            "image_id": image.id,
                            "category_id": images.category_ids[annotation.label],
                            "bbox": list(annotation.box),
                            "score": 0.9,
                            "segmentation": {"size": list(code["size"]), "counts": code["counts"].decode()},
                        }
                    )
        return found

    def first_losses(self, job: Job, images: int, iterations: int) -> list[float]:
        self.first.append(job)
        return self.losses


def checkpoint(name: str = "resnet50", **preprocessing: Any) -> Backbone:
    network = torch.nn.Flatten()
    network.num_features = 1  # type: ignore[assignment]
    return Backbone(network, Preprocessing(**preprocessing), Entry("here", Architecture(name))).eval()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "coco")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Perfect:
    stub = Perfect()
    monkeypatch.setattr(engines, "ENGINES", dict.fromkeys(engines.ENGINES, lambda: stub))
    monkeypatch.setattr(tasks, "load", lambda name, network: checkpoint("vit_small" if name == "vit" else "resnet50"))
    monkeypatch.chdir(tmp_path)
    return stub


def detect(data: Path, *arguments: str, schedule: str = "smoke") -> int:
    usual = ["detection", "--ckpt", "mine", "--data", str(data), "--schedule", schedule, "--device", "cpu", "--quiet"]
    return main([*usual, *arguments])


def test_a_run_ends_with_six_figures_predictions_and_pictures(
    stub: Perfect, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert detect(data, "--out", str(tmp_path / "elsewhere" / "det.json")) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "runs" / "detection-mine-smoke"
    result = json.loads((folder / "result.json").read_text())
    assert list(result["figures"]) == ["bbox_AP", "bbox_AP50", "bbox_AP75", "segm_AP", "segm_AP50", "segm_AP75"]
    assert all(value == pytest.approx(100) for value in result["figures"].values())
    assert "bbox_AP75" in out
    assert result["protocol"] == "detection"
    assert result["settings"]["engine"] == "detectron2"
    assert result["settings"]["settings"]["norm"] == "SyncBN"
    assert result["per_class"]["segm_AP"]["disc"] == pytest.approx(100)
    assert any("how good" in note for note in result["notes"])
    assert "it is a stub" in result["notes"]
    assert (folder / "pictures" / "sheet.png").read_bytes().startswith(b"\x89PNG")
    copied = json.loads((tmp_path / "elsewhere" / "det.json").read_text())
    assert copied["predictions"]["file"] == "det.predictions.json"
    beside = tmp_path / "elsewhere" / "det.predictions.json"
    assert beside.read_bytes() == (folder / "predictions.json").read_bytes()
    assert stub.first == []  # a short schedule is a test itself


@pytest.mark.parametrize("some_masks", [False, True])
def test_boxes_alone_are_judged_where_there_are_no_masks_or_by_choice(
    stub: Perfect, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], some_masks: bool
) -> None:
    for split in ("train", "val"):
        file = data / f"annotations/instances_{split}2017.json"
        known = contents(file)["annotations"]
        spoiled = known[:1] if some_masks else known
        change(file, annotations=[entry | {"segmentation": []} for entry in spoiled] + known[len(spoiled) :])
    if some_masks:
        assert detect(data) == 2
        assert "objects without a mask: 1 (annotations[0])" in capsys.readouterr().err
    assert detect(data, *(["--set", "masks=false"] if some_masks else [])) == 0
    assert "Faster R-CNN, boxes alone" in capsys.readouterr().out
    result = json.loads((tmp_path / "runs/detection-mine-smoke/result.json").read_text())
    assert list(result["figures"]) == ["bbox_AP", "bbox_AP50", "bbox_AP75"]
    assert list(result["per_class"]) == ["bbox_AP"]
    assert result["settings"]["settings"]["masks"] is False
    assert any(note.startswith("boxes alone are judged") for note in result["notes"])


def test_settings_of_masks_are_those_of_earlier_runs(stub: Perfect, data: Path, tmp_path: Path) -> None:
    assert detect(data) == 0
    identity = json.loads((tmp_path / "runs/detection-mine-smoke/run.json").read_text())
    assert "masks" not in identity["settings"]
    assert "masks" not in stub.trained[0].training


def test_faults_are_stated_and_kept_with_the_result(
    stub: Perfect, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = data / "annotations/instances_train2017.json"
    known = contents(file)["annotations"]
    known[0]["segmentation"], known[1]["segmentation"] = [[1, 2, 8, 9]], [[1, 2, 8, 9]]
    known[2]["iscrowd"] = False
    change(file, annotations=known)
    stated = "objects whose masks have no area, such as polygons of two points: 2 (annotations[0], annotations[1])"
    aloud = ["detection", "--ckpt", "mine", "--data", str(data), "--schedule", "smoke", "--device", "cpu"]
    assert main([*aloud, "--dry-run"]) == 0
    assert "".join(capsys.readouterr()).count(f"{file} has {stated}: left out of training") == 1
    assert detect(data) == 0
    result = json.loads((tmp_path / "runs/detection-mine-smoke/result.json").read_text())
    entry = {"reason": stated.partition(":")[0], "count": 2, "names": ["annotations[0]", "annotations[1]"]}
    assert result["ledger"] == {"entries": [entry | {"advice": "left out of training", "of": "train"}]}
    assert detect(data, "--repair", "clean") == 0
    places = [f"--{split}-{kind}" for split in ("train", "val") for kind in ("json", "images")]
    paths = ["clean/train.json", str(data / "train2017"), "clean/val.json", str(data / "val2017")]
    named = [word for pair in zip(places, paths, strict=True) for word in pair]
    assert main(["detection", "--ckpt", "mine", *named, "--run", "b", "--schedule", "smoke", "--device", "cpu"]) == 0
    result = json.loads((tmp_path / "b/result.json").read_text())
    assert result["ledger"] == {"entries": [{"reason": "objects that --repair dropped", "count": 2, "of": "train"}]}
    repaired = result["data"]["train"]["repaired"]
    assert repaired["faults"] == {"crowd flags that are not 0 or 1": 1, stated.partition(":")[0]: 2}
    assert repaired["objects"] == [16, 14]


def test_what_repair_does_not_take(stub: Perfect, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert detect(data, "--repair", "clean", "--out", "a.json") == 2
    assert "--repair evaluates nothing" in capsys.readouterr().err
    assert main(["detection", "--data", str(data)]) == 2
    assert "name a checkpoint with --ckpt PATH" in capsys.readouterr().err
    with pytest.raises(UserError, match="use the command `excb-eval detection --repair DIR`"):
        excb.evaluate("mine", "detection", data=data, repair=Path("clean"), quiet=True)


def test_results_are_not_for_paired_tests_of_classes(
    stub: Perfect, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert detect(data) == 0
    file = str(tmp_path / "runs/detection-mine-smoke/result.json")
    capsys.readouterr()
    assert main(["compare", file, file]) == 2
    assert "of protocol detection, which saves no score for each image" in capsys.readouterr().err


def test_json_for_machines(stub: Perfect, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert detect(data, "--json") == 0
    assert json.loads(capsys.readouterr().out)["figures"]["segm_AP"] == pytest.approx(100)


def test_colours_are_the_checkpoints_and_the_batch_rescales(stub: Perfect, data: Path) -> None:
    assert detect(data, "--batch", "8", "--skip-preflight", schedule="1x") == 0
    settings = stub.trained[0].settings
    assert settings.mean == pytest.approx((123.675, 116.28, 103.53))
    assert settings.std == pytest.approx((58.395, 57.12, 57.375))
    assert (settings.base_lr, settings.iterations, settings.steps) == (0.01, 180_000, (120_000, 160_000))


def test_values_from_python_keep_their_types(stub: Perfect, data: Path) -> None:
    overrides = {"min_sizes": [48, 64], "base_lr": 1, "flip": False}
    options: dict[str, Any] = {"data": data, "schedule": "smoke", "device": "cpu", "quiet": True}
    result = excb.evaluate("mine", "detection", set=overrides, **options)
    assert result.figures["bbox_AP"] == pytest.approx(100)
    settings = stub.trained[0].settings
    assert (settings.min_sizes, settings.base_lr, settings.flip) == ((48, 64), 1.0, False)
    with pytest.raises(UserError, match="batch takes a whole number, not '4'"):
        excb.evaluate("mine", "detection", set={"batch": "4"}, **options)
    stub.finishes = False
    with pytest.raises(UserError, match="detection was stopped: the same command resumes it"):
        excb.evaluate("mine", "detection", set=overrides, **options)


def test_overfit_trains_and_evaluates_on_the_same_few_images(stub: Perfect, data: Path) -> None:
    assert detect(data, schedule="overfit") == 0
    job = stub.trained[0]
    assert job.val is job.train
    assert all(any(a.trainable for a in image.annotations) for image in job.train.images)
    assert len(job.train) == min(OVERFIT_IMAGES, len(open_coco(data)[0].trainable))


def test_the_preflight_comes_first_before_long_schedules_and_once(stub: Perfect, data: Path) -> None:
    assert detect(data, schedule="1x") == 0
    assert len(stub.first) == 1
    quick = stub.first[0].settings
    assert (quick.norm, quick.freeze_at, quick.architecture) == ("SyncBN", 0, "c4")
    assert max(quick.min_sizes) <= preflights.SIDE
    assert detect(data, schedule="1x") == 0
    assert len(stub.first) == 1  # the run resumes


@pytest.mark.parametrize(
    ("losses", "message"),
    [([2.0] * preflights.STEPS, "from 2.00 to 2.00"), ([float("nan")] * preflights.STEPS, "not finite at step 0")],
)
def test_a_failed_preflight_trains_nothing_and_keeps_nothing(
    stub: Perfect, data: Path, capsys: pytest.CaptureFixture[str], losses: list[float], message: str
) -> None:
    stub.losses = losses
    assert detect(data, schedule="1x") == 2
    assert message in capsys.readouterr().err
    assert stub.trained == []
    stub.losses = Perfect().losses
    assert detect(data, schedule="1x") == 0
    assert len(stub.first) == 2  # it is made again


def test_a_stopped_run_says_so_and_resumes(stub: Perfect, data: Path, tmp_path: Path) -> None:
    stub.finishes = False
    assert detect(data) == 130
    assert not (tmp_path / "runs/detection-mine-smoke/result.json").exists()
    stub.finishes = True
    assert detect(data) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "norm=BN"], "settings.norm was SyncBN, now BN"),
        (["--recipe", "stock"], "recipe was ssl, now stock"),
        (["--engine", "torchvision"], "engine was detectron2, now torchvision"),
    ],
)
def test_a_folder_of_another_run_is_left_alone(
    stub: Perfect, data: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert detect(data) == 0
    assert detect(data, *arguments) == 2
    assert message in capsys.readouterr().err
    assert len(stub.trained) == 1


def test_a_run_of_other_image_files_is_left_alone_and_one_of_a_copy_resumes(
    stub: Perfect, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert detect(data) == 0
    shutil.copytree(data, copied := tmp_path / "copied", copy_function=shutil.copyfile)  # with other times
    assert detect(copied) == 0
    file = next((copied / "train2017").iterdir())
    with Image.open(file) as image:
        blank = Image.new("RGB", image.size)
    blank.save(file)
    for dry in ((), ("--dry-run",)):
        assert detect(copied, *dry) == 2
        assert "belongs to another run (other files): name another --run" in capsys.readouterr().err
    identity = tmp_path / "runs/detection-mine-smoke/run.json"
    known = json.loads(identity.read_text())
    del known["files"]  # as earlier versions wrote it
    identity.write_text(json.dumps(known))
    assert detect(copied) == 0
    assert len(stub.trained) == 3


def test_a_folder_with_other_files_is_left_alone(
    stub: Perfect, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("dear to someone")
    assert detect(data, "--run", str(tmp_path / "thesis")) == 2
    assert "holds other files" in capsys.readouterr().err
    assert detect(data, "--run", str(tmp_path / "thesis" / "chapter1.txt")) == 2
    assert "is a file, or holds other files" in capsys.readouterr().err


def test_a_dry_run_shows_every_option_and_writes_nothing(
    stub: Perfect, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert detect(data, "--dry-run", "--set", "rois=7") == 0
    out = capsys.readouterr().out
    assert [line.split()[3:5] for line in out.splitlines() if line.startswith("rois ")] == [["command", "line"]]
    assert "freeze_at" in out
    assert "FrozenBN" in out  # the stock value beside ours
    assert "epochs of" in out
    assert out.splitlines()[0] == "it can run"
    assert not (tmp_path / "runs").exists()
    assert stub.trained == []


def test_a_dry_run_refuses_another_run_and_says_what_resumes(
    stub: Perfect, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert detect(data, "--run", str(tmp_path / "run")) == 0
    capsys.readouterr()
    assert detect(data, "--run", str(tmp_path / "run"), "--dry-run") == 0
    assert capsys.readouterr().out.splitlines()[0] == f"it can run: it resumes the run in {tmp_path / 'run'}"
    for dry in ((), ("--dry-run",)):
        assert detect(data, "--run", str(tmp_path / "run"), "--set", "seed=3", *dry) == 2
        assert "belongs to another run (settings.seed was 0, now 3)" in capsys.readouterr().err


def test_a_dry_run_without_detectron2_shows_its_plan_and_what_to_do(
    stub: Perfect, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Any:
        raise UserError(engines.INSTALL)

    monkeypatch.setattr(engines, "ENGINES", {"detectron2": missing})
    assert detect(data, "--dry-run") == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("it cannot run: Detectron2 is not installed: add --engine torchvision")
    assert any(line.startswith("freeze_at") for line in lines)
    assert detect(data) == 2
    assert "add --engine torchvision" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ckpt", "vit"], "detection takes a resnet50 or resnet101 or resnet152, and vit is a vit_small"),
        (["--set", "input_format=BGR"], "input_format=BGR, but mine was trained with RGB"),
        (["--set", "stride_in_1x1=true"], "stride_in_1x1=true, but mine was trained with false"),
        (["--set", "std=1,1,1"], "std=1,1,1, but mine was trained with"),
        (["--set", "nrom=BN"], "did you mean 'norm'?"),
        (["--set", "batch=x"], "batch must be like 16, not 'x'"),
        (["--schedule", "3x"], "no schedule is named '3x'"),
        (["--recipe", "moco"], "no recipe is named 'moco'"),
        (["--batch", "0"], "batch must be at least 1"),
        (["--set", "norm=BM"], "norm must be one of SyncBN, naiveSyncBN, BN, FrozenBN, not 'BM'; did you mean 'BN'?"),
        (
            ["--train-json", "a", "--train-images", "b", "--val-json", "c", "--val-images", "d"],
            "--data has no use beside all of",
        ),
    ],
)
def test_what_cannot_run_is_one_line(
    stub: Perfect, data: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert detect(data, *arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert stub.trained == []


def no_annotations(data: Path) -> None:
    (data / "annotations/instances_val2017.json").unlink()


def other_categories(data: Path) -> None:
    file = data / "annotations/instances_val2017.json"
    categories = contents(file)["categories"]
    change(file, categories=[entry | {"name": "circle"} if entry["id"] == 7 else entry for entry in categories])


def no_image(data: Path) -> None:
    next((data / "train2017").iterdir()).unlink()


def other_size(data: Path) -> None:
    file = next((data / "train2017").iterdir())
    Image.new("RGB", (31, 17)).save(file)


@pytest.mark.parametrize("harm", [no_annotations, other_categories, no_image, other_size])
def test_harm_to_the_data_is_found_before_training(
    stub: Perfect, data: Path, capsys: pytest.CaptureFixture[str], harm: Any
) -> None:
    harm(data)
    assert detect(data) == 2
    err = capsys.readouterr().err
    assert err.startswith("excb-eval: error: ")
    assert err.count("\n") == 1
    assert stub.trained == []


def test_an_engine_that_is_not_installed_is_named_with_what_to_do(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert detect(data) == 2
    err = capsys.readouterr().err
    assert "Detectron2 is not installed" in err
    assert "--engine torchvision" in err


def test_weights_of_another_checkpoint_are_another_run(
    stub: Perfect, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert detect(data) == 0
    other = checkpoint()
    other.network.register_buffer("more", torch.zeros(1))
    monkeypatch.setattr(tasks, "load", lambda name, network: other)
    assert detect(data) == 2
    assert "(other checkpoint)" in capsys.readouterr().err


def test_other_images_are_another_run(stub: Perfect, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert detect(data) == 0
    file = data / "annotations/instances_train2017.json"
    change(file, images=contents(file)["images"][:-1])
    assert detect(data) == 2
    assert "(other training set; other files)" in capsys.readouterr().err


def test_preflight_uses_the_runs_own_network(stub: Perfect, data: Path) -> None:
    assert detect(data, "--preflight", "--set", "freeze_at=3", "--recipe", "stock") == 0
    quick, real = stub.first[0].settings, stub.trained[0].settings
    for name in ("architecture", "norm", "freeze_at", "extra_norm", "mean", "std"):
        assert getattr(quick, name) == getattr(real, name)
    assert replace(quick, seed=real.seed) == quick


# ---------------------------------------------------------------------------------------------------------------------
# As what a claim is checked by
# ---------------------------------------------------------------------------------------------------------------------

CLAIMS = """\
[protocols.short]
metrics = ["bbox_AP", "segm_AP"]
command = "detection"
options = { schedule = "smoke" }
spread = 0.3
source = "this test"
tables = ["found"]

[data.discs]
title = "discs"

[found]
title = "Found here"
source = "this test"
method = "ExCB"
architecture = "timm:resnet10t"
data = "discs"
columns = ["row", "checkpoint", "bbox_AP", "segm_AP"]
rows = [["perfect", "tiny_grocery", "99.7", "99.6"]]
"""


def reproduce(data: Path, tmp_path: Path) -> int:
    (tmp_path / "claims.toml").write_text(CLAIMS, encoding="utf-8")
    claims = ["--claims", str(tmp_path / "claims.toml"), "--out", str(tmp_path / "out")]
    return main(["reproduce", "found", *claims, "--data", str(data), "--device", "cpu", "--quiet", "--json"])


def test_a_claim_is_held_to_the_spread_between_trainings(
    stub: Perfect, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """100.0 is measured: 0.3 from one claim, 0.4 from the other, and 0.05 + 0.3 are allowed."""
    assert reproduce(data, tmp_path) == 1
    found = {claim["metric"]: claim for claim in json.loads(capsys.readouterr().out)["claims"]}
    assert {metric: claim["verdict"] for metric, claim in found.items()} == {"bbox_AP": "PASS", "segm_AP": "FAIL"}
    assert found["segm_AP"]["tolerance"] == pytest.approx(0.35)
    result = json.loads((tmp_path / "out" / "tiny_grocery-short.json").read_text(encoding="utf-8"))
    assert result["protocol"] == "detection"
    assert result["claims"]["found/perfect/segm_AP"]["verdict"] == "FAIL"
    assert (tmp_path / "out" / "tiny_grocery-short.predictions.json").is_file()
    assert len(stub.trained) == 1


def test_an_engine_that_is_not_there_is_no_failure_of_the_claim(
    stub: Perfect, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Perfect:
        raise UserError("detectron2 is not installed")

    monkeypatch.setattr(engines, "ENGINES", {"detectron2": missing})
    assert reproduce(data, tmp_path) == 3
    assert {claim["why"] for claim in json.loads(capsys.readouterr().out)["claims"]} == {"detectron2 is not installed"}
