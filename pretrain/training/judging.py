"""The end of a run: references measured once, on the monitor's images, and the verdict that follows from them."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from torch import nn

from excb.checkpoint import reading
from excb.checkpoint.stored import load_strictly
from excb.console import Reporter
from excb.distributed.collectives import all_succeed, broadcast, run_on_rank0
from excb.distributed.signals import StopRequest
from excb.errors import UserError, require
from excb.files.run_files import read_metrics
from excb.hub import loading
from excb.hub.backbone import Backbone
from excb.inference.estimate import Estimate
from excb.networks.backbone import check_resolution, weights_hash
from excb.networks.preprocessing import Preprocessing
from excb.references import patches
from excb.references.baselines import WITHOUT_NETWORK, rows_of_inputs
from excb.references.untrained import estimate_batchnorm, evenly_spread

from ..initialise import build_model, start_from
from ..run.gain import SOURCE, TARGET, Adapted, Gain
from ..run.monitor import MeasurementStoppedError, Monitor, NetworkFigures, in_groups
from ..run.run_folder import finished_report
from ..run.taught import NetworkCost, measure_cost
from ..verdict import (
    FIGURES,
    GUESSING,
    ORIGINAL_AT,
    PATCHES,
    RUN,
    RUN_AT,
    START,
    TITLES,
    TWIN,
    RunFigures,
    RunVerdict,
    guessing,
    judge_run,
)
from .epoch_end import EpochEnd
from .state import RunState

CALIBRATION_IMAGES = 1000  # at most, for the BatchNorm statistics of the untrained twin

T = TypeVar("T")
Figures = dict[str, dict[str, float]]  # by network or reference


def check_references(against: Sequence[str]) -> None:
    """Raise UserError for a checkpoint that cannot be loaded, before training; all ranks call this."""
    for name in against:
        run_on_rank0(lambda name=name: loading.load(name) and None)  # type: ignore[misc]


def verdict(
    state: RunState,
    measured: EpochEnd,
    reporter: Reporter,
    stop: StopRequest,
    *,
    folder: Path | None,
    against: Sequence[str] = (),
) -> RunVerdict | None:
    """Compare the trained network with its references, and judge the run; all ranks call this.

    Of a run that has measured its start, the network of the best epoch is judged, else that of the last.

    Figures in an earlier report of the finished run are taken from there.

    Args:
        state: of the run, at its end.
        measured: the run's monitor, whose images are measured, and its probes.
        reporter: for messages and progress.
        stop: may ask to stop.
        folder: of the run; None on ranks without.
        against: checkpoints to compare with besides, as `excb.load` takes them.

    Returns:
        The verdict on rank 0; None on the others.

    Raises:
        StoppedError: the run was asked to stop meanwhile; nothing has changed.
    """
    known, margins, costs, count = run_on_rank0(lambda: _known(folder, state.progress.step))
    compare = _Comparison(state, measured.monitor, reporter, stop, folder)
    if RUN not in known:
        known = compare.usual()
        if START in known and state.progress.start is not None:
            known |= compare.with_original()
    if not costs.keys() >= state.teaching.by_name().keys():
        costs = compare.costs()
    for name, teacher in state.teaching.by_name().items():
        if name not in known:
            known |= compare.with_teacher(name, teacher)
    for name in against:
        path = f"./{name}" if name in (RUN, *TITLES) else name  # a folder may have the name of a reference
        if path not in known:
            known |= compare.with_checkpoint(path)
    margins = margins | compare.margins
    if folder is None:
        return None
    run = _run_figures(state, measured, known, folder, images=compare.count or count or len(measured.monitor.images))
    return judge_run(replace(run, costs=costs, margins=margins))


def _run_figures(state: RunState, measured: EpochEnd, known: Figures, folder: Path, *, images: int) -> RunFigures:
    """The run's figures, of so many images."""
    lines = read_metrics(folder)
    alarms = [line for line in lines if line["kind"] == "alarm" and line["step"] <= state.progress.step]
    return RunFigures(
        state.recipe,
        images=len(state.images),
        measured=images,
        figures=known[RUN],
        references={name: figures for name, figures in known.items() if name != RUN},
        epochs=[line for line in lines if line["kind"] == "epoch"],
        alarms=alarms,
        active=list(state.progress.health.get("ringing", [])),
        adapted=_adapted(state, measured),
    )


def _adapted(state: RunState, measured: EpochEnd) -> Adapted | None:
    """The change of the network that the run started from; None where that was not measured."""
    progress, gains = state.progress, dict[str, Gain]()
    if progress.start is None or progress.best is None:
        return None
    for name in (TARGET, SOURCE):
        before, after = (progress.hits.get(f"{moment}_{name}") for moment in ("start", "best"))
        if before is None or after is None or len(before) != len(after):  # an image could not be read any more
            continue
        probe = measured.probes.get(name)
        on = probe.measured_on if probe is not None else "of the training set"
        figure = next(each for each in FIGURES if (f"{name}_{each}" if probe is not None else each) in progress.best)
        if figure == "knn_top1" and (probe is None or probe.by_one_another):
            on += in_groups(len(before), state.recipe.monitor)
        # Only the target's figure chose the best of several networks.
        tries = progress.measurements if name == TARGET else 1
        halves = [progress.hits.get(f"{moment}_{name}_halves") for moment in ("start", "best")]
        gains[name] = Gain.between(
            before,
            after,
            figure=FIGURES[figure],
            measured_on=on,
            tries=tries,
            halves=None if halves[0] is None or halves[1] is None else (halves[0], halves[1]),
        )
    best = progress.best
    return Adapted(gains, best["epoch"], best["step"], progress.measurements, progress.ended)


def _known(folder: Path | None, step: int) -> tuple[Figures, dict[str, float], dict[str, NetworkCost], int]:
    """Figures, margins, costs and the images measured of the run's report, if it is of this step; else empty."""
    assert folder is not None
    stored: RunVerdict | None
    try:
        report = finished_report(folder)
        stored = RunVerdict.from_dict(report["verdict"])
    except (ValueError, LookupError, TypeError, AttributeError):
        report, stored = {}, None  # not finished, of a version without verdicts, or changed by hand: measured anew
    if stored is None or report["steps"] != step:
        return {}, {}, {}, 0
    return {RUN: stored.figures} | stored.references, stored.margins, stored.costs, stored.measured


class _Comparison:
    """Measures networks beside the trained one."""

    def __init__(
        self, state: RunState, monitor: Monitor, reporter: Reporter, stop: StopRequest, folder: Path | None
    ) -> None:
        self._state, self._monitor, self._reporter, self._stop = state, monitor, reporter, stop
        self._folder = folder
        self._run: NetworkFigures | None = None
        self.margins: dict[str, float] = {}  # points that a lead over a reference must exceed, by its name
        self._device = state.trainer.device

    @property
    def count(self) -> int:
        """The images that the run was measured on, on rank 0: those that could be read; 0 before that."""
        return 0 if self._run is None else len(self._run.hits)

    def usual(self) -> Figures:
        """The run and its references, from one pass over the images."""
        recipe, images = self._state.recipe, self._monitor.images
        networks: dict[str, nn.Module] = {
            RUN: self._judged_network,
            TWIN: self._untrained(),
        }
        networks |= {
            name: rows_of_inputs(name, recipe.views.preprocessing).to(self._device) for name in WITHOUT_NETWORK
        }
        networks |= self._unless_gone(lambda: {PATCHES: self._patches()})
        if recipe.init is not None:
            networks |= self._unless_gone(lambda: {START: self._start})
        figures = self._compare(networks, "comparing with references")
        if (run := self._run) is not None:  # on rank 0
            labels = run.labels_of(images)
            figures |= {GUESSING: guessing(labels, measured=len(run.hits), k=recipe.monitor.k)}
        return figures

    def with_teacher(self, name: str, teacher: Backbone) -> Figures:
        """A frozen teacher, on images that are prepared as it wants them."""
        return self._compare({name: teacher}, f"comparing with {name}", teacher.transform)

    def costs(self) -> dict[str, NetworkCost]:
        """The costs of the run's network and its teachers, on rank 0; empty without teachers."""
        teachers = self._state.teaching.by_name()
        if not teachers or self._folder is None:
            return {}
        network, side = self._state.trainer.model.teacher.backbone, self._state.recipe.views.eval_crop
        return {RUN: measure_cost(network, side, self._device)} | {
            name: measure_cost(teacher.network, teacher.transform.crop, self._device)
            for name, teacher in teachers.items()
        }

    def with_original(self) -> Figures:
        """The network that an adapted run started from and the run's, on images of the size that its checkpoint states.

        Empty where that is the run's size: the usual references have it then.
        """
        return self._unless_gone(self._with_original)

    def _with_original(self) -> Figures:
        recipe = self._state.recipe
        assert recipe.init is not None
        own, ours = run_on_rank0(lambda: loading.read(str(recipe.init)).preprocessing), recipe.views.preprocessing
        if (own.resize, own.crop) == (ours.resize, ours.crop):
            return {}
        check_resolution(self._start, [own.crop])
        at = f"{own.crop} pixels"
        original, resized = ORIGINAL_AT + at, RUN_AT + at
        networks = {original: self._start, resized: self._judged_network}
        transform = replace(ours, resize=own.resize, crop=own.crop)
        measured = self._measure(networks, f"comparing at {at}", transform, decisive_only=True)
        assert self._run is not None
        pairs = {original: self._run, resized: measured[resized]}
        self._add_margins({name: each.lead_over(measured[original]) for name, each in pairs.items()})
        return _rounded(measured)

    def with_checkpoint(self, name: str) -> Figures:
        """A checkpoint, on images that are prepared as it wants them."""
        return self._unless_gone(lambda: self._with_checkpoint(name))

    def _with_checkpoint(self, name: str) -> Figures:
        run_on_rank0(lambda: loading.load(name) and None)  # which fetches it once
        backbone = all_succeed(lambda: loading.load(name)).to(self._device)
        return self._compare({name: backbone}, f"comparing with {name}", backbone.transform)

    def _compare(
        self, networks: Mapping[str, nn.Module], title: str, transform: Preprocessing | None = None
    ) -> Figures:
        measured = self._measure(networks, title, transform)
        self._run = measured.get(RUN, self._run)
        if (run := self._run) is not None:
            leads = {name: run.lead_over(each) for name, each in measured.items() if name != RUN}
            leads |= {GUESSING: run.estimate()} if RUN in measured else {}  # a guess has no spread
            self._add_margins(leads)
        return _rounded(measured)

    def _add_margins(self, leads: Mapping[str, Estimate]) -> None:
        points = {name: round(100 * lead.margin(), 2) for name, lead in leads.items()}
        self.margins |= {name: each for name, each in points.items() if not math.isnan(each)}

    def _measure(
        self,
        networks: Mapping[str, nn.Module],
        title: str,
        transform: Preprocessing | None,
        *,
        decisive_only: bool = False,
    ) -> dict[str, NetworkFigures]:
        with self._reporter.progress(title, self._monitor.passes) as bar:

            def advance(images: int) -> None:
                bar.advance(images)
                if self._stop.received is not None:
                    raise MeasurementStoppedError

            return self._monitor.compare(
                networks, advance, transform=transform, agreed=self._stop.agreed, decisive_only=decisive_only
            )

    @cached_property
    def _judged_network(self) -> nn.Module:
        """The network that the run has come to: that of its best epoch, where it is compared with its start."""
        progress, last = self._state.progress, self._state.trainer.model.teacher.backbone
        if progress.start is None or progress.best is None or progress.best["step"] == progress.step:
            return last
        network = build_model(replace(self._state.recipe, init=None)).teacher.backbone.eval().to(self._device)

        def load() -> None:
            assert self._folder is not None
            stored = reading.read(self._folder)  # which takes the best one
            load_strictly(network, stored.tensors, what=os.fspath(stored.file))

        run_on_rank0(load)
        broadcast(network.state_dict().values())
        return network

    def _untrained(self) -> nn.Module:
        """The network that the run's seed makes, with the BatchNorm statistics of the images."""
        recipe = self._state.recipe
        network = build_model(replace(recipe, init=None)).teacher.backbone.eval().to(self._device)
        images = evenly_spread(self._monitor.images, CALIBRATION_IMAGES)
        run_on_rank0(lambda: estimate_batchnorm(network, images, recipe.views.preprocessing))
        broadcast(network.state_dict().values())
        return network

    def _patches(self) -> nn.Module:
        """Whitened patches with k-means, fitted on the images that are measured."""
        images, workers = self._monitor.images, self._state.feed.workers
        transform = self._state.recipe.views.preprocessing
        return run_on_rank0(lambda: patches.fitted(images, transform, workers=workers)).to(self._device)

    @cached_property
    def _start(self) -> nn.Module:
        """The network that the run started from: the one that `init` names, if that is still the same."""
        recipe, known = self._state.recipe, self._state.progress.started_from  # not known of earlier versions' runs
        model = build_model(recipe)

        def load() -> None:
            start_from(model, recipe, self._state.images)
            require(
                known in (None, weights_hash(model.teacher.backbone)),
                f"init={recipe.init} is another network now than the one that this run started from",
            )

        run_on_rank0(load)
        network = model.teacher.backbone.eval().to(self._device)
        broadcast(network.state_dict().values())
        return network

    def _unless_gone(self, make: Callable[[], dict[str, T]]) -> dict[str, T]:
        """The figures made, or none where files that they need are gone: the run is done, and is judged."""
        try:
            return make()
        except UserError as error:
            self._reporter.warn(f"{error}; the verdict does without it")
            return {}


def _rounded(measured: Mapping[str, NetworkFigures]) -> Figures:
    return {
        name: {each: round(value, 2) for each, value in reading.figures.items()} for name, reading in measured.items()
    }
