"""BatchNorm over ranks, seen from one: it is BatchNorm. (tests/pretrain/test_parallel.py sees it from many.)"""

import copy

import pytest
import torch
from torch import nn

from excb.distributed.batchnorm import SyncBatchNorm


@pytest.mark.parametrize("momentum", [0.1, 0.0, None])
@pytest.mark.parametrize("shape", [(6, 5), (4, 5, 3, 2)])
def test_synchronised_batchnorm_is_batchnorm(shape: tuple[int, ...], momentum: float | None) -> None:
    torch.manual_seed(0)
    plain = (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(5, momentum=momentum).double()
    nn.init.normal_(plain.weight)
    nn.init.normal_(plain.bias)
    ours = SyncBatchNorm(copy.deepcopy(plain))
    assert ours.state_dict().keys() == plain.state_dict().keys()
    for _ in range(3):
        rows = (100 + torch.randn(shape, dtype=torch.float64)).requires_grad_()
        other = rows.detach().clone().requires_grad_()
        weights = torch.randn(shape, dtype=torch.float64)
        (plain(rows) * weights).sum().backward()
        (ours(other) * weights).sum().backward()
        assert rows.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(other.grad, rows.grad, rtol=1e-8, atol=1e-8)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(dict(ours.named_parameters())[name].grad, parameter.grad)
    torch.testing.assert_close(ours.eval()(rows), plain.eval()(rows))


def test_synchronised_batchnorm_keeps_float32_exact_far_from_zero() -> None:
    rows = 1e4 + torch.randn(64, 3)
    ours, exact = SyncBatchNorm(nn.BatchNorm1d(3)), nn.BatchNorm1d(3).double()
    torch.testing.assert_close(ours(rows), exact(rows.double()).float(), rtol=1e-3, atol=1e-3)


def test_timms_batchnorm_keeps_its_activation() -> None:
    from timm.layers import BatchNormAct2d

    theirs = BatchNormAct2d(4)
    ours = SyncBatchNorm(copy.deepcopy(theirs))
    rows = torch.randn(3, 4, 5, 5)
    torch.testing.assert_close(ours(rows), theirs(rows))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
