"""The default on few labels: which head is taken, that the heads agree there, and who is blamed where one fails."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from excb.console import Reporter
from excb.errors import UserError
from excb.transfer.linear import logreg, protocol
from excb.transfer.linear.options import CROSS_VALIDATED, FAST, LOGREG, LinearOptions
from excb.transfer.probes.failure import SameFeatures
from excb.transfer.probes.recipes import FEW_LABELS, FEW_STRENGTHS, FOLDS
from excb.transfer.probes.selection import folds
from excb.transfer.reporting.fields import digest, named

QUIET = Reporter(quiet=True)
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("options", "images", "expected"),
    [
        ({}, FEW_LABELS - 1, CROSS_VALIDATED),
        ({}, FEW_LABELS, FAST),
        ({"lr": (0.1,)}, 10, FAST),
        ({"epochs": 3}, 10, FAST),
        ({"C": (1.0, 2.0)}, 10, LOGREG),
        ({"C": (1.0, 2.0)}, 10**6, LOGREG),
        ({"protocol": "fast"}, 10, FAST),
        ({"protocol": "resnet"}, 10, "resnet"),
        ({"protocol": CROSS_VALIDATED}, 10**6, CROSS_VALIDATED),
        ({}, None, LOGREG),
    ],
)
def test_the_number_of_labels_chooses_unless_the_user_does(
    options: dict[str, Any], images: int | None, expected: str
) -> None:
    assert LinearOptions(**options).for_labels(images).protocol == expected


def test_regressions_take_no_settings_of_heads() -> None:
    with pytest.raises(UserError, match="logreg-cv has no --lr: it takes --C"):
        LinearOptions(protocol=CROSS_VALIDATED, lr=(0.1,)).plan()
    assert LinearOptions(protocol=CROSS_VALIDATED).plan() == FEW_STRENGTHS


@pytest.mark.parametrize("sizes", [(7, 5, 1), (1, 1, 2), (40, 3)])
def test_folds_hold_every_image_out_once_and_divide_each_class(sizes: tuple[int, ...]) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    parts = np.stack(folds(labels, 3))
    assert (parts.sum(0) == 1).all()
    assert parts.any(1).all()
    for label in range(len(sizes)):
        assert np.ptp(parts[:, labels == label].sum(1)) <= 1
    assert np.array_equal(parts, np.stack(folds(labels, 3)))


def test_without_two_images_of_a_class_nothing_is_chosen() -> None:
    with pytest.raises(UserError, match="no class has two train images"):
        folds(np.arange(4), 0)


@dataclass(frozen=True)
class FakeImages:
    """Labels alone."""

    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class FakeTask:
    """Features in place of images."""

    train: FakeImages
    test: FakeImages
    rows: Tensor
    queries: Tensor
    device: torch.device = CPU

    def features(self, images: FakeImages, _name: str, _reporter: Reporter, **_kind: Any) -> tuple[Tensor, Tensor]:
        rows = self.rows if images is self.train else self.queries
        return rows, torch.from_numpy(images.labels)


def planted(each: int, *, classes: int = 12, width: int = 24, noise: float = 1.6, seed: int = 0) -> Any:
    """Classes around centres, `each` train images of a class and 20 test images."""
    random = np.random.default_rng(seed)
    centres, names = random.standard_normal((classes, width)), tuple(map(str, range(classes)))
    sets = []
    for number in (each, 20):
        labels = np.repeat(np.arange(classes), number)
        rows = centres[labels] + noise * random.standard_normal((len(labels), width))
        sets.append((FakeImages(labels, names), torch.from_numpy(rows).float()))
    (train, bank), (test, queries) = sets
    return FakeTask(train, test, bank, queries)


def test_five_folds_choose_the_penalty_as_scikit_learns_loop_does() -> None:
    task = planted(6)
    found = logreg.logistic_regression(task, QUIET, FEW_STRENGTHS, few=True, select="folds", seed=0)
    rows, labels = task.rows.double().numpy(), task.train.labels
    features = (rows - rows.mean(0)) / np.sqrt(np.square(rows - rows.mean(0)).mean())
    right = dict.fromkeys(FEW_STRENGTHS, 0)
    for held in folds(labels, 0):
        for C in FEW_STRENGTHS:
            model = LogisticRegression(C=C, max_iter=1000).fit(features[~held], labels[~held])
            right[C] += int((model.predict(features[held]) == labels[held]).sum())
    shares = {one["C"]: one["folds_top1"] for one in found.settings["sweep"]}
    sizes = {int(held.sum()) for held in folds(labels, 0)}
    assert max(sizes) - min(sizes) <= 1
    for C, count in right.items():
        assert shares[C] == pytest.approx(100 * count / len(labels), abs=1.5)  # a mean over folds of unlike size
    assert right[found.settings["chosen"]["C"]] >= max(right.values()) - 1
    assert found.settings["folds"] == FOLDS
    assert found.settings["select_images"] == len(labels)
    assert found.notes == ()


@pytest.mark.parametrize(
    ("strengths", "select", "few", "expected"),
    [
        (FEW_STRENGTHS, "folds", True, {"folds": FOLDS, "C": sorted(FEW_STRENGTHS)}),
        (FEW_STRENGTHS, "test", True, {"C": sorted(FEW_STRENGTHS)}),
        ((1.0,), "folds", True, {"C": [1.0]}),
        ((0.1, 1.0), "holdout", False, {"C": [0.1, 1.0]}),
        ((0.1,), "holdout", False, {"C": [0.1]}),
        ((1.0,), "holdout", False, {}),  # as before C was stored
    ],
)
def test_settings_hold_what_had_an_effect(strengths: Any, select: Any, few: bool, expected: dict[str, Any]) -> None:
    made = logreg.logistic_regression(planted(3), QUIET, strengths, few=few, select=select, seed=0)
    assert {name: made.settings[name] for name in ("folds", "C") if name in made.settings} == expected
    assert ("standardised" in made.settings) == few


def test_penalties_and_folds_tell_protocols_apart() -> None:
    tried: tuple[Any, ...] = (
        ((1.0,), True, "folds"),
        ((0.1,), True, "folds"),
        (FEW_STRENGTHS, True, "folds"),
        ((1.0,), False, "holdout"),
        ((0.1,), False, "holdout"),
    )
    hashes = {
        digest(named(logreg.logistic_regression(planted(3), QUIET, some, few=few, select=select, seed=0).settings))
        for some, few, select in tried
    }
    assert len(hashes) == 5


@pytest.mark.parametrize(
    ("options", "idle"),
    [
        ({"protocol": LOGREG}, True),
        ({"protocol": CROSS_VALIDATED, "C": (1.0,)}, True),
        ({"protocol": CROSS_VALIDATED, "select": "test"}, True),
        ({"protocol": LOGREG, "C": (0.1, 1.0)}, False),
        ({}, False),
        ({"protocol": "resnet"}, False),
    ],
)
def test_a_seed_that_draws_nothing_is_refused(options: dict[str, Any], idle: bool) -> None:
    def checked() -> None:
        protocol.checked(planted(3), LinearOptions(**options, seed=3))

    refused = pytest.raises(UserError, match="--seed draws the images that choose C, and here none do")
    with refused if idle else nullcontext():
        checked()


@pytest.mark.parametrize("each", [3, 12])
def test_heads_agree_on_few_labels_and_the_default_is_no_worse_than_neighbours(each: int) -> None:
    task = planted(each)
    hits = {}
    for name, strengths, select in (("folds", FEW_STRENGTHS, "folds"), ("one", (1.0,), "holdout")):
        made = logreg.logistic_regression(task, QUIET, strengths, few=name == "folds", select=select, seed=0)  # type: ignore[arg-type, unused-ignore]
        hits[name] = made.top5[:, 0] == torch.from_numpy(task.test.labels)
        assert made.same is not None
        hits["neighbours"] = made.same.hits
        assert made.same.blame(hits[name], guessing=100 / 12, advice="") == []
    percent = {name: 100 * float(each.double().mean()) for name, each in hits.items()}
    assert abs(percent["folds"] - percent["one"]) <= 6
    assert percent["folds"] >= percent["neighbours"] - 4


def test_a_head_that_loses_to_neighbours_by_more_than_chance_is_blamed() -> None:
    task = planted(12)
    made = logreg.logistic_regression(task, QUIET, (1.0,), few=False, select="holdout", seed=0)
    assert made.same is not None
    failed = made.same.hits & (torch.arange(len(made.same.hits)) % 3 == 0)
    (sentence,) = made.same.blame(failed, guessing=8.3, advice="try another")
    assert sentence.startswith("the head failed, not the checkpoint: k-NN (k = 20) of the same features has ")
    assert sentence.endswith("; try another")
    almost = made.same.hits.clone()
    almost[made.same.hits.nonzero()[:3, 0]] = False
    assert made.same.blame(almost, guessing=8.3, advice="") == []
    assert made.same.blame(made.same.hits, guessing=8.3, advice="") == []


def test_the_vote_is_over_the_mean_of_patches_and_needs_finite_features() -> None:
    task = planted(6, width=8)
    labels, targets = (torch.from_numpy(images.labels) for images in (task.train, task.test))
    plain = SameFeatures.of((task.rows, labels), (task.queries, targets), classes=12, device=CPU)
    twice = [torch.cat([rows + 1, rows - 1], 1) for rows in (task.rows, task.queries)]
    patched = SameFeatures.of((twice[0], labels), (twice[1], targets), classes=12, device=CPU, channels=8)
    assert plain is not None
    assert patched is not None
    assert torch.equal(plain.hits, patched.hits)
    odd = task.rows.clone()
    odd[0, 0] = float("nan")
    assert SameFeatures.of((odd, labels), (task.queries, targets), classes=12, device=CPU) is None


@pytest.mark.parametrize("select", ["holdout", "test"])
def test_the_note_says_folds_only_where_they_choose(select: Any) -> None:
    task, asked = planted(3), LinearOptions(select=select)
    (note,) = protocol._reason(task, asked, protocol.suited(task, asked, Reporter(quiet=True)))
    assert note.startswith("few labels (36 train images, below 1,000): logistic regression")
    assert ("5 folds choose its penalty" in note) == (select == "holdout")


def test_a_line_says_which_head_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    task = planted(3)
    options = protocol.suited(task, LinearOptions(), Reporter())
    assert options == replace(LinearOptions(), protocol=CROSS_VALIDATED)
    assert "linear heads by logreg-cv: 36 train images (--protocol names another)" in capsys.readouterr().err
    assert protocol.suited(task, LinearOptions(protocol="fast"), Reporter()).protocol == "fast"
    assert capsys.readouterr().err == ""
