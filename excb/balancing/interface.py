"""What every way of balancing clusters is: one affine map per cluster of the teacher's similarities, and its state."""

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class TeacherBatch:
    """The teacher's similarities z_t = x . c_k of a batch, as what they are computed from."""

    queries: Tensor  # [R, D] unit rows of this process
    centroids: Tensor  # [K, D] unit rows of the teacher
    sizes: Tensor  # [K] relative cluster sizes s
    step_key: int  # `seeding.fold(seed, step)`, equal on all processes


class Balancer(nn.Module):
    """A way to balance clusters; what it remembers of earlier batches is in buffers, and so in checkpoints."""

    def affine(self, batch: TeacherBatch) -> tuple[Tensor, Tensor]:
        """Return scale [K] and offset [K] of z^B = scale * z + offset, where p_t = softmax(z^B / tau_t).

        They are equal on all processes, which call it together. Gradients are off, and no state changes.
        """
        raise NotImplementedError

    def statistic(self, batch: TeacherBatch) -> Tensor | None:
        """What `update` needs of this process's batch, a mean over its rows; None: nothing."""

    def update(self, statistic: Tensor | None) -> None:
        """After the optimizer's step: take in the batch. Called by all processes."""
