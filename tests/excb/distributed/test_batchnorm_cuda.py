"""BatchNorm over ranks on GPUs, without one: its operations on fake tensors, and its formula in their arithmetic."""

# ruff: noqa: PLR0917 - torch's signatures

import copy
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from excb.distributed import batchnorm
from excb.distributed.batchnorm import SyncBatchNorm, gather_statistics, gradients, normalise
from tests.excb.distributed.test_batchnorm import LAYERS, SPLITS, compare, new_layer, passes

WORLD, CHANNELS, EPS = 4, 6, 1e-5


class Kernels:
    """torch's CUDA operations of SyncBatchNorm, computed as its kernels do, and what they demand of their arguments."""

    @staticmethod
    def batch_norm_stats(rows: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        dense(rows)
        values = rows.transpose(0, 1).flatten(1)
        mean = torch.stack([channel.mean() for channel in values])
        variance = torch.stack([channel.var(correction=0) for channel in values])
        return mean, 1 / torch.sqrt(variance + eps)

    @staticmethod
    def batch_norm_gather_stats_with_counts(
        like: Tensor,
        means: Tensor,
        invstds: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        counts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        assert counts.dtype == (like if running_mean is None else running_mean).dtype
        assert counts.shape == means.shape[:1]
        average, squares, total = torch.zeros_like(means[0]), torch.zeros_like(means[0]), counts.new_zeros(())
        for mean, invstd, count in zip(means, invstds, counts, strict=True):  # Welford's algorithm, rank by rank
            deviation = (1 / invstd).square() - eps
            factor = 1 / (total + count)
            squares += deviation * count + (mean - average).square() * total * count * factor
            average = total * factor * average + count * factor * mean
            total = total + count
        if running_mean is not None:
            assert running_var is not None
            running_mean.copy_((1 - momentum) * running_mean + momentum * average)
            running_var.copy_((1 - momentum) * running_var + momentum * squares / (total - 1))
        return average, 1 / torch.sqrt(squares / total + eps)

    @staticmethod
    def batch_norm_elemt(
        rows: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
    ) -> Tensor:
        dense(rows)
        mean, invstd, weight, bias = (wide(one, rows) for one in (mean, invstd, weight, bias))
        return (1 if weight is None else weight) * (rows - mean) * invstd + (0 if bias is None else bias)

    @staticmethod
    def batch_norm_backward_reduce(
        grad: Tensor,
        rows: Tensor,
        mean: Tensor,
        invstd: Tensor,
        weight: Tensor | None,
        *needed: bool,
    ) -> tuple[Tensor | None, ...]:
        assert dense(grad) == dense(rows)
        assert weight is not None or not any(needed[1:])  # their type is that of the weight
        mine = list(zip(grad.transpose(0, 1), rows.transpose(0, 1), mean, strict=True))
        total = torch.stack([slopes.sum() for slopes, _, _ in mine])
        product = torch.stack([(slopes * (values - center)).sum() for slopes, values, center in mine])
        results = (total, product), (product * invstd,), (total.clone(),)
        return tuple(one if need else None for part, need in zip(results, needed, strict=True) for one in part)

    @staticmethod
    def batch_norm_backward_elemt(
        grad: Tensor,
        rows: Tensor,
        mean: Tensor,
        invstd: Tensor,
        weight: Tensor | None,
        sum_dy: Tensor,
        sum_dy_xmu: Tensor,
        counts: Tensor,
    ) -> Tensor:
        assert dense(grad) == dense(rows)
        assert counts.dtype == torch.int32
        total = counts.sum()
        of_mean, of_deviation = sum_dy / total, sum_dy_xmu / total * invstd.square()
        mean, invstd, weight = wide(mean, rows), wide(invstd, rows), wide(weight, rows)
        slopes = grad - wide(of_mean, rows) - (rows - mean) * wide(of_deviation, rows)
        return slopes * invstd * (1 if weight is None else weight)


NAMES = [name for name in vars(Kernels) if name.startswith("batch_norm")]


def dense(rows: Tensor) -> str:
    """The memory format of rows that must be in one, and not empty."""
    assert rows.numel()
    if rows.is_contiguous():
        return "contiguous"
    assert rows.ndim == 4
    assert rows.is_contiguous(memory_format=torch.channels_last)
    return "channels_last"


def wide(values: Tensor | None, rows: Tensor) -> Any:
    """[C] to go with `rows`."""
    return None if values is None else values.view([-1] + [1] * (rows.ndim - 2))


# ---------------------------------------------------------------------------------------------------------------------
# The formula
# ---------------------------------------------------------------------------------------------------------------------


class Ranks:
    """Threads that exchange tensors as processes do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self._parts: list[Tensor] = [torch.empty(0)] * number
        self._meeting, self._here = threading.Barrier(number, timeout=60), threading.local()
        monkeypatch.setattr(batchnorm, "gather_rows", lambda rows: torch.cat(self._exchange(rows)))
        monkeypatch.setattr(batchnorm, "sum_over_ranks", lambda value: torch.stack(self._exchange(value)).sum(0))

    def _exchange(self, value: Tensor) -> list[Tensor]:
        self._parts[self._here.rank] = value
        self._meeting.wait()
        parts = list(self._parts)
        self._meeting.wait()
        return parts

    def run(self, work: Any, each: Sequence[Any]) -> list[Any]:
        """Call `work` with one of `each` on every rank, and return what they return."""
        results: list[Any] = [None] * len(each)

        def one(rank: int) -> None:
            self._here.rank = rank
            try:
                results[rank] = work(each[rank])
            except BaseException:
                self._meeting.abort()
                raise

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(each))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(result is not None for result in results)
        return results


@pytest.fixture
def cuda_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows on the CPU take the way of rows on a GPU."""
    for name in NAMES:
        monkeypatch.setattr(torch, name, getattr(Kernels, name))
    monkeypatch.setattr(batchnorm, "_native", lambda rows: torch)


@pytest.mark.usefixtures("cuda_arithmetic")
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_ranks_are_one_batchnorm(monkeypatch: pytest.MonkeyPatch, name: str, split: tuple[int, int]) -> None:
    mine = [slice(0, split[0]), slice(split[0], None)]
    layers = [SyncBatchNorm(new_layer(name)) for _ in mine]
    ranks = Ranks(monkeypatch, 2)
    parts = ranks.run(lambda rank: passes(layers[rank], name, mine[rank]), [0, 1])
    compare(parts, passes(new_layer(name), name))


@pytest.mark.usefixtures("cuda_arithmetic")
def test_a_first_rank_without_rows_has_no_weight_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    running = [(torch.zeros(3), torch.ones(3)) for _ in range(3)]
    ranks = Ranks(monkeypatch, 3)
    parts = [rows[:0], rows[:4], rows[4:]]
    found = ranks.run(lambda rank: gather_statistics(parts[rank], *running[rank], 0.5, EPS), range(3))
    for (mean, invstd, counts), (running_mean, running_var) in zip(found, running, strict=True):
        torch.testing.assert_close(mean, rows.mean(0))
        torch.testing.assert_close(invstd, torch.rsqrt(rows.var(0, correction=0) + EPS))
        assert counts.tolist() == [0, 4, 2]
        torch.testing.assert_close(running_mean, rows.mean(0) / 2)
        torch.testing.assert_close(running_var, (1 + rows.var(0)) / 2)


@pytest.mark.usefixtures("cuda_arithmetic")
def test_both_memory_formats_reach_the_kernels_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = SyncBatchNorm(torch.nn.BatchNorm2d(4))
    other = copy.deepcopy(layer)
    rows, slopes = torch.randn(3, 4, 5, 5), torch.randn(3, 4, 5, 5)
    results = []
    for mine, memory_format in ((layer, torch.contiguous_format), (other, torch.channels_last)):
        part = rows.clone(memory_format=memory_format).requires_grad_()
        mine(part).backward(slopes)  # one of them is in the other format
        results.append(part.grad)
    torch.testing.assert_close(*results)


# ---------------------------------------------------------------------------------------------------------------------
# The operations on fake CUDA tensors
# ---------------------------------------------------------------------------------------------------------------------


def vector(like: Tensor) -> Tensor:
    """[C] in float32, beside rows or statistics."""
    return like.new_empty(CHANNELS, dtype=torch.float32)


class Shapes:
    """The shapes that torch's five operations return, for fake tensors, which torch does not support there."""

    @staticmethod
    def batch_norm_stats(rows: Tensor, eps: float) -> tuple[Tensor, ...]:
        dense(rows)
        return vector(rows), vector(rows)

    @staticmethod
    def batch_norm_gather_stats_with_counts(
        like: Tensor, means: Tensor, invstds: Tensor, *others: Any
    ) -> tuple[Tensor, ...]:
        running_mean, running_var, _momentum, _eps, counts = others
        assert means.shape == invstds.shape == (WORLD, CHANNELS)
        assert counts.shape == (WORLD,)
        assert {one.dtype for one in (like, means, invstds, running_mean, running_var, counts)} == {torch.float32}
        return vector(means), vector(means)

    @staticmethod
    def batch_norm_elemt(rows: Tensor, *others: Any) -> Tensor:
        dense(rows)
        assert [(one.shape, one.dtype) for one in others[:4]] == [((CHANNELS,), torch.float32)] * 4
        return torch.empty_like(rows)

    @staticmethod
    def batch_norm_backward_reduce(grad: Tensor, rows: Tensor, *others: Any) -> tuple[Tensor, ...]:
        assert dense(grad) == dense(rows)
        assert grad.dtype == rows.dtype
        assert others[3:] == (True, True, True)
        return vector(rows), vector(rows), vector(rows), vector(rows)

    @staticmethod
    def batch_norm_backward_elemt(grad: Tensor, rows: Tensor, *others: Any) -> Tensor:
        assert dense(grad) == dense(rows)
        *vectors, counts = others
        assert [(one.shape, one.dtype) for one in vectors] == [((CHANNELS,), torch.float32)] * 5
        assert (counts.shape, counts.dtype) == ((WORLD,), torch.int32)
        return torch.empty_like(rows)


class Launches(TorchDispatchMode):
    """Lists the operations that are called, all on CUDA tensors. Views of memory are left out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view and name != "device":
            self.names.append(name)
        result = getattr(Shapes, name)(*args) if name in NAMES else func(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves((args, result)) if isinstance(one, Tensor)]
        assert all(one.device.type == "cuda" for one in tensors), f"{name} mixes devices"
        return result


@pytest.fixture
def fake_ranks() -> Iterator[None]:
    """A process group of `WORLD` ranks that sends nothing."""
    dist.init_process_group("fake", rank=1, world_size=WORLD, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("fake_ranks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_pass_on_gpus_launches_these_operations(dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    """Exactly these: no `nonzero`, no index by a mask and no `_local_scalar_dense`, for which the host would wait."""
    with FakeTensorMode():
        rows = torch.empty(8, CHANNELS, 3, 3, dtype=dtype, device="cuda").to(memory_format=memory_format)
        grad = torch.empty_like(rows)
        weight, bias, mean, variance = (vector(rows) for _ in range(4))
        with Launches() as forward:
            statistics = gather_statistics(rows, mean, variance, 0.1, EPS)
            normal = normalise(rows, *statistics[:2], weight=weight, bias=bias)
        with Launches() as backward:
            results = gradients(grad, rows, *statistics, weight=weight, rows_needed=True)
    assert forward.names == [
        "batch_norm_stats",
        "new_full",
        "cat",
        "new_empty",
        "_allgather_base_",
        "batch_norm_gather_stats_with_counts",
        "clamp_",
        "_to_copy",
        "batch_norm_elemt",
    ]
    assert backward.names == ["batch_norm_backward_reduce", "cat", "allreduce_", "batch_norm_backward_elemt"]
    assert (normal.dtype, normal.stride()) == (rows.dtype, rows.stride())
    of_rows, *learned = results
    assert (of_rows.dtype, of_rows.stride()) == (rows.dtype, rows.stride())
    assert [(one.dtype, one.shape) for one in learned] == [(torch.float32, (CHANNELS,))] * 2


@pytest.mark.usefixtures("fake_ranks")
def test_a_gradient_in_another_format_is_copied_once() -> None:
    with FakeTensorMode():
        rows = torch.empty(8, CHANNELS, 3, 3, device="cuda")
        grad = torch.empty_like(rows, memory_format=torch.channels_last)
        mean, invstd, weight = (vector(rows) for _ in range(3))
        counts = torch.empty(WORLD, dtype=torch.int32, device="cuda")
        with Launches() as backward:
            gradients(grad, rows, mean, invstd, counts, weight=weight, rows_needed=True)
    assert backward.names[:2] == ["clone", "batch_norm_backward_reduce"]


@pytest.mark.usefixtures("fake_ranks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_layer_has_shapes_for_fake_tensors(dtype: torch.dtype) -> None:
    with FakeTensorMode(), torch.device("cuda"):
        layer = SyncBatchNorm(torch.nn.BatchNorm2d(CHANNELS))
        rows = torch.empty(8, CHANNELS, 3, 3, dtype=dtype).to(memory_format=torch.channels_last)
        with Launches() as forward:
            normal = layer(rows)
    assert forward.names == ["add_", "batchnorm_statistics", "batchnorm_normalise"]
    assert (normal.dtype, normal.shape, normal.stride()) == (dtype, rows.shape, rows.stride())
    assert normal.requires_grad
