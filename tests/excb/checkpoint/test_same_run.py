"""The check that a resumed run is the same run."""

from pathlib import Path

import pytest

from excb.checkpoint.same_run import changes, require_same_run
from excb.errors import UserError

STORED = {"seed": 0, "weights": "a" * 64, "optim": {"epochs": 5, "sizes": (1, 2)}, "efficiency": {"workers": 2}}


def test_an_equal_run_passes() -> None:
    require_same_run("run", STORED, {**STORED, "optim": {"epochs": 5, "sizes": (1, 2)}}, advice="start anew")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "seed was 0, now 1"),
        ({"weights": "b" * 64}, "other weights"),
        ({"optim": {"epochs": 6, "sizes": (1, 2)}}, "optim.epochs was 5, now 6"),
        ({"optim": {"epochs": 5, "sizes": (2, 2)}}, "optim.sizes was (1, 2), now (2, 2)"),
        ({"optim": {"epochs": 5, "sizes": (1, 2), "amp": True}}, "optim.amp was not set, now True"),
        ({"optim": {"epochs": 5}}, "optim.sizes was (1, 2), now not set"),
    ],
)
def test_each_difference_is_named(change: dict[str, object], named: str) -> None:
    with pytest.raises(UserError) as raised:
        require_same_run(Path("runs/a"), STORED, STORED | change, advice="start anew")
    assert str(raised.value) == f"runs/a belongs to another run ({named}): start anew"


def test_all_differences_are_named_at_once() -> None:
    assert changes({"a": 1, "b": 2, "old": 3}, {"a": 2, "b": 2, "new": None}) == [
        "a was 1, now 2",
        "new was not set, now None",
        "old was 3, now not set",
    ]


def test_resumable_changes_pass_whole_sections_and_fields() -> None:
    now = STORED | {"efficiency": {"workers": 8}, "optim": {"epochs": 9, "sizes": (1, 2)}}
    assert changes(STORED, now, resumable_changes=("efficiency", "optim.epochs")) == []
    assert changes(STORED, now, resumable_changes=("optim.epochs",)) == ["efficiency.workers was 2, now 8"]


@pytest.mark.parametrize("stored", [None, [], "text", 3])
def test_a_damaged_record_is_another_run(stored: object) -> None:
    assert changes(stored, {"seed": 0}) == ["seed was not set, now 0"]
