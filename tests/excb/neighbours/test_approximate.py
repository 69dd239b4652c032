"""Searches through a graph: their recall against exact ones, exact cosines, equal rows, and mistakes."""

import pytest
import torch

from excb.errors import UserError
from excb.neighbours.approximate import ApproximateIndex
from excb.neighbours.nearest import nearest

pytest.importorskip("faiss", reason="needs faiss-cpu")


@pytest.fixture(scope="module")
def bank() -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 16, generator=random)
    return centres[torch.randint(20, (2000,), generator=random)] + torch.randn(2000, 16, generator=random)


def test_most_of_the_nearest_are_found_with_exact_cosines(bank: torch.Tensor) -> None:
    index, queries = ApproximateIndex(bank), bank[::50] + 0.1
    found, exact = index.nearest(queries, 10), nearest(bank, queries, 10)
    same = (found.indices[:, :, None] == exact.indices[:, None, :]).any(2)
    assert same.double().mean() > 0.95
    units = torch.nn.functional.normalize(bank.double()), torch.nn.functional.normalize(queries.double())
    cosines = (units[1][:, None] * units[0][found.indices]).sum(2)
    torch.testing.assert_close(found.similarities, cosines, atol=1e-9, rtol=0)
    assert (found.similarities.diff(dim=1) <= 0).all()
    assert index.recall() > 0.95


def test_fewer_candidates_find_fewer(bank: torch.Tensor) -> None:
    assert ApproximateIndex(bank, breadth=1).recall(k=1) <= ApproximateIndex(bank).recall(k=1) <= 1


def test_equal_rows_come_in_order() -> None:
    found = ApproximateIndex(torch.ones(300, 4)).nearest(torch.ones(1, 4), 5)
    assert found.similarities.sub(1).abs().max() < 1e-12
    assert (found.indices.diff() > 0).all()


def test_all_rows_of_a_small_bank_are_found() -> None:
    rows = torch.eye(7)
    found = ApproximateIndex(rows).nearest(rows, 7)
    assert (found.indices.sort().values == torch.arange(7)).all()


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [(torch.ones(1, 3), 1, "do not fit"), (torch.ones(1, 4), 0, "k is 0"), (torch.ones(1, 4), 9, "choose 1 to 8")],
)
def test_mistakes_are_one_line(queries: torch.Tensor, k: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ApproximateIndex(torch.ones(8, 4)).nearest(queries, k)
