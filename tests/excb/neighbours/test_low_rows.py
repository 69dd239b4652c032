"""A bank kept in bfloat16: the same neighbours, values within their bound, and what it cannot decide."""

import pytest
import torch
from torch.nn import functional

from excb.neighbours import low_rows, nearest
from excb.neighbours.low_rows import ROUNDING, LowRows, copy_pays
from excb.neighbours.nearest import Index
from excb.neighbours.unit_rows import UnitRows
from tests.excb.neighbours.features import assert_same, random_features

CPU = torch.device("cpu")


@pytest.fixture
def pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "bfloat16_pays", lambda *_: True)  # on every machine
    monkeypatch.setattr(nearest, "copy_pays", lambda *_: True)


@pytest.mark.usefixtures("pays")
@pytest.mark.parametrize("queries", [1, 2, 16])
@pytest.mark.parametrize("mean", [0.0, 3.0])  # of 3, all cosines are above 0.8
def test_later_searches_find_what_the_first_one_finds(queries: int, mean: float) -> None:
    bank, asked = random_features(6000, 32) + mean, random_features(queries, 32, seed=1) + mean
    bank[100:300], bank[700], bank[900] = bank[3], 0.0, 2 * bank[5]
    asked[0] = bank[3]
    index = Index(bank)
    found = index.nearest(asked, 9)
    assert index._low is None
    assert_same(index.nearest(asked, 9), found)
    assert index._low is not None
    assert found.indices[0].tolist() == [3, *range(100, 108)]
    many = random_features(40, 32, seed=2)  # of which each is not worth it
    assert_same(index.nearest(many, 9), Index(bank).nearest(many, 9))


@pytest.mark.usefixtures("pays")
@pytest.mark.parametrize("width", [7, 30, 384])
@pytest.mark.parametrize("queries", [1, 5])
def test_values_are_within_their_bound_and_no_neighbour_is_missing(width: int, queries: int) -> None:
    bank, asked = random_features(3000, width) + 0.3, random_features(queries, width, seed=1)
    units, low = UnitRows(bank, "bank", CPU), UnitRows(asked, "query", CPU)[slice(0, len(asked))]
    proposal = LowRows(units).propose(10, low)
    similarities = low @ functional.normalize(bank.double()).T
    for query in range(queries):
        rows = proposal.rows[query]
        there, values = rows[rows >= 0], proposal.values[query][rows >= 0].double()
        assert there.tolist() == sorted(set(there.tolist()))
        assert set(similarities[query].topk(10).indices.tolist()) <= set(there.tolist())
        # Values are lower than similarities by a number of the query's own, so their differences count.
        apart = values - similarities[query, there]
        bound = proposal.error[query] + ROUNDING * values.abs().max()
        assert float(apart.max() - apart.min()) <= 2 * float(bound)


@pytest.mark.usefixtures("pays")
def test_rows_too_near_to_each_other_are_decided_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, asked = random_features(5000, 16), random_features(2, 16, seed=1)
    bank[1000:1040], asked[0] = bank[3], bank[3]  # more equals than candidates
    monkeypatch.setattr(low_rows, "MOST", 20)
    index = Index(bank)
    found = index.nearest(asked, 5)
    proposal = LowRows(index._rows).propose(5, UnitRows(asked, "query", CPU)[slice(0, 2)])
    assert proposal.floor.isinf().tolist() == [True, False]
    assert_same(index.nearest(asked, 5), found)
    monkeypatch.setattr(low_rows, "MOST", 1)  # less than are wanted
    assert_same(index.nearest(asked, 5), found)


def test_a_processor_slow_in_bfloat16_keeps_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "bfloat16_pays", lambda *_: False)
    index = Index(random_features(6000, 32))
    for _ in range(3):
        index.nearest(random_features(1, 32, seed=1), 9)
    assert index._low is None


def test_a_copy_that_is_no_faster_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(nearest, "bfloat16_pays", lambda *_: True)
    monkeypatch.setattr(nearest, "copy_pays", lambda _bank, queries: made.append(queries))
    monkeypatch.setattr(nearest, "LowRows", lambda _bank: pytest.fail("a copy was made"))
    bank, asked = random_features(3000, 32), random_features(1, 32, seed=1)
    index = Index(bank)
    found = [index.nearest(asked, 5) for _ in range(4)]
    assert made == [1]  # asked once
    assert index._low is None
    for other in found[1:]:
        assert_same(other, found[0])


@pytest.mark.parametrize(("low", "single", "kept"), [(0.5, 1.0, True), (0.95, 1.0, False), (2.0, 1.0, False)])
def test_a_copy_pays_if_its_products_are_faster(
    monkeypatch: pytest.MonkeyPatch, low: float, single: float, kept: bool
) -> None:
    seconds = iter((low, single))
    monkeypatch.setattr(low_rows, "times", lambda call: (call(), next(seconds))[1])
    bank = UnitRows(random_features(300, 8), "bank", CPU)
    assert copy_pays(bank, 2) is kept
