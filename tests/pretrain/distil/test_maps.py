"""Distances of maps, against loops over cells; grids that are coarser or finer than the teacher's."""

import pytest
import torch

from excb.pretrain.distil.maps import MapDistance, on_grid
from tests.pretrain.distil import cases, loops


@pytest.mark.parametrize("kind", ["cosine", "squared"])
def test_value_and_gradient_are_those_of_the_loops(kind: str) -> None:
    objective = MapDistance(cases.settings(maps=1.0, teacher_sees="view", distance=kind), cases.WIDTH)
    predicted = (2 * cases.random(2, 3, cases.WIDTH, 2, 4)).requires_grad_()
    targets = cases.unit_rows(2, 3, 2, 4, cases.WIDTH).movedim(-1, 2)
    weights = [0.5, 0.25]
    loss, pending = objective(predicted, targets, torch.tensor(weights, dtype=torch.float64))
    assert pending is None
    cases.same_value_and_gradient(loss, lambda maps: loops.maps(maps, targets, weights, kind=kind), predicted)


@pytest.mark.parametrize("grid", [(6, 8), (3, 4), (2, 8), (1, 1)])
def test_a_coarser_grid_has_the_means_of_the_cells(grid: tuple[int, int]) -> None:
    cells = cases.random(2, 3, 6, 8)
    wanted = torch.stack([loops.averaged(each, *grid) for each in cells])
    torch.testing.assert_close(on_grid(cells, torch.Size(grid)), wanted, **cases.EXACT)


@pytest.mark.parametrize("grid", [(5, 7), (6, 8), (3, 8), (9, 4)])
def test_a_finer_grid_is_bilinear_between_centres(grid: tuple[int, int]) -> None:
    cells = cases.random(2, 3, 3, 4)
    wanted = torch.stack([loops.bilinear(each, *grid) for each in cells])
    torch.testing.assert_close(on_grid(cells, torch.Size(grid)), wanted, rtol=1e-6, atol=1e-6)


def test_a_coarser_grid_that_does_not_divide_keeps_constants_and_order() -> None:
    constant = torch.full((1, 2, 7, 7), 3.0, dtype=torch.float64)
    torch.testing.assert_close(on_grid(constant, torch.Size((4, 3))), constant[..., :4, :3])
    slope = torch.arange(7.0).expand(1, 1, 7, 7)
    columns = on_grid(slope, torch.Size((4, 3)))[0, 0, 0]
    assert columns.tolist() == sorted(columns.tolist())
    assert columns.mean().item() == pytest.approx(3)  # symmetric about the middle


def test_a_grid_finer_one_way_and_coarser_the_other_keeps_constants() -> None:
    constant = torch.full((1, 2, 4, 8), 3.0, dtype=torch.float64)
    torch.testing.assert_close(on_grid(constant, torch.Size((6, 4))), torch.full((1, 2, 6, 4), 3.0).double())
