"""The pretraining loop: set-up, steps, epochs; it knows when things happen, not how."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from excb.console import Progressor, Reporter, duration
from excb.errors import UserError
from excb.images import ImageSet
from excb.machine import choose_device, worker_count
from excb.results import environment

from . import curves
from .data import BrokenFiles, loader
from .initialise import build_model, start_from, state_tensors
from .journal import EpochStatistics, Journal
from .monitor import Monitor
from .optim import Schedules, build_optimizer
from .recipes import Recipe
from .run_state import CURVES, RunFolder, describe
from .signals import StopRequest
from .step import Trainer

CURVES_SECONDS = 30.0  # between drawings of curves.png while training


@dataclass
class Progress:
    """How far a run is; with the networks' and the optimizer's state, all that a checkpoint holds."""

    step: int = 0
    seconds: float = 0.0
    images: int = 0  # seen so far, for images per second
    best: dict[str, Any] | None = None  # the epoch with the highest score
    last: dict[str, Any] | None = None  # the newest epoch's figures


def train(recipe: Recipe, images: ImageSet, out: Path, reporter: Reporter, *, table: bool = True) -> int:
    """Pretrain, or go on with the run in `out`, until it is finished or asked to stop.

    Args:
        recipe: the run's recipe.
        images: the training images.
        out: the run folder.
        reporter: where to talk.
        table: print the last epoch's figures at the end.

    Returns:
        Exit code: 0, or 128 + the signal that stopped the run.

    Raises:
        UserError: recipe, images or folder cannot make a run.
    """
    batch = recipe.optim.batch
    if len(images) < 2:
        raise UserError(f"{images.root} holds one image: pretraining needs many, a few thousand at the least")
    if batch > len(images):
        raise UserError(f"the batch of {batch} is larger than the set of {len(images)} images: lower optim.batch")
    folder = RunFolder(out)
    try:
        return Run(recipe, images, folder, reporter, table=table).go()
    finally:
        folder.close()


class Run:
    """One process's part of a run.

    Args:
        recipe: the run's recipe.
        images: the training images.
        folder: the run folder, locked.
        reporter: where to talk.
        table: print the last epoch's figures at the end.
    """

    def __init__(
        self, recipe: Recipe, images: ImageSet, folder: RunFolder, reporter: Reporter, *, table: bool = True
    ) -> None:
        self.recipe, self.images, self.folder, self.reporter, self._table = recipe, images, folder, reporter, table
        device = choose_device(recipe.efficiency.device)
        self.workers = worker_count(recipe.efficiency.workers)
        model = build_model(recipe)
        folder.begin(recipe, images)
        resumed = folder.resume(reporter.warn)
        if resumed is None and recipe.init is not None:
            reporter.note(start_from(model, recipe, images))
        schedules = Schedules(recipe.optim, recipe.method, len(images) // recipe.optim.batch)
        model.to(device)
        if recipe.efficiency.channels_last:
            model.to(memory_format=torch.channels_last)
        self.trainer = Trainer(model.train(), build_optimizer(model.student, recipe.optim), schedules, recipe, device)
        self.statistics = EpochStatistics(
            images,
            globals_=recipe.views.global_views,
            clusters=recipe.method.clusters,
            slots=schedules.steps_per_epoch * recipe.optim.batch,
            device=device,
        )
        self.monitor = Monitor(
            images, recipe.monitor, recipe.views, seed=recipe.run.seed, device=device, workers=self.workers
        )
        self.broken = BrokenFiles()
        self.progress = Progress()
        if resumed is not None:
            self._restore(resumed)

    def go(self) -> int:
        """Train from where the run is to its end."""
        schedules, progress = self.trainer.schedules, self.progress
        if progress.step >= schedules.steps:
            self.reporter.note(f"the run in {self.folder.path} is finished: {schedules.steps} steps")
            self._finish()
            return 0
        if progress.step:
            epoch = progress.step / schedules.steps_per_epoch
            self.reporter.note(f"going on in {self.folder.path} from step {progress.step} (epoch {epoch:.2f})")
        elif self.recipe.method.centroid_init == "kmeans" and self.recipe.init is None:
            self._start_centroids()
        self.journal = Journal(self.folder.path, step=progress.step)
        try:
            with (
                StopRequest() as stop,
                self.reporter.progress(self.recipe.name, schedules.steps, done=progress.step) as bar,
            ):
                self._train(stop, bar)
        finally:
            self.journal.close()
        if stop.received is not None:
            self.reporter.note(f"stopped by {stop.received.name} after step {progress.step}: the same command goes on")
            return stop.exit_code
        self._finish()
        return 0

    def _train(self, stop: StopRequest, bar: Progressor) -> None:
        """Step after step, epoch after epoch."""
        recipe, schedules, progress = self.recipe, self.trainer.schedules, self.progress
        batches = loader(
            self.images,
            recipe.views,
            seed=recipe.run.seed,
            epochs=recipe.optim.epochs,
            batch=recipe.optim.batch,
            start=progress.step,
            stop=schedules.steps,
            workers=self.workers,
            pin_memory=self.trainer.device.type == "cuda",
        )
        drawn = clock = time.monotonic()
        for batch in batches:
            for file in self.broken.count(batch):
                self.reporter.warn(f"{file.path} cannot be read ({file.reason}); {file.replacement} takes its place")
            output = self.trainer.step(batch, progress.step)
            self.statistics.add(output, batch)
            progress.step += 1
            progress.images += recipe.optim.batch
            now = time.monotonic()
            progress.seconds, clock = progress.seconds + now - clock, now
            if progress.step % recipe.run.log_steps == 0:
                self._log_step(output.loss.item(), bar)
            if progress.step % schedules.steps_per_epoch == 0:
                self._end_epoch()
                if now - drawn > CURVES_SECONDS:
                    self._draw()
                    drawn = time.monotonic()
            elif stop.received is not None or (recipe.run.save_steps and progress.step % recipe.run.save_steps == 0):
                self._save()
            bar.advance()
            if stop.received is not None:
                break

    def _log_step(self, loss: float, bar: Progressor) -> None:
        """Write a step's line and show it."""
        progress, schedules = self.progress, self.trainer.schedules
        done = progress.step - 1
        if not math.isfinite(loss):
            raise self._diverged(f"the loss is {loss}")
        speed = progress.images / max(progress.seconds, 1e-9)
        epoch = progress.step / schedules.steps_per_epoch
        self.journal.write(
            "step",
            progress.step,
            {
                "epoch": epoch,
                "loss": loss,
                "learning_rate": schedules.learning_rate(done),
                "weight_decay": schedules.weight_decay(done),
                "centroid_decay": schedules.centroid_decay(done),
                "teacher_momentum": schedules.teacher_momentum(done),
                "images_per_second": speed,
            },
        )
        bar.status = f"epoch {epoch:.1f}/{self.recipe.optim.epochs}  loss {loss:.3f}  {speed:,.0f} images/s"

    def _diverged(self, what: str) -> UserError:
        return UserError(
            f"{what} at step {self.progress.step}: lower optim.base_lr or use efficiency.precision=fp32; nothing of it "
            "was saved, the checkpoints are from before"
        )

    def _end_epoch(self) -> None:
        """Sum up the epoch, measure if it is time, and save."""
        progress, recipe = self.progress, self.recipe
        epoch = progress.step // self.trainer.schedules.steps_per_epoch
        figures: dict[str, Any] = {"epoch": epoch} | self.statistics.summary()
        self.statistics.reset()
        last = epoch == recipe.optim.epochs
        if last or epoch % recipe.monitor.every_epochs == 0:
            with self.reporter.progress(f"measuring epoch {epoch}", self.monitor.passes) as bar:
                figures |= self.monitor.measure(self.trainer.model.teacher.backbone, bar.advance)
        # The newest epoch's figures stay visible although it may not have been measured.
        progress.last = (progress.last or {}) | figures
        measured = "score" in figures
        if measured and (progress.best is None or figures["score"] >= progress.best["score"]):
            progress.best = {"step": progress.step} | figures
        self.journal.write("epoch", progress.step, figures)
        if measured or last or epoch % recipe.run.save_epochs == 0:
            self._save()

    def _save(self) -> None:
        """Write a checkpoint of everything the run is.

        Raises:
            UserError: weights are NaN or infinite; such a state never replaces a good one.
        """
        recipe, progress = self.recipe, self.progress
        tensors = state_tensors(self.trainer.model)
        wrong = [name for name, value in tensors.items() if not value.isfinite().all()]
        if wrong:
            raise self._diverged(f"{wrong[0]} holds NaN or infinity")
        contents = {
            "step": progress.step,
            "epoch": progress.step / self.trainer.schedules.steps_per_epoch,
            "architecture": {"name": recipe.model.backbone, "options": recipe.model.options},
            "preprocessing": recipe.views.preprocessing.to_dict(),
            "recipe": recipe.to_dict(),
            "data": describe(self.images),
            "model": tensors,
            "optimizer": self.trainer.optimizer.state_dict(),
            "statistics": self.statistics.state(),
            "broken": {"seen": self.broken.seen, "found": self.broken.found},
            "seconds": progress.seconds,
            "images": progress.images,
            "best": progress.best,
            "last": progress.last,
        }
        best_step = progress.best["step"] if progress.best else None
        self.folder.save(contents, step=progress.step, keep=recipe.run.keep, best_step=best_step)

    def _restore(self, contents: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.trainer.model.load_state_dict(contents["model"])
        self.trainer.optimizer.load_state_dict(contents["optimizer"])
        self.statistics.restore(contents["statistics"])
        self.broken = BrokenFiles(**contents["broken"])
        self.progress = Progress(
            contents["step"], contents["seconds"], contents["images"], contents["best"], contents["last"]
        )

    def _start_centroids(self) -> None:
        """k-means of projected training views: those of the first epoch, global views 1 and 2 in turn by batch."""
        recipe, trainer = self.recipe, self.trainer
        steps = min(trainer.schedules.steps_per_epoch, math.ceil(recipe.method.kmeans_samples / recipe.optim.batch))
        batches = loader(
            self.images,
            recipe.views,
            seed=recipe.run.seed,
            epochs=recipe.optim.epochs,
            batch=recipe.optim.batch,
            start=0,
            stop=steps,
            workers=self.workers,
            pin_memory=trainer.device.type == "cuda",
        )
        rows = []
        with self.reporter.progress("projecting views for k-means", steps) as bar:
            for number, batch in enumerate(batches):
                view = slice(number % recipe.views.global_views, number % recipe.views.global_views + 1)
                views = trainer.views(batch.global_crops[view], batch.global_parameters[view])
                assert views is not None
                rows.append(trainer.model.project(views[0]))
                bar.advance()
        trainer.model.start_centroids(torch.cat(rows), seed=recipe.run.seed)
        self.reporter.note(f"centroids start from k-means of {sum(map(len, rows))} views")

    def _draw(self) -> None:
        title = f"{self.recipe.name}, seed {self.recipe.run.seed}"
        curves.draw(self.folder.path, clusters=self.recipe.method.clusters, title=title)

    def _finish(self) -> None:
        """Draw, write `report.json`, and sum up."""
        self._draw()
        progress = self.progress
        newest = f"checkpoints/step-{progress.step}.pt"
        best = progress.best and {**progress.best, "checkpoint": f"checkpoints/step-{progress.best['step']}.pt"}
        self.folder.report(
            {
                "recipe": self.recipe.name,
                "seed": self.recipe.run.seed,
                "images": len(self.images),
                "steps": progress.step,
                "seconds": round(progress.seconds, 1),
                "images_per_second": round(progress.images / max(progress.seconds, 1e-9), 1),
                "broken_images": self.broken.found,
                "checkpoint": newest,
                "last": progress.last,
                "best": best,
                "environment": environment(),
            }
        )
        if self._table:
            rows = [[name.replace("_", " "), f"{value:,.4g}"] for name, value in (progress.last or {}).items()]
            title = f"{self.recipe.name}: {duration(progress.seconds)}, {progress.step} steps"
            self.reporter.table(title, ["last epoch", ""], rows)
        self.reporter.note(f"run folder {self.folder.path}: {newest}, {CURVES}, metrics.jsonl, report.json")
