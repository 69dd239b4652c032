"""The end of an epoch: its statistics, the monitor's figures when they are due, alarms, and the best epoch so far."""

from typing import Any

from excb.console import Reporter
from excb.distributed.signals import StopRequest

from ..run.alarms import AlarmState, Health, coincident
from ..run.journal import Journal
from ..run.monitor import Monitor, StoppedError
from .state import RunState


class EpochEnd:
    """Sums up the epochs of a run."""

    def __init__(self, state: RunState, reporter: Reporter) -> None:
        recipe, self._state, self._reporter = state.recipe, state, reporter
        self.monitor = Monitor(state.feed.indexed, recipe, device=state.trainer.device, workers=state.feed.workers)
        assignments = state.trainer.schedules.steps_per_epoch * recipe.optim.batch * recipe.views.global_views
        self._health = Health(recipe, assignments=assignments, state=AlarmState.from_dict(state.progress.health))

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
        if last or epoch % recipe.monitor.every_epochs == 0:
            try:
                figures |= self._measure(epoch, stop)
            except StoppedError:
                return False, True
        progress.counts = counts
        statistics.reset()
        alarms = self._health.judge(figures)
        progress.health = self._health.state.to_dict()
        # The figures of an earlier measurement stay visible when this epoch was not measured.
        earlier = progress.last or {}
        earlier.pop("empty_clusters", None)  # what versions before called `empty_clusters_balanced`
        progress.last = earlier | figures
        measured = "score" in figures
        if measured and (progress.best is None or figures["score"] >= progress.best["score"]):
            progress.best = {"step": progress.step} | figures
        journal.write("epoch", progress.step, figures)
        for alarm in alarms:
            self._reporter.warn(f"epoch {epoch}: {alarm.message}")
            journal.write("alarm", progress.step, {"epoch": epoch, "name": alarm.name, "message": alarm.message})
        return measured or last or epoch % recipe.run.save_epochs == 0, False

    def _measure(self, epoch: int, stop: StopRequest) -> dict[str, float]:
        """The monitor's figures; StoppedError if the run was asked to stop."""
        with self._reporter.progress(f"measuring epoch {epoch}", self.monitor.passes) as bar:

            def advance(images: int) -> None:
                bar.advance(images)
                if stop.received is not None:
                    raise StoppedError

            return self.monitor.measure(self._state.trainer.model.teacher.backbone, advance, agreed=stop.agreed)
