"""Cases of the objectives: settings, random rows of student and teachers, and the comparison of value and gradient."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from excb.pretrain.distil.distillation import target_pair_weights
from excb.pretrain.distil.settings import DistilSettings

GLOBALS, VIEWS, IMAGES, WIDTH = 2, 3, 4, 5
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
every_way = pytest.mark.parametrize("sees", ["image", "view", "other_view"])


def settings(**values: Any) -> DistilSettings:
    """Settings with moderate temperatures, so that every term counts."""
    return DistilSettings(**{"temperature": 0.3, "student_temperature": 0.5, **values})


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit_rows(*shape: int, seed: int = 1) -> Tensor:
    """Random unit rows in float64."""
    return F.normalize(random(*shape, seed=seed), dim=-1)


def predictions(seed: int = 0) -> Tensor:
    """Of every view, [V, B, D], with gradient; of other lengths than 1."""
    return (3 * random(VIEWS, IMAGES, WIDTH, seed=seed)).requires_grad_()


def targets(sees: str, seed: int = 1) -> Tensor:
    """Unit rows [T, B, D] of what the teacher sees."""
    return unit_rows({"image": 1, "view": VIEWS, "other_view": GLOBALS}[sees], IMAGES, WIDTH, seed=seed)


def weights(sees: Any) -> Tensor:
    """Of every pair, [T, V]."""
    return target_pair_weights(sees, GLOBALS, VIEWS)


def same_value_and_gradient(
    found: Tensor, oracle: Callable[[Tensor], Tensor], predicted: Tensor, tolerance: dict[str, Any] | None = None
) -> None:
    """A loss and its gradient are those of the oracle, which is called with the same predictions."""
    close = EXACT if tolerance is None else tolerance
    (gradient,) = torch.autograd.grad(found, predicted)
    again = predicted.detach().clone().requires_grad_()
    wanted = oracle(again)
    torch.testing.assert_close(found.detach(), wanted.detach(), **close)
    (wanted_gradient,) = torch.autograd.grad(wanted, again)
    assert gradient.abs().max() > 1e-4  # else there would be nothing to compare
    torch.testing.assert_close(gradient, wanted_gradient, **close)
