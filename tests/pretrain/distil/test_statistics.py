"""Statistics of a teacher's features: what centring and whitening make of them, zeros and unreadable images."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from excb.pretrain.distil.statistics import Statistics
from tests.pretrain.distil import cases

COUNT, WIDTH = 400, 4


def rows(count: int = COUNT) -> Tensor:
    """Rows with a large common part, and much more of some directions than of others."""
    scale = torch.tensor([3.0, 1.0, 0.5, 0.2], dtype=torch.float64)
    return 5 + scale * cases.random(count, WIDTH, seed=4)


def started(kind: Any, *, floor: float = 0.1, of: Tensor | None = None) -> Statistics:
    made = Statistics(WIDTH, kind, floor=floor).double()
    made.start(rows() if of is None else of)
    return made


def whitened(row: Tensor, sample: Tensor, floor: float) -> Tensor:
    """By hand: the coordinates along the principal components, each by the root of its variance and the floor."""
    sample = torch.stack([each / each.norm() for each in sample])
    mean = sample.sum(0) / len(sample)
    covariance = sum(torch.outer(each - mean, each - mean) for each in sample) / len(sample)
    values, vectors = torch.linalg.eigh(covariance)
    found = [
        float((row / row.norm() - mean).dot(vectors[:, d])) / float(values[d] + floor * values.mean()) ** 0.5
        for d in range(WIDTH)
    ]
    return torch.tensor(found, dtype=torch.float64)


def test_none_gives_unit_rows() -> None:
    made = started("none")
    torch.testing.assert_close(made(rows(3)), torch.stack([row / row.norm() for row in rows(3)]))
    assert not made.mean.any()


def test_centred_rows_have_lost_the_mean_of_unit_rows() -> None:
    made, sample = started("centred"), F.normalize(rows(), dim=1)
    mean = torch.stack([sample[:, d].sum() / COUNT for d in range(WIDTH)])
    wanted = torch.stack([row - mean for row in sample])
    torch.testing.assert_close(made(rows()), torch.stack([row / row.norm() for row in wanted]))
    assert F.normalize(rows(), dim=1).mean(0).norm() > 0.9  # else there was nothing to remove
    assert made(rows()).mean(0).norm() < 0.2


@pytest.mark.parametrize("floor", [1e-9, 0.1])
def test_whitened_rows_are_those_by_hand_up_to_signs(floor: float) -> None:
    made, sample = started("whitened", floor=floor), rows()
    for row in sample[:5]:
        wanted = whitened(row, sample, floor)
        torch.testing.assert_close(made(row).abs(), (wanted / wanted.norm()).abs(), rtol=1e-6, atol=1e-9)


def test_the_covariance_of_whitened_rows_is_the_identity_up_to_the_floor() -> None:
    sample = F.normalize(rows(), dim=1)
    for floor in (1e-9, 0.1):
        made = started("whitened", floor=floor)
        assert made.projection is not None
        coordinates = (sample - made.mean) @ made.projection
        covariance = coordinates.T @ coordinates / COUNT
        centred = sample - sample.mean(0)
        variances = torch.linalg.eigvalsh(centred.T @ centred / COUNT)
        wanted = variances / (variances + floor * variances.mean())
        torch.testing.assert_close(covariance, torch.diag(wanted), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(torch.diag(wanted), torch.diag(wanted).clamp(max=1))


@pytest.mark.parametrize("kind", ["none", "centred", "whitened"])
def test_zeros_stay_zeros_and_all_else_are_unit_rows(kind: str) -> None:
    some = rows(6).view(2, 3, WIDTH)
    some[1, 2] = 0
    found = started(kind)(some)
    assert not found[1, 2].any()
    lengths = torch.ones(2, 3, dtype=torch.float64)
    lengths[1, 2] = 0
    torch.testing.assert_close(found.norm(dim=-1), lengths)


@pytest.mark.parametrize("kind", ["centred", "whitened"])
def test_unreadable_images_are_left_out(kind: str) -> None:
    holes = torch.cat([torch.full((1, WIDTH), torch.nan, dtype=torch.float64), rows()])
    holes[1 + COUNT // 2] = torch.nan
    others = holes[holes.isfinite().all(1)]
    assert len(others) == COUNT - 1
    assert torch.equal(started(kind, of=holes)(rows(5)), started(kind, of=others)(rows(5)))


@pytest.mark.parametrize("kind", ["none", "centred", "whitened"])
def test_statistics_of_nothing_change_nothing(kind: str) -> None:
    made = started(kind, of=torch.full((2, WIDTH), torch.nan, dtype=torch.float64))
    torch.testing.assert_close(made(rows(3)), F.normalize(rows(3), dim=1))


def test_a_direction_without_variance_is_finite() -> None:
    flat = rows()
    flat[:, 2:] = flat[:, :2]
    found = started("whitened", of=flat)(flat)
    assert found.isfinite().all()


def test_they_are_in_the_state_dict() -> None:
    made, other = started("whitened"), Statistics(WIDTH, "whitened", floor=0.1).double()
    other.load_state_dict(made.state_dict())
    assert torch.equal(made(rows(3)), other(rows(3)))


def test_they_see_teachers_of_large_and_small_features_in_float32() -> None:
    for scale in (1e-6, 1e6):
        made = Statistics(WIDTH, "whitened", floor=0.1)
        made.start((scale * rows()).float())
        torch.testing.assert_close(
            made((scale * rows(3)).float()).double(), started("whitened")(rows(3)), rtol=1e-3, atol=1e-3
        )
