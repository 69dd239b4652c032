"""The interface of all balancers: what they see of a batch, what they return, the state that they keep."""

from dataclasses import dataclass

from torch import Tensor, nn

from excb.exact import similarities


@dataclass(frozen=True)
class TeacherBatch:
    """The teacher's similarities z_t = x . c_k of a batch, held as what they are computed from."""

    queries: Tensor  # [R, D] unit rows of this process
    centroids: Tensor  # [K, D] unit rows of the teacher
    sizes: Tensor  # [K] relative cluster sizes s
    step_key: int  # `seeding.fold(seed, step)`, equal on all processes

    def similarities(self) -> Tensor:
        """z_t as one matrix [R, K], for balancers that need it whole."""
        return similarities(self.queries, self.centroids)


class Balancer(nn.Module):
    """A way to balance clusters. What it remembers of earlier batches is in buffers, and so in checkpoints.

    A balancer implements `affine`, or where it is not affine per cluster `probabilities`. It is listed in
    `excb.balancing.table`, and states its cost here for `excb-pretrain plan`.
    """

    passes: int = 0  # over the batch's similarities in a step, besides the one that assigns
    exchanges: int = 0  # all_reduces of K numbers in a step, besides the one of the cluster sizes

    def affine(self, batch: TeacherBatch) -> tuple[Tensor, Tensor]:
        """Return scale [K] and offset [K] of z^B = scale * z + offset, where p_t = softmax(z^B / tau_t).

        They are equal on all processes, which call it together. Gradients are off, and no state changes.
        """
        raise NotImplementedError

    def probabilities(self, batch: TeacherBatch) -> Tensor | None:
        """Return p_t [R, K] where the balancer is not affine per cluster, else None.

        All processes call it together. Gradients are off, and no state changes. The loss then holds matrices of rows x
        clusters, as `excb.objective.plain` does.
        """

    @property
    def is_affine(self) -> bool:
        """Whether it balances by `affine`, so the loss needs no matrix of rows x clusters."""
        return type(self).probabilities is Balancer.probabilities

    def statistic(self, batch: TeacherBatch) -> Tensor | None:
        """Return what `update` needs of this process's batch, a mean over its rows; None: nothing."""

    def set_progress(self, progress: float) -> None:
        """Set what changes over a run; called before each step with the share of the run that is done, 0 at first."""

    def update(self, statistic: Tensor | None) -> None:
        """Take in the batch. All processes call it, after the optimizer's step."""
