"""Attentive probes: learned queries look at the patches of a frozen backbone, and a linear layer classifies.

CAPI (Darcet et al., 2025, arXiv 2502.08769) classifies by one cross-attention layer with a learned query and heads of
64 channels. Efficient probing (Psomas et al., 2025, arXiv 2506.10178) leaves out the projection of keys: a query's
product with a projected patch is that of another vector with the patch itself. So each head of CAPI is a learned vector
here. The two have the same functions: biases of keys cancel in the softmax, and those of values are the classifier's.

Letters: H probes, B images, P patches, D channels, M queries, C classes.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from excb import seeding
from excb.distributed.collectives import sum_over_ranks, world_size
from excb.errors import UserError

HEAD = 64  # channels of a head of attention in CAPI
SCORED = 256  # images at once


def queries_of(width: int) -> int:
    """M: as many as CAPI has heads, one for 64 channels; where these do not divide D, the next smaller that does."""
    return next(count for count in range(max(1, width // HEAD), 0, -1) if width % count == 0)


class AttentiveProbe(nn.Module):
    """One probe: [B, P, D] -> [B, C].

    Args:
        classes: C.
        width: D.
        seed: names the first weights. Queries start small, so that attention starts as the mean over patches.
        batchnorm: BatchNorm without scale and shift before the classifier, as the code of efficient probing has it
            (billpsomas/efficient-probing at b8f4fb8, probe_heads.py).
    """

    def __init__(self, classes: int, width: int, *, seed: int, batchnorm: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False, eps=1e-6) if batchnorm else nn.Identity()
        count = queries_of(width)
        random = seeding.generator(seeding.Purpose.TRANSFER_WEIGHTS, seed)

        def normal(deviation: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.from_numpy(random.normal(0, deviation, shape)).float())

        self.queries = normal(0.02, count, width)  # [M, D]
        self.values = normal(width**-0.5, count, width // count, width)  # [M, D / M, D]: each query's own channels
        self.weight = normal(0.01, classes, width)
        self.bias = nn.Parameter(torch.zeros(classes))

    def attention(self, patches: Tensor) -> Tensor:
        """Where each query looks, [B, M, P]; over the patches of an image it sums to 1."""
        scores = self.queries @ patches.transpose(1, 2) * patches.shape[2] ** -0.5
        attention: Tensor = scores.softmax(2)
        return attention

    def forward(self, patches: Tensor) -> Tensor:
        """Scores of the classes."""
        seen = self.attention(patches) @ patches  # [B, M, D]: averaged first, then projected, which costs P times less
        pooled = torch.einsum("bmd,mvd->bmv", seen, self.values).flatten(1)
        return F.linear(self.norm(pooled), self.weight, self.bias)


class AttentiveBank:
    """H attentive probes that see the same batches, each with its own learning rate and weight decay.

    AdamW moves each, with CAPI's betas; biases do not decay. All start equal. Rows are those of "patches", [B, P D].

    Args:
        classes: C.
        width: D.
        lr: learning rate of each probe.
        weight_decay: of each.
        seed: names the first weights.
        device: where the probes are.
        dtype: of weights and arithmetic.
        batchnorm: see `AttentiveProbe`.

    Raises:
        UserError: there is BatchNorm, and several processes, whose batches it would not see together.
    """

    def __init__(
        self,
        classes: int,
        width: int,
        *,
        lr: Sequence[float],
        weight_decay: Sequence[float],
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        batchnorm: bool = False,
    ) -> None:
        if batchnorm and world_size() > 1:
            raise UserError.on_all_ranks("attentive-bn sees a batch at once: run it in one process")
        self.classes, self.width = classes, width
        self.device, self.dtype = torch.device(device), dtype
        self.probes = [AttentiveProbe(classes, width, seed=seed, batchnorm=batchnorm).to(device, dtype) for _ in lr]
        self._lr = [rate for rate in lr for _ in range(2)]  # of the groups below
        groups = [
            {"params": parameters, "lr": rate, "weight_decay": decay}
            for probe, rate, one in zip(self.probes, lr, weight_decay, strict=True)
            for parameters, decay in (([probe.queries, probe.values, probe.weight], one), ([probe.bias], 0.0))
        ]
        self._optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))

    def __len__(self) -> int:
        """H."""
        return len(self.probes)

    def step(self, rows: Tensor, labels: Tensor, *, whole: int, scale: float = 1.0) -> Tensor:
        """One step of every probe on this rank's share of a batch; see `HeadBank.step`.

        Args:
            rows: [B, P D]; B may be 0, and differ between ranks.
            labels: [B] int64.
            whole: images of the whole batch, all ranks together.
            scale: the schedule's factor of every learning rate.

        Returns:
            This rank's part [H] of each probe's mean loss before the step.
        """
        patches = self._patches(rows)
        self._train(training=len(rows) > 1)  # one image has no statistics
        losses = torch.stack(
            [F.cross_entropy(probe(patches), labels, reduction="sum") / whole for probe in self.probes]
        )
        self._optimizer.zero_grad()
        losses.sum().backward()
        for group, rate in zip(self._optimizer.param_groups, self._lr, strict=True):
            group["lr"] = rate * scale
            for parameter in group["params"]:
                parameter.grad = sum_over_ranks(parameter.grad)
        self._optimizer.step()
        self._train(training=False)
        return losses.detach()

    def _train(self, *, training: bool) -> None:
        for probe in self.probes:
            probe.train(training)

    @torch.no_grad()
    def score(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Right answers [H] and mean loss [H] of rows [N, P D]; see `HeadBank.score`."""
        right, loss = torch.zeros(len(self), dtype=torch.int64), torch.zeros(len(self), dtype=torch.float64)
        known = labels < self.classes
        for patches, targets in self._chunks(rows[known], labels[known]):
            for number, probe in enumerate(self.probes):
                scores = probe(patches)
                right[number] += (scores.argmax(1) == targets).sum().cpu()
                loss[number] += F.cross_entropy(scores, targets, reduction="sum").double().cpu()
        diverged = ~loss.isfinite()
        return right.masked_fill(diverged, 0), (loss / max(1, int(known.sum()))).masked_fill(diverged, torch.inf)

    @torch.no_grad()
    def top(self, rows: Tensor, head: int, k: int = 5) -> Tensor:
        """The k likeliest classes [N, min(k, C)] of rows [N, P D] by one probe, likeliest first, on the CPU."""
        parts = [self.probes[head](self._patches(part)).topk(min(k, self.classes)) for part in rows.split(SCORED)]
        return torch.cat([part.indices.cpu() for part in parts])

    def finite(self, head: int) -> bool:
        """Whether all weights of a probe are finite."""
        return all(bool(parameter.isfinite().all()) for parameter in self.probes[head].parameters())

    def _patches(self, rows: Tensor) -> Tensor:
        return rows.to(self.device, self.dtype).view(len(rows), rows.shape[1] // self.width, self.width)

    def _chunks(self, rows: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part, targets in zip(rows.split(SCORED), labels.split(SCORED), strict=True):
            yield self._patches(part), targets.to(self.device)
