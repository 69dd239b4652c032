"""The pretraining loop: set-up, steps, epochs; it knows when things happen, not how."""

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from excb.console import Progressor, Reporter
from excb.distributed.collectives import all_succeed, broadcast, mean_over_ranks, rank, run_on_rank0, world_size
from excb.distributed.machine import choose_device
from excb.distributed.signals import StopRequest
from excb.distributed.workers import ReadingError, watch_workers, worker_count
from excb.errors import UserError
from excb.images.image_set import CodedImages
from excb.method import ExCB, Step

from .data.loader import Batch, BrokenFiles, loader
from .data.prefetch import prefetch_to_device
from .data.stream_images import StreamImages
from .data.stream_order import State, StreamSchedule, all_lanes, lanes_of, told
from .figures import curves
from .initialise import build_model, start_centroids, start_from, state_tensors
from .optim import Schedules, build_optimizer
from .recipe import Recipe
from .run.alarms import Alarm, Health, Memory, coincident
from .run.journal import EpochStatistics, Journal
from .run.monitor import Monitor, StoppedError
from .run.profiling import StepProfile
from .run.progress import Progress, report, sum_up
from .run.remote_mirror import Place
from .run.run_folder import RunFolder, arithmetic, describe, numerics_changed
from .step import NotFiniteError, Trainer, prepare

T = TypeVar("T")
CURVES_SECONDS = 30.0  # between drawings of curves.png while training


def train(
    recipe: Recipe,
    images: CodedImages | StreamImages,
    out: Path | Place,
    reporter: Reporter,
    *,
    device: torch.device | None = None,
    table: bool = True,
    profile: bool = False,
) -> int:
    """Pretrain, or go on with the run in `out`, until it is finished or asked to stop.

    Args:
        recipe: the run's recipe.
        images: the training images, the same in all processes.
        out: the run folder, perhaps kept at a URL; process 0 alone uses it.
        reporter: where to talk.
        device: where this process trains; by default the recipe's.
        table: print the last epoch's figures at the end.
        profile: record a few steps and say where their time goes.

    Returns:
        Exit code: 0, or 128 + the signal that stopped the run.

    Raises:
        UserError: recipe, images or folder cannot make a run, or the loss is not finite any more.
    """
    all_succeed(lambda: _check(recipe, images))
    if isinstance(images, StreamImages):
        reporter.note(told(images, recipe.optim.batch, lanes_of(images, recipe.optim.batch, world_size())))
    device = device or choose_device(recipe.efficiency.device)
    folder: RunFolder | None = None
    place = Place(out) if isinstance(out, Path) else out

    def lock() -> None:
        nonlocal folder
        folder = RunFolder(place, reporter.warn)

    run_on_rank0(lock)
    try:
        return Run(recipe, images, folder, reporter, device, table=table, profile=profile).go()
    finally:
        if folder is not None:
            folder.close()


def _check(recipe: Recipe, images: CodedImages | StreamImages) -> None:
    """Refuse what cannot make a run."""
    if len(images) < 2:
        raise UserError(f"{images.root} holds one image: pretraining needs many, a few thousand at the least")
    recipe.steps_per_epoch(len(images))
    recipe.micro_batch(world_size())
    if isinstance(images, StreamImages):
        lanes_of(images, recipe.optim.batch, world_size())


def _build(recipe: Recipe) -> ExCB:
    """The model of a recipe, unless its batches are too small for it."""
    model, accumulate = build_model(recipe), recipe.efficiency.accumulate
    if recipe.optim.batch // accumulate < 2 and any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise UserError(
            f"BatchNorm needs two images at once: raise optim.batch to {2 * accumulate}, or lower efficiency.accumulate"
        )
    return model


class Run:
    """One process's part of a run; process 0 alone writes files and talks.

    Args:
        recipe: the run's recipe.
        images: the training images.
        folder: the run folder, locked; None but in process 0.
        reporter: where to talk.
        device: where this process trains.
        table: print the last epoch's figures at the end.
        profile: record a few steps.
    """

    def __init__(
        self,
        recipe: Recipe,
        images: CodedImages | StreamImages,
        folder: RunFolder | None,
        reporter: Reporter,
        device: torch.device,
        *,
        table: bool = True,
        profile: bool = False,
    ) -> None:
        self.recipe, self.images, self.folder, self.reporter, self._table = recipe, images, folder, reporter, table
        self.workers = worker_count(recipe.efficiency.workers)
        self.stream: StreamSchedule | None = None
        self._stream_state: State | None = None
        # What can be asked for by its number: of a stream, a few images.
        self.stored = all_succeed(lambda: images.kept) if isinstance(images, StreamImages) else images
        model = all_succeed(lambda: _build(recipe))
        resumed = run_on_rank0(self._resume)
        if resumed is None and recipe.init is not None:
            reporter.note(run_on_rank0(lambda: start_from(model, recipe, images)))
        schedules = Schedules(recipe.optim, recipe.method, recipe.steps_per_epoch(len(images)))
        model = prepare(model, recipe, device)
        optimizer = build_optimizer(model.student, recipe.optim, fused=recipe.efficiency.fused)
        self.trainer = Trainer(model, optimizer, schedules, recipe, device)
        self.statistics = EpochStatistics(
            images,
            globals_=recipe.views.global_views,
            clusters=recipe.method.clusters,
            slots=schedules.steps_per_epoch * recipe.optim.batch // world_size(),
            device=device,
        )
        self.monitor = Monitor(
            self.stored, recipe.monitor, recipe.views, seed=recipe.run.seed, device=device, workers=self.workers
        )
        self.broken = BrokenFiles()
        self.progress = Progress()
        self.arithmetic = arithmetic(device)
        if resumed is not None:
            self._restore(resumed)
        assignments = schedules.steps_per_epoch * recipe.optim.batch * recipe.views.global_views
        self.health = Health(recipe, assignments=assignments, memory=Memory(**self.progress.health))
        self.profile = StepProfile(folder.path) if profile and folder is not None else None
        broadcast(model.state_dict().values())

    def _resume(self) -> dict[str, Any] | None:
        assert self.folder is not None
        self.folder.begin(self.recipe, self.images)
        return self.folder.resume(self.reporter.warn)

    def go(self) -> int:
        """Train from where the run is to its end."""
        schedules, progress = self.trainer.schedules, self.progress
        if progress.step >= schedules.steps and not self.statistics.complete:
            self.reporter.note(f"the run is finished: {schedules.steps} steps")
            self._finish()
            self._leave()
            return 0
        if progress.step:
            epoch = progress.step / schedules.steps_per_epoch
            self.reporter.note(f"going on from step {progress.step} (epoch {epoch:.2f})")
        with StopRequest() as stop:
            asked = self._go(stop)
            if asked and stop.received is not None:
                told = f"stopped by {stop.received.name} after step {progress.step}: the same command goes on"
                self.reporter.note(told)
            else:
                self._finish()
            self._leave()  # a first signal that comes meanwhile waits for it
        return stop.exit_code if asked else 0

    def _go(self, stop: StopRequest) -> bool:
        """Start the centroids where that is due, and train; whether the run was asked to stop."""
        folder, step = self.folder.path if self.folder else None, self.progress.step
        with Journal(folder, step=step, wandb=self._wandb()) as self.journal:
            kmeans = self.recipe.method.centroid_init == "kmeans" and self.recipe.init is None and not step
            try:
                if kmeans and self._start_centroids(stop):
                    return True
                with self.reporter.progress(self.recipe.name, self.trainer.schedules.steps, done=step) as bar:
                    return self._train(stop, bar)
            except ReadingError as error:
                raise self._unread(error) from None

    def _leave(self) -> None:
        """Wait until the run is where it is kept, all processes together."""

        def finish() -> None:
            assert self.folder is not None
            self.folder.finish()

        run_on_rank0(finish)

    def _wandb(self) -> dict[str, Any] | None:
        """What Weights & Biases is told of the run, if it is wanted."""
        if self.recipe.monitor.wandb is None or self.folder is None:
            return None
        return {
            "project": self.recipe.monitor.wandb,
            "name": self.folder.path.name,
            "config": self.recipe.to_dict(),
        }

    def _train(self, stop: StopRequest, bar: Progressor) -> bool:
        """Step after step, epoch after epoch; whether the run was asked to stop."""
        recipe, schedules, progress = self.recipe, self.trainer.schedules, self.progress
        if self._late_end(stop):
            return True
        batches = prefetch_to_device(self._batches(progress.step, schedules.steps), self.trainer.device)
        drawn = clock = time.monotonic()
        for batch in batches:
            output, norm = self._step(batch)
            now = time.monotonic()
            progress.seconds, clock = progress.seconds + now - clock, now
            asked = stop.agreed()
            logs = progress.step % recipe.run.log_steps == 0
            due = asked or (recipe.run.save_steps is not None and progress.step % recipe.run.save_steps == 0)
            if logs or self.statistics.complete:
                self._synchronize()
            if logs:
                self._log_step(float(mean_over_ranks(output.loss)), float(norm), bar)
            if self.statistics.complete and not asked:
                measured, asked = self._end_epoch(stop)
                due |= measured or asked
            if due:
                self._save()
            if now - drawn > CURVES_SECONDS and progress.step % schedules.steps_per_epoch == 0:
                self._draw()
                drawn = now
            bar.advance()
            if asked:
                return True
        if self.profile is not None and (told := self.profile.close()):
            self.reporter.note(told)
        return False

    def _batches(self, start: int, stop: int) -> Iterable[Batch]:
        """This process's part of the batches from one step to another."""
        recipe, efficiency, images = self.recipe, self.recipe.efficiency, self.images
        if isinstance(images, StreamImages):
            before = self._stream_state if start else None
            broadcast, batch, seed = (rank(), world_size()), recipe.optim.batch, recipe.run.seed
            self.stream = all_succeed(
                lambda: StreamSchedule(images, batch, seed=seed, start=start, stop=stop, share=broadcast, state=before)
            )
        batches = loader(
            self.stored,
            recipe.views,
            seed=recipe.run.seed,
            epochs=recipe.optim.epochs,
            batch=recipe.optim.batch,
            start=start,
            stop=stop,
            workers=self.workers,
            pin_memory=self.trainer.device.type == "cuda",
            prefetch=efficiency.prefetch,
            scaled_decoding=efficiency.scaled_decoding,
            decoder=efficiency.decoder,
            schedule=self.stream,
        )
        return watch_workers(batches)

    def _step(self, batch: Batch) -> tuple[Step, torch.Tensor]:
        """One step and what is counted of it."""
        for file in self.broken.count(batch):
            self.reporter.warn(f"{file.path} cannot be read ({file.reason}); {file.replacement} takes its place")
        if self.profile is not None:
            self.profile.data_came()
        output, norm = self._unless_diverged(lambda: self.trainer.step(batch, self.progress.step))
        if self.profile is not None and (told := self.profile.step_done()):
            self.reporter.note(told)
        self.statistics.add(output, batch)
        self.progress.step += 1
        self.progress.images += self.recipe.optim.batch
        if self.stream is not None:
            self.stream.passed(self.progress.step)
        return output, norm

    def _synchronize(self) -> None:
        """Wait for the newest step, and stop the run if it was refused."""
        self._unless_diverged(self.trainer.synchronize)

    def _unless_diverged(self, work: Callable[[], T]) -> T:
        """Do it; if the newest step that was counted turns out to be refused, take it back and stop the run."""
        try:
            return work()
        except NotFiniteError as error:
            self.statistics.take_back()
            self.progress.images -= self.recipe.optim.batch * (self.progress.step - error.step)
            self.progress.step = error.step
            raise self._diverged(str(error)) from None

    def _log_step(self, loss: float, norm: float, bar: Progressor) -> None:
        """Write a step's line and show it."""
        progress, schedules = self.progress, self.trainer.schedules
        done = progress.step - 1
        speed = progress.images_per_second
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
            }
            | ({"gradient_norm": norm} if math.isfinite(norm) else {}),  # fp16 overflowed: the step was left out
        )
        bar.status = f"epoch {epoch:.1f}/{self.recipe.optim.epochs}  loss {loss:.3f}  {speed:,.0f} images/s"

    def _diverged(self, cause: str) -> UserError:
        """Keep the state before the step that failed, beside the checkpoints, and name the cause."""
        step, rate = self.progress.step, self.trainer.schedules.learning_rate(self.progress.step)
        contents = self._contents() | {"cause": cause}

        def keep() -> str:
            assert self.folder is not None
            epoch = step / self.trainer.schedules.steps_per_epoch
            self.journal.write("alarm", step, {"epoch": epoch, "name": "not finite", "message": cause})
            self._draw()
            return os.fspath(self.folder.save_diverged(contents, step=step))

        where = run_on_rank0(keep)  # all wait: whoever ended first would take the others along
        cure = "a lower optim.base_lr"
        if self.recipe.efficiency.precision in ("bf16", "fp16"):
            cure += " or efficiency.precision=fp32"
        return UserError.on_all_ranks(
            f"stopped at step {step}, learning rate {rate:.3g}: {cause}; the state before it is in {where}. Start "
            f"another run from a checkpoint (init=PATH) with {cure}",
        )

    def _log_alarms(self, alarms: list[Alarm], epoch: int) -> None:
        for alarm in alarms:
            self.reporter.warn(f"epoch {epoch}: {alarm.message}")
            self.journal.write(
                "alarm", self.progress.step, {"epoch": epoch, "name": alarm.name, "message": alarm.message}
            )

    def _late_end(self, stop: StopRequest) -> bool:
        """Sum up an epoch at whose end the run was stopped: that is saved without waiting for figures.

        Returns:
            Whether the run was asked to stop again.
        """
        if not self.statistics.complete:
            return False
        due, asked = self._end_epoch(stop)
        if due:
            self._save()
        return asked

    def _end_epoch(self, stop: StopRequest) -> tuple[bool, bool]:
        """Sum up the epoch and measure if it is time.

        Returns:
            Whether a checkpoint is due, and whether the run was asked to stop meanwhile; then nothing has changed.
        """
        progress, recipe = self.progress, self.recipe
        epoch = progress.step // self.trainer.schedules.steps_per_epoch
        state = self.statistics.state()
        figures: dict[str, Any] = {"epoch": epoch} | self.statistics.summary(state)
        figures["coincident_centroids"] = coincident(self.trainer.model.teacher.centroids.weight)
        last = epoch == recipe.optim.epochs
        if last or epoch % recipe.monitor.every_epochs == 0:
            try:
                figures |= self._measure(epoch, stop)
            except StoppedError:
                return False, True
        progress.counts = self.statistics.counts(state)
        self.statistics.reset()
        alarms = self.health.judge(figures)
        progress.health = asdict(self.health.memory)
        # The newest epoch's figures stay visible although it may not have been measured.
        progress.last = (progress.last or {}) | figures
        measured = "score" in figures
        if measured and (progress.best is None or figures["score"] >= progress.best["score"]):
            progress.best = {"step": progress.step} | figures
        self.journal.write("epoch", progress.step, figures)
        self._log_alarms(alarms, epoch)
        return measured or last or epoch % recipe.run.save_epochs == 0, False

    def _measure(self, epoch: int, stop: StopRequest) -> dict[str, float]:
        """The monitor's figures.

        Raises:
            StoppedError: the run was asked to stop.
        """
        with self.reporter.progress(f"measuring epoch {epoch}", self.monitor.passes) as bar:

            def advance(images: int) -> None:
                bar.advance(images)
                if stop.received is not None:
                    raise StoppedError

            backbone = self.trainer.model.teacher.backbone
            return self.monitor.measure(backbone, advance, agreed=stop.agreed)

    def _save(self) -> None:
        """Write a checkpoint of everything the run is.

        Raises:
            UserError: weights are NaN or infinite; such a state never replaces a good one.
        """
        self._synchronize()
        state = {name: value for name, value in self.trainer.model.state_dict().items() if value.is_floating_point()}
        finite = torch.stack([value.isfinite().all() for value in state.values()])
        if not finite.all():
            wrong = [name for name, good in zip(state, finite.tolist(), strict=True) if not good]
            raise self._diverged(f"{wrong[0]} is not finite")
        contents, progress = self._contents(), self.progress

        def write() -> None:
            assert self.folder is not None
            self.journal.flush()
            best_step = progress.best["step"] if progress.best else None
            self.folder.save(contents, step=progress.step, keep=self.recipe.run.keep, best_step=best_step)

        run_on_rank0(
            write
        )  # all wait: a disk that is full, or a process that ends, must find the others where they are

    def _unread(self, error: ReadingError) -> UserError:
        """Keep what was trained, where this process can do so alone: others may wait for it in the middle of a step."""
        kept = ""
        if world_size() == 1 and self.progress.step:
            self._save()
            kept = f"step {self.progress.step} is saved: "
        return UserError(f"{error}; {kept}the same command goes on", rank_local=True)

    def _contents(self) -> dict[str, Any]:
        """What a checkpoint holds; but for `arithmetic`, nothing in it depends on the number of processes."""
        recipe, progress = self.recipe, self.progress
        statistics = self.statistics.state()
        stream = self._stream_state if self.stream is None else all_lanes(self.stream.state_after(progress.step))
        if self.folder is None:
            return {}
        return {
            "step": progress.step,
            "epoch": progress.step / self.trainer.schedules.steps_per_epoch,
            "architecture": {"name": recipe.model.backbone, "options": recipe.model.options},
            "preprocessing": recipe.views.preprocessing.to_dict(),
            "recipe": recipe.to_dict(),
            "data": describe(self.images),
            "model": state_tensors(self.trainer.model),
            **self.trainer.state(),
            "statistics": statistics,
            "stream": stream,
            "broken": {"seen": self.broken.seen, "found": self.broken.found},
            "seconds": progress.seconds,
            "images": progress.images,
            "best": progress.best,
            "last": progress.last,
            "health": progress.health,
            "counts": progress.counts,
            "arithmetic": self.arithmetic,
        }

    def _restore(self, contents: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.trainer.model.load_state_dict(contents["model"])
        self.trainer.restore(contents)
        self.statistics.restore(contents["statistics"])
        self._stream_state = contents.get("stream")
        self.broken = BrokenFiles(**contents["broken"])
        known = contents.keys() & Progress.__dataclass_fields__.keys()  # older checkpoints know fewer
        self.progress = Progress(**{name: contents[name] for name in known})
        if changed := numerics_changed(contents.get("arithmetic", {}), self.arithmetic):
            self.reporter.note(changed)

    def _start_centroids(self, stop: StopRequest) -> bool:
        """k-means of the first epoch's views; whether the run was asked to stop meanwhile: then nothing has changed."""
        recipe, trainer = self.recipe, self.trainer
        steps = min(trainer.schedules.steps_per_epoch, math.ceil(recipe.method.kmeans_samples / recipe.optim.batch))
        with self.reporter.progress("projecting views for k-means", steps) as bar:
            told = start_centroids(trainer, self._batches(0, steps), recipe, advance=bar.advance, asked=stop.agreed)
        if told is not None:
            self.reporter.note(told)
        return told is None

    def _draw(self) -> None:
        if self.folder is None:
            return
        title = f"{self.recipe.name}, seed {self.recipe.run.seed}"
        try:
            curves.draw(self.folder.path, clusters=self.recipe.method.clusters, title=title)
        except UserError as error:
            self.reporter.warn(f"{error}; the run goes on without")

    def _finish(self) -> None:
        """Draw, write `report.json`, and sum up."""
        if self.folder is None:
            return
        self._draw()
        recipe, progress, device = self.recipe, self.progress, self.trainer.device
        self.folder.report(report(progress, recipe, images=len(self.images), broken=self.broken.found, device=device))
        sum_up(progress, recipe, self.reporter, device=device, place=self.folder.place, table=self._table)
