"""The interface of all objectives, and what a step's comparison with the teachers returns.

Letters: V views of the student, T views of the teacher, B images of this rank, D width of the teacher's features.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from .settings import DistilSettings


@dataclass(frozen=True)
class Targets:
    """One teacher's outputs for a batch, as they come from the network."""

    rows: Tensor | None  # [T, B, D]: of the image (T = 1), of every view (T = V), or of the global ones (T = G)
    # For each resolution of the student's views [v, B, D, h, w]; None where no maps are compared.
    maps: tuple[Tensor, ...] | None = None


class Objective(nn.Module):
    """Compares a student's predictions with a teacher's features.

    Predictions and targets are in float32 or float64, targets without gradient. What an objective remembers of earlier
    batches is in buffers, and so in checkpoints.

    Args:
        settings: of the run.
        width: D.
    """

    def __init__(self, settings: DistilSettings, width: int) -> None:
        super().__init__()
        self.settings, self.width = settings, width

    @staticmethod
    def chance(settings: DistilSettings, batch: int) -> float:
        """The loss of a student that learns nothing, of batches of so many images; of a distance, 1."""
        del settings, batch
        return 1.0

    def start(self, samples: Tensor, *, seed: int) -> None:
        """Take in targets of a sample of the training images, [N, D] unit rows, before the first step; on rank 0."""

    def forward(self, predicted: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        """The loss of this rank's images, [], whose mean over ranks is that of the batch.

        Args:
            predicted: of every view, [V, B, D].
            targets: unit rows [T, B, D].
            weights: of every pair of a target and a view, [T, V].

        Returns:
            The loss, and what `update` needs of the batch, with the images in its first dimension.
        """
        raise NotImplementedError

    def update(self, pending: Tensor) -> None:
        """Take in the batch after the optimizer's step: `pending` of all micro-batches. All ranks call it."""
