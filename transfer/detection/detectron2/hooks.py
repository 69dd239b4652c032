"""Hooks around the steps of Detectron2's trainer: seeding, progress, checkpoints, stopping."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from excb import seeding
from excb.charts.tensorboard import TensorBoardWriter
from excb.checkpoint import run_checkpoint
from excb.checkpoint.same_run import require_same_run
from excb.console import Progressor
from excb.distributed.collectives import rank, world_size
from excb.distributed.signals import StopRequest
from excb.errors import UserError
from excb.files.atomic import write_text

from ..setup.job import Job
from ..setup.samples import Loader
from .losses import Detectron2Trainer
from .model import inputs

# After .model, which silences the warnings of Detectron2's first import.
from detectron2.checkpoint import DetectionCheckpointer  # isort: skip
from detectron2.engine import HookBase  # isort: skip
from detectron2.utils.events import EventWriter, get_event_storage  # isort: skip

CHECKPOINTS = "checkpoints"
KEPT = 2  # number of newest checkpoints kept
SMOOTHED = 20  # newest values of a scalar, whose median is written


class Batches:
    """This rank's batches from step `start` on, as Detectron2 takes them; `note` is printed when iteration starts.

    Detectron2 keeps the iterator for as long as the trainer lives: `close` ends its worker processes.
    """

    def __init__(self, job: Job, start: int, note: str = "") -> None:
        self._job, self._start, self._note = job, start, note
        self._opened: list[Generator[list[dict[str, Any]]]] = []

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        """Lists of dicts, one for each image."""
        self._opened.append(self._batches())
        return self._opened[-1]

    def close(self) -> None:
        """End every iteration that is open."""
        for batches in self._opened:
            batches.close()

    def _batches(self) -> Generator[list[dict[str, Any]]]:
        job = self._job
        if self._note and rank() == 0:
            job.reporter.note(self._note)
        loader = Loader(
            job.train, job.settings, start=self._start, rank=rank(), world=world_size(), workers=job.workers
        )
        for batch in loader:
            yield inputs(batch, job.settings, training=True)


class SeedStep(HookBase):  # type: ignore[misc]
    """Seeds every step, so that the sampled regions are a function of seed, step and rank."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def before_step(self) -> None:
        """Seed torch's generators on all devices."""
        torch.manual_seed(seeding.fold(seeding.Purpose.STEP, self._seed, self.trainer.iter, rank()))


class ProgressLine(HookBase):  # type: ignore[misc]
    """The project's progress line; `bar` is set before training."""

    bar: Progressor

    def after_step(self) -> None:
        """Count the step."""
        loss = self.trainer.storage.latest().get("total_loss")  # only rank 0 has it
        self.bar.status = f"loss {loss[0]:.3f}" if loss else ""
        self.bar.advance()


class ScalarWriter(EventWriter):  # type: ignore[misc]
    """Writes Detectron2's scalars with the project's TensorBoard writer."""

    def __init__(self, writer: TensorBoardWriter) -> None:
        self._writer, self._last = writer, -1

    def write(self) -> None:
        """Write what is newer than the last call."""
        newest = get_event_storage().latest_with_smoothing_hint(SMOOTHED)
        for name, (value, step) in newest.items():
            if step > self._last:
                self._writer.add_scalars({name: value}, step)
        self._last = max((step for _, step in newest.values()), default=self._last)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class StoppedError(BaseException):
    """A signal asked to stop, and a checkpoint is saved. Detectron2 would log an `Exception` as a failure."""


class StopHook(HookBase):  # type: ignore[misc]
    """Leaves the loop after a step during which a signal arrived (it asks `stop`), except after the last step."""

    def __init__(self, checkpoints: "Checkpoints", stop: StopRequest) -> None:
        self._checkpoints, self._stop = checkpoints, stop

    def after_step(self) -> None:
        """Save a checkpoint and raise StoppedError, which leaves the loop, if a signal arrived."""
        step = self.trainer.iter
        if step + 1 < self.trainer.max_iter and self._stop.agreed():
            self.trainer.write_pending()
            self._checkpoints.save(f"model_{step:07d}", iteration=step)
            raise StoppedError


class Checkpoints(DetectionCheckpointer):  # type: ignore[misc]
    """Detectron2's checkpoints, written atomically, read without running code, and refused if of another run.

    Args:
        network: the model, not wrapped in DDP.
        job: has the folder and the identity of the run.
        trainer: whose state is saved too; None for prediction only.
    """

    def __init__(self, network: nn.Module, job: Job, trainer: Detectron2Trainer | None = None) -> None:
        super().__init__(network, str(job.folder / CHECKPOINTS), **({} if trainer is None else {"trainer": trainer}))
        self._identity = job.training | {"engine": "detectron2"}

    def save(self, name: str, **extra: Any) -> None:
        """Write a checkpoint and remove all but the newest ones.

        Raises:
            UserError: it cannot be written; older ones are untouched.
        """
        if not self.save_to_disk:
            return
        parts = {key: part.state_dict() for key, part in self.checkpointables.items()}
        contents = {"model": dict(self.model.state_dict()), "identity": self._identity} | parts | extra
        folder = Path(self.save_dir)
        run_checkpoint.write_run_checkpoint(contents, folder / f"{name}.pth")
        self.tag_last_checkpoint(f"{name}.pth")
        for old in sorted(folder.glob("model_*.pth"))[:-KEPT]:  # model_final.pth sorts last
            old.unlink()

    def tag_last_checkpoint(self, last_filename_basename: str) -> None:
        """Write the newest checkpoint's name into the file that Detectron2 reads."""
        write_text(last_filename_basename, Path(self.save_dir) / "last_checkpoint")

    def restore(self) -> int:
        """Load the newest checkpoint, if there is one, and return the number of completed steps.

        Raises:
            UserError: it is damaged, or of another run.
        """
        if not (newest := self.get_checkpoint_file()):
            return 0
        try:
            contents = run_checkpoint.read_run_checkpoint(Path(newest))
        except run_checkpoint.DamagedFileError as error:
            raise UserError(f"{error}: write an older one's name into {self.save_dir}/last_checkpoint") from None
        require_same_run(newest, contents.get("identity"), self._identity, advice="choose another folder")
        self.model.load_state_dict(contents["model"])
        for name, part in self.checkpointables.items():
            part.load_state_dict(contents[name])
        return int(contents["iteration"]) + 1
