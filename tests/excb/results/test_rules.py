"""Tests of result files edited by hand: every field of another kind is named, and sound ones pass."""

import json
from typing import Any

import pytest

from excb.errors import UserError
from excb.results.result import ResultRecord
from excb.results.rules import wrong_field
from tests.transfer.result_files import result


def values() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result({"knn_top1": 50.0}).to_json()) | {"claims": {}}
    return found


def test_a_sound_result_has_no_wrong_field() -> None:
    assert wrong_field(values()) is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("figures", []),
        ("seconds", "1"),
        ("notes", [1]),
        ("figures.knn_top1", True),
        ("intervals.knn_top1", [1]),
        ("checkpoint.epoch", "three"),
        ("checkpoint.preprocessing", 3),
        ("data.train", None),
        ("data.test.images", -1),
        ("predictions", {"file": "../secret.npz", "sha256": "0"}),
        ("predictions", {"file": "/etc/passwd", "sha256": "0"}),
        ("predictions", {"file": "x.npz"}),
    ],
)
def test_the_wrong_field_is_named(path: str, value: Any) -> None:
    found = values()
    *outer, last = path.split(".")
    inner = found
    for name in outer:
        inner = inner[name]
    inner[last] = value
    assert wrong_field(found) == path


@pytest.mark.parametrize("part", ['"k": [NaN]', '"k": "\\ud800"', '"k": [1e999]'])
def test_settings_that_are_no_json_are_refused(part: str) -> None:
    text = result({"knn_top1": 50.0}).to_json().replace('"similarity"', f'{part}, "similarity"')
    with pytest.raises(UserError):
        ResultRecord.from_json(text)
