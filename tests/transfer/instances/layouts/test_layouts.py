"""Tests of the layouts: what each makes of a folder, and mistakes in one line each."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from excb.errors import UserError
from excb.transfer.instances.layouts.instance_set import InstanceSet
from excb.transfer.instances.layouts.table import layout_of
from tests.transfer.instances.sets import QUERY_BOX, picture, save, write_copydays, write_pairs, write_revisited

ENTRIES: list[dict[str, Any]] = [
    {"bbx": list(QUERY_BOX), "easy": [0, 5], "hard": [10], "junk": [3]},
    {"bbx": np.array(QUERY_BOX, np.float64), "easy": np.array([1]), "hard": np.array([], np.int64), "junk": []},
]


def opened(root: Path, name: str | None = None, truth: Path | None = None) -> InstanceSet:
    return layout_of(root, name).open(root, truth)


def test_the_three_protocols_of_roxford(tmp_path: Path) -> None:
    found = opened(write_revisited(tmp_path, ENTRIES))
    lists = {
        name: [(truth.relevant.tolist(), truth.junk.tolist()) for truth in truths]
        for name, truths in found.truth.items()
    }
    assert lists == {
        "easy": [([0, 5], [3, 10]), ([1], [])],
        "medium": [([0, 5, 10], [3]), ([1], [])],
        "hard": [([10], [0, 3, 5]), ([], [1])],
    }
    assert found.family == "revisited"
    assert found.groups == ["gate", "gate"]
    assert (len(found.queries), len(found.gallery)) == (2, 12)
    assert found.judged(0).tolist() == [0, 3, 5, 10]
    with Image.open(tmp_path / "jpg" / "gate_000000.jpg") as whole:
        assert found.queries.open(0).tobytes() == whole.crop(QUERY_BOX).tobytes()
        assert found.gallery.open(0).size == whole.size


def test_fingerprints_differ_with_boxes_and_truth(tmp_path: Path) -> None:
    first = opened(write_revisited(tmp_path / "a", ENTRIES))
    same = opened(write_revisited(tmp_path / "b", ENTRIES, protocol=4))
    moved = opened(write_revisited(tmp_path / "c", [ENTRIES[0] | {"bbx": [0, 0, 9, 9]}, ENTRIES[1]]))
    other = opened(write_revisited(tmp_path / "d", [ENTRIES[0] | {"junk": []}, ENTRIES[1]]))
    assert (first.fingerprint, first.queries.fingerprint) == (same.fingerprint, same.queries.fingerprint)
    assert first.queries.fingerprint != moved.queries.fingerprint
    assert first.fingerprint == moved.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"easy": [99]}, "indices below 12"),
        ({"easy": [0.5]}, "indices below 12"),
        ({"easy": "text"}, "a str where numbers belong"),
        ({"bbx": [1, 2, 3]}, "four numbers in bbx"),
        ({"bbx": [float("nan")] * 4}, "four numbers in bbx"),
    ],
)
def test_wrong_truth_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=f"is not a ground truth of ROxford or RParis .*{told}"):
        opened(write_revisited(tmp_path, [ENTRIES[0] | change, ENTRIES[1]]))


@pytest.mark.parametrize("contents", [[], {"imlist": ["a"]}, {"imlist": [1], "qimlist": ["a"], "gnd": []}, None])
def test_other_pickles_are_refused(tmp_path: Path, contents: Any) -> None:
    (tmp_path / "gnd_rparis6k.pkl").write_bytes(pickle.dumps(contents))
    with pytest.raises(UserError, match="is not a ground truth of ROxford or RParis"):
        opened(tmp_path)


def test_missing_images_and_names_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    root = write_revisited(tmp_path, ENTRIES)
    (root / "jpg" / "hall_000007.jpg").unlink()
    with pytest.raises(UserError, match=r"1 file is not in .*, such as jpg/hall_000007\.jpg"):
        opened(root)
    truth = pickle.loads((root / "gnd_roxford5k.pkl").read_bytes())
    (root / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(truth | {"qimlist": ["../../a", "b"]}))
    with pytest.raises(UserError, match="which is not a file below"):
        opened(root)


def test_a_box_outside_its_image_is_a_broken_image(tmp_path: Path) -> None:
    from excb.images.decoding import BrokenImageError

    found = opened(write_revisited(tmp_path, [ENTRIES[0] | {"bbx": [90, 90, 99, 99]}, ENTRIES[1]]))
    with pytest.raises(BrokenImageError, match="lies outside its 48 x 36 pixels"):
        found.queries.open(0)


def test_copydays_pairs_names_by_their_first_characters(tmp_path: Path) -> None:
    found = opened(write_copydays(tmp_path))
    assert list(found.truth) == ["strong", "crops", "jpeg"]
    assert found.groups == ["strong"] * 2 + ["crops/30"] * 5 + ["jpeg/10"] * 5
    assert [truth.relevant.tolist() for truth in found.truth["strong"]] == [[0], [0]] + [[]] * 10
    assert [truth.relevant.tolist() for truth in found.truth["crops"]] == [[], []] + [[n] for n in range(5)] + [[]] * 5
    save(picture(9), tmp_path / "strong" / "990001.jpg")
    with pytest.raises(UserError, match=r"1 copy has no original in .*, such as strong/990001\.jpg"):
        opened(tmp_path)


def test_pairs_are_read_with_and_without_header_endings_and_matches(tmp_path: Path) -> None:
    root = write_pairs(tmp_path)
    expected: list[list[int]] = [[index] for index in range(6)] + [[], [], []]
    assert [truth.relevant.tolist() for truth in opened(root).truth[""]] == expected
    other = tmp_path / "mine.csv"
    other.write_text("Q000.jpg,R000.jpg\r\nQ001,R001\nQ001,R004\nQ002,R002\n\nQ003,\n", encoding="utf-8")
    expected = [[0], [1, 4], [2], *([] for _ in range(6))]
    assert [truth.relevant.tolist() for truth in opened(root, truth=other).truth[""]] == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Q000,R999\n", "line 1: no image R999 in .*references"),
        ("query_id,reference_id\nQ999,R000\n", "line 2: no image Q999 in .*queries"),
        ("Q000\n", "line 1: expected QUERY,REFERENCE"),
        ("Q000,\n", "has no pair"),
        ("", "has no pair"),
    ],
)
def test_wrong_pairs_are_refused(tmp_path: Path, text: str, told: str) -> None:
    root = write_pairs(tmp_path)
    (root / "ground_truth.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=told):
        opened(root)


def test_two_images_of_one_name_are_refused(tmp_path: Path) -> None:
    root = write_pairs(tmp_path)
    save(picture(0), root / "references" / "more" / "R000.png")
    with pytest.raises(UserError, match="two images called R000"):
        opened(root)


def test_folders_and_layouts_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has none of the layouts revisited"):
        layout_of(tmp_path)
    with pytest.raises(UserError, match="did you mean 'copydays'"):
        layout_of(tmp_path, "copyday")
    with pytest.raises(UserError, match="no folder"):
        layout_of(tmp_path / "none")
    with pytest.raises(UserError, match=r"has no gnd_\*\.pkl"):
        opened(tmp_path, "revisited")
    with pytest.raises(UserError, match="--ground-truth is of the layouts"):
        opened(write_copydays(tmp_path / "days"), truth=tmp_path / "a.csv")
    (tmp_path / "bare" / "original").mkdir(parents=True)
    save(picture(0), tmp_path / "bare" / "original" / "200000.jpg")
    with pytest.raises(UserError, match="has no folder of copies"):
        opened(tmp_path / "bare", "copydays")
    with pytest.raises(UserError, match="cannot read the pairs"):
        opened(write_pairs(tmp_path / "pairs"), truth=tmp_path / "none.csv")
