"""The pretraining loop: steps, epochs, checkpoints, and the end of a run."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from excb.console import Progressor, Reporter, plural
from excb.distributed.collectives import mean_over_ranks, run_on_rank0, world_size
from excb.distributed.signals import SecondSignal, StopRequest
from excb.distributed.workers import ReadingError
from excb.errors import UserError
from excb.files.run_files import RECIPE
from excb.hub.backbone import Backbone
from excb.images.image_set import CodedImages, clipped_ledger, share_clipped
from excb.method import Step

from .data.batch import ViewBatch
from .data.gpu_decoding import GpuDecoder
from .data.prefetch import prefetch_to_device
from .data.stream_images import StreamImages
from .data.stream_order import describe_order, reader_count
from .figures import curves
from .initialise import start_centroids
from .precision import resolved
from .recipe import Recipe
from .run.journal import NOT_FINITE, Journal
from .run.monitor import MeasurementStoppedError
from .run.profiling import StepProfile
from .run.progress import kept_facts, run_report, sum_up
from .run.remote_mirror import RunLocation
from .run.rules import breaches_on
from .run.run_folder import RunFolder, device_name
from .run.watch_process import WatchProcess
from .step import NotFiniteError
from .training import judging
from .training.epoch_end import EpochEnd
from .training.pixels import in_colours
from .training.start import complete_recipe, resolve_run, start
from .verdict import print_verdict

T = TypeVar("T")
CURVES_SECONDS = 30.0  # least time between two drawings of curves.png during training
CURVES_SHARE = 0.01  # of the time at most: a drawing may take as long as many steps of a small network
WATCH_SECONDS = 0.5  # between two looks at the process that measures checkpoints beside the run


def run_training(
    recipe: Recipe,
    images: CodedImages | StreamImages,
    out: Path | RunLocation,
    reporter: Reporter,
    *,
    device: torch.device | None = None,
    table: bool = True,
    profile: bool = False,
    against: Sequence[str] = (),
    verdict: bool = True,
    second: SecondSignal = "exit",
    teachers: Mapping[str, Backbone] | None = None,
    extend: int | None = None,
) -> int:
    """Pretrain, or resume the run in `out`, until it is finished or asked to stop.

    Args:
        recipe: the run's recipe.
        images: the training images, the same on all ranks.
        out: the run folder, which may be kept at a URL; only rank 0 uses it.
        reporter: for messages and progress.
        device: where this rank trains; by default the recipe's.
        table: print the last epoch's figures at the end.
        profile: record a few steps and report where their time goes.
        against: checkpoints that the verdict compares the run with besides its references, as `excb.load` takes them.
        verdict: end by judging whether the run learned; it takes two passes over the monitor's images.
        second: what a second request to stop does (`StopRequest`).
        teachers: frozen ones of `recipe.distil.teachers` that are in memory, by name.
        extend: continue the finished run in `out` for so many epochs beyond the recipe's; its schedules begin anew.

    Returns:
        Exit code: 0, or 128 + the signal that stopped the run.

    Raises:
        UserError: recipe, images or folder cannot make a run, or the loss became NaN or infinite.
    """
    begun = (out if isinstance(out, Path) else out.folder) / RECIPE
    recipe, images, device = resolve_run(
        recipe, images, reporter, begun=begun, device=device, against=against, given=teachers or {}
    )
    if isinstance(images, StreamImages):
        batch = recipe.optim.batch
        reporter.note(describe_order(images, batch, reader_count(images, batch, world_size())))
    folder: RunFolder | None = None
    place = RunLocation(out) if isinstance(out, Path) else out

    def lock() -> None:
        nonlocal folder
        folder = RunFolder(place, reporter.warn)

    run_on_rank0(lock)
    try:
        if extend is not None:
            recipe = run_on_rank0(lambda: _extended(recipe, folder, extend, reporter))
        recipe = run_on_rank0(lambda: complete_recipe(recipe, images, reporter.note, begun=begun))
        images = in_colours(images, recipe.data.colours)
        if recipe.efficiency.precision == "auto":
            so_far = run_on_rank0(lambda: _precision_of(folder))
            recipe = resolved(recipe, device, begun=so_far, note=reporter.note)
        loop = TrainingLoop(recipe, images, folder, reporter, device, table=table, profile=profile, teachers=teachers)
        return loop.run(against if verdict else None, second=second)
    except UserError:
        if folder is not None:
            folder.abandon()
        raise
    finally:
        if folder is not None:
            folder.close()


def _extended(recipe: Recipe, folder: RunFolder | None, epochs: int, reporter: Reporter) -> Recipe:
    """The recipe of the run in the folder, with so many epochs more. Only rank 0 has the folder."""
    assert folder is not None
    longer = folder.extended(recipe, epochs)
    if longer.optim.restarts:  # none where the run had these epochs from the beginning
        *_, start, end = longer.optim.marks
        warmup = min(longer.optim.warmup_epochs, end - start)
        added = f"epoch {end} extends" if end == start + 1 else f"epochs {start + 1} to {end} extend"
        reporter.note(
            f"{added} the run, and all schedules begin anew: the learning rate warms up for "
            f"{warmup:g} {'epoch' if warmup == 1 else 'epochs'}, then falls on a cosine"
        )
    return longer


def _precision_of(folder: RunFolder | None) -> str | None:
    """The precision of the run in the folder so far, if there is one. Only rank 0 has the folder."""
    assert folder is not None
    return folder.precision()


class TrainingLoop:
    """This rank's part of a run (arguments: see `run_training`); only rank 0 has a folder, writes files and prints."""

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
        teachers: Mapping[str, Backbone] | None = None,
    ) -> None:
        self.recipe, self.folder, self.reporter, self._table = recipe, folder, reporter, table
        self._images = images
        self.state = start(recipe, images, folder, reporter, device, given=teachers)
        self.trainer, self.feed = self.state.trainer, self.state.feed
        self.statistics, self.progress = self.state.statistics, self.state.progress
        self.epoch_end = EpochEnd(self.state, reporter)
        self._watch: WatchProcess | None = None
        self._was_finished = self.state.finished  # before this process
        self._reported: dict[str, Any] = {}  # of a run that was
        self.profile = StepProfile(folder.path) if profile and folder is not None else None

    def run(self, against: Sequence[str] | None = (), *, second: SecondSignal = "exit") -> int:
        """Train from where the run is to its end, and return the exit code; with None for `against` no verdict."""
        progress, finished = self.progress, self._was_finished
        if finished:
            self._reported = self.folder.reported() if self.folder is not None else {}
            self.reporter.note(f"the run is finished: {plural(progress.step, 'step')}{self._why_ended()}")
        elif not progress.step:
            run_on_rank0(self._warn_of_breaches)
        else:
            self.reporter.note(f"resuming from step {progress.step} (epoch {self.state.epochs_done:.2f})")
        with StopRequest(second=second) as stop, self._watched():
            asked = (
                (not finished and self._prepare_and_train(stop))
                or self._finish(stop, against)
                or self._last_figures(stop)
            )
            if asked and stop.received is not None:
                self.reporter.note(
                    f"stopped by {stop.received.name} after step {progress.step}: repeat the command to resume"
                )
            self._wait_for_mirror()  # a first signal that arrives meanwhile does not interrupt it
        return stop.exit_code if asked else 0

    def _warn_of_breaches(self) -> None:
        """Say which values do not suit each other or the images, before any time is spent."""
        for breach in breaches_on(self.recipe, self._images):
            self.reporter.warn(breach.line)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """While the block runs, `excb-eval watch` measures checkpoints beside the run, if the recipe asks for it."""
        monitor, device = self.recipe.monitor, self.recipe.efficiency.device

        def begin() -> None:
            if monitor.protocol is not None and monitor.data is not None:
                assert self.folder is not None
                self._watch = WatchProcess(self.folder.path, monitor.data, monitor.protocol, device, self.reporter)

        try:
            run_on_rank0(begin)
            yield
        finally:
            if self._watch is not None:
                self._watch.close()

    def _last_figures(self, stop: StopRequest) -> bool:
        """Wait, on all ranks, until the last checkpoint is measured beside the run; whether it was asked to stop."""
        if self.recipe.monitor.protocol is None:
            return False
        self.reporter.note("excb-eval watch measures the last checkpoints")
        while run_on_rank0(lambda: self._watch is not None and self._watch.running):
            if stop.agreed():
                return True
            time.sleep(WATCH_SECONDS)
        if self._watch is not None:
            self._watch.sum_up()
        return False

    def _why_ended(self) -> str:
        """Why the run ended before its last epoch, as the end of a message; empty where it did not."""
        return "" if self.progress.ended is None else f"; it ended early: {self.progress.ended}"

    def _prepare_and_train(self, stop: StopRequest) -> bool:
        """Measure the start and initialise the centroids if that is due, and train; whether it was asked to stop."""
        folder, step = self.folder.path if self.folder else None, self.progress.step
        pending = self.statistics.complete
        with Journal(folder, step=step, pending=pending, wandb=self._wandb()) as self.journal:
            try:
                if self.recipe.measures_start and not step and self._measure_start(stop):
                    return True
                if self.recipe.starts_centroids and not step and self._start_centroids(stop):
                    return True
                with self.reporter.progress(self.recipe.name, self.trainer.schedules.steps, done=step) as bar:
                    return self._take_steps(stop, bar)
            except ReadingError as error:
                raise self._save_after_reading_error(error) from None

    def _measure_start(self, stop: StopRequest) -> bool:
        """Measure and save the start, once; whether the run was asked to stop, in which case nothing has changed."""
        if self.progress.start is not None:
            self.epoch_end.write_start(self.journal)  # the journal of a run without a step is empty
            return False
        if self.epoch_end.measure_start(self.journal, stop):
            return True
        assert self.progress.start is not None
        self.reporter.note(f"the start scores {self.progress.start['score']:.1f}")
        self._save()
        return False

    def _wandb(self) -> dict[str, Any] | None:
        """Arguments of `wandb.init`, if Weights & Biases is wanted."""
        if self.recipe.monitor.wandb is None or self.folder is None:
            return None
        return {"project": self.recipe.monitor.wandb, "name": self.folder.path.name, "config": self.recipe.to_dict()}

    def _start_centroids(self, stop: StopRequest) -> bool:
        """k-means of the first epoch's views; whether the run was asked to stop, in which case nothing has changed."""
        recipe, trainer = self.recipe, self.trainer
        steps = recipe.kmeans_steps(len(self.state.images))
        with self.reporter.progress("projecting views for k-means", steps) as bar:
            batches = self._batches(0, steps)
            summary = start_centroids(trainer, batches, recipe, advance=bar.advance, asked=stop.agreed)
        if summary is not None:
            self.reporter.note(summary)
        return summary is None

    def _take_steps(self, stop: StopRequest, bar: Progressor) -> bool:
        """Take all remaining steps; whether the run was asked to stop."""
        recipe, schedules, progress = self.recipe, self.trainer.schedules, self.progress
        if self._finish_pending_epoch(stop):
            return True
        asked, last = False, schedules.steps if progress.ended is None else progress.step
        batches = self._batches(progress.step, last)
        clock = time.monotonic()
        draws_from = clock + CURVES_SECONDS
        for batch in batches:
            output, norm = self._step(batch)
            now = time.monotonic()
            progress.seconds, clock = progress.seconds + now - clock, now
            asked = stop.agreed()
            logs = progress.step % recipe.run.log_steps == 0
            due = asked or (recipe.run.save_steps is not None and progress.step % recipe.run.save_steps == 0)
            if logs or self.statistics.complete:
                self._unless_diverged(self.trainer.synchronize)
            if logs:
                self._log_step(float(mean_over_ranks(output.loss)), float(norm), bar)
            if self.statistics.complete and not asked:
                epoch_due, asked = self.epoch_end.sum_up(self.journal, stop)
                due |= epoch_due or asked
            if due:
                self._save()
            if now > draws_from and progress.step % schedules.steps_per_epoch == 0:
                began = time.monotonic()
                self._draw()
                took = time.monotonic() - began
                draws_from = began + max(CURVES_SECONDS, took / CURVES_SHARE)
            bar.advance()
            if asked or progress.ended is not None:
                break
        if not asked and self.profile is not None and (summary := self.profile.close()):
            self.reporter.note(summary)
        return asked

    def _batches(self, start: int, stop: int) -> Iterator[ViewBatch]:
        """This rank's part of the batches from step `start` to `stop`, with all crops on the device."""
        recipe, device = self.recipe, self.trainer.device
        on_gpu = recipe.efficiency.decoder == "nvjpeg"
        decode = GpuDecoder(recipe, self.feed.indexed, device) if on_gpu else None
        return prefetch_to_device(self.feed.batches(start, stop), device, decode)

    def _finish_pending_epoch(self, stop: StopRequest) -> bool:
        """Sum up an epoch that was saved before its figures were made; whether the run was asked to stop again."""
        if not self.statistics.complete:
            return False
        due, asked = self.epoch_end.sum_up(self.journal, stop)
        if due:
            self._save()
        return asked

    def _step(self, batch: ViewBatch) -> tuple[Step, torch.Tensor]:
        epoch = self.trainer.schedules.steps_per_epoch * self.recipe.optim.batch
        for file in self.state.broken.count(batch, images=len(self.state.images), epoch=epoch):
            self.reporter.warn(f"{file.path} cannot be read ({file.reason}); {file.replacement} replaces it")
        if self.profile is not None:
            self.profile.batch_ready()
        output, norm = self._unless_diverged(lambda: self.trainer.step(batch, self.progress.step))
        if self.profile is not None and (summary := self.profile.step_done()):
            self.reporter.note(summary)
        self.statistics.add(output, batch)
        self.progress.step += 1
        self.progress.images += self.recipe.optim.batch
        self.feed.step_done(self.progress.step)
        return output, norm

    def _unless_diverged(self, work: Callable[[], T]) -> T:
        """Do some work; if the newest counted step turns out to be rejected, take it back and stop the run."""
        try:
            return work()
        except NotFiniteError as error:
            self.statistics.take_back()
            self.progress.images -= self.recipe.optim.batch * (self.progress.step - error.step)
            self.progress.step = error.step
            raise self._diverged(str(error)) from None

    def _log_step(self, loss: float, norm: float, bar: Progressor) -> None:
        progress, schedules, done = self.progress, self.trainer.schedules, self.progress.step - 1
        epoch, speed, recipe = self.state.epochs_done, progress.images_per_second, self.recipe
        figures = {
            "epoch": epoch,
            "loss": loss,
            "learning_rate": schedules.learning_rate(done),
            "weight_decay": schedules.weight_decay(done),
            "centroid_decay": schedules.centroid_decay(done),
            "teacher_momentum": schedules.teacher_momentum(done),
            "images_per_second": speed,
        }
        if recipe.adapt.active:
            figures["released_layers"] = schedules.layers - schedules.first_released(done)
        if math.isfinite(norm):  # with fp16 a step whose gradients overflow is skipped
            figures["gradient_norm"] = norm
        self.journal.write("step", progress.step, figures)
        bar.status = f"epoch {epoch:.1f}/{recipe.optim.epochs}  loss {loss:.3f}  {speed:,.0f} images/s"

    def _diverged(self, cause: str) -> UserError:
        """Save the state before the step that failed, outside of the checkpoints, and name the cause."""
        step, rate = self.progress.step, self.trainer.schedules.learning_rate(self.progress.step)
        contents = self.state.contents() | {"cause": cause}

        def save() -> str:
            assert self.folder is not None
            self.journal.write("alarm", step, {"epoch": self.state.epochs_done, "name": NOT_FINITE, "message": cause})
            self._draw()
            return os.fspath(self.folder.save_diverged(contents, step=step))

        file = run_on_rank0(save)  # all ranks wait: a rank that ended first would take the others down
        remedy = "a lower optim.base_lr"
        if self.recipe.efficiency.precision in ("bf16", "fp16"):
            remedy += " or efficiency.precision=fp32"
        return UserError.on_all_ranks(
            f"stopped at step {step}, learning rate {rate:.3g}: {cause}; the state before it is in {file}. Start "
            f"another run from a checkpoint (init=PATH) with {remedy}",
        )

    def _save(self) -> None:
        """Write a checkpoint, unless a weight is NaN or infinite: such a state never replaces a good one."""
        self._unless_diverged(self.trainer.synchronize)
        if name := self.state.not_finite():
            raise self._diverged(f"{name} is not finite")
        contents, progress = self.state.contents(), self.progress

        def write() -> None:
            assert self.folder is not None
            self.journal.flush()
            best_step = progress.best["step"] if progress.best else None
            self.folder.save(contents, step=progress.step, keep=self.recipe.run.keep, best_step=best_step)

        run_on_rank0(write)  # all ranks wait, and so learn of an error in the same place

    def _save_after_reading_error(self, error: ReadingError) -> UserError:
        """Save the steps done if this is the only rank: others may wait for it in the middle of a step."""
        saved = ""
        if world_size() == 1 and self.progress.step:
            self._save()
            saved = f"step {self.progress.step} is saved: "
        return UserError(f"{error}; {saved}repeat the command to resume", rank_local=True)

    def _draw(self) -> None:
        if self.folder is None:
            return
        title = f"{self.recipe.name}, seed {self.recipe.run.seed}"
        try:
            curves.draw_curves(self.folder.path, clusters=self.recipe.method.clusters, title=title)
        except UserError as error:
            self.reporter.warn(f"{error}; the run continues without curves")

    def _finish(self, stop: StopRequest, against: Sequence[str] | None) -> bool:
        """Judge and report a run that is complete; whether it was asked to stop before that was done."""
        folder, verdict = self.folder.path if self.folder else None, None
        if against is not None:
            measured = self.epoch_end
            try:
                verdict = judging.verdict(self.state, measured, self.reporter, stop, folder=folder, against=against)
            except MeasurementStoppedError:
                return True
        share_clipped(self.state.images)
        if self.folder is None:
            return False
        self._draw()
        recipe, progress, device = self.recipe, self.progress, self.trainer.device
        images, broken, ledger = len(self.state.images), self.state.broken.found, self.state.ledger
        judged = None if verdict is None else verdict.to_dict()
        report = run_report(
            progress, recipe, images=images, broken=broken, device=device, ledger=ledger, verdict=judged
        )
        report = kept_facts(report, self._reported)
        self.folder.report(report)
        (clipped_ledger(self.state.images) + self.state.broken.ledger).tell(self.reporter)
        place = self.folder.place
        on = self.state.trained_on if self._was_finished else device_name(device)
        sum_up(progress, recipe, self.reporter, report=report, device=on, place=place, table=self._table)
        if verdict is not None:
            print_verdict(verdict, self.reporter, table=self._table)
        return False

    def _wait_for_mirror(self) -> None:
        """Wait, on all ranks, until everything is at the run's URL, if it has one."""

        def finish() -> None:
            assert self.folder is not None
            self.folder.finish()

        run_on_rank0(finish)
