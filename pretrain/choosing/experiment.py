"""The experiment: references, then networks at hand, then short runs, within a budget of minutes."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from excb.checkpoint import run_checkpoint
from excb.console import Reporter, duration, plural
from excb.errors import UserError
from excb.hub import loading
from excb.networks.features import require_channels
from excb.networks.preprocessing import Preprocessing
from excb.references import patches
from excb.references.baselines import REFERENCES, UNTRAINED, WITHOUT_NETWORK, rows_of_inputs
from excb.references.untrained import build_untrained, estimate_batchnorm, evenly_spread

from ..loop import run_training
from ..plan.frozen_teachers import frozen_teachers_of
from ..recipe import Recipe
from ..recipes import VOTING_GROUP
from ..run.monitor import Monitor, NetworkFigures, in_groups
from ..run.taught import measure_cost
from ..verdict import GUESSING, TITLES, guessing
from .sample import TrialImages
from .short_runs import FrozenNetwork, PlannedRun, fit_run, planned_runs, sizes_of
from .trials import Experiment, Trial

CALIBRATION_IMAGES = 1000  # for the BatchNorm statistics of the untrained network
FROZEN_SHARE = 0.4  # of the minutes that networks as they are may take
FIRST_SHARE = 0.7  # the same of the first one, without which the experiment can say little
SHARES = {"distilled": 2.0, "adapted": 3.0, "pretrained": 1.0}  # of the rest, for each short run
SLOWDOWN = 1.4  # times that a short run takes longer than its steps, until one was timed
SLOWEST = 4.0  # the most of that: the start of a tiny run says nothing of others
RUNS = ".short-runs"  # their folder, which is removed: hidden, so that it is nobody's own


@dataclass
class TrialRunner:
    """Tries one thing after another while there is time.

    Attributes:
        sample: images to learn from and to measure on.
        base: the recipe that is proposed for these images without an experiment, for their channels.
        side: median shorter side of the images in pixels.
        minutes: of the whole experiment, about; references are measured in any case.
        device: where everything runs.
        workers: processes that read images.
        out: folder of the short runs, which are deleted when they have been measured.
        reporter: for progress, and a line for every trial.
    """

    sample: TrialImages
    base: Recipe
    side: int
    minutes: float
    device: torch.device
    workers: int
    out: Path
    reporter: Reporter
    _trials: list[Trial] = field(default_factory=list, init=False)
    _skipped: dict[str, str] = field(default_factory=dict, init=False)
    _too_slow: list[str] = field(default_factory=list, init=False)  # networks that were skipped for lack of time
    _failed: dict[str, str] = field(default_factory=dict, init=False)  # short runs
    _best: FrozenNetwork | None = field(default=None, init=False)
    _slowdown: float = field(default=SLOWDOWN, init=False)
    _stopped: int = field(default=0, init=False)  # exit code of a short run that was asked to stop

    def run(self, networks: Sequence[str], *, required: bool) -> Experiment:
        """Try everything that fits into the budget.

        Args:
            networks: names of trained networks, as `excb.load` takes them.
            required: refuse one that cannot be used, instead of leaving it out.

        Raises:
            UserError: no image can be read, or a required network cannot be loaded or takes images of other channels.
        """
        self._start = time.monotonic()
        settings = self.base.change(monitor={"images": len(self.sample.measured), "group": VOTING_GROUP})
        self._monitor = Monitor(self.sample.measured, settings, device=self.device, workers=self.workers)
        try:
            self._references()
            for name in networks:
                self._frozen(name, required=required)
            self._short_runs()
        finally:
            shutil.rmtree(self.out / RUNS, ignore_errors=True)
        measured = len(self._trials[0].reading.hits)  # those that could be read
        return Experiment(
            tuple(self._trials),
            measured,
            len(self.sample.learned),
            self.sample.labelled,
            len(networks),
            dict(self._skipped),
            self._stopped,
            tuple(self._too_slow),
            dict(self._failed),
            in_groups(measured, settings.monitor) if self.sample.labelled else "",
        )

    @property
    def _passes(self) -> int:
        """Images that a measurement reads: each once, and once more in an altered copy where there are no labels."""
        return len(self.sample.measured) * (1 if self.sample.labelled else 2)

    @property
    def _taken(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._start

    def _references(self) -> None:
        """Features that need no training, from one pass over the images."""
        began, preprocessing = time.monotonic(), self.base.views.preprocessing
        network = build_untrained(self.base.model.architecture, self.base.run.seed)
        estimate_batchnorm(network, evenly_spread(self.sample.learned, CALIBRATION_IMAGES), preprocessing)
        rows: dict[str, nn.Module] = {UNTRAINED: network.to(self.device)}
        rows |= {name: rows_of_inputs(name, preprocessing).to(self.device) for name in WITHOUT_NETWORK}
        rows[patches.NAME] = patches.fitted(self.sample.learned, preprocessing, workers=self.workers).to(self.device)
        readings = self._measure("references", rows)
        seconds = (time.monotonic() - began) / len(readings)
        for name, reading in readings.items():
            self._add(Trial(REFERENCES[name], "reference", reading, seconds))
        self._add(Trial(TITLES[GUESSING], "reference", self._guess(readings[UNTRAINED]), 0.0))

    def _guess(self, like: NetworkFigures) -> NetworkFigures:
        """The figures of always guessing the most frequent class, or any image."""
        labels, hits = like.labels_of(self.sample.measured), torch.zeros_like(like.hits)
        if labels is not None:
            hits = torch.from_numpy(np.array(labels) == np.bincount(labels).argmax())
        figures = guessing(labels, measured=len(hits), k=self.base.monitor.k)
        halves = None if like.halves is None else hits.repeat(len(like.halves), 1)
        return NetworkFigures(figures, like.decisive, hits, halves)

    def _frozen(self, name: str, *, required: bool) -> None:
        """A trained network as it is, at its own size or a smaller one that suits the images."""
        share = FROZEN_SHARE if self._best else FIRST_SHARE
        began, most = time.monotonic(), share * 60 * self.minutes
        if self._taken > most:
            self._skip(name, "no time is left for networks as they are")
            self._too_slow.append(name)
            return
        try:
            backbone = loading.load(name)
            require_channels(self.sample.measured, backbone.transform)
        except UserError as error:
            if required:
                raise
            self._skip(name, str(error))
            return
        own = backbone.transform
        size = sizes_of(own, self.side)
        if size != own.crop:
            backbone = loading.load(name, img_size=size)
        backbone = backbone.to(self.device)
        cost = measure_cost(backbone.network, size, self.device)
        if (needed := cost.milliseconds * self._passes / 1000) > most - self._taken:
            measured = plural(len(self.sample.measured), "image")
            self._skip(name, f"as it is, it takes {duration(needed)} for {measured}")
            self._too_slow.append(name)
            return
        (reading,) = self._measure(name, {name: backbone}, backbone.transform).values()
        if self._best is None or reading.value > self._best.value:
            self._best = FrozenNetwork(name, backbone, own, cost, reading.value)
        self._add(Trial(name, "frozen", reading, time.monotonic() - began, cost=cost))

    def _short_runs(self) -> None:
        """Short runs share the time that is left by their weights; what one does not take, the others have."""
        plans = planned_runs(self.base, len(self.sample.learned), self._best)
        for number, planned in enumerate(plans):
            share = SHARES[planned.kind] / sum(SHARES[each.kind] for each in plans[number:])
            seconds = share * (60 * self.minutes - self._taken)
            if self._stopped or seconds < 2:
                self._skip(planned.name, "stopped" if self._stopped else "no time is left")
                continue
            try:
                self._short_run(planned, seconds)
            except UserError as error:  # such as a loss that diverged: that is a finding
                self._failed[planned.name] = str(error)
                self._skip(planned.name, str(error))

    def _short_run(self, planned: PlannedRun, seconds: float) -> None:
        began = time.monotonic()
        given = {} if self._best is None else {self._best.name: self._best.backbone}
        teachers = frozen_teachers_of(planned.recipe, given) if planned.recipe.distil.active else ()
        fitting = fit_run(
            planned,
            self.base,
            self.sample.learned,
            seconds,
            self.device,
            slowdown=self._slowdown,
            teachers=teachers,
        )
        if isinstance(fitting, str):
            self._skip(planned.name, fitting)
            return
        folder = self.out / RUNS / str(len(self._trials))
        shutil.rmtree(folder, ignore_errors=True)
        epochs, images = fitting.recipe.optim.epochs, len(fitting.images)
        self.reporter.note(f"trying: {planned.name}, {plural(epochs, 'epoch')} of {plural(images, 'image')}")
        before = time.monotonic()
        self._stopped = run_training(
            fitting.recipe,
            cast("Any", fitting.images),
            folder,
            Reporter(quiet=True),
            device=self.device,
            table=False,
            verdict=False,
            teachers=given,
        )
        if self._stopped:
            self._skip(planned.name, "stopped")
            return
        taken, seen = time.monotonic() - before, epochs * images
        self._slowdown = min(SLOWEST, max(1.0, taken * fitting.steps_alone / seen))  # so runs that follow are planned
        # Not the best checkpoint: a run that adapts would choose the original itself.
        trained = loading.load(run_checkpoint.in_run(folder)[0]).to(self.device)
        (reading,) = self._measure(planned.name, {planned.name: trained}, trained.transform).values()
        self._add(
            Trial(
                planned.name,
                planned.kind,
                reading,
                time.monotonic() - began,
                seen,
                seen / taken,
                measure_cost(trained.network, trained.transform.crop, self.device),
                planned.base,
                planned.keep,
            )
        )

    def _measure(
        self, title: str, networks: Mapping[str, nn.Module], transform: Preprocessing | None = None
    ) -> dict[str, NetworkFigures]:
        with self.reporter.progress(title, self._passes) as bar:
            return self._monitor.compare(networks, bar.advance, transform=transform, decisive_only=True)

    def _skip(self, name: str, why: str) -> None:
        self._skipped[name] = why
        self.reporter.note(f"not tried: {name}: {why}")

    def _add(self, trial: Trial) -> None:
        self._trials.append(trial)
        interval = trial.interval()
        spread = "" if interval is None else f" ({interval[0]:.1f} to {interval[1]:.1f})"
        self.reporter.note(f"{trial.name}: {trial.value:.1f} %{spread}, {duration(trial.seconds)}")
