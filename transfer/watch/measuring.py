"""The evaluation of one checkpoint of a watched run: the protocol on images that are opened once for all of them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from excb.console import Reporter
from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError
from excb.networks.backbone import weights_hash
from excb.results.result import ResultRecord

from ..opening import task_on, warn_of_unknown
from ..options import LabelledOptions
from .setup import Asked

if TYPE_CHECKING:
    import torch

    from excb.images.image_set import Images

    from ..task import Task


class SaidOnce(Reporter):
    """A reporter that repeats no message: every checkpoint gives rise to the same ones."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._said = set[str]()

    def _say(self, text: str, style: str) -> None:
        if text not in self._said:
            self._said.add(text)
            super()._say(text, style)


@dataclass(frozen=True)
class Measuring:
    """Evaluates checkpoints; all ranks call it together.

    Attributes:
        asked: the protocol.
        train: labelled images.
        test: other images of the same classes.
        device: where to compute.
        scratch: keeps features and unfinished trainings of the checkpoint at hand, so that a restart resumes them.
            Features are kept elsewhere where `--cache` names a folder.
        reporter: prints notes and progress.
    """

    asked: Asked
    train: "Images"
    test: "Images"
    device: "torch.device"
    scratch: Path
    reporter: Reporter

    def __call__(self, step: int, file: Path, known: str | None) -> ResultRecord | None:
        """See `watching.Measure`.

        Raises:
            UserError: the backbone or an image cannot be used.
        """
        wanted = self.asked.evaluation
        cache = wanted.shared.cache or self.scratch / "features"
        evaluation = replace(wanted, shared=replace(wanted.shared, ckpt=str(file), cache=cache))
        if (task := self._task(evaluation.shared, file)) is None:
            return None
        weights, protocol = weights_hash(task.backbone.network), evaluation.protocol
        if weights == known:
            return None
        if protocol.state and protocol.keeps_state(evaluation.own):
            state = self.scratch / "state" / f"step-{step}-{weights[:12]}{protocol.state_suffix}"
            evaluation = replace(evaluation, own=replace(evaluation.own, **{protocol.state: state}))
        warn_of_unknown(task, self.reporter, protocol.unknown(evaluation.own))
        evaluation.check()
        return evaluation.measure(task, self.reporter).result

    def _task(self, shared: LabelledOptions, file: Path) -> "Task | None":
        """The checkpoint with the images; None where the run has removed its file meanwhile."""
        try:
            return task_on(shared, self.train, self.test, self.device)
        except UserError:
            if run_on_rank0(file.is_file):
                raise
            return None
