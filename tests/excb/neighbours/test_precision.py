"""Bounds on what each precision loses hold, and exact products are exact."""

import math

import numpy as np
import pytest
import torch

from excb.neighbours.nearest import nearest
from excb.neighbours.precision import float32_error, lowered, rounded_dots, split
from excb.neighbours.unit_rows import UnitRows
from tests.excb.neighbours.features import random_features

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("width", [1, 7, 384, 4096])
def test_float32_error_bounds_the_worst_order_of_summing(width: int) -> None:
    rng = np.random.default_rng(0)
    bound = float32_error(width)
    assert bound < 1.1 * (width + 4) * 2**-24
    for positive in (False, True):
        left, right = rng.normal(size=(2, 30, width))
        left, right = (np.abs(left), np.abs(left)) if positive else (left, right)
        left, right = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (left, right))
        one_by_one = np.cumsum(left.astype(np.float32) * right.astype(np.float32), axis=1, dtype=np.float32)[:, -1]
        exact = [math.fsum(line) for line in left * right]
        assert np.abs(one_by_one.astype(np.float64) - exact).max() <= bound


@pytest.mark.parametrize("width", [1, 5, 384, 2048])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_lower_precision_loses_no_more_than_is_said(width: int, kind: torch.dtype) -> None:
    rows = UnitRows(random_features(300, width).double() * 1e100, "row", torch.device("cpu"))
    exact, single = rows[slice(0, 300)], rows.approximate(slice(0, 300))
    low, lost = lowered(single, kind)
    assert (torch.linalg.vector_norm(low.double() - exact, dim=1) <= lost).all()
    assert lost.max() < (1e-6 if kind == torch.float32 else 2**-8)
    values = (low @ low.T).double()
    error = lost[:, None] + lost + float32_error(width)
    error += 0.51 * torch.finfo(kind).eps * values.abs() * (kind == torch.bfloat16)
    assert ((values - exact @ exact.T).abs() <= error).all()


@pytest.mark.parametrize("width", [3, 384, 4096])
def test_quick_similarities_round_as_exact_ones(width: int) -> None:
    bank, queries = random_features(400, width), random_features(30, width, seed=1)
    found = nearest(bank, queries, 60, backend="torch")
    unit = [UnitRows(rows, "row", torch.device("cpu"))[slice(0, len(rows))] for rows in (queries, bank)]
    exact = rounded_dots(*map(split, unit))
    assert torch.equal(found.similarities, exact.gather(1, found.indices))
    assert torch.equal(found.similarities, exact.sort(dim=1, descending=True).values[:, :60])
    assert torch.equal(found.similarities, found.similarities.mul(2**36).round().div(2**36))
