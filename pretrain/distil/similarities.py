"""The student's similarities to other images follow the teacher's: within the batch, and to a queue of earlier ones."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from excb.distributed.collectives import gather_rows, rank
from excb.exact import similarities

from .interface import Objective
from .settings import DistilSettings


class Similarities(Objective):
    """Cross-entropy of p_t = softmax(t . k / tau_t) and p_s = softmax(s . k / tau_s) over keys k of other images.

    Keys are the teacher's: those of the batch's other images, all ranks together, and a queue, as in SEED (Fang et al.,
    ICLR 2021). An image is not a key of its own, so that p_t does not just name it.
    """

    queue: Tensor

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.register_buffer("queue", torch.zeros(self.settings.queue, self.width))

    @staticmethod
    def chance(settings: DistilSettings, batch: int) -> float:
        """The cross-entropy of a student that tells no two images apart."""
        return math.log(max(2, batch - 1 + settings.queue))

    def start(self, samples: Tensor, *, seed: int) -> None:
        """Fill the queue."""
        del seed
        rows = samples[: len(self.queue)].to(self.queue)
        self.queue[: len(rows)] = rows

    def forward(self, predicted: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """See `Objective.forward`; the batch's keys are the first target of every image."""
        images = predicted.shape[1]
        keys = gather_rows(targets[0])
        own = torch.arange(images, device=keys.device) + rank() * images
        keys = torch.cat([keys, self.queue.to(keys)])
        places = torch.arange(len(keys), device=keys.device)
        # Zeros are not keys: of a queue that is not full yet, and of images that the teacher could not read.
        excluded = (places == own[:, None]) | ~keys.any(1)  # [B, keys]
        settings = self.settings

        def scores(rows: Tensor, temperature: float) -> Tensor:
            return (similarities(rows, keys) / temperature).masked_fill(excluded, -1e9)

        target = scores(targets, settings.temperature).softmax(-1)  # [T, B, keys]
        log_p = scores(F.normalize(predicted, dim=-1), settings.student_temperature).log_softmax(-1)
        entropies = -torch.einsum("tbk,vbk->tvb", target, log_p)
        return (weights * entropies.mean(2)).sum(), targets[0]

    def update(self, pending: Tensor) -> None:
        """Let the batch's rows take the place of the oldest ones."""
        size = len(self.queue)
        if not size:
            return
        newest = gather_rows(pending).to(self.queue)
        self.queue.copy_(torch.cat([newest, self.queue])[:size])


OBJECTIVE = Similarities
