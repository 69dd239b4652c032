"""The fake CUDA device sees every kind of wait and every mix of devices, and counts kernels and bytes."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from tests.fake_cuda import CUDA, FakeCuda, Wait, fake_cuda

pytestmark = pytest.mark.fake_cuda
HERE = "tests.test_fake_cuda"


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with fake_cuda() as mode:
        yield mode


def number(x: Tensor) -> object:
    return x.sum().item()


def decision(x: Tensor) -> object:
    return 1 if x.any() else 0


def places(x: Tensor) -> object:
    return x.nonzero()


def mask(x: Tensor) -> object:
    return x[x > 0]


def masked_write(x: Tensor) -> None:
    x[x > 0] = x.sum(1)[:1]


def index_on_the_cpu(x: Tensor) -> object:
    return x[torch.tensor([0, 1])]


def pageable(x: Tensor) -> object:
    return torch.ones(3).to(x.device, non_blocking=True)


def literal(x: Tensor) -> object:
    return torch.tensor([1.0, 2.0], device=x.device)


def pinned_but_blocking(x: Tensor) -> object:
    return torch.ones(3).pin_memory().to(x.device)


def to_the_cpu(x: Tensor) -> object:
    return x.cpu()


def into_pageable(x: Tensor) -> object:
    return torch.empty(x.shape).copy_(x, non_blocking=True)


def counts(x: Tensor) -> object:
    return torch.bincount(x.flatten().long(), minlength=4)


def whole_device(_: Tensor) -> None:
    torch.cuda.synchronize()


def event(_: Tensor) -> None:
    happened = torch.cuda.Event()
    happened.record()
    happened.synchronize()


WAITS = {
    number: "a value is read",
    decision: "a value is read",
    places: "the shape of nonzero depends on values",
    mask: "an index is a mask",
    masked_write: "an index is a mask",
    index_on_the_cpu: "an index is on the CPU",
    pageable: "a copy from pageable memory",
    literal: "a copy from pageable memory",
    pinned_but_blocking: "a copy to the device that blocks",
    to_the_cpu: "a copy to the CPU",
    into_pageable: "a copy to the CPU",
    counts: "the shape of bincount depends on values",
    whole_device: "the device",
    event: "an event",
}


@pytest.mark.parametrize("work", WAITS, ids=lambda work: work.__name__)
def test_a_wait_is_recorded_with_the_function_that_made_it(cuda: FakeCuda, work: Callable[[Tensor], object]) -> None:
    work(torch.ones(4, 3, device=CUDA))
    assert dict(cuda.record.waits) == {Wait(WAITS[work], f"{HERE}:{work.__name__}"): 1}
    assert cuda.record.unexpected([f"{HERE}:{work.__name__}"]) == {}


def without_waits(x: Tensor) -> None:
    x[x > 0] = 1.0  # a fill
    x.masked_fill_(x > 0, 2.0)
    torch.where(x > 0, x, 0.0)
    x.add_(torch.tensor(2.0))  # a number of the CPU
    x[:, torch.zeros(2, dtype=torch.int64).pin_memory().to(x.device, non_blocking=True)] += 1
    torch.empty(x.shape, pin_memory=True).copy_(x, non_blocking=True)
    torch.full((3,), 7.0, device=x.device)
    torch.manual_seed(3)


def test_what_does_not_wait_is_not_recorded(cuda: FakeCuda) -> None:
    without_waits(torch.ones(4, 3, device=CUDA))
    assert not cuda.record.waits


@pytest.mark.parametrize(
    "work", [lambda x: x + torch.ones(3), lambda x: x.add_(torch.ones(3)), lambda x: torch.cat([x, torch.ones(4, 3)])]
)
def test_a_mix_of_devices_fails(cuda: FakeCuda, work: Callable[[Tensor], object]) -> None:
    with pytest.raises((AssertionError, RuntimeError), match=r"two devices|of the CPU and of CUDA"):
        work(torch.ones(4, 3, device=CUDA))


def test_kernels_and_their_bytes_are_counted_by_phase(cuda: FakeCuda) -> None:
    x, w = torch.empty(4, 3, device=CUDA), torch.empty(3, 5, device=CUDA)
    with cuda.phase("product"):
        y = x @ w
        y.view(5, 4).T[1:]  # views launch nothing
    with cuda.phase("sum"):
        y += 1
    costs = {name: (cost.launches, cost.bytes) for name, cost in cuda.record.costs.items()}
    assert costs == {"product": (1, 4 * (12 + 15 + 20)), "sum": (1, 4 * (20 + 20))}


def test_training_works_and_leaves_no_trace(cuda: FakeCuda) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 5)).to(CUDA)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, fused=True)
    cuda.reset()
    with torch.autocast("cuda", torch.bfloat16):
        loss = network(torch.empty(2, 3, 8, 8, device=CUDA)).sum()
    loss.backward()
    optimizer.step()
    assert {parameter.grad.device for parameter in network.parameters() if parameter.grad is not None} == {CUDA}
    assert not cuda.record.waits


def test_outside_of_it_nothing_has_changed() -> None:
    with fake_cuda():
        assert torch.cuda.is_available()
    assert not torch.cuda.is_available()
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones(2))
