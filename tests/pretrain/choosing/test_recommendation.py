"""The recommendation from an experiment: only differences beyond chance count, whatever is tried."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from excb.inference.halves import how_many
from excb.pretrain.choosing.recommendation import recommend
from excb.pretrain.choosing.trials import Experiment, Kind, Trial
from excb.pretrain.run.monitor import NetworkFigures
from excb.pretrain.run.taught import NetworkCost

IMAGES = 1000
SLOW, FAST = NetworkCost(2_000_000, 8.0, 16.0), NetworkCost(700_000, 2.8, 1.0)


def trial(name: str, kind: Kind, percent: float, cost: NetworkCost | None = None, base: str = "") -> Trial:
    """A trial that is right on so many images, independently of the others."""
    random = np.random.default_rng([*name.encode()])
    hits = np.zeros(IMAGES, bool)
    hits[random.permutation(IMAGES)[: round(percent * IMAGES / 100)]] = True
    figures = {"knn_top1": 100 * float(hits.mean())}
    halves = torch.from_numpy(hits).repeat(how_many(IMAGES), 1)  # of queries that share no neighbours
    reading = NetworkFigures(figures, "knn_top1", torch.from_numpy(hits), halves)
    return Trial(name, kind, reading, 1.0, cost=cost, base=base)


def experiment(*trials: Trial, labelled: bool = True) -> Experiment:
    guess = trial("guessing", "reference", 3)
    networks = sum(each.kind == "frozen" for each in trials)
    return Experiment((guess, trial("patches", "reference", 30), *trials), IMAGES, 2000, labelled, networks)


FROZEN = trial("large", "frozen", 60, SLOW)
LEVEL = trial("large adapted", "adapted", 60.5, SLOW, "large")


@pytest.mark.parametrize(
    ("tried", "action", "name"),
    [
        ((FROZEN,), "use", "large"),
        ((FROZEN, trial("small", "frozen", 40, FAST)), "use", "large"),
        ((FROZEN, trial("large adapted", "adapted", 75, SLOW, "large")), "adapt", "large adapted"),
        ((FROZEN, trial("large adapted", "adapted", 61, SLOW, "large")), "adapt", "large adapted"),
        ((FROZEN, trial("large adapted", "adapted", 59, SLOW, "large")), "adapt", "large adapted"),
        ((FROZEN, trial("large adapted", "adapted", 50, SLOW, "large")), "use", "large"),
        (
            (FROZEN, LEVEL, trial("student", "distilled", 59.5, FAST, "large")),
            "distil",
            "student",
        ),
        ((FROZEN, LEVEL, trial("weak", "pretrained", 72, FAST)), "pretrain", "weak"),
        ((FROZEN, trial("student", "distilled", 59.5, FAST, "large")), "distil", "student"),
        ((FROZEN, trial("student", "distilled", 59.5, SLOW, "large")), "use", "large"),
        ((FROZEN, trial("student", "distilled", 45, FAST, "large")), "use", "large"),
        ((FROZEN, trial("weak", "pretrained", 72, FAST)), "pretrain", "weak"),
        ((FROZEN, trial("weak", "pretrained", 50, FAST)), "use", "large"),
        ((trial("large", "frozen", 31, SLOW), trial("weak", "pretrained", 45, FAST)), "pretrain", "weak"),
        ((trial("large", "frozen", 31, SLOW), trial("student", "distilled", 45, FAST, "large")), "distil", "student"),
        ((trial("weak", "pretrained", 45, FAST),), "pretrain", "weak"),
        ((trial("large", "frozen", 31, SLOW), trial("weak", "pretrained", 29, FAST)), "undecided", None),
        ((), "undecided", None),
    ],
)
def test_what_is_recommended(tried: tuple[Trial, ...], action: str, name: str | None) -> None:
    made = recommend(experiment(*tried))
    assert made.action == action
    assert (made.trial.name if made.trial is not None else None) == name
    assert all("\n" not in line for line in (made.reason, *made.remarks))


@pytest.mark.parametrize(("percent", "level"), [(61, True), (45, False), (75, False)])
def test_where_a_short_adaptation_is_level_the_verdict_of_a_full_one_decides(percent: float, level: bool) -> None:
    made = recommend(experiment(FROZEN, trial("large adapted", "adapted", percent, SLOW, "large")))
    assert any("labelled images of another day or place" in remark for remark in made.remarks) == level
    assert ("three of four unlike sets" in made.reason) == level


@pytest.mark.parametrize(("percent", "action"), [(61, "adapt"), (59, "adapt"), (45, "use")])
def test_without_labels_a_level_adaptation_is_recommended_too(percent: float, action: str) -> None:
    """Retrieval showed every loss of test images (docs/adapt.md)."""
    adapted = trial("large adapted", "adapted", percent, SLOW, "large")
    assert recommend(experiment(FROZEN, adapted, labelled=False)).action == action


def test_the_best_of_equals_is_rarely_recommended() -> None:
    """Networks that are all as good as the best reference: in 5 % of experiments one of them is, not in a third."""
    undecided = 0
    for number in range(100):
        equals = [
            trial(f"{number} {each}", "frozen", 30 + np.random.default_rng(5 * number + each).normal(0, 1.45), SLOW)
            for each in range(5)
        ]
        undecided += recommend(experiment(*equals)).action == "undecided"
    assert undecided >= 90


def test_without_labels_it_says_what_the_figure_is_not() -> None:
    assert any("without labels" in remark for remark in recommend(experiment(FROZEN, labelled=False)).remarks)
    assert not any("without labels" in remark for remark in recommend(experiment(FROZEN)).remarks)


def test_a_network_that_was_not_tried_for_lack_of_time_is_named_and_more_minutes_advised() -> None:
    """That it is not ahead would be untrue, and more images would not help."""
    for tried, action in (((), "undecided"), ((trial("weak", "pretrained", 45, FAST),), "pretrain")):
        made = recommend(replace(experiment(*tried), networks=1, too_slow=("large",)))
        assert made.action == action
        assert made.reason.startswith("no trained network was tried for lack of time (large), and ")
        assert made.remarks == ("repeat this with more --minutes: what a trained network can do comes first",)
    assert recommend(replace(experiment(FROZEN), too_slow=("larger",))).action == "use"


def test_what_was_not_tried_is_not_said_to_be_behind() -> None:
    """That no short run is ahead would be untrue, and more images would not help."""
    for tried, action in (((), "undecided"), ((FROZEN,), "use")):
        short = recommend(experiment(*tried))
        failed = recommend(replace(experiment(*tried), failed={"weak": "3 images are broken"}))
        stopped = recommend(replace(experiment(*tried), stopped=130))
        assert {made.action for made in (short, failed, stopped)} == {action}
        if not tried:
            assert all(made.reason.endswith("and no short run was tried") for made in (short, failed, stopped))
        assert any("more --minutes" in remark for remark in short.remarks)
        assert failed.remarks[-1].endswith("and repeat this (weak: 3 images are broken)")
        assert not any("more --minutes" in remark or "broken" in remark for remark in stopped.remarks)
        assert not any("add images" in remark for made in (short, failed, stopped) for remark in made.remarks)


def test_short_runs_that_ended_with_an_error_are_counted_where_others_were_tried() -> None:
    made = recommend(replace(experiment(trial("weak", "pretrained", 20)), failed={"strong": "3 images are broken"}))
    assert made.action == "undecided"
    assert made.remarks[-1] == "1 short run ended with an error, such as strong: 3 images are broken"


def test_a_network_to_compare_with_is_named_where_none_is_here() -> None:
    weak = trial("weak", "pretrained", 29, FAST)
    made = recommend(experiment(weak))
    assert any("excb-zoo pull" in remark for remark in made.remarks)
    assert made.reason.startswith("no trained network is here, and no short run is ahead of patches (30.0 %)")
    beaten = recommend(experiment(trial("large", "frozen", 31, SLOW), weak))
    assert not any("excb-zoo pull" in remark for remark in beaten.remarks)
    assert beaten.reason.startswith("no network at hand is ahead of patches (30.0 %), the best reference, by more than")
