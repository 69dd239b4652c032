"""Tests of ranks and tiers: Holm's correction by its definition, tiers worked by hand, ranks against SciPy's."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import rankdata

from excb.inference.tiers import holm, pairwise, ranks, tiers


def test_holm_against_the_definition() -> None:
    random = np.random.default_rng(0)
    values = {str(number): float(value) for number, value in enumerate(random.uniform(0, 0.2, 7))}
    corrected = holm(values)
    ordered = sorted(values, key=lambda pair: values[pair])
    for place, pair in enumerate(ordered):
        expected = max((len(values) - before) * values[ordered[before]] for before in range(place + 1))
        assert corrected[pair] == pytest.approx(min(1.0, expected))
    assert holm({}) == {}


def test_every_two_of_a_figure_are_tested_once_and_corrected_together() -> None:
    asked = []

    def p_value(figure: str, first: str, second: str) -> float:
        asked.append((figure, first, second))
        return 0.01

    found = pairwise({"f": ["a", "b", "c"], "g": ["a", "c"], "h": ["b"]}, p_value)
    assert asked == [("f", "a", "b"), ("f", "a", "c"), ("f", "b", "c"), ("g", "a", "c")]
    assert found == dict.fromkeys(asked, pytest.approx(0.04))


def test_a_tier_holds_its_best_and_what_does_not_differ_from_it() -> None:
    values = {"worst": 10.0, "best": 40.0, "near": 39.0, "far": 30.0}
    differ = {("best", "far"), ("best", "worst"), ("far", "worst"), ("near", "worst")}

    def p_value(_figure: str, *pair: str) -> float:
        return 0.001 if pair in differ or pair[::-1] in differ else 0.5

    p_values = pairwise({"f": list(values)}, p_value)
    assert tiers("f", values, p_values) == {"best": 1, "near": 1, "far": 2, "worst": 3}
    lowest = tiers("f", values, p_values, higher_is_better=False)
    assert lowest == {"worst": 1, "far": 2, "near": 2, "best": 3}


@pytest.mark.parametrize("values", [[1.0], [3.0, 1.0, 2.0], [5.0, 5.0, 1.0, 7.0, 5.0]])
def test_ranks_are_scipys(values: Sequence[float]) -> None:
    negated = -np.array(values)
    assert ranks(values) == list(rankdata(negated, method="min"))
    assert ranks(values, equals="mean") == list(rankdata(negated))
    assert ranks(values, higher_is_better=False) == list(rankdata(values, method="min"))
