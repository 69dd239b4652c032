"""A bank kept in float16: the same neighbours, values within their bound, and what it cannot decide."""

import pytest
import torch
from torch.nn import functional

from excb.neighbours import half_rows, nearest
from excb.neighbours.half_rows import MOST_QUERIES, HalfRows
from excb.neighbours.nearest import Index
from excb.neighbours.unit_rows import UnitRows
from tests.excb.neighbours.features import assert_same, random_features

CPU = torch.device("cpu")


@pytest.mark.parametrize("queries", [1, 2, MOST_QUERIES])
@pytest.mark.parametrize("mean", [0.0, 3.0])  # of 3, all cosines are above 0.8
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16])
def test_later_searches_find_what_the_first_one_finds(queries: int, mean: float, kind: torch.dtype) -> None:
    bank, asked = random_features(6000, 32) + mean, random_features(queries, 32, seed=1) + mean
    bank[100:300], bank[700], bank[900] = bank[3], 0.0, 2 * bank[5]
    asked[0] = bank[3]
    bank = bank.to(kind)
    index = Index(bank)
    found = index.nearest(asked, 9)
    assert index._halves is None
    assert_same(index.nearest(asked, 9), found)
    assert index._halves is not None
    assert found.indices[0].tolist() == [3, *range(100, 108)]
    many = random_features(40, 32, seed=2)  # for which one product of matrices is faster
    assert_same(index.nearest(many, 9), Index(bank).nearest(many, 9))


@pytest.mark.parametrize("width", [7, 30, 384])
@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_values_are_within_their_bound_and_no_neighbour_is_missing(width: int, queries: int, scale: float) -> None:
    bank, asked = random_features(3000, width) + 0.3, random_features(queries, width, seed=1)
    units, unit = UnitRows(bank * scale, "bank", CPU), UnitRows(asked, "query", CPU)[slice(0, len(asked))]
    proposal = HalfRows(units).propose(10, unit)
    similarities = unit @ functional.normalize(bank.double()).T
    for query in range(queries):
        there, values = proposal.rows[query], proposal.values[query].double()
        assert there.tolist() == sorted(set(there.tolist()))
        assert set(similarities[query].topk(10).indices.tolist()) <= set(there.tolist())
        # Values are lower than similarities by a number of the query's own, so their differences count.
        apart = values - similarities[query, there]
        spread = float(apart.max() - apart.min())
        assert 0 < spread <= 2 * float(proposal.error[query])
        left_out = similarities[query].clone()
        left_out[there] = -2.0
        assert float(left_out.max() + apart.min()) <= float(proposal.floor[query]) + 2 * float(proposal.error[query])


def test_a_bound_is_narrow_enough_to_decide_most_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, asked = random_features(20000, 64), random_features(4, 64, seed=1)
    index = Index(bank)
    found = index.nearest(asked, 10)
    index.nearest(asked, 10)  # makes the copy
    monkeypatch.setattr("excb.neighbours.search.propose_from_all", lambda *_: pytest.fail("float32 was needed"))
    assert_same(index.nearest(asked, 10), found)


def test_rows_too_near_to_each_other_are_decided_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, asked = random_features(5000, 16), random_features(2, 16, seed=1)
    bank[1000:1040], asked[0] = bank[3], bank[3]  # more equals than candidates
    monkeypatch.setattr(half_rows, "SLACK", 20)
    index = Index(bank)
    found = index.nearest(asked, 5)
    proposal = HalfRows(index._rows).propose(5, UnitRows(asked, "query", CPU)[slice(0, 2)])
    apart = proposal.values.amax(1) - proposal.floor
    assert (apart <= 2 * proposal.error).tolist() == [True, False]
    assert_same(index.nearest(asked, 5), found)


def test_without_faiss_there_is_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, asked = random_features(6000, 32), random_features(1, 32, seed=1)
    found = Index(bank).nearest(asked, 9)
    by_torch = Index(bank, backend="torch")
    monkeypatch.setattr(nearest, "faiss_is_there", lambda: False)
    for index in (by_torch, Index(bank)):
        for _ in range(3):
            assert_same(index.nearest(asked, 9), found)
        assert index._halves is None
