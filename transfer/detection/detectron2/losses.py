"""Detectron2's trainers, reading a step's losses while the next step runs: theirs wait for every backward pass."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from excb.distributed.machine import start_copy

# After .model, which silences the warnings of Detectron2's first import.
from . import model as _model  # noqa: F401  # isort: skip
from detectron2.engine import AMPTrainer, HookBase, SimpleTrainer  # isort: skip


class Detectron2Trainer(SimpleTrainer):  # type: ignore[misc]
    """Detectron2's trainer. Losses are written with the next step's, or by `write_pending`, under their own number."""

    _pending: Callable[[], None] | None = None

    def write_pending(self) -> None:
        """Write the newest step's losses, if they are not written yet; all ranks call this after the same step.

        Raises:
            FloatingPointError: their sum is not finite.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending()

    def _write_metrics(
        self,
        loss_dict: Mapping[str, Tensor],
        data_time: float,
        prefix: str = "",
        iter: int | None = None,  # noqa: A002 - Detectron2's name
    ) -> None:
        self.write_pending()
        names, step = list(loss_dict), self.iter if iter is None else iter
        copied = start_copy(torch.stack([loss.detach().float() for loss in loss_dict.values()]))

        def write() -> None:
            SimpleTrainer.write_metrics(dict(zip(names, copied(), strict=True)), data_time, step, prefix)

        self._pending = write


class MixedPrecisionTrainer(Detectron2Trainer, AMPTrainer):  # type: ignore[misc]
    """The same with automatic mixed precision."""


class WriteLosses(HookBase):  # type: ignore[misc]
    """Has the losses written before what needs them: a checkpoint, which a diverged step must not reach, and curves.

    Args:
        every: steps between two of each of these; the last step counts, too.
    """

    def __init__(self, *every: int) -> None:
        self._every = every

    def after_step(self) -> None:
        """Write the losses if something needs them after this step."""
        done = self.trainer.iter + 1
        if done == self.trainer.max_iter or any(done % each == 0 for each in self._every):
            self.trainer.write_pending()
