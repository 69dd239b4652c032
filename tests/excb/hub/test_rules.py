"""Rows from anywhere: whatever is not a row is refused in one line that names the field."""

from typing import Any

import pytest

from excb.errors import UserError
from excb.hub.rules import FIELDS, check_row

ROW: dict[str, Any] = {"name": "mine", "method": "ExCB", "source": "imported", "architecture": {"name": "resnet50"}}
FULL: dict[str, Any] = ROW | {
    "architecture": {"name": "vit_small", "options": {"num_heads": 12}},
    "preprocessing": {"resize": 256, "crop": 224, "mean": [0, 0, 0], "std": [1, 1, 1.5], "interpolation": "bicubic"},
    "aliases": ["my.v1"],
    "locations": ["hf-hub:user/repo", "hf-hub:user/repo@v1.0", "https://host/file?dl=0", "http://127.0.0.1:80/file"],
    "also_at": ["hf-hub:user/repo"],
    "digest": "md5:0123abcd",
    "layout": "dino",
    "network": "student",
    "epochs": 400,
    "batch": 1024,
    "crops": "2x224",
    "pretrained_on": "ImageNet-1k",
    "licence": "MIT",
    "redistributable": True,
    "terms": "read them first",
    "figures": {"ExCB, Table 1": {"linear_top1": 76.5, "knn_top1": 71}},
    "globals": ["argparse.Namespace"],
    "note": "",
}


def test_a_row_of_all_fields_and_one_of_the_least_pass() -> None:
    check_row(ROW)
    check_row(FULL)
    assert FULL.keys() == FIELDS.keys()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", ""),
        ("method", "two\nlines"),
        ("note", "\x1b[31mred"),
        ("source", 3),
        ("architecture", "resnet50"),
        ("architecture", {"options": {}}),
        ("architecture", {"name": "resnet50", "weights": "here"}),
        ("architecture", {"name": "resnet50", "options": ["num_heads"]}),
        ("preprocessing", {"resize": 0}),
        ("preprocessing", {"crop": 224.0}),
        ("preprocessing", {"mean": [0.5, 0.5]}),
        ("preprocessing", {"std": [0.2, 0.0, 0.2]}),
        ("preprocessing", {"interpolation": ["bilinear"]}),
        ("preprocessing", {"size": 224}),
        ("aliases", "one"),
        ("aliases", [1]),
        ("locations", ["file:///etc/passwd"]),
        ("locations", ["https://host/a b"]),
        ("locations", ["hf-hub:nobody"]),
        ("locations", ["hf-hub:user/repo/more"]),
        ("also_at", ["hf-hub:user/repo@main"]),
        ("also_at", ["https://host/file"]),
        ("digest", "sha256:1234567"),
        ("digest", "sha1:0123456789"),
        ("digest", "sha256:" + "0" * 65),
        ("digest", "md5:ABCDEF01"),
        ("network", "both"),
        ("epochs", 0),
        ("epochs", True),
        ("batch", 1024.0),
        ("redistributable", 1),
        ("figures", {"linear_top1": 76.5}),
        ("figures", {"paper": {"linear_top1": "76.5"}}),
        ("figures", {"paper": {"linear_top1": float("nan")}}),
        ("figures", {"paper": {"linear_top1": True}}),
        ("figures", [{"name": "linear_top1", "value": 76.5, "source": "paper"}]),
        ("globals", [""]),
    ],
)
def test_another_kind_of_value_is_refused(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"^checkpoint 'mine': {field} must be ") as told:
        check_row(ROW | {field: value})
    assert str(told.value).isprintable()


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "a\\b", ".hidden", "", "..", "a b", "a\n", "downloads", "catalogue.toml"]
)
def test_names_and_aliases_that_could_lead_elsewhere_are_refused(name: str) -> None:
    for row in (ROW | {"name": name}, ROW | {"aliases": [name]}):
        with pytest.raises(UserError):
            check_row(row)


def test_missing_and_unknown_fields_are_named() -> None:
    with pytest.raises(UserError, match="must have a name"):
        check_row({"method": "ExCB"})
    with pytest.raises(UserError, match="'mine' lacks method, architecture"):
        check_row({"name": "mine", "source": "imported"})
    with pytest.raises(UserError, match="no field 'epoch'; did you mean 'epochs'"):
        check_row(ROW | {"epoch": 3})


def test_others_may_host_a_file_only_by_a_licence() -> None:
    check_row(ROW | {"redistributable": True, "licence": "MIT"})
    with pytest.raises(UserError, match="needs the licence"):
        check_row(ROW | {"redistributable": True})
