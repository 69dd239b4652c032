"""Many linear heads trained in one pass over the same features: a sweep costs one large matrix product per step."""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from excb import seeding
from excb.distributed.collectives import rank, sum_over_ranks

TRUST, EPSILON = 0.001, 1e-8  # of LARS, as SimSiam's linear evaluation sets apex's LARC
MOMENTUM = 0.9  # of all heads
SCORES_AT_ONCE = 1 << 24  # logits that scoring holds: 64 MiB in float32


class HeadBank:
    """H linear classifiers [C, D] that see the same batches, each with its own learning rate and weight decay.

    Each head is what torch.optim.SGD with momentum would make of an nn.Linear under mean cross-entropy; the gradient
    is written down, so no graph is kept. All heads start equal: weights N(0, 0.01), biases 0 (MoCo's, DINO's, ExCB's
    start), so that they differ by learning rate and weight decay alone.

    Args:
        classes: C.
        width: D.
        lr: learning rate of each head.
        weight_decay: of each head, on weights and biases as torch does.
        seed: names the first weights.
        rule: "sgd", or "lars" for a rate by the ratio of norms, tensor by tensor (apex's LARC, not clipped).
        device: where the heads are.
        dtype: of weights and arithmetic.
    """

    def __init__(
        self,
        classes: int,
        width: int,
        *,
        lr: Sequence[float],
        weight_decay: Sequence[float],
        seed: int = 0,
        rule: Literal["sgd", "lars"] = "sgd",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        assert len(lr) == len(weight_decay)
        self.classes, self.width, self._rule = classes, width, rule
        self._lr = torch.tensor(lr, device=device, dtype=dtype)
        self._weight_decay = torch.tensor(weight_decay, device=device, dtype=dtype)
        self._decays = any(weight_decay)
        first = seeding.generator(seeding.Purpose.TRANSFER_WEIGHTS, seed).normal(0, 0.01, (classes, width))
        self.weight = torch.from_numpy(first).to(device, dtype).repeat(len(lr), 1, 1)  # [H, C, D]
        self.bias = torch.zeros(len(lr), classes, device=device, dtype=dtype)  # [H, C]
        self._velocities = (torch.zeros_like(self.weight), torch.zeros_like(self.bias))

    def __len__(self) -> int:
        """H, the number of heads."""
        return len(self.bias)

    @property
    def state(self) -> dict[str, Tensor]:
        """The tensors that training changes, to be saved, or overwritten in place to resume from there."""
        velocities = dict(zip(("weight_velocity", "bias_velocity"), self._velocities, strict=True))
        return {"weight": self.weight, "bias": self.bias} | velocities

    def logits(self, features: Tensor) -> Tensor:
        """Scores [H, C, B] of features [B, D], from one product of [H * C, D] and [D, B]."""
        scores = torch.addmm(self.bias.view(-1, 1), self.weight.flatten(0, 1), features.T)
        return scores.view(*self.bias.shape, -1)

    @torch.no_grad()
    def step(self, features: Tensor, labels: Tensor, *, whole: int, scale: float = 1.0) -> Tensor:
        """One step of every head on this rank's share of a batch; all ranks call this together.

        Args:
            features: [B, D]; B may be 0, and differ between ranks.
            labels: [B] int64 class indices.
            whole: images of the whole batch, all ranks together.
            scale: the schedule's factor of every learning rate.

        Returns:
            This rank's part [H] of each head's mean loss before the step: the sum over ranks is the mean.
        """
        grad = self.logits(features).log_softmax(1)  # log-probabilities, until they become the gradient in place
        true_class = labels.expand(len(self), 1, -1)
        losses = -grad.gather(1, true_class).sum((1, 2)) / whole
        # The gradient of mean cross-entropy by the logits is (softmax - one-hot) / images.
        grad.exp_().scatter_add_(1, true_class, torch.full_like(grad[:, :1], -1)).div_(whole)
        grad = grad.flatten(0, 1)
        self._move(self.weight.flatten(0, 1), self._velocities[0].flatten(0, 1), grad, features, scale)
        ones = features.new_ones(len(features), 1)  # what a bias is multiplied with
        self._move(self.bias.view(-1, 1), self._velocities[1].view(-1, 1), grad, ones, scale)
        return losses

    def _move(self, parameter: Tensor, velocity: Tensor, grad: Tensor, inputs: Tensor, scale: float) -> None:
        """SGD with momentum on views [H * C, D] of all heads; `grad` [H * C, B] is by the logits, inputs are [B, D]."""
        if self._rule == "lars":
            gradient = sum_over_ranks(grad @ inputs)
            self._adapt(self._by_head(parameter), self._by_head(gradient))
            velocity.mul_(MOMENTUM).add_(gradient)
        else:
            # One fused product instead of two passes over large tensors. Velocities are summed over ranks, so only
            # rank 0 contributes the old one.
            velocity.addmm_(grad, inputs, beta=MOMENTUM if rank() == 0 else 0)
            velocity.copy_(sum_over_ranks(velocity))
            if self._decays:
                self._by_head(velocity).addcmul_(self._by_head(parameter), self._weight_decay.view(-1, 1, 1))
        rates = (self._lr * scale).view(-1, 1, 1)
        self._by_head(parameter).addcmul_(self._by_head(velocity), rates, value=-1)

    def _by_head(self, rows: Tensor) -> Tensor:
        """[H * C, D] as [H, C, D]."""
        return rows.view(len(self), self.classes, -1)

    def _adapt(self, parameter: Tensor, gradient: Tensor) -> None:
        """Scale gradients as LARC does. A tensor whose norm is 0, such as a first bias, is not scaled or decayed."""
        size, grad_norm = parameter.flatten(1).norm(dim=1), gradient.flatten(1).norm(dim=1)
        adapts = (size > 0) & (grad_norm > 0)
        decay = self._weight_decay * adapts
        ratio = torch.where(adapts, TRUST * size / (grad_norm + size * decay + EPSILON), 1.0)
        gradient.addcmul_(parameter, decay.view(-1, 1, 1)).mul_(ratio.view(-1, 1, 1))

    @torch.no_grad()
    def score(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Right answers and mean loss of every head.

        Args:
            features: [N, D] on any device, of any floating type.
            labels: [N] int64; those from C on are of no class that the heads know, and always wrong.

        Returns:
            Right answers [H] int64 and mean cross-entropy over known classes [H] float64, both on the CPU. A head that
            diverged has no right answer and an infinite loss.
        """
        right, loss = torch.zeros(len(self), dtype=torch.int64), torch.zeros(len(self), dtype=torch.float64)
        labelled = labels < self.classes
        for rows, targets in self._chunks(features[labelled], labels[labelled]):
            scores = self.logits(rows).log_softmax(1)
            right += (scores.argmax(1) == targets).sum(1).cpu()
            loss -= scores.gather(1, targets.expand(len(self), 1, -1)).sum((1, 2)).double().cpu()
        diverged = ~loss.isfinite()
        return right.masked_fill(diverged, 0), (loss / max(1, int(labelled.sum()))).masked_fill(diverged, torch.inf)

    @torch.no_grad()
    def top(self, features: Tensor, head: int, k: int = 5) -> Tensor:
        """The k likeliest classes [N, min(k, C)] of features [N, D] by one head, likeliest first, on the CPU."""
        weight, bias = self.weight[head], self.bias[head]
        rows = [
            torch.addmm(bias, chunk.to(weight), weight.T).topk(min(k, self.classes)).indices.cpu()
            for chunk in features.split(self._rows_at_once)
        ]
        return torch.cat(rows)

    def finite(self, head: int) -> bool:
        """Whether all weights of a head are finite."""
        return bool(self.weight[head].isfinite().all())

    @property
    def _rows_at_once(self) -> int:
        return max(1, SCORES_AT_ONCE // self.bias.numel())

    def _chunks(self, features: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and labels where the heads are, a piece at a time."""
        size = self._rows_at_once
        for rows, targets in zip(features.split(size), labels.split(size), strict=True):
            yield rows.to(self.weight), targets.to(self.weight.device)
