"""Tests of model cards: the header parses and holds the measured numbers, nothing else is said, no text is markup."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from excb.checkpoint import exported
from excb.errors import UserError
from excb.hub.catalogue import Checkpoint
from excb.ledger import Ledger, LedgerEntry, doubt
from excb.networks.architecture import Architecture
from excb.networks.backbone import feature_width
from excb.networks.preprocessing import Preprocessing
from excb.results.result import ResultRecord, folder_name
from excb.zoo.card import card
from tests.clone import ROOT
from tests.run_files import TINY_RESNET, tiny_recipe

ROW = Checkpoint(
    name="grocery",
    method="ExCB",
    architecture=Architecture("resnet18"),
    preprocessing=Preprocessing(resize=146, crop=128, mean=(0.1, 0.2, 0.3)),
    source="own run",
    locations=("https://elsewhere.example/w.pth", "hf-hub:tester/grocery@v0.1.0-step9"),
    licence="Apache-2.0",
)
HOSTILE = 'x | y\n---\n<script>alert(1)</script> `code` [link](https://a.example) *b* \\ "q" # h \x1b[31m \u202e: {'


def result(**changes: Any) -> ResultRecord:
    values: dict[str, Any] = {
        "protocol": "knn",
        "figures": {"knn_top1_k20": 57.3125, "knn_top5_k20": 81.0},
        "settings": {"k": [20], "temperature": [0.07]},
        "checkpoint": {"weights_sha256": "0" * 64},
        "data": {
            "train": {"root": "/home/someone/grocery/train", "images": 2640, "fingerprint": "a" * 64},
            "test": {"root": "/home/someone/grocery/test", "images": 2485, "fingerprint": "b" * 64},
            "classes": 81,
        },
        "seconds": 7200.0,
        "intervals": {"knn_top1_k20": (55.4, 59.25)},
        "notes": ["neighbours by torch"],
        "ledger": doubt("of 9 images look alike", ["a"], "look", of="test"),
        "created": "2026-11-21T10:00:00+00:00",
        "environment": {"excb": "0.1.0", "torch": "2.15", "device": "x86_64 CPU", "cores": 2},
    }
    return ResultRecord(**values | changes)


def folder(tmp_path: Path, **facts: Any) -> Path:
    """An exported folder; only its config.json counts here."""
    network = Architecture("timm:resnet10t", TINY_RESNET["options"]).build()
    return exported.write_exported(
        tmp_path / "mine",
        tensors=network.state_dict(),
        architecture=Architecture("timm:resnet10t", TINY_RESNET["options"]),
        preprocessing=ROW.preprocessing,
        width=feature_width(network),
        facts=facts,
    )


def header(text: str) -> dict[str, Any]:
    found = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    assert found is not None
    values = yaml.safe_load(found[1])
    assert isinstance(values, dict)
    return values


def body(text: str) -> str:
    return text.split("\n---\n", 1)[1]


def rows(text: str) -> list[list[str]]:
    """Cells of every table's rows, unescaped."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    split = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells] for cells in split]


@pytest.mark.parametrize(
    ("figure", "task"),
    [
        ("bbox_AP50", "object-detection"),
        ("dense_knn_miou", "image-segmentation"),
        ("retrieval_mAP", "image-feature-extraction"),
        ("knn_mAP_k20", "image-classification"),
        ("linear_top1", "image-classification"),
    ],
)
def test_a_figure_is_of_the_task_that_it_measures(figure: str, task: str) -> None:
    text = card(ROW, [result(figures={figure: 12.5}, intervals={})])
    assert header(text)["model-index"][0]["results"][0]["task"]["type"] == task


def test_header_holds_what_was_measured_to_the_last_digit() -> None:
    second = result(protocol="linear", figures={"linear_top1": 61.02}, intervals={})
    values = header(card(ROW, [result(), second]))
    assert {name: values[name] for name in ("library_name", "license", "pipeline_tag")} == {
        "library_name": "timm",
        "license": "apache-2.0",
        "pipeline_tag": "image-feature-extraction",
    }
    assert {"timm", "excb"} <= set(values["tags"])
    assert "datasets" not in values
    (index,) = values["model-index"]
    assert index["name"] == "grocery"
    found = dict[str, float]()
    for entry in index["results"]:
        assert entry["task"]["type"] == "image-classification"
        assert entry["dataset"] == {"name": "grocery/test", "type": "grocery-test"}
        assert {metric["type"] for metric in entry["metrics"]} == {"accuracy"}
        found |= {metric["name"]: metric["value"] for metric in entry["metrics"]}
    assert found == result().figures | second.figures


def test_table_has_every_figure_with_protocol_interval_hardware_and_hours() -> None:
    text = card(ROW, [result()])
    protocol = f"knn {result().protocol_hash}"
    assert ["knn_top1_k20", "57.3125", "55.4 to 59.25", "grocery/test", protocol, "x86_64 CPU", "2"] in rows(text)
    assert ["knn_top5_k20", "81.0", "", "grocery/test", protocol, "x86_64 CPU", "2"] in rows(text)
    for line in (
        f"- train images: grocery/train 2640, hash {'a' * 64}",
        f"- test images: grocery/test 2485, hash {'b' * 64}",
        "- k: 20",
        "- temperature: 0.07",
        "- measured: 2026-11-21T10:00:00+00:00",
        "- note: neighbours by torch",
        "- note: test: 1 of 9 images looks alike, such as a: look",
    ):
        assert line in text.splitlines()
    assert "someone" not in text


def test_nothing_is_said_that_is_not_known() -> None:
    text = card(replace(ROW, licence=None, locations=()), [])
    values = header(text)
    assert "license" not in values
    assert "model-index" not in values
    assert "## Results\n\nNone yet." in text
    assert "## Licence\n\nNone is stated." in text
    assert [row[0] for row in rows(text)] == ["what", "---", "method"]
    assert 'excb.load("grocery")' in text
    assert "timm." not in text


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("Apache-2.0", {"license": "apache-2.0"}),
        ("CC BY-NC 4.0", {"license": "cc-by-nc-4.0"}),
        ("My own: ask me", {"license": "other", "license_name": "my-own-ask-me"}),
    ],
)
def test_licences_are_named_as_the_hub_does(licence: str, expected: dict[str, str]) -> None:
    text = card(replace(ROW, licence=licence), [])
    assert {name: value for name, value in header(text).items() if name.startswith("license")} == expected
    assert f"## Licence\n\n{licence}\n" in text


def test_three_lines_load_it_and_only_torchvisions_resnets_have_the_third() -> None:
    block = re.search(r"```python\n(.*?)\n```", card(ROW, []), re.DOTALL)
    assert block is not None
    lines = block[1].splitlines()
    assert lines[:2] == [
        'excb.load("hf-hub:tester/grocery@v0.1.0-step9")',
        'timm.create_model("hf-hub:tester/grocery@v0.1.0-step9", pretrained=True)',
    ]
    assert len(lines) == 3
    assert "torchvision.models.resnet18()" in lines[2]
    assert 'hf_hub_download("tester/grocery", "model.safetensors", revision="v0.1.0-step9")' in lines[2]
    for line in lines:
        compile(line, "card", "exec")
    vit = replace(ROW, architecture=Architecture("vit_small"))
    assert "torchvision.models" not in card(vit, [])


def test_a_network_that_timm_does_not_have_is_not_said_to_be_timms() -> None:
    for name in ("conv4", "resnet18_cifar", "torchvision:alexnet"):
        text = card(replace(ROW, architecture=Architecture(name)), [])
        assert header(text)["library_name"] == "excb"
        assert "timm" not in header(text)["tags"]
        assert "timm.create_model" not in text
        assert "excb.load(" in text


def test_preprocessing_is_the_checkpoints() -> None:
    text = card(ROW, [])
    assert "resized to 146 pixels (bilinear, antialiased)" in text
    assert "central 128 x 128" in text
    assert "mean 0.1, 0.2, 0.3 and standard deviation 0.229, 0.224, 0.225" in text


def test_folder_tells_the_recipe_and_the_data(tmp_path: Path) -> None:
    recipe = tiny_recipe().to_dict() | {"init": "/home/someone/runs/first"}
    training = {"data": "/home/someone/photos", "images": 12, "fingerprint": "c" * 64, "seconds": 5400.0}
    text = card(folder(tmp_path, network="student", step=9, epoch=0.5, recipe=recipe, training=training), [])
    said = dict(row for row in rows(text) if len(row) == 2)
    assert {
        name: said[name] for name in ("images", "number of images", "steps", "epochs", "hours", "started from")
    } == {
        "images": "photos",
        "number of images": "12",
        "steps": "9",
        "epochs": "0.5",
        "hours": "1.5",
        "started from": "first",
    }
    assert said["method.clusters"] == "4"  # the paper has 65,536
    assert "method.student_temperature" not in said  # as the paper has it
    assert said["optim.epochs"] == str(recipe["optim"]["epochs"])
    assert not any(name.startswith(("efficiency.", "monitor.", "run.")) for name in said)
    assert "the student network of ExCB" in text
    assert "# mine" in text.splitlines()
    assert "someone" not in text


def test_data_set_of_the_hub_is_named_in_the_header(tmp_path: Path) -> None:
    training = {"data": "hf:someone/photos", "images": 12, "fingerprint": "c", "seconds": None}
    text = card(folder(tmp_path, training=training), [result(data={"test": {"root": "hf:someone/photos"}})])
    assert header(text)["datasets"] == ["someone/photos"]
    assert header(text)["model-index"][0]["results"][0]["dataset"]["type"] == "someone/photos"


def test_citation_is_that_of_the_repository() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    paper = cited["preferred-citation"]
    entry = card(ROW, []).partition("## Cite")[2]
    assert f"{{{paper['title']}}}" in entry
    names = " and ".join(f"{each['family-names']}, {each['given-names']}" for each in paper["authors"])
    assert f"{{{names}}}" in entry
    assert f"{{{paper['year']}}}" in entry
    assert paper["collection-title"].replace("–", "--") in entry
    assert "## Cite" not in card(replace(ROW, method="DINO"), [])


def test_text_of_files_is_no_markup(tmp_path: Path) -> None:
    hostile = result(
        protocol=HOSTILE,
        figures={HOSTILE: 1.5},
        settings={HOSTILE: HOSTILE},
        data={"train": {"root": HOSTILE}, "test": {"root": HOSTILE, "images": HOSTILE}},
        intervals={},
        notes=[HOSTILE],
        environment={"device": HOSTILE, "torch": HOSTILE},
        created=HOSTILE,
    )
    recipe = {"name": HOSTILE, "optim": {HOSTILE: HOSTILE}}
    place = folder(tmp_path, recipe=recipe, network=HOSTILE, training={"data": HOSTILE, "fingerprint": HOSTILE})
    text = card(place, [hostile])
    metric = header(text)["model-index"][0]["results"][0]["metrics"][0]
    assert metric["value"] == 1.5
    assert "\n" not in metric["name"]
    shown = body(text)
    assert "<script" not in shown
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not re.search(r"(?<!\\)(\]\(|`code`|\*b\*)", shown)
    assert {len(row) for row in rows(shown) if row[0] not in ("what", "---")} == {2, 7}
    headings = [line for line in shown.splitlines() if line.startswith("#")]
    assert headings[:5] == ["# mine", "## Load", "## Training", "## Results", headings[4]]
    assert headings[5:] == ["## Licence", "## Cite"]
    assert "---" not in shown.splitlines()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/someone/photos", "photos"),
        ("photos", "photos"),
        ("/data/grocery/test", "grocery/test"),
        ("C:\\Users\\someone\\photos\\train", "photos/train"),
        ("hf:someone/photos", "hf:someone/photos"),
        ("torchvision:CIFAR10", "torchvision:CIFAR10"),
        ("", ""),
    ],
)
def test_paths_lose_what_tells_of_the_machine(path: str, name: str) -> None:
    assert folder_name(path) == name


@pytest.mark.parametrize("contents", ["{}", "[]", "{", '{"excb": {}}', '{"excb": {"checkpoint": {"name": "x"}}}'])
def test_folder_that_is_none(tmp_path: Path, contents: str) -> None:
    (tmp_path / "config.json").write_text(contents)
    with pytest.raises(UserError, match="was not written"):
        card(tmp_path, [])
    with pytest.raises(UserError, match="was not written"):
        card(tmp_path / "nowhere", [])


def test_row_of_the_folder_is_taken(tmp_path: Path) -> None:
    place = folder(tmp_path)
    file = place / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["excb"]["checkpoint"] = replace(ROW, note="On groceries.").to_dict()
    file.write_text(json.dumps(config), encoding="utf-8")
    text = card(place, [])
    assert "# grocery" in text.splitlines()
    assert "of ExCB. On groceries." in text
    assert header(text)["license"] == "apache-2.0"


def test_a_card_says_what_was_left_out_of_the_images(tmp_path: Path) -> None:
    ledger = Ledger((LedgerEntry(".heic", 7),)) + doubt("images with values outside", ["7.png"], "clipped", count=2)
    text = card(folder(tmp_path, training={"images": 9, "ledger": ledger.to_dict()}), [])
    said = "left out of the images: 7 .heic; 2 images with values outside, such as 7.png: clipped"
    assert ["left out of the images, or doubted", said] in rows(text)
