"""Attentive probes against CAPI's form with projected keys, against torch's AdamW alone, and on a planted patch."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from excb.transfer.probes.attentive import AttentiveBank, AttentiveProbe, queries_of
from excb.transfer.probes.recipes import PROTOCOLS

pytestmark = pytest.mark.usefixtures("one_thread")
C, D, P = 5, 128, 9
RANDOM = torch.Generator().manual_seed(0)


def test_one_query_for_64_channels_or_fewer_where_they_do_not_divide() -> None:
    assert [queries_of(width) for width in (16, 96, 256, 352, 384, 768)] == [1, 1, 4, 4, 6, 12]


def test_equals_cross_attention_of_one_learned_query_with_projected_keys_and_values() -> None:
    """CAPI's layer, written out: query [D], projections of keys and values with biases, heads of 64 channels."""
    heads, patches = D // 64, torch.randn(3, P, D, generator=RANDOM, dtype=torch.float64)
    query, keys, values = (
        torch.randn(*shape, generator=RANDOM, dtype=torch.float64) / D**0.5 for shape in ((D,), (D, D), (D, D))
    )
    key_bias, value_bias = torch.randn(2, D, generator=RANDOM, dtype=torch.float64)
    weight, bias = torch.randn(C, D, generator=RANDOM, dtype=torch.float64), torch.arange(C, dtype=torch.float64)
    q, k, v = (
        each.unflatten(-1, (heads, 64)).transpose(1, 2)
        for each in (query.expand(3, 1, D), patches @ keys.T + key_bias, patches @ values.T + value_bias)
    )
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(1) @ weight.T + bias
    probe = AttentiveProbe(C, D, seed=0).double()
    with torch.no_grad():
        for head in range(heads):
            rows = slice(64 * head, 64 * head + 64)
            probe.queries[head] = query[rows] @ keys[rows] * (D / 64) ** 0.5  # its scale is D^-0.5, there 64^-0.5
            probe.values[head] = values[rows]
        probe.weight.copy_(weight)
        probe.bias.copy_(bias + weight @ value_bias)
        torch.testing.assert_close(probe(patches), expected)


def test_probes_of_a_bank_are_those_that_adamw_trains_alone() -> None:
    lr, decay = (0.001, 0.01), (0.5, 0.0)
    bank = AttentiveBank(C, D, lr=lr, weight_decay=decay, seed=3, dtype=torch.float64)
    batches = [
        (torch.randn(size, P * D, generator=RANDOM, dtype=torch.float64), torch.randint(C, (size,), generator=RANDOM))
        for size in (8, 8, 3)
    ]
    for step, (rows, labels) in enumerate(batches):
        losses = bank.step(rows, labels, whole=len(rows), scale=1 - step / 4)
    for number, (rate, weight_decay) in enumerate(zip(lr, decay, strict=True)):
        probe = AttentiveProbe(C, D, seed=3).double()
        groups = [
            {"params": [probe.queries, probe.values, probe.weight], "weight_decay": weight_decay},
            {"params": [probe.bias], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
        for step, (rows, labels) in enumerate(batches):
            for group in optimizer.param_groups:
                group["lr"] = rate * (1 - step / 4)
            optimizer.zero_grad()
            loss = F.cross_entropy(probe(rows.view(-1, P, D)), labels)
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(losses[number], loss.detach())
        for mine, other in zip(bank.probes[number].parameters(), probe.parameters(), strict=True):
            torch.testing.assert_close(mine, other)


def planted(images: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Patches [N, P D], labels and the marked patch: it alone says the class, the others say any class."""
    random = torch.Generator().manual_seed(seed)
    labels, place = (torch.randint(most, (images,), generator=random) for most in (C, P))
    patches = torch.zeros(images, P, D)
    said = torch.randint(C, (images, P), generator=random)
    said[torch.arange(images), place] = labels
    patches.scatter_(2, said[:, :, None], 4.0)
    patches[torch.arange(images), place, C] = 4.0
    return patches.flatten(1), labels, place


def test_attention_finds_the_one_patch_that_says_the_class() -> None:
    rows, labels, _ = planted(400, seed=1)
    bank = AttentiveBank(C, D, lr=(0.03,), weight_decay=(0.0,))
    for _epoch in range(20):
        for part, targets in zip(rows.split(50), labels.split(50), strict=True):
            bank.step(part, targets, whole=len(part))
    test, targets, place = planted(200, seed=2)
    right, loss = bank.score(test, targets)
    assert int(right[0]) == 200
    assert float(loss[0]) < 0.3
    assert (bank.top(test, 0)[:, 0] == targets).all()
    looks = bank.probes[0].attention(test.view(-1, P, D)).mean(1).argmax(1)
    assert (looks == place).float().mean() > 0.95


def test_labels_that_no_class_has_are_wrong_and_divergence_is_seen() -> None:
    rows, labels, _ = planted(10, seed=1)
    bank = AttentiveBank(C, D, lr=(0.01,), weight_decay=(0.0,))
    labels[:4] = C
    assert bank.score(rows, labels)[0][0] <= 6
    with torch.no_grad():
        bank.probes[0].bias[0] = torch.nan
    right, loss = bank.score(rows, labels)
    assert (int(right[0]), float(loss[0]), bank.finite(0)) == (0, float("inf"), False)


def test_a_rank_without_images_takes_part() -> None:
    bank = AttentiveBank(C, D, lr=(0.01,), weight_decay=(0.0,))
    losses = bank.step(torch.empty(0, P * D), torch.empty(0, dtype=torch.int64), whole=4)
    assert losses.tolist() == [0.0]
    assert bank.finite(0)


def test_batchnorm_before_the_classifier_is_that_of_the_batch_then_that_of_the_run() -> None:
    patches = torch.randn(6, P, D, generator=RANDOM)
    plain, probe = AttentiveProbe(C, D, seed=1), AttentiveProbe(C, D, seed=1, batchnorm=True)
    with torch.no_grad():
        pooled = torch.einsum("bmd,mvd->bmv", plain.attention(patches) @ patches, plain.values).flatten(1)
        mean, variance = pooled.mean(0), pooled.var(0, correction=0)
        expected = (pooled - mean) / (variance + 1e-6).sqrt() @ plain.weight.T + plain.bias
        torch.testing.assert_close(probe(patches), expected)
        running = 0.9 + 0.1 * pooled.var(0)  # momentum 0.1, from mean 0 and variance 1
        expected = (pooled - 0.1 * mean) / (running + 1e-6).sqrt() @ plain.weight.T + plain.bias
        torch.testing.assert_close(probe.eval()(patches), expected)


def test_a_bank_with_batchnorm_learns_from_batches_and_scores_without_them() -> None:
    rows, labels = torch.randn(8, P * D, generator=RANDOM), torch.arange(8) % C
    bank = AttentiveBank(C, D, lr=(0.01,), weight_decay=(0.0,), batchnorm=True)
    first = float(bank.step(rows, labels, whole=8)[0])
    for _ in range(20):
        last = float(bank.step(rows, labels, whole=8)[0])
    assert last < first
    before = bank.top(rows, 0)
    assert torch.equal(before[:1], bank.top(rows[:1], 0))  # an image's answer does not depend on the others
    bank.step(rows[:1], labels[:1], whole=1)


def test_settings_without_batchnorm_are_those_of_earlier_results() -> None:
    assert "batchnorm" not in PROTOCOLS["attentive"].settings()
    assert PROTOCOLS["attentive-bn"].settings()["batchnorm"] is True
