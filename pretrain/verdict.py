"""The verdict of a run: did it learn, by how much more than references on its own images, and what to do next."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from excb.console import Reporter, plural
from excb.references import patches

from .recipe import MonitorSettings, Recipe
from .run.gain import SOURCE, TARGET, Adapted, Gain, in_points
from .run.monitor import groups_and_voters
from .run.rules import SHORT, clusters_for, in_each, too_many_clusters
from .run.taught import BATCH, BesideTeacher, NetworkCost, cost_rows

RUN, START, GUESSING, TWIN = "run", "start", "guessing", "untrained"
HISTOGRAM, PATCHES = "colour_histogram", patches.NAME
# References that need no training run; what a run was asked to be compared with beside them has its own name.
TITLES = {
    GUESSING: "guessing",
    "pixels": "raw pixels",
    HISTOGRAM: "a colour histogram",
    PATCHES: patches.TITLE,
    TWIN: "the same network untrained",
    START: "the checkpoint it started from",
}
# Of an adapted run: its start and itself at the size that the start's checkpoint states, where the run has another.
ORIGINAL_AT, RUN_AT = "the original at ", "this run at "
# The figures, the one that decides first; without labels there is no k-NN.
FIGURES = {
    "knn_top1": "k-NN top-1",
    "instance_retrieval": "instance retrieval",
    "neighbour_agreement": "agreement of neighbours",
}
FAILED = {  # alarms that mean, while they are active, that the run has failed whatever its features do
    "chance": "its loss is no better than chance",
    "collapse": "its features have collapsed",
    "diverging": "its loss has risen above chance",
}
UNCLEAR = 5.0  # points; with a wider margin there are too few images to say that nothing was learned
RISING = 1.0  # points in the last quarter of the run that count as a curve that still rises, if no chance
FALLING = 0.02  # the same of the loss, relative
FEW = 5000  # images


@dataclass(frozen=True)
class RunVerdict:
    """The verdict on a run.

    Attributes:
        learned: True if it is ahead of all references; False if it is not ahead of the same network untrained, or an
            alarm says that it failed; None in between, or where it cannot be judged.
        summary: that in one or two sentences, with figures.
        figures: the run's own, in percent.
        references: figures by reference, in percent.
        units: what each figure counts, in words.
        advice: what to do next, the most promising first.
        alarms: of the whole run, in its order.
        gains: of a run that started from a trained network and measured it: what became of it, on the images that it
            is for (`target`) and those that it knew (`source`). Then `learned` is whether it is better than it was.
        costs: of a run that learned from teachers: its own network's (`run`) and each teacher's.
        margins: points that the lead over a reference must exceed to be more than chance, by its name; of an adapted
            run at the original's size, its lead over the original there. The sampling unit is an image, as query and as
            neighbour of the others.
        measured: images that the figures are of, which could be read; 0 of earlier versions' reports.
    """

    learned: bool | None
    summary: str
    figures: dict[str, float]
    references: dict[str, dict[str, float]]
    units: dict[str, str]
    advice: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    gains: dict[str, Gain] = field(default_factory=dict)
    costs: dict[str, NetworkCost] = field(default_factory=dict)
    margins: dict[str, float] = field(default_factory=dict)
    measured: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = asdict(self) | {"advice": [*self.advice], "alarms": [*self.alarms]}
        for name in ("gains", "costs", "margins", "measured"):
            if not values[name]:
                del values[name]
        return values

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "RunVerdict":
        """The inverse of `to_dict`.

        Raises:
            LookupError, TypeError, ValueError: it is not a verdict.
        """
        learned, references = stored["learned"], stored["references"]
        if not (learned is None or isinstance(learned, bool)):
            raise TypeError("learned is true, false or null")
        return cls(
            learned,
            str(stored["summary"]),
            _figures(stored.get("figures", {})),
            {str(name): _figures(values) for name, values in references.items()},
            {str(name): str(words) for name, words in stored.get("units", {}).items()},
            tuple(map(str, stored["advice"])),
            tuple(map(str, stored["alarms"])),
            {str(name): Gain.from_dict(values) for name, values in stored.get("gains", {}).items()},
            {str(name): NetworkCost.from_dict(values) for name, values in stored.get("costs", {}).items()},
            _figures(stored.get("margins", {})),
            int(stored.get("measured", 0)),
        )

    def lines(self) -> list[str]:
        """The verdict as people read it: summary, alarms, advice."""
        return [
            self.summary,
            *(f"alarm, {alarm}" for alarm in self.alarms),
            *(f"next: {advice}" for advice in self.advice),
        ]

    def rows(self) -> list[list[str]]:
        """A table: the run, then every reference, with all figures of the run."""
        named = {RUN: self.figures} | self.references
        return [
            [
                "this run" if name == RUN else reference_title(name),
                *(_short(values.get(figure)) for figure in self.figures),
            ]
            for name, values in named.items()
        ]


def print_verdict(verdict: RunVerdict, reporter: Reporter, *, table: bool) -> None:
    """Print a verdict: as a part of the result, or as notes where the result is not for people."""
    if not table:
        for line in verdict.lines():
            reporter.note(line)
        return
    header = ["features", *(f"{FIGURES[name]} %" for name in verdict.figures)]
    reporter.table("Did it learn?", header, verdict.rows())
    if verdict.costs:
        figure = next(iter(verdict.figures))
        named = {RUN: verdict.figures} | verdict.references
        values = {name: named[name][figure] for name in verdict.costs if name in named}
        columns = ("M weights", "ms an image", "MiB", "per M weights", "per ms", "per MiB")
        rows = cost_rows(verdict.costs, values)
        rows[0][0] = "this run"
        reporter.table("What it costs", ["features", f"{FIGURES[figure]} %", *columns], rows)
        reporter.answer(f"ms an image: in batches of {BATCH} on this machine, reading not counted")
    for name, words in verdict.units.items():
        reporter.answer(f"{FIGURES.get(name, name)}: {words}")
    for line in verdict.lines():
        reporter.answer(line)


@dataclass(frozen=True)
class RunFigures:
    """The figures that a verdict judges.

    Attributes:
        recipe: of the run.
        images: in its set.
        measured: images that figures are of.
        figures: of the trained network, in percent.
        references: figures by reference.
        epochs: its lines of kind `epoch` in `metrics.jsonl`.
        alarms: its lines of kind `alarm`.
        active: names of the alarms of its last epoch.
        adapted: what became of the network that it started from, where that was measured.
        costs: of the run's network and of its frozen teachers, which are among the references.
        margins: see `RunVerdict`; of references that are not among them, shares of independent images say it.
    """

    recipe: Recipe
    images: int
    measured: int
    figures: Mapping[str, float]
    references: Mapping[str, Mapping[str, float]]
    epochs: Sequence[Mapping[str, Any]] = ()
    alarms: Sequence[Mapping[str, Any]] = ()
    active: Sequence[str] = ()
    adapted: Adapted | None = None
    costs: Mapping[str, NetworkCost] = field(default_factory=dict)
    margins: Mapping[str, float] = field(default_factory=dict)

    @property
    def decisive(self) -> str:
        """The figure that decides."""
        return next(name for name in FIGURES if name in self.figures)

    @property
    def best(self) -> str:
        """The reference that is best in it; those that are only asked for do not count."""
        return self.best_of(TITLES)

    def best_of(self, names: Collection[str]) -> str:
        """The best of these references, of those that there are."""
        rivals = [name for name in self.references if name in names]
        return max(rivals, key=lambda name: self.references[name][self.decisive])

    @property
    def stronger(self) -> str | None:
        """The strongest of all references, if it is a network that was asked for and is better by more than chance."""
        resized = {name for name in self.references if name.startswith((ORIGINAL_AT, RUN_AT))}
        name = self.best_of(self.references.keys() - self.costs.keys() - resized)
        return name if name not in TITLES and -self.lead(name) > self.margin(name) else None

    @property
    def original(self) -> str | None:
        """The size at which the network that the run started from was measured besides, such as "224 pixels"."""
        names = (name.removeprefix(ORIGINAL_AT) for name in self.references if name.startswith(ORIGINAL_AT))
        return next(names, None)

    def lead(self, reference: str) -> float:
        """Points by which the decisive figure is ahead of a reference."""
        return self.figures[self.decisive] - self.references[reference][self.decisive]

    def margin(self, reference: str) -> float:
        """Points that a lead must exceed to be no accident of these images: 95 %."""
        if reference in self.margins:
            return self.margins[reference]
        return self._chance(self.figures[self.decisive], self.references[reference][self.decisive])

    def far_above(self, reference: str, others: Collection[str]) -> bool:
        """Whether a reference is ahead of the best of these, of those that there are, by more than chance."""
        first, second = (self.references[name][self.decisive] for name in (reference, self.best_of(others)))
        return first - second > self._chance(first, second)

    def _chance(self, *percentages: float) -> float:
        """Points that two figures of these images may differ by, taken as independent: 95 %."""
        shares = [figure / 100 for figure in percentages]
        return 196 * math.sqrt(sum(share * (1 - share) for share in shares) / self.measured)

    def described(self, reference: str) -> str:
        """A reference with its figure."""
        return f"{reference_title(reference)} ({self.references[reference][self.decisive]:.1f} %)"


def reference_title(reference: str) -> str:
    """The usual name of a reference."""
    return TITLES.get(reference, reference)


def guessing(labels: Sequence[int] | None, *, measured: int, k: int) -> dict[str, float]:
    """Figures in percent without looking at an image; of k-NN, those of always saying the most frequent class.

    Args:
        labels: of the measured images; None where there are none.
        measured: number of images.
        k: neighbours.
    """
    figures = {
        "instance_retrieval": round(100 / measured, 2),
        "neighbour_agreement": round(100 * min(k, measured - 1) / max(1, measured - 1), 2),
    }
    if labels is None:
        return figures
    return {"knn_top1": round(100 * max(Counter(labels).values()) / len(labels), 2)} | figures


def judge_run(run: RunFigures) -> RunVerdict:
    """The verdict of a run that is finished."""
    figures = {name: run.figures[name] for name in FIGURES if name in run.figures}
    gains = {} if run.adapted is None else dict(run.adapted.gains)
    learned, summary = run.adapted.judge() if run.adapted is not None and TARGET in gains else _learned(run)
    if run.original is not None:
        learned, summary = _beside_original(run, run.original, learned, summary)
    summary += "".join(f" {each.sentence(helps=bool(learned))}" for each in _comparisons(run))
    if others := [run.described(name) for name in run.references if name not in TITLES and name not in run.costs]:
        summary += f" For comparison: {', '.join(others)}."
    if (stronger := run.stronger) is not None:
        summary += f" The strongest reference is {run.described(stronger)}, {-run.lead(stronger):.1f} points above."
    if run.decisive != "knn_top1":
        summary += " Without labels this says how well features find an altered copy of an image, not what it shows."
    return RunVerdict(
        learned,
        summary,
        figures,
        {name: dict(values) for name, values in run.references.items()},
        units(run.measured, run.recipe.monitor, figures),
        tuple(_advice(run, learned)),
        tuple(_alarms(run)),
        gains,
        dict(run.costs),
        dict(run.margins),
        run.measured,
    )


def _beside_original(run: RunFigures, size: str, learned: bool | None, summary: str) -> tuple[bool | None, str]:
    """The verdict on an adapted network, when its original is also measured at the size that its checkpoint states.

    More pixels may be worth more than what the run gained at fewer.
    """
    original, resized = ORIGINAL_AT + size, RUN_AT + size
    at_size, as_trained = run.references[resized][run.decisive], run.figures[run.decisive]
    both = f"{run.described(original)}, {run.described(resized)}"
    ahead = run.lead(original) > run.margin(original)
    ahead_at_size = at_size - run.references[original][run.decisive] > run.margin(resized)
    if learned and not ahead and not ahead_at_size:
        return None, (
            f"Keep the original, and use it at {size}: {both}. What this run gained is at "
            f"{run.recipe.views.eval_crop} pixels only. {summary}"
        )
    advice = "; evaluate it there" if learned and at_size > as_trained else ""
    return learned, f"{summary} At the size that the original's checkpoint states: {both}{advice}."


def _comparisons(run: RunFigures) -> list[BesideTeacher]:
    """The run's network beside each of its teachers."""
    decisive = run.decisive
    return [
        BesideTeacher(
            name,
            FIGURES[decisive],
            run.figures[decisive],
            run.references[name][decisive],
            run.margin(name),
            run.costs[RUN],
            cost,
        )
        for name, cost in run.costs.items()
        if name in run.references
    ]


def units(measured: int, monitor: MonitorSettings, figures: Iterable[str]) -> dict[str, str]:
    """The units of figures, in words.

    Args:
        measured: number of images.
        monitor: how they were measured.
        figures: their names.
    """
    k, (groups, voters) = min(monitor.k, measured - 1), groups_and_voters(measured, monitor)
    group = f"of a random group of {measured // groups:,}"
    others = f"{voters} nearest {group if groups > 1 else 'others'}"
    words = {
        "knn_top1": f"% of {plural(measured, 'train image')}, each classified by its {others}",
        "instance_retrieval": "% of "
        + plural(measured, "train image that is nearest to its own", "train images that are nearest to their own")
        + " augmented view",
        "neighbour_agreement": f"% of an image's {k} nearest that stay the nearest when all images are augmented",
    }
    return {name: words[name] for name in figures}


def _learned(run: RunFigures) -> tuple[bool | None, str]:
    """Whether the run learned, and the sentence that says so."""
    best = run.best
    lead, over_twin = run.lead(best), run.lead(TWIN)
    counted = units(run.measured, run.recipe.monitor, [run.decisive])[run.decisive].removeprefix("% ")
    figure = f"{FIGURES[run.decisive]} of {run.figures[run.decisive]:.1f} % ({counted})"
    twin = "" if best == TWIN else f", and {in_points(over_twin)} {run.described(TWIN)}"
    if failed := next((words for alarm, words in FAILED.items() if alarm in run.active), None):
        return False, f"This run failed: {failed}. It has a {figure}: {in_points(lead)} {run.described(best)}{twin}."
    if lead > run.margin(best):
        return (
            True,
            f"This run learned: its {figure} is {in_points(lead)} {run.described(best)}, the best reference{twin}.",
        )
    if over_twin <= run.margin(TWIN) and run.margin(TWIN) > UNCLEAR:
        return None, (
            f"Whether this run learned cannot be judged from {plural(run.measured, 'image')}: its {figure} is "
            f"{in_points(over_twin)} {run.described(TWIN)}, and {run.margin(TWIN):.0f} may be chance."
        )
    if over_twin <= run.margin(TWIN):
        return False, f"This run learned nothing: its {figure} is {in_points(over_twin)} {run.described(TWIN)}."
    if lead >= -run.margin(best):
        return None, (
            f"This run learned something, perhaps nothing of use: its {figure} is {in_points(over_twin)} "
            f"{run.described(TWIN)}, but no different from {run.described(best)} within {run.margin(best):.1f}."
        )
    return None, (
        f"This run learned something, but too little to be of use: its {figure} is {in_points(over_twin)} "
        f"{run.described(TWIN)}, but {in_points(lead)} {run.described(best)}, for which no training run is needed."
    )


def _short(value: float | None) -> str:
    """A figure for a table: what is below one percent keeps its digits."""
    return "" if value is None else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _alarms(run: RunFigures) -> Iterator[str]:
    """Every alarm of the run, where it first rang."""
    seen = set()
    for alarm in run.alarms:
        name, message = str(alarm.get("name")), str(alarm.get("message"))
        if name not in seen:
            seen.add(name)
            yield f"epoch {alarm.get('epoch')}{', and still at the end' if name in run.active else ''}: {message}"


def _advice(run: RunFigures, learned: bool | None) -> Iterator[str]:
    recipe, poor = run.recipe, not learned
    if poor and too_many_clusters(recipe, run.images):
        yield (
            f"fewer clusters: method.clusters={(fitting := clusters_for(run.images))}, some "
            f"{in_each(run.images, fitting)} each (now "
            f"{recipe.method.clusters:,}, {run.images / recipe.method.clusters:.2g} images each)"
        )
    if (run.adapted is None or run.adapted.ended is None) and (longer := _longer(run, poor=poor)):
        yield longer
    colours = recipe.views.jitter > 0 or recipe.views.grey > 0
    if poor and colours and _colours_suffice(run):
        # Of training images a histogram also finds what one camera took: on others, kept colours may cost accuracy.
        yield (
            "try views that keep the colours, which distinguish these images (views.jitter=0 views.grey=0), and "
            "compare both runs on test images: `excb-eval knn --train DIR --test DIR`"
        )
    if run.adapted is not None:
        yield from _advice_on_adapting(run, run.adapted, poor=poor)
    if (stronger := run.stronger) is not None:
        yield f"learn from what is better: `excb-pretrain distil {stronger} --data DIR`, or use it as it is"
    elif poor and recipe.init is None and not run.costs:
        yield "continue from a trained backbone: `excb-pretrain adapt NAME --data DIR`, a NAME of `excb-zoo list`"
    if poor and run.images < FEW:
        yield f"add images: {run.images:,} are few, and they need no labels"


def _colours_suffice(run: RunFigures) -> bool:
    """Whether colours alone do as well as the run, and better by more than chance than what needs no fit."""
    if HISTOGRAM not in run.references:
        return False
    others = TITLES.keys() - {PATCHES, HISTOGRAM}  # patches show both colours and edges: their lead speaks for neither
    return run.far_above(HISTOGRAM, others) and run.lead(HISTOGRAM) <= run.margin(HISTOGRAM)


def _advice_on_adapting(run: RunFigures, adapted: Adapted, *, poor: bool) -> Iterator[str]:
    """How to see what was gained, and how to lose less."""
    adapt, optim = run.recipe.adapt, run.recipe.optim
    source = adapted.gains.get(SOURCE)
    if poor and adapt.active and run.recipe.monitor.data is None and "knn_top1" in run.figures:
        yield (
            "compare the last checkpoint and the original on labelled images that this run did not see (excb-eval knn "
            "--train DIR --test DIR --ckpt RUN/checkpoints/step-N.pt): its own may hide a small gain"
        )
    if poor and not adapt.active:
        yield f"adapt it with care instead: excb-pretrain adapt {run.recipe.init} --data DIR"
    elif adapt.active and (adapted.epoch == 0 or (source is not None and source.fallen)):
        yield (
            f"change less: adapt.anchor={max(1.0, 3 * adapt.anchor):g} or optim.base_lr={optim.base_lr / 3:.2g} in "
            "another --out"
        )


def _longer(run: RunFigures, *, poor: bool) -> str:
    """Advice to train longer, where the run was short or its curve still rises; else empty."""
    epochs = run.recipe.optim.epochs
    each = run.recipe.steps_per_epoch(run.images)
    if poor and each * epochs < SHORT:
        return (
            f"train longer: optim.epochs={max(2 * epochs, -(-SHORT // each))} in another --out (now {epochs}, which "
            f"are {plural(each * epochs, 'step')}; small sets take {SHORT:,} or more)"
        )
    why = _still_improving(run)
    return f"train longer: optim.epochs={2 * epochs} in another --out ({why})" if why else ""


def _still_improving(run: RunFigures) -> str:
    """How the curve moved in the last quarter of the run, if that was for the better; else empty."""
    for name in (run.decisive, "loss"):
        curve = [
            (line["epoch"], line[name]) for line in run.epochs if _number(line.get("epoch")) and _number(line.get(name))
        ]
        before = [point for point in curve if point[0] <= 0.75 * run.recipe.optim.epochs]
        if not before or curve[-1][0] < run.recipe.optim.epochs:
            continue
        (start, earlier), (_, latest) = before[-1], curve[-1]
        if name != "loss" and latest - earlier >= max(RISING, run.margins.get(GUESSING, 0.0)):
            return f"{FIGURES[name]} still rose by {latest - earlier:.1f} points after epoch {start}"
        if name == "loss" and latest < (1 - FALLING) * earlier:
            return f"the loss still fell from {earlier:.3f} to {latest:.3f} after epoch {start}"
        return ""
    return ""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _figures(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in values.items()}
