"""The experiment: references, then networks at hand, then short runs, within a budget of minutes."""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from excb.console import Reporter, duration, plural
from excb.errors import UserError
from excb.hub import catalogue, loading
from excb.hub.backbone import Backbone
from excb.hub.resolve import local_folder
from excb.networks.preprocessing import Preprocessing
from excb.references import patches
from excb.references.baselines import REFERENCES, UNTRAINED, WITHOUT_NETWORK, rows_of_inputs
from excb.references.untrained import build_untrained, estimate_batchnorm, evenly_spread

from ..initialise import adopted
from ..loop import run_training
from ..overrides import apply, find_recipe
from ..plan.frozen_teachers import frozen_teachers_of
from ..recipe import Recipe
from ..run.monitor import Monitor, NetworkFigures
from ..run.rules import clusters_for
from ..run.taught import measure_cost
from ..verdict import GUESSING, TITLES, guessing
from .sample import TrialImages
from .short_runs import (
    ShortRun,
    adapting_values,
    colours_of,
    distilled,
    fewer_clusters,
    fit_run,
    from_scratch,
    is_cheaper,
    sizes_of,
)
from .trials import KINDS, Experiment, Kind, Trial

CALIBRATION_IMAGES = 1000  # for the BatchNorm statistics of the untrained network
FROZEN_SHARE = 0.4  # of the minutes that networks as they are may take
SHARES = {"distilled": 2.0, "adapted": 3.0, "pretrained": 1.0}  # of the rest, for each short run
SLOWDOWN = 1.4  # times that a short run takes longer than its steps, until one was timed
SLOWEST = 4.0  # the most of that: the start of a tiny run says nothing of others
RUNS = "short-runs"  # their folder


def networks_here() -> list[str]:
    """Names of the zoo's networks whose weights are on this machine."""
    return [row.name for row in catalogue.checkpoints() if local_folder(row) is not None]


def run_experiment(
    sample: TrialImages,
    base: Recipe,
    networks: Sequence[str],
    *,
    side: int,
    minutes: float,
    device: torch.device,
    workers: int,
    out: Path,
    reporter: Reporter,
) -> Experiment:
    """Try everything that fits into the budget.

    Args:
        sample: images to learn from and to measure on.
        base: the recipe that is proposed for these images without an experiment, with its sizes.
        networks: names of trained networks, as `excb.load` takes them.
        side: median shorter side of the images in pixels.
        minutes: of the whole experiment, about; references are measured in any case.
        device: where everything runs.
        workers: processes that read images.
        out: folder of the short runs, which are deleted when they have been measured.
        reporter: for progress, and a line for every trial.

    Raises:
        UserError: a network cannot be loaded, or does not take images of these channels.
    """
    work = _Work(sample, base, side=side, minutes=minutes, device=device, workers=workers, out=out, reporter=reporter)
    work.references()
    for name in networks:
        work.frozen(name)
    work.short_runs()
    return Experiment(
        tuple(work.trials), len(sample.measured), len(sample.learned), sample.labelled, dict(work.skipped)
    )


class _Work:
    """The trials so far, and the time that is left."""

    def __init__(
        self,
        sample: TrialImages,
        base: Recipe,
        *,
        side: int,
        minutes: float,
        device: torch.device,
        workers: int,
        out: Path,
        reporter: Reporter,
    ) -> None:
        self.trials, self.skipped = list[Trial](), dict[str, str]()
        self._sample, self._base, self._side, self._seconds = sample, base, side, 60 * minutes
        self._device, self._workers, self._out, self._reporter = device, workers, out, reporter
        measured = base.change(monitor={"images": len(sample.measured)})
        self._monitor = Monitor(sample.measured, measured, device=device, workers=workers)
        self._start, self._slowdown = time.monotonic(), SLOWDOWN
        self._networks = dict[str, Backbone]()

    @property
    def _passes(self) -> int:
        """Images that a measurement reads: each once, and once more in an altered copy where there are no labels."""
        return len(self._sample.measured) * (1 if self._sample.labelled else 2)

    @property
    def _left(self) -> float:
        """Seconds."""
        return self._seconds - (time.monotonic() - self._start)

    def references(self) -> None:
        """Features that need no training, from one pass over the images."""
        began, preprocessing = time.monotonic(), self._base.views.preprocessing
        network = build_untrained(self._base.model.architecture, self._base.run.seed)
        estimate_batchnorm(network, evenly_spread(self._sample.learned, CALIBRATION_IMAGES), preprocessing)
        rows: dict[str, nn.Module] = {UNTRAINED: network.to(self._device)}
        rows |= {name: rows_of_inputs(name, preprocessing).to(self._device) for name in WITHOUT_NETWORK}
        rows[patches.NAME] = patches.fitted(self._sample.learned, preprocessing, workers=self._workers).to(self._device)
        readings = self._measure("references", rows)
        seconds = (time.monotonic() - began) / len(readings)
        for name, reading in readings.items():
            self._add(Trial(REFERENCES[name], "reference", reading, seconds))
        self._add(Trial(TITLES[GUESSING], "reference", self._guess(readings[UNTRAINED]), 0.0))

    def _guess(self, like: NetworkFigures) -> NetworkFigures:
        """The figures of always guessing the most frequent class, or any image."""
        images, k = self._sample.measured, self._base.monitor.k
        labels = None if images.labels is None or images.classes is None else images.labels
        hits = torch.zeros_like(like.hits)
        if labels is not None and len(labels) == len(hits):  # all could be read
            hits = torch.from_numpy(labels == np.bincount(labels).argmax())
        figures = guessing(None if labels is None else labels.tolist(), measured=len(images), k=k)
        halves = None if like.halves is None else hits.repeat(len(like.halves), 1)
        return NetworkFigures(figures, like.decisive, hits, halves)

    def frozen(self, name: str) -> None:
        """A trained network as it is, at its own size or a smaller one that suits the images."""
        began = time.monotonic()
        backbone = loading.load(name)
        size = sizes_of(backbone.transform, self._side)
        if size != backbone.transform.crop:
            backbone = loading.load(name, img_size=size)
        backbone = backbone.to(self._device)
        cost = measure_cost(backbone.network, size, self._device)
        needed = cost.milliseconds * self._passes / 1000
        if needed > max(0.0, FROZEN_SHARE * self._seconds - (began - self._start)):
            self.skipped[name] = (
                f"as it is, it takes {duration(needed)} for {plural(len(self._sample.measured), 'image')}"
            )
            self._reporter.note(f"not tried: {name}: {self.skipped[name]}")
            return
        (reading,) = self._measure(name, {name: backbone}, backbone.transform).values()
        self._networks[name] = backbone
        self._add(Trial(name, "frozen", reading, time.monotonic() - began, cost=cost))

    def short_runs(self) -> None:
        """Short runs share the time that is left by their weights; what one does not take, the others have."""
        frozen = sorted((each for each in self.trials if each.kind == "frozen"), key=lambda each: -each.value)
        best = frozen[0].name if frozen else None
        plans: list[tuple[Kind, str, tuple[str, ...]]] = []
        if best is not None and is_cheaper(self._base, self._networks[best]):
            plans.append(("distilled", best, ()))
        plans += [("pretrained", title, values) for title, values in colours_of(self._base).items()]
        if best is not None:
            plans.append(("adapted", best, ()))
        plans.append(("pretrained", "clusters of four times as many images", ()))
        for number, (kind, name, values) in enumerate(plans):
            share = SHARES[kind] / sum(SHARES[each] for each, _, _ in plans[number:])
            self._short_run(kind, name, values, share * self._left)

    def _short_run(self, kind: Kind, name: str, values: tuple[str, ...], seconds: float) -> None:
        title = f"{name}, {KINDS[kind]}"
        began = time.monotonic()
        if seconds < 2:
            self._skip(title, "no time is left")
            return
        planned = self._planned(kind, name, values, seconds)
        if isinstance(planned, str):
            self._skip(title, planned)
            return
        folder = self._out / RUNS / str(len(self.trials))
        shutil.rmtree(folder, ignore_errors=True)
        self._reporter.note(
            f"trying: {title}, {plural(planned.recipe.optim.epochs, 'epoch')} of {plural(len(planned.images), 'image')}"
        )
        try:
            before = time.monotonic()
            if code := run_training(
                planned.recipe,
                planned.images,
                folder,
                Reporter(quiet=True),
                device=self._device,
                table=False,
                verdict=False,
                teachers=self._networks if kind == "distilled" else None,
            ):
                raise KeyboardInterrupt(code)
            taken = time.monotonic() - before
            trained = loading.load(folder).to(self._device)
        except UserError as error:  # such as a loss that diverged: that is a finding
            self._skip(title, str(error))
            return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        seen = planned.recipe.optim.epochs * len(planned.images)
        self._slowdown = min(SLOWEST, max(1.0, taken * planned.steps_alone / seen))  # so runs that follow are planned
        (reading,) = self._measure(title, {title: trained}, trained.transform).values()
        cost = measure_cost(trained.network, trained.transform.crop, self._device)
        base = name if kind in ("distilled", "adapted") else ""
        shown = {"distilled": f"{self._base.model.backbone} taught by {name}", "adapted": f"{name} adapted"}
        self._add(
            Trial(
                shown.get(kind, f"{self._base.model.backbone}, {name}"),
                kind,
                reading,
                time.monotonic() - began,
                seen,
                seen / taken,
                cost,
                base,
                planned.keep,
            )
        )

    def _planned(self, kind: Kind, name: str, values: tuple[str, ...], seconds: float) -> ShortRun | str:
        """The run with as many epochs as fit, or why there is none."""
        images, base = self._sample.learned, self._base
        if kind == "distilled":
            teacher = self._networks[name]
            cost = next(each.cost for each in self.trials if each.name == name)
            assert cost is not None
            once = cost.milliseconds / 1000
            if (most := int(seconds / 2 / max(once, 1e-9))) < len(images):
                images = replace(images, indices=images.indices[:: -(-len(images) // max(1, most))])
            recipe = distilled(base, name, teacher.transform.crop)
            keep = tuple(
                f"views.{each}={getattr(base.views, each)}" for each in ("global_size", "eval_resize", "eval_crop")
            )
            keep += (f"distil.teacher_size={teacher.transform.crop}",)
            teachers = frozen_teachers_of(recipe, self._networks)
            left = seconds - once * len(images)
            return fit_run(
                name, recipe, images, left, self._device, slowdown=self._slowdown, teachers=teachers, keep=keep
            )
        if kind == "adapted":
            own = loading.load(name).transform
            keep = adapting_values(own, self._networks[name].transform.crop)
            recipe = apply(find_recipe("adapt"), [f"init={name}", *keep])
            clusters = min(recipe.method.clusters, clusters_for(len(images)))
            recipe = adopted(recipe, lambda _line: None).change(
                method={"clusters": clusters}, efficiency={"device": base.efficiency.device}
            )
        elif not values and name not in colours_of(base):
            keep = (f"method.clusters={max(2, base.method.clusters // 4)}",)
            recipe = fewer_clusters(base, len(images))
        else:
            keep, recipe = values, from_scratch(base, len(images), values)
        return fit_run(name, recipe, images, seconds, self._device, slowdown=self._slowdown, keep=keep)

    def _measure(
        self, title: str, networks: Mapping[str, nn.Module], transform: Preprocessing | None = None
    ) -> dict[str, NetworkFigures]:
        with self._reporter.progress(title, self._passes) as bar:
            return self._monitor.compare(networks, bar.advance, transform=transform, decisive_only=True)

    def _skip(self, title: str, why: str) -> None:
        self.skipped[title] = why
        self._reporter.note(f"not tried: {title}: {why}")

    def _add(self, trial: Trial) -> None:
        self.trials.append(trial)
        interval = trial.interval()
        spread = "" if interval is None else f" ({interval[0]:.1f} to {interval[1]:.1f})"
        self._reporter.note(f"{trial.name}: {trial.value:.1f} %{spread}, {duration(trial.seconds)}")
