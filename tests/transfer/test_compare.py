"""Tests of comparing two results: against SciPy, and every pair of files that cannot be compared."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest

from excb.console import Reporter
from excb.errors import UserError
from excb.ledger import doubt
from excb.results.result import ResultRecord
from excb.transfer.compare import compare_results
from excb.transfer.reporting.fields import differences
from excb.transfer.reporting.predictions import Predictions
from excb.transfer.reporting.report import write_result

IMAGES, CLASSES = 300, ("ant", "bee", "cat", "dog", "eel", "fox")

PREPARED = {
    "resize": 36,
    "crop": 32,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "interpolation": "bilinear",
}

Make = Callable[..., Path]


def predictions(seed: int, *, right: float, templates: tuple[str, ...] = ("knn_{}_k20",)) -> Predictions:
    """Guesses of which about so large a part is right."""
    targets = np.random.default_rng(0).integers(len(CLASSES), size=IMAGES)
    random = np.random.default_rng(seed)
    top5 = {}
    for template in templates:
        ranked = np.stack([random.permutation(len(CLASSES))[:5] for _ in range(IMAGES)])
        ranked[:, 0] = np.where(random.random(IMAGES) < right, targets, ranked[:, 0])
        top5[template] = torch.from_numpy(ranked)
    return Predictions(torch.from_numpy(targets), [f"{i}.png" for i in range(IMAGES)], CLASSES, top5)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Writes a result of given predictions."""
    monkeypatch.setattr(
        "excb.transfer.reporting.confusion.draw_confusion", lambda *_, **__: b""
    )  # takes most of the time here

    def make_file(name: str, found: Predictions, **values: Any) -> Path:
        given: dict[str, Any] = {
            "protocol": "knn",
            "figures": {},
            "settings": {"k": [20]},
            "checkpoint": {},
            "data": {"train": {"fingerprint": "f"}},
            "seconds": 1.0,
        }
        return write_result(ResultRecord(**given | values), found, tmp_path / name)[0]

    return make_file


def quiet(first: Path, second: Path, **options: Any) -> dict[str, Any]:
    return compare_results(first, second, Reporter(quiet=True), table=False, **options)


def test_comparison_is_scipys_test_of_the_loops_counts(make: Make) -> None:
    a, b = predictions(1, right=0.5), predictions(2, right=0.7)
    found = quiet(make("a.json", a), make("b.json", b))
    only_a = only_b = 0
    for guess_a, guess_b, target in zip(a.values["knn_{}_k20"], b.values["knn_{}_k20"], a.targets, strict=True):
        only_a += bool(guess_a[0] == target != guess_b[0])
        only_b += bool(guess_b[0] == target != guess_a[0])
    figure = found["figures"]["knn_top1_k20"]
    assert list(found["figures"]) == ["knn_top1_k20"]
    assert (figure["only_first_right"], figure["only_second_right"]) == (only_a, only_b)
    assert figure["p_value"] == pytest.approx(
        binomtest(only_a, only_a + only_b).pvalue - binom.pmf(only_a, only_a + only_b, 0.5)
    )  # mid-P
    assert figure["difference"] == pytest.approx(100 * (only_b - only_a) / IMAGES, abs=1e-4)
    assert figure["second"] - figure["first"] == pytest.approx(figure["difference"], abs=1e-3)
    assert figure["interval"][0] < figure["difference"] < figure["interval"][1]
    assert (found["images"], found["warnings"]) == (IMAGES, [])
    assert json.loads(json.dumps(found)) == found


def test_words_say_whether_a_difference_is_real(make: Make) -> None:
    low, same, high = (predictions(seed, right=right) for seed, right in ((1, 0.5), (2, 0.52), (3, 0.9)))
    files = [make(f"{name}.json", found) for name, found in (("low", low), ("same", same), ("high", high))]
    real = quiet(files[0], files[2])["figures"]["knn_top1_k20"]
    assert real["real"]
    assert real["words"].startswith("the second is better by ")
    assert real["words"].endswith("a real difference at 5 %")
    assert quiet(files[2], files[0])["figures"]["knn_top1_k20"]["words"].startswith("the first is better by ")
    chance = quiet(files[0], files[1])["figures"]["knn_top1_k20"]
    assert not chance["real"]
    assert chance["words"].endswith("not a real difference at 5 %")
    itself = quiet(files[0], files[0])["figures"]["knn_top1_k20"]
    assert (itself["words"], itself["p_value"]) == ("both are right equally often", 1)


def test_figures_are_those_that_both_have_or_the_ones_named(make: Make) -> None:
    a = make("a.json", predictions(1, right=0.5, templates=("knn_{}_k20", "knn_{}_k10", "knn_{}_k1")))
    b = make("b.json", predictions(1, right=0.5, templates=("knn_{}_k10", "linear_{}", "knn_{}_k20")))
    assert list(quiet(a, b)["figures"]) == ["knn_top1_k20", "knn_top1_k10"]
    assert list(quiet(a, b, figure="knn_top5_k10")["figures"]) == ["knn_top5_k10"]
    named = quiet(a, b, figure="knn_top1_k20:knn_top1_k10")["figures"]
    assert named["knn_top1_k20:knn_top1_k10"]["difference"] == 0  # made by the same seed, both first


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ("knn_top1_k21", r"the first result has no predictions of knn_top1_k21; did you mean 'knn_top1_k20'\?"),
        ("knn_top1_k20:linear_top1", "the second result has no predictions of linear_top1"),
        ("a:b:c", "--figure a:b:c: name one figure, or two as A:B"),
    ],
)
def test_figure_that_is_not_there_is_refused(make: Make, figure: str, message: str) -> None:
    file = make("a.json", predictions(1, right=0.5))
    with pytest.raises(UserError, match=message):
        quiet(file, file, figure=figure)


def test_results_without_a_common_figure_say_how_to_compare(make: Make) -> None:
    a, b = (
        make("a.json", predictions(1, right=0.5)),
        make("b.json", predictions(1, right=0.5, templates=("linear_{}",))),
    )
    with pytest.raises(UserError, match="such as --figure knn_top1_k20:linear_top1"):
        quiet(a, b)
    assert list(quiet(a, b, figure="knn_top1_k20:linear_top1")["figures"]) == ["knn_top1_k20:linear_top1"]


def test_other_images_or_labels_are_refused(make: Make) -> None:
    found = predictions(1, right=0.5)
    a = make("a.json", found)
    other = make("b.json", replace(found, names=[*found.names[:-1], "other.png"]))
    with pytest.raises(UserError, match=r"different test images \(300 and 300, 2 in one of them only"):
        quiet(a, other)
    targets = found.targets.clone()
    targets[5] = (targets[5] + 1) % len(CLASSES)
    with pytest.raises(UserError, match=r"5\.png is of class "):
        quiet(a, make("c.json", replace(found, targets=targets)))


def test_classes_may_be_numbered_otherwise(make: Make) -> None:
    found = predictions(1, right=0.5)
    turned = Predictions(
        len(CLASSES) - 1 - found.targets,
        found.names,
        CLASSES[::-1],
        {name: len(CLASSES) - 1 - ranked for name, ranked in found.values.items()},
    )
    compared = quiet(make("a.json", found), make("b.json", turned))["figures"]["knn_top1_k20"]
    assert (compared["only_first_right"], compared["only_second_right"]) == (0, 0)


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ({"settings": {"k": [20], "temperature": 0.1}}, "figures under unlike protocols: knn with T none, not 0.1"),
        ({"protocol": "linear"}, "figures under unlike protocols: knn and linear"),
        ({"data": {"train": {"fingerprint": "g"}}}, "figures under unlike protocols: the train images differ"),
        (
            {"checkpoint": {"preprocessing": PREPARED | {"resize": 64, "crop": 56, "interpolation": "bicubic"}}},
            "images prepared in unlike ways: resize 36, not 64, crop 32, not 56, interpolation bilinear, not bicubic",
        ),
        (
            {"checkpoint": {"preprocessing": PREPARED | {"mean": [0.5, 0.5, 0.5]}}},
            "images prepared in unlike ways: mean 0.485 0.456 0.406, not 0.5 0.5 0.5",
        ),
        ({"settings": {"k": [20], "seeds": [0, 1]}}, "other seeds: 0, not 0 1"),
    ],
)
def test_unlike_protocols_are_told(
    make: Make, capsys: pytest.CaptureFixture[str], values: dict[str, Any], warning: str
) -> None:
    found = predictions(1, right=0.5)
    first: dict[str, Any] = {"settings": {"k": [20]} | ({"seeds": [0]} if "seeds" in warning else {})}
    if "prepared" in warning:
        first["checkpoint"] = {"preprocessing": PREPARED}
    answer = compare_results(make("a.json", found, **first), make("b.json", found, **values), Reporter(), table=False)
    assert answer["warnings"] == [warning]
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"warning: {warning}\n")


def test_only_settings_of_the_compared_figures_are_told(make: Make) -> None:
    grid = predictions(1, right=0.5, templates=("knn_{}_k10", "knn_{}_k20"))
    settings = {"temperature": [0.07], "top5": "classes with a vote"}
    one = make("one.json", predictions(2, right=0.5), settings={"k": [20]} | settings)
    several = make("several.json", grid, settings={"k": [10, 20]} | settings)
    older = make("older.json", grid, settings={"k": [10, 20], "temperature": [0.07]})
    assert quiet(one, several)["warnings"] == []
    assert quiet(one, older)["warnings"] == []
    assert quiet(one, older, figure="knn_top5_k20")["warnings"] == [
        "figures under unlike protocols: knn with top5 none, not also classes without a vote"
    ]
    assert quiet(several, several, figure="knn_top1_k10:knn_top1_k20")["warnings"] == [
        "figures under unlike protocols: knn with k 10, not 20"
    ]
    chosen = [make(f"{lr}.json", grid, protocol="linear_fast", settings={"lr": [1, 3], "chosen": lr}) for lr in (1, 3)]
    assert quiet(*chosen)["warnings"] == []  # what a protocol found is not a setting of it


def test_a_mean_over_seeds_is_compared_as_the_mean(make: Make) -> None:
    one, other = (predictions(seed, right=right) for seed, right in ((1, 0.3), (2, 0.9)))
    ranked = [found.values["knn_{}_k20"] for found in (one, other)]
    names = ("semisup_1pct_{}", "semisup_1pct_{}_seed4", "semisup_1pct_{}_seed0")
    values = dict(zip(names, [ranked[0], *ranked], strict=True))
    mean = make("mean.json", replace(one, values=values), protocol="semisup")
    alone = make("alone.json", replace(other, values={"semisup_1pct_{}": ranked[1]}), protocol="semisup")
    found = quiet(mean, alone, figure="semisup_1pct_top1")["figures"]["semisup_1pct_top1"]
    hits = [(each[:, 0] == one.targets).double() for each in ranked]
    assert found["first"] == pytest.approx(50 * float((hits[0] + hits[1]).mean()), abs=1e-4)
    assert found["second"] == pytest.approx(100 * float(hits[1].mean()), abs=1e-4)
    assert found["only_second_right"] == int((hits[1] > hits[0]).sum())


def test_table_shows_the_comparison(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    files = make("a.json", predictions(1, right=0.5)), make("b.json", predictions(2, right=0.7))
    found = compare_results(*files, Reporter())["figures"]["knn_top1_k20"]
    title, header, row, words = capsys.readouterr().out.splitlines()
    assert title.endswith(f"{IMAGES} test images")
    assert header.split()[:3] == ["figure", "first", "%"]
    assert row.split()[:4] == [
        "knn_top1_k20",
        f"{found['first']:.2f}",
        f"{found['second']:.2f}",
        f"{found['difference']:+.2f}",
    ]
    assert words == f"knn_top1_k20: {found['words']}"


def test_the_ledgers_of_both_are_stated(make: Make) -> None:
    both, one = doubt("of 9 images look alike", ["a"], "look"), doubt("other doubts", ["b"], "look")
    first = make("a.json", predictions(1, right=0.5), ledger=both)
    second = make("b.json", predictions(2, right=0.5), ledger=both + one)
    warnings = quiet(first, second)["warnings"]
    assert warnings[-2:] == [
        "1 of 9 images looks alike, such as a: look",
        "second only: 1 other doubts, such as b: look",
    ]


def test_the_ledger_of_the_run_behind_a_checkpoint_is_stated(make: Make) -> None:
    trained_on = {"name": "a", "training_ledger": doubt("images with values outside", ["7.png"], "clipped").to_dict()}
    first, second = (make(name, predictions(1, right=0.5), checkpoint=trained_on) for name in ("a.json", "b.json"))
    assert quiet(first, second)["warnings"] == [
        "the images of pretraining: 1 image with values outside, such as 7.png: clipped"
    ]


def test_a_precision_that_is_not_stated_is_fp32() -> None:
    assert differences({"feature_precision": "bf16"}, {}) == ["feature precision bf16, not fp32"]
    assert differences({"feature_precision": "fp32"}, {}) == []
