"""BatchNorm over ranks: equal to BatchNorm over all rows, in one process, in two, and compiled."""

import copy
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from excb.distributed import batchnorm
from excb.distributed.batchnorm import SyncBatchNorm, synchronise_batchnorm
from excb.distributed.collectives import rank
from excb.distributed.parallel import joined
from excb.networks.activation_checkpointing import recompute_blocks
from tests.clone import ROOT
from tests.forked import launch

# Layers, of how many channels, and the shape of a row beside them.
LAYERS: dict[str, tuple[Callable[[], nn.modules.batchnorm._BatchNorm], tuple[int, ...]]] = {
    "maps": (lambda: nn.BatchNorm2d(5), (3, 2)),
    "vectors": (lambda: nn.BatchNorm1d(5), ()),
    "without scale and shift": (lambda: nn.BatchNorm1d(5, affine=False), ()),
    "without running statistics": (lambda: nn.BatchNorm2d(5, track_running_stats=False), (2, 2)),
    "averaged over batches": (lambda: nn.BatchNorm2d(5, momentum=None), (2, 2)),
    "momentum of zero": (lambda: nn.BatchNorm2d(5, momentum=0.0), (2, 2)),
}
SPLITS = ((3, 3), (2, 4), (0, 6), (6, 0))  # rows of the two ranks


def new_layer(name: str) -> nn.modules.batchnorm._BatchNorm:
    """A layer in float64, with scales and shifts that are not those of every new layer."""
    torch.manual_seed(1)
    layer = LAYERS[name][0]().double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def batches(name: str) -> list[tuple[Tensor, Tensor]]:
    """Three batches of six rows, far from zero, with the gradients of their outputs."""
    draws = torch.Generator().manual_seed(2)  # of its own, for several threads
    values = torch.randn((3, 2, 6, 5, *LAYERS[name][1]), generator=draws, dtype=torch.float64)
    return [(10 + rows, slopes) for rows, slopes in values]


def passes(layer: nn.Module, name: str, mine: slice = slice(None)) -> dict[str, Any]:
    """Outputs and gradients of some rows of each batch, and the state afterwards."""
    outputs, of_rows = [], []
    for rows, slopes in batches(name):
        part = rows[mine].clone().requires_grad_()
        outputs.append(layer(part))
        (outputs[-1] * slopes[mine]).sum().backward()
        of_rows.append(part.grad)
    of_layer = [parameter.grad for parameter in layer.parameters()]
    return {"outputs": outputs, "rows": of_rows, "layer": of_layer, "state": layer.state_dict()}


def compare(ranks: Sequence[dict[str, Any]], whole: dict[str, Any]) -> None:
    """Compare what ranks have, in order, with what one BatchNorm over all rows has."""
    for name in ("outputs", "rows"):
        parts = [torch.cat(batch) for batch in zip(*(one[name] for one in ranks), strict=True)]
        torch.testing.assert_close(parts, whole[name], rtol=1e-10, atol=1e-10)
    for one in ranks:
        torch.testing.assert_close(one["state"], whole["state"], rtol=1e-10, atol=1e-10)
    of_layer = [sum(parts) for parts in zip(*(one["layer"] for one in ranks), strict=True)]
    torch.testing.assert_close(of_layer, whole["layer"], rtol=1e-10, atol=1e-10)


# ---------------------------------------------------------------------------------------------------------------------
# One process
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
def test_one_rank_is_batchnorm(name: str) -> None:
    plain = new_layer(name)
    ours = SyncBatchNorm(copy.deepcopy(plain))
    assert list(ours.state_dict()) == list(plain.state_dict())
    compare([passes(ours, name)], passes(plain, name))
    rows = batches(name)[0][0]
    torch.testing.assert_close(ours.eval()(rows), plain.eval()(rows))


def test_float32_stays_exact_far_from_zero() -> None:
    rows = 1e4 + torch.randn(4096, 3, generator=torch.Generator().manual_seed(0))
    ours, exact = SyncBatchNorm(nn.BatchNorm1d(3)), nn.BatchNorm1d(3).double()
    torch.testing.assert_close(ours(rows), exact(rows.double()).float(), rtol=0, atol=3e-3)  # neighbours are 1e-3 apart


def test_half_precision_keeps_its_type_and_float32_statistics() -> None:
    plain = nn.BatchNorm2d(4)
    ours = SyncBatchNorm(copy.deepcopy(plain))
    rows = (3 + torch.randn(8, 4, 3, 3)).bfloat16().requires_grad_()
    wide = rows.detach().float().requires_grad_()
    slopes = torch.randn(8, 4, 3, 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        output = ours(rows)
    (output * slopes).sum().backward()
    expected = plain(wide)
    (expected * slopes.float()).sum().backward()
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=1e-2, atol=1e-2)
    assert rows.grad is not None
    assert rows.grad.dtype == torch.bfloat16
    torch.testing.assert_close(rows.grad.float(), wide.grad, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(ours.state_dict(), plain.state_dict())
    assert ours.weight.grad is not None
    assert ours.weight.grad.dtype == torch.float32


def test_memory_format_stays() -> None:
    layer = SyncBatchNorm(nn.BatchNorm2d(4))
    rows = torch.randn(3, 4, 5, 5).to(memory_format=torch.channels_last).requires_grad_()
    output = layer(rows)
    assert output.is_contiguous(memory_format=torch.channels_last)
    output.backward(torch.randn(3, 4, 5, 5))  # a gradient in the other format
    assert rows.grad is not None
    assert rows.grad.is_contiguous(memory_format=torch.channels_last)
    assert layer(torch.randn(5, 5, 4, 3).permute(3, 2, 1, 0)).shape == (3, 4, 5, 5)  # in neither format


def test_running_variance_of_a_constant_channel_is_never_negative() -> None:
    """1 / invstd^2 - eps is -1.8e-12 in float32 where the variance is 0, and checkpoints refuse negative variances."""
    layer = SyncBatchNorm(nn.BatchNorm1d(2, momentum=1.0))
    layer(torch.zeros(4, 2))
    assert layer.running_var is not None
    assert (layer.running_var >= 0).all()


def test_gradients_that_nobody_needs_are_not_computed() -> None:
    layer = SyncBatchNorm(nn.BatchNorm1d(3))
    layer(torch.randn(4, 3)).sum().backward()  # the rows need none
    assert layer.weight.grad is not None
    frozen = SyncBatchNorm(nn.BatchNorm1d(3)).requires_grad_(False)
    rows = torch.randn(4, 3, requires_grad=True)
    frozen(rows).square().sum().backward()
    assert frozen.weight.grad is None
    assert rows.grad is not None


def test_one_value_per_channel_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        SyncBatchNorm(nn.BatchNorm1d(3))(torch.zeros(1, 3))


def test_timms_batchnorm_keeps_its_activation() -> None:
    from timm.layers import BatchNormAct2d

    theirs = BatchNormAct2d(4)
    ours = SyncBatchNorm(copy.deepcopy(theirs))
    rows = torch.randn(3, 4, 5, 5)
    torch.testing.assert_close(ours(rows), theirs(rows))
    assert ours.state_dict().keys() == theirs.state_dict().keys()


def test_every_batchnorm_of_a_model_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4).eval()))
    before = dict(model.named_parameters())
    assert synchronise_batchnorm(model) is model
    assert not any(isinstance(module, SyncBatchNorm) for module in model.modules())
    monkeypatch.setattr(batchnorm, "world_size", lambda: 2)
    assert synchronise_batchnorm(model) is model
    norms = [module for module in model.modules() if isinstance(module, SyncBatchNorm)]
    assert [norm.training for norm in norms] == [True, False]
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert isinstance(synchronise_batchnorm(nn.BatchNorm1d(2)), SyncBatchNorm)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_recomputed_block_counts_its_batch_once(momentum: float | None) -> None:
    torch.manual_seed(0)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1 = nn.Sequential(
                nn.Sequential(nn.Linear(3, 3), SyncBatchNorm(nn.BatchNorm1d(3, momentum=momentum)))
            )

        def forward(self, rows: Tensor) -> Tensor:
            return self.layer1(rows)

    plain = Network()
    other = copy.deepcopy(plain)
    recompute_blocks(other)
    rows = torch.randn(6, 3)
    for network in (plain, other):
        network(rows).square().sum().backward()
    torch.testing.assert_close(other.state_dict(), plain.state_dict(), rtol=0, atol=0)
    for one, two in zip(other.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.parametrize("name", ["maps", "without scale and shift", "averaged over batches"])
def test_compiling_breaks_no_graph(name: str) -> None:
    eager = SyncBatchNorm(new_layer(name))
    compiled = copy.deepcopy(eager)
    torch._dynamo.reset()
    compiled.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    compare([passes(compiled, name)], passes(eager, name))


# ---------------------------------------------------------------------------------------------------------------------
# Two processes
# ---------------------------------------------------------------------------------------------------------------------


def one_of_two(folder: Path) -> None:
    """Write what this rank has of every layer and split, and of a compiled layer."""
    results: dict[Any, dict[str, Any]] = {}
    for split in SPLITS:
        mine = slice(0, split[0]) if rank() == 0 else slice(split[0], None)
        for name in LAYERS:
            results[name, split] = passes(synchronise_batchnorm(new_layer(name)), name, mine)
    compiled = synchronise_batchnorm(new_layer("maps"))
    compiled.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    results["compiled"] = passes(compiled, "maps", slice(0, 3) if rank() == 0 else slice(3, None))
    torch.save(results, folder / f"{rank()}.pt")


def test_two_processes_are_one_batchnorm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert launch("tests.excb.distributed.test_batchnorm", [str(tmp_path)], 2) == 0
    ranks = [torch.load(tmp_path / f"{number}.pt") for number in range(2)]
    for name in LAYERS:
        whole = passes(new_layer(name), name)
        for split in SPLITS:
            compare([one[name, split] for one in ranks], whole)
    compare([one["compiled"] for one in ranks], passes(new_layer("maps"), "maps"))


if __name__ == "__main__":  # one of two processes
    with joined("cpu"):
        torch.set_num_threads(1)
        one_of_two(Path(sys.argv[1]))
    os._exit(0)  # gloo's threads may still let go of Python objects, and would abort an interpreter that is ending
