"""The end of an epoch: its statistics, the monitor's figures when they are due, alarms, and the best epoch so far."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from excb.console import Reporter, plural
from excb.distributed.signals import StopRequest
from excb.errors import UserError
from excb.images.pixels import Pixels, pixels_of
from excb.images.shards import Note

from ..recipe import Recipe
from ..run.alarms import AlarmState, Health, coincident
from ..run.gain import SOURCE, TARGET
from ..run.journal import Journal
from ..run.monitor import MeasurementStoppedError, Monitor, NetworkFigures
from ..run.probe import FolderProbe
from .state import RunState


def probes_of(
    recipe: Recipe, pixels: Pixels, *, device: torch.device, workers: int, note: Note
) -> dict[str, FolderProbe]:
    """The probes of a run by name; arguments and errors as of `FolderProbe`."""
    return {
        name: FolderProbe(name, data, recipe, device=device, workers=workers, pixels=pixels, note=note)
        for name, data in ((TARGET, recipe.monitor.data), (SOURCE, recipe.monitor.source))
        if data is not None
    }


def refuse_other_gauges(now: Mapping[str, str], before: Mapping[str, str], *, started: bool, finished: bool) -> str:
    """Refuse images to measure on that are others than before, where figures of both would be compared.

    Args:
        now: identities of the probes, by name.
        before: the same of the run so far.
        started: whether the run has measured its start.
        finished: whether it is finished.

    Returns:
        The name of a probe of other images, which an unfinished run may have; empty where there is none.

    Raises:
        UserError: figures would be compared; raised on all ranks.
    """
    changed = next((name for name in (TARGET, SOURCE) if now.get(name) != before.get(name)), "")
    if not changed:
        return ""
    field = {TARGET: "monitor.data", SOURCE: "monitor.source"}[changed]
    if started:
        raise UserError.on_all_ranks(
            f"{field} names other images than the start of this run was measured on: name the same again, or "
            "choose another --out"
        )
    if finished:
        raise UserError.on_all_ranks(
            f"the run is finished, and {field} names other images than its figures are of: name the same "
            "again, or measure its checkpoints on others with excb-eval"
        )
    return changed


class EpochEnd:
    """Sums up the epochs of a run.

    Raises:
        UserError: images to measure on are missing, or are others than those that the start was measured on.
    """

    def __init__(self, state: RunState, reporter: Reporter) -> None:
        recipe, self._state, self._reporter = state.recipe, state, reporter
        device, workers = state.trainer.device, state.feed.workers
        self.monitor = Monitor(state.feed.indexed, recipe, device=device, workers=workers)
        self.probes = probes_of(recipe, pixels_of(state.images), device=device, workers=workers, note=reporter.note)
        self._follow_probes()
        assignments = state.trainer.schedules.steps_per_epoch * recipe.optim.batch * recipe.views.global_views
        self._health = Health(recipe, assignments=assignments, state=AlarmState.from_dict(state.progress.health))

    def _follow_probes(self) -> None:
        """Note what figures are measured on. Others than before cannot be compared with what a run has measured."""
        progress = self._state.progress
        now = {name: probe.identity for name, probe in self.probes.items()}
        if progress.step:
            started, finished = progress.start is not None, self._state.finished
            changed = refuse_other_gauges(now, progress.gauges, started=started, finished=finished)
            if changed == TARGET and progress.best is not None:
                self._reporter.note("monitor.data has changed: the best epoch is chosen anew")
                progress.best = None
        progress.gauges = now

    def measure_start(self, journal: Journal, stop: StopRequest) -> bool:
        """Measure the network that the run starts from, as epoch 0; whether the run was asked to stop meanwhile."""
        progress = self._state.progress
        try:
            figures, readings = self._measure("the start", stop, halves=True)
        except MeasurementStoppedError:
            return True
        progress.start = {"epoch": 0} | figures
        progress.best = {"step": 0} | progress.start
        for moment in ("start", "best"):
            progress.hits |= _right_answers(readings, moment)
        self.write_start(journal)
        return False

    def write_start(self, journal: Journal) -> None:
        """Write the start's figures down, as those of epoch 0."""
        assert self._state.progress.start is not None
        journal.write("epoch", 0, self._state.progress.start)

    def sum_up(self, journal: Journal, stop: StopRequest) -> tuple[bool, bool]:
        """Sum up the epoch that is complete, and write its figures down.

        Returns whether a checkpoint is due, and whether the run was asked to stop meanwhile: then nothing has changed.
        """
        progress, recipe, statistics = self._state.progress, self._state.recipe, self._state.statistics
        epoch = progress.step // self._state.trainer.schedules.steps_per_epoch
        sums = statistics.state()
        figures: dict[str, Any] = {"epoch": epoch} | statistics.summary(sums)
        counts, model = statistics.counts(sums), self._state.trainer.model
        if counts is not None:
            figures["coincident_centroids"] = coincident(model.teacher.centroids.weight)
            too_large = model.sizes.cpu() * len(counts) > 1
            figures["held_empty_clusters"] = int(((counts == 0) & too_large).sum())
        last = epoch == recipe.optim.epochs
        readings: dict[str, NetworkFigures] = {}
        # A frozen backbone is still the start's, which is measured.
        changed = progress.start is None or epoch > recipe.adapt.warmup_epochs
        if last or (changed and epoch % recipe.monitor.every_epochs == 0):
            try:
                measured, readings = self._measure(f"epoch {epoch}", stop, halves=progress.start is not None)
            except MeasurementStoppedError:
                return False, True
            figures |= measured
        progress.counts = counts
        statistics.reset()
        alarms = self._health.judge(figures)
        progress.health = self._health.state.to_dict()
        # The figures of an earlier measurement stay visible when this epoch was not measured.
        earlier = progress.last or {}
        earlier.pop("empty_clusters", None)  # what versions before called `empty_clusters_balanced`
        progress.last = earlier | figures
        if readings:
            self._compare(figures, readings, last=last)
        journal.write("epoch", progress.step, figures)
        for alarm in alarms:
            self._reporter.warn(f"epoch {epoch}: {alarm.message}")
            journal.write("alarm", progress.step, {"epoch": epoch, "name": alarm.name, "message": alarm.message})
        return bool(readings) or last or epoch % recipe.run.save_epochs == 0, False

    def _compare(self, figures: dict[str, Any], readings: dict[str, NetworkFigures], *, last: bool) -> None:
        """Keep the best epoch, and end a run that only loses. Where the start was measured, it wins a tie."""
        progress, adapt = self._state.progress, self._state.recipe.adapt
        before = None if progress.best is None else progress.best["score"]
        started = progress.start is not None
        better = before is None or (figures["score"] > before if started else figures["score"] >= before)
        if better:
            progress.best = {"step": progress.step} | figures
        if not started:
            return
        progress.measurements += 1
        if better:
            progress.hits |= _right_answers(readings, "best")
        progress.losing = 0 if better else progress.losing + 1
        if adapt.patience is not None and progress.losing >= adapt.patience and not last:
            progress.ended = (
                f"{plural(progress.losing, 'measurement')} in a row brought nothing better (adapt.patience)"
            )

    def _measure(
        self, what: str, stop: StopRequest, *, halves: bool
    ) -> tuple[dict[str, float], dict[str, NetworkFigures]]:
        """All figures, and the readings of target and source; StoppedError if the run was asked to stop.

        The score that selects the best epoch is the target's figure, or in runs that have no target the monitor's.
        """
        passes = self.monitor.passes + sum(probe.passes for probe in self.probes.values())
        backbone = self._state.trainer.model.teacher.backbone
        with self._reporter.progress(f"measuring {what}", passes) as bar:

            def advance(images: int) -> None:
                bar.advance(images)
                if stop.received is not None:
                    raise MeasurementStoppedError

            readings = {TARGET: self.monitor.read(backbone, advance, agreed=stop.agreed, halves=halves)}
            figures = dict(readings[TARGET].figures)
            for name, probe in self.probes.items():
                readings[name] = probe.read(backbone, advance, agreed=stop.agreed, halves=halves)
                figures |= readings[name].figures
        if TARGET in self.probes or self._state.recipe.measures_start:
            figures["score"] = readings[TARGET].value
        return figures, readings


def _right_answers(readings: Mapping[str, NetworkFigures], moment: str) -> dict[str, Tensor]:
    """Right answers, and those on halves, that a checkpoint keeps of the start or the best epoch."""
    kept = {f"{moment}_{name}": reading.hits for name, reading in readings.items()}
    halves = {f"{moment}_{name}_halves": reading.halves for name, reading in readings.items()}
    return kept | {name: on_halves for name, on_halves in halves.items() if on_halves is not None}
