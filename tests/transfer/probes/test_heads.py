"""Tests of heads trained together: each equals one trained alone by torch, whatever its neighbours are."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from excb.transfer.probes import heads
from excb.transfer.probes.heads import HeadBank

C, D, B = 5, 12, 16
LR = (0.003, 0.03, 0.3, 1.0)
WD = (0.0, 1e-3, 1e-2, 0.1)


def batches(dtype: torch.dtype, steps: int = 30) -> list[tuple[Tensor, Tensor, float]]:
    """Features, labels and the schedule's factor of every step; the last batches are smaller."""
    random = torch.Generator().manual_seed(0)
    sizes = [B if step % 7 else 3 for step in range(steps)]
    return [
        (
            torch.randn(size, D, generator=random, dtype=dtype),
            torch.randint(C, (size,), generator=random),
            1 - step / steps,
        )
        for step, size in enumerate(sizes)
    ]


def bank(dtype: torch.dtype = torch.float64, **options: Any) -> HeadBank:
    usual: dict[str, Any] = {"lr": LR, "weight_decay": WD, "dtype": dtype}
    return HeadBank(C, D, **usual | options)


def linear(dtype: torch.dtype) -> nn.Linear:
    """A head alone, with the bank's first weights."""
    head, first = nn.Linear(D, C, dtype=dtype), bank(dtype)
    with torch.no_grad():
        head.weight.copy_(first.weight[0])
        head.bias.zero_()
    return head


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_each_head_is_what_torch_makes_of_it_alone(dtype: torch.dtype, tolerance: float) -> None:
    together = bank(dtype)
    losses = [together.step(rows, labels, whole=len(rows), scale=s) for rows, labels, s in batches(dtype)]
    for number, (lr, decay) in enumerate(zip(LR, WD, strict=True)):
        head = linear(dtype)
        optimizer = torch.optim.SGD(head.parameters(), lr=lr, momentum=0.9, weight_decay=decay)
        for (rows, labels, scale), loss in zip(batches(dtype), losses, strict=True):
            optimizer.param_groups[0]["lr"] = lr * scale
            optimizer.zero_grad()
            expected = F.cross_entropy(head(rows), labels)
            torch.testing.assert_close(loss[number], expected.detach(), rtol=tolerance, atol=tolerance)
            expected.backward()
            optimizer.step()
        torch.testing.assert_close(together.weight[number], head.weight.detach(), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(together.bias[number], head.bias.detach(), rtol=tolerance, atol=tolerance)


def test_lars_is_larc_without_clipping_tensor_by_tensor() -> None:
    together = bank(rule="lars", lr=[30.0 * lr for lr in LR])
    for rows, labels, scale in batches(torch.float64):
        together.step(rows, labels, whole=len(rows), scale=scale)
    for number, (lr, decay) in enumerate(zip(LR, WD, strict=True)):
        head = linear(torch.float64)
        velocities = [torch.zeros_like(parameter) for parameter in head.parameters()]
        for rows, labels, scale in batches(torch.float64):
            gradients = torch.autograd.grad(F.cross_entropy(head(rows), labels), list(head.parameters()))
            for parameter, velocity, gradient in zip(head.parameters(), velocities, gradients, strict=True):
                size, slope = float(parameter.detach().norm()), float(gradient.norm())
                change = gradient
                if size and slope:
                    change = (gradient + decay * parameter.detach()) * 0.001 * size / (slope + decay * size + 1e-8)
                velocity.copy_(0.9 * velocity + change)
                parameter.data -= 30 * lr * scale * velocity
        torch.testing.assert_close(together.weight[number], head.weight.detach(), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(together.bias[number], head.bias.detach(), rtol=1e-10, atol=1e-10)


def test_all_heads_start_equal_and_named_by_the_seed() -> None:
    first, other = HeadBank(40, 500, lr=(1, 2), weight_decay=(0, 0)), HeadBank(40, 500, lr=(3,), weight_decay=(0,))
    torch.testing.assert_close(first.weight, other.weight.expand(2, -1, -1), rtol=0, atol=0)
    assert float(first.weight.mean()) == pytest.approx(0, abs=3e-4)
    assert float(first.weight.std()) == pytest.approx(0.01, rel=0.02)
    assert not first.bias.any()
    assert not torch.equal(HeadBank(40, 500, lr=(3,), weight_decay=(0,), seed=1).weight, other.weight)


def test_shares_of_a_batch_add_up_and_one_may_be_empty() -> None:
    rows, labels, _ = batches(torch.float64)[1]
    whole = bank().step(rows, labels, whole=B)
    parts = [bank().step(rows[part], labels[part], whole=B) for part in (slice(0, 5), slice(5, B), slice(B, B))]
    torch.testing.assert_close(torch.stack(parts).sum(0), whole)
    assert not parts[2].any()
    together = bank()
    together.step(rows[:0], labels[:0], whole=1)
    decayed = 1 - torch.tensor(LR, dtype=torch.float64) * torch.tensor(WD, dtype=torch.float64)
    torch.testing.assert_close(together.weight, bank().weight * decayed.view(-1, 1, 1))  # decay is all that moves


@pytest.mark.parametrize("at_once", [1, 100, 1 << 24])
def test_scores_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(heads, "SCORES_AT_ONCE", at_once)
    together = bank()
    rows, labels, _ = batches(torch.float64)[1]
    together.step(rows, labels, whole=B)
    targets = torch.where(torch.arange(B) % 5 == 0, C + 1, labels)  # some are of a class that no head knows
    right, loss = together.score(rows.float(), targets)
    for head in range(len(LR)):
        scores = rows.float().double() @ together.weight[head].T + together.bias[head]
        known = targets < C
        assert int(right[head]) == sum(int(scores[i].argmax()) == int(targets[i]) for i in range(B))
        assert float(loss[head]) == pytest.approx(float(F.cross_entropy(scores[known], targets[known])))
        expected = scores.argsort(dim=1, descending=True)
        assert together.top(rows.float(), head).tolist() == expected.tolist()
        assert together.top(rows.float(), head, k=2).tolist() == expected[:, :2].tolist()


def test_diverged_head_has_no_right_answer_and_harms_no_other() -> None:
    together, alone = bank(lr=(1e300, 0.03), weight_decay=(0.1, 0)), bank(lr=(0.03,), weight_decay=(0,))
    for rows, labels, _ in batches(torch.float64):
        together.step(rows, labels, whole=len(rows))
        alone.step(rows, labels, whole=len(rows))
    rows, labels, _ = batches(torch.float64)[1]
    right, loss = together.score(rows, labels)
    assert right.tolist() == [0, int(alone.score(rows, labels)[0])]
    assert float(loss[0]) == float("inf")
    torch.testing.assert_close(together.weight[1], alone.weight[0])


def test_state_goes_on_where_it_was() -> None:
    steps = batches(torch.float64)
    through, first, second = bank(), bank(), bank(seed=1)
    for rows, labels, scale in steps:
        through.step(rows, labels, whole=len(rows), scale=scale)
    for rows, labels, scale in steps[:10]:
        first.step(rows, labels, whole=len(rows), scale=scale)
    for name, tensor in second.state.items():
        tensor.copy_(first.state[name])
    for rows, labels, scale in steps[10:]:
        second.step(rows, labels, whole=len(rows), scale=scale)
    assert torch.equal(second.weight, through.weight)
    assert torch.equal(second.bias, through.bias)
