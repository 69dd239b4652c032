"""The distance from a teacher's features, against loops over views and images."""

import pytest
import torch
from torch.nn import functional as F

from excb.pretrain.distil.features import FeatureDistance
from tests.pretrain.distil import cases, loops


@cases.every_way
@pytest.mark.parametrize("kind", ["cosine", "squared"])
def test_value_and_gradient_are_those_of_the_loops(sees: str, kind: str) -> None:
    objective = FeatureDistance(cases.settings(features=1.0, distance=kind), cases.WIDTH)
    predicted, targets, weights = cases.predictions(), cases.targets(sees), cases.weights(sees)
    loss, pending = objective(predicted, targets, weights)
    assert pending is None
    cases.same_value_and_gradient(loss, lambda rows: loops.features(rows, targets, weights, kind=kind), predicted)


@cases.every_way
def test_pairs_weigh_as_the_options_say(sees: str) -> None:
    weights = cases.weights(sees)
    for target in range(len(weights)):
        for view in range(cases.VIEWS):
            wanted = loops.weight(sees, target, view, globals_=cases.GLOBALS, views=cases.VIEWS)
            assert float(weights[target, view]) == pytest.approx(wanted, rel=1e-12)


def test_both_distances_of_nothing_learned_are_one_and_of_the_teacher_itself_zero() -> None:
    targets, weights = cases.targets("view"), cases.weights("view")
    for kind, exact in (("cosine", 7 * targets), ("squared", cases.WIDTH**0.5 * targets)):
        objective = FeatureDistance(cases.settings(features=1.0, distance=kind), cases.WIDTH)
        assert float(objective(torch.zeros_like(targets), targets, weights)[0]) == pytest.approx(1)
        assert float(objective(exact, targets, weights)[0]) == pytest.approx(0, abs=1e-12)


def test_float32_is_not_rounded_further_under_autocast() -> None:
    objective = FeatureDistance(cases.settings(features=1.0), cases.WIDTH)
    predicted, targets, weights = cases.predictions().detach().float(), cases.targets("image").float(), torch.ones(1, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = objective(predicted, targets, weights / 3)[0]
    wanted = 1 - (F.normalize(predicted.double(), dim=-1) * targets.double()).sum(-1).mean()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-7)
