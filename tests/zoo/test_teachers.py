"""A student's card and files as others get them: its teachers by name, their licences, and whether labels were used."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml  # type: ignore[import-untyped]

import excb
from excb.checkpoint import exported
from excb.console import Reporter
from excb.errors import UserError
from excb.hub.catalogue import Checkpoint
from excb.hub.lineage import lineage
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.transfer.published.subjects import Subject
from excb.zoo.__main__ import main
from excb.zoo.card import card
from excb.zoo.push import package
from excb.zoo.teachers import shown
from tests.hub_client import client
from tests.hub_server import Hub
from tests.run_files import distilled_recipe, tiny_recipe, write_student

SUPERVISED: dict[str, Any] = {
    "name": "mobilenetv2",
    "method": "Supervised",
    "labels": "used",
    "licence": "BSD-3-Clause",
    "pretrained_on": "ImageNet-1k",
    "source": "https://github.com/pytorch/vision",
    "sha256": "ab" * 32,
    "architecture": {"name": "torchvision:mobilenet_v2", "options": {}},
    "parameters": 2_223_872,
    "input": [256, 224],
}
DINO = SUPERVISED | {"name": "dino_vits16", "method": "DINO", "labels": "none", "licence": "Apache-2.0"}
CLIP = SUPERVISED | {"name": "clip_vitb16", "method": "CLIP", "licence": "MIT", "pretrained_on": None}
UNKNOWN = SUPERVISED | {"name": "/home/someone/runs/theirs", "method": None, "labels": "unknown"}
UNKNOWN |= dict.fromkeys(("licence", "pretrained_on", "source"))
HOSTILE = 'x | y <script>alert(1)</script> `code` [link](https://a.example) *b* \\ "q" # h: {'
PHOTOS = {"root": "/home/someone/photos", "images": 12_345, "fingerprint": "0" * 64, "classes": None}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))
    return tmp_path / "zoo"


def packaged(place: Path, *teachers: dict[str, Any], licence: str = "apache-2.0", **options: Any) -> Path:
    """The folder that would be published of a student of these teachers, which never saw an image."""
    run = write_student(place / "run", *teachers, **({"data": PHOTOS} | options))
    package(str(run), place / "mine", licence=licence, untested="weights of a test")
    return place / "mine"


def tags(text: str) -> list[str]:
    found = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    assert found is not None
    values: list[str] = yaml.safe_load(found[1])["tags"]
    return values


def section(text: str, name: str) -> str:
    after = text.partition(f"\n## {name}\n")[2]
    return after.partition("\n## ")[0].replace("\\", "")


# ---------------------------------------------------------------------------------------------------------------------
# The card
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("teachers", "free_of_labels"),
    [([SUPERVISED], False), ([DINO, SUPERVISED], False), ([UNKNOWN], False), ([DINO, CLIP], False), ([DINO], True)],
    ids=lambda value: None if isinstance(value, bool) else "+".join(each["name"] for each in value),
)
@pytest.mark.parametrize("clustering", [False, True])
def test_only_a_student_of_teachers_without_labels_is_called_self_supervised(
    tmp_path: Path, teachers: list[dict[str, Any]], free_of_labels: bool, clustering: bool
) -> None:
    folder = packaged(tmp_path, *teachers, clustering=clustering)
    text = (folder / "README.md").read_text(encoding="utf-8")
    method = "distillation + ExCB" if clustering else "distillation"
    assert "knowledge-distillation" in tags(text)
    assert method.lower() in tags(text)
    assert ("self-supervised" in text.lower()) == free_of_labels
    assert exported.read_config(folder)["excb"]["checkpoint"]["method"] == method
    assert "teacher network of" not in text
    assert ("## Cite" in text) == clustering


def test_the_card_names_each_teacher_and_the_students_own_images(tmp_path: Path) -> None:
    text = (packaged(tmp_path, SUPERVISED, DINO, UNKNOWN) / "README.md").read_text(encoding="utf-8")
    assert "distilled from mobilenetv2, dino_vits16, theirs: a moving average of the student's weights." in text
    said = section(text, "Teachers")
    assert "Its own images: photos, 12,345 images. Through its teachers it depends on labels." in said
    assert "- mobilenetv2: **labels were used to train this teacher.**" in said
    assert "- dino_vits16: no labels were used to train this teacher." in said
    assert "- theirs: whether labels were used to train this teacher is not known." in said
    (first, *_, last) = [line for line in said.splitlines() if line.startswith("| ") and "---" not in line][1:]
    source, network = "https://github.com/pytorch/vision", "torchvision:mobilenet_v2"
    cells = ["mobilenetv2", "Supervised", "ImageNet-1k", "BSD-3-Clause", source, network, "2,223,872"]
    assert [cell.strip() for cell in first.split("|")][1:-1] == [*cells, "resize 256, crop 224", "ab" * 8]
    assert last.count("not recorded") == 4
    assert "someone" not in text


def test_how_labels_reached_a_teacher_is_said(tmp_path: Path) -> None:
    student = SUPERVISED | {"name": "first", "method": "distillation + ExCB"}
    said = section((packaged(tmp_path, CLIP, student) / "README.md").read_text(encoding="utf-8"), "Teachers")
    assert "- clip_vitb16: **labels were used to train this teacher.** They are texts that describe images" in said
    assert "- first: **labels were used to train this teacher.** They reached it through its own teachers." in said


def test_both_licences_are_stated_where_they_differ(tmp_path: Path) -> None:
    text = (packaged(tmp_path, SUPERVISED, DINO, UNKNOWN) / "README.md").read_text(encoding="utf-8")
    assert section(text, "Licence").strip() == (
        "apache-2.0\n\nThe teacher mobilenetv2 is under BSD-3-Clause, this student under apache-2.0."
    )


def test_a_row_alone_or_a_student_without_its_record_claims_nothing(tmp_path: Path) -> None:
    row = Checkpoint(
        name="mine",
        method="distillation + ExCB",
        architecture=Architecture("conv4"),
        preprocessing=Preprocessing(),
        source="own run",
    )
    bare = write_student(tmp_path / "bare", recipe=distilled_recipe("theirs"), teachers=None)
    package(str(bare), tmp_path / "mine", licence="mit", untested="a test")
    for text in (card(row, []), (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")):
        assert "self-supervised" not in text
        assert "knowledge-distillation" in tags(text)
        assert "Nothing else is recorded of its teachers." in section(text, "Teachers")
        assert "Whether it depends on labels through its teachers is not known." in text
    assert "distilled from theirs:" in text


@pytest.mark.parametrize(("init", "expected"), [(None, True), ("mobilenetv2", False), ("runs/first", False)])
def test_a_run_that_continues_from_labels_is_not_called_self_supervised(
    tmp_path: Path, init: str | None, expected: bool
) -> None:
    run = write_student(tmp_path / "run", recipe=tiny_recipe().to_dict() | {"init": init})
    package(str(run), tmp_path / "mine", licence="mit", untested="a test")
    text = (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")
    assert ("self-supervised" in tags(text)) == expected
    assert "knowledge-distillation" not in text
    assert "## Teachers" not in text


def test_what_others_wrote_of_teachers_is_no_markup(tmp_path: Path) -> None:
    fields = ("name", "method", "licence", "pretrained_on", "source")
    hostile = SUPERVISED | dict.fromkeys(fields, HOSTILE)
    hostile |= {"architecture": {"name": HOSTILE, "options": {HOSTILE: [HOSTILE]}}}
    text = (packaged(tmp_path, hostile) / "README.md").read_text(encoding="utf-8")
    assert "<script" not in text
    assert not re.search(r"(?<!\\)(\]\(|`code`|\*b\*)", text)
    assert re.findall(r"^## (\w+)", text, re.MULTILINE) == ["Load", "Training", "Teachers", "Results", "Licence"]


def test_names_say_nothing_of_the_machine() -> None:
    names = {
        "mobilenetv2": "mobilenetv2",
        "hf-hub:user/repo@v1": "hf-hub:user/repo@v1",
        "timm:resnet50.a1_in1k": "timm:resnet50.a1_in1k",
        "/home/someone/runs/first": "first",
        "runs/first": "first",
        r"C:\Users\someone\first": "first",
        "https://host.example/w.pth?token=secret": "https://host.example/w.pth",
    }
    assert {name: shown(name) for name in names} == names


# ---------------------------------------------------------------------------------------------------------------------
# Listings and results
# ---------------------------------------------------------------------------------------------------------------------


def test_show_and_list_name_method_and_teachers(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = packaged(tmp_path, SUPERVISED, DINO)
    assert main(["show", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["method"] == "distillation"
    assert facts["teachers"] == [SUPERVISED, DINO]
    assert main(["show", str(folder)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "mobilenetv2 (labels: used), dino_vits16 (labels: none)" in text
    home.mkdir(exist_ok=True)
    folder.rename(home / "mine")
    assert main(["list", "--method", "distillation", "--json"]) == 0
    row = next(each for each in json.loads(capsys.readouterr().out) if each["name"] == "mine")
    assert (row["name"], row["method"]) == ("mine", "distillation")


def test_a_copied_folder_has_its_teachers_and_hostile_ones_are_refused(tmp_path: Path, home: Path) -> None:
    home.mkdir(exist_ok=True)
    folder = packaged(tmp_path, SUPERVISED).rename(home / "mine")
    assert excb.load("mine").entry.teachers == (SUPERVISED,)
    config = exported.read_config(folder)
    config["excb"]["teachers"] = [{"name": "x"}] * 1000
    (folder / exported.CONFIG).write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match="teachers must be a list of up to 64 tables") as error:
        excb.load("mine")
    assert str(error.value).isprintable()


def test_results_of_a_student_say_distillation_whatever_its_row_says(tmp_path: Path) -> None:
    folder = packaged(tmp_path, SUPERVISED)
    config = exported.read_config(folder)
    config["excb"]["checkpoint"]["method"] = "ExCB"
    (folder / exported.CONFIG).write_text(json.dumps(config), encoding="utf-8")
    entry = excb.load(folder).entry
    assert Subject.of_entry("mine", entry).method == "distillation"
    assert "distillation" in tags(card(folder, []))
    package(str(folder), tmp_path / "again", licence="apache-2.0", untested="a test")
    assert exported.read_config(tmp_path / "again")["excb"]["checkpoint"]["method"] == "distillation"


# ---------------------------------------------------------------------------------------------------------------------
# Over the hub
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with Hub(tmp_path_factory.mktemp("hub")) as started:
        yield started


@pytest.fixture(scope="module")
def process(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    with client(hub, tmp_path_factory.mktemp("client"), xet=False) as started:
        yield started


def push_student(run: Path, repo: str) -> str:
    """Push, and give the place of the commit."""
    from excb.zoo.push import push

    with mock.patch("excb.hub.selftest.check_trained"):
        return push(str(run), repo, licence="apache-2.0", reporter=Reporter(quiet=True)).locations[0]


def pull_teacher(place: str) -> tuple[dict[str, Any], str, tuple[dict[str, Any], ...]]:
    """Load from the hub: what a student of it would record, its card, and its own teachers."""
    backbone = excb.load(place)
    text = Path(backbone.entry.source).with_name(exported.CARD).read_text(encoding="utf-8")
    return lineage(backbone, place), text, backbone.entry.teachers


def test_a_student_of_a_student_over_the_hub(hub: Hub, process: ProcessPoolExecutor, tmp_path: Path) -> None:
    first = write_student(tmp_path / "first", SUPERVISED, data=PHOTOS)
    place = process.submit(push_student, first, "tester/first").result()
    taught, text, teachers = process.submit(pull_teacher, place).result()
    assert teachers == (SUPERVISED,)
    assert "- mobilenetv2: **labels were used to train this teacher.**" in text
    assert "BSD-3-Clause, this student under apache-2.0" in text
    assert hub.repositories["tester/first"].refs["main"] == place.partition("@")[2]
    known = ("name", "method", "labels", "licence", "pretrained_on", "source")
    assert {name: taught[name] for name in known} == {
        "name": place,
        "method": "distillation",
        "labels": "used",
        "licence": "apache-2.0",
        "pretrained_on": "photos",
        "source": "https://huggingface.co/tester/first",
    }
    second = write_student(tmp_path / "second", taught, clustering=True)
    place = process.submit(push_student, second, "tester/second").result()
    taught, text, teachers = process.submit(pull_teacher, place).result()
    assert teachers[0]["name"].startswith("hf-hub:tester/first@")
    assert (taught["method"], taught["labels"]) == ("distillation + ExCB", "used")
    assert "They reached it through its own teachers." in text
    assert "self-supervised" not in text
