"""The page of an experiment: what to do, the commands and what they cost, and the figures that say so."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from excb.charts.style import BLUE, GREEN, GREY, ORANGE, drawable, figure_bytes, new_figure, shortened, style_axes
from excb.console import plural
from excb.pages.frame import data_address, render_page
from excb.pages.origin import PageOrigin, refuse_other_page
from excb.results.beside import refuse_folders, refuse_other_beside, text_beside
from excb.results.replacing import FOLDER_ADVICE

from ..verdict import FIGURES
from .commands import NextStep
from .recommendation import Recommendation
from .trials import KINDS, Experiment, Kind

COLOURS: Mapping[Kind, str] = {
    "reference": GREY,
    "frozen": BLUE,
    "adapted": GREEN,
    "distilled": GREEN,
    "pretrained": ORANGE,
}
ACTIONS = {
    "use": "Use {} as it is",
    "adapt": "Adapt {}",
    "distil": "Distil {} into a small network",
    "pretrain": "Pretrain from random weights",
    "undecided": "Your images do not decide it",
}
PAGE, JSON = "choose.html", "choose.json"
LONGEST = 44  # characters of a name in the picture


def action_in_words(recommendation: Recommendation) -> str:
    """The recommendation in a few words."""
    trial = recommendation.trial
    return ACTIONS[recommendation.action].format(trial.base or trial.name if trial is not None else "")


def origin_of(root: str) -> PageOrigin:
    """The origin of the page on the images of a folder."""
    return PageOrigin.of("choose", root)


def refuse_other_choice(out: Path, root: str) -> None:
    """Refuse a folder whose page is of other images, or whose files of these names are of something else.

    Raises:
        UserError: it is so.
    """
    report = text_beside(JSON, "report of choose", '"recommendation": ', '"headline": ', '"trials": ')
    refuse_folders([out / PAGE, out / JSON])
    refuse_other_page(out / PAGE, origin_of(root), advice=FOLDER_ADVICE)
    refuse_other_beside(out / PAGE, [report], advice=FOLDER_ADVICE)


def render_choice(
    experiment: Experiment, recommendation: Recommendation, steps: Sequence[NextStep], data: str, origin: PageOrigin
) -> str:
    """The page as HTML."""
    decisive = experiment.trials[0].reading.decisive
    return render_page(
        "choice",
        title=action_in_words(recommendation),
        style="base choice",
        subtitles=[f"{recommendation.reason}.", f"{data}: {figure_in_words(experiment)}."],
        footer="Short runs see few images: what they reach is less than full runs do. Written by excb-pretrain choose.",
        remarks=[f"{each}." for each in recommendation.remarks],
        steps=steps,
        figure=FIGURES[decisive],
        picture=data_address(draw(experiment)),
        trials=[
            (trial, KINDS[trial.kind], trial.interval()) for trial in sorted(experiment.trials, key=lambda t: -t.value)
        ],
        skipped=experiment.skipped,
        origin=origin,
    )


def figure_in_words(experiment: Experiment) -> str:
    """The figure and the images in words."""
    votes = f"k-NN, each image by its neighbours' labels{experiment.grouped}"
    by = votes if experiment.labelled else "instance retrieval, without labels"
    measured = plural(experiment.measured, "image")
    return f"{by}, on {measured} that no short run saw; these had {experiment.learned:,} others"


def draw(experiment: Experiment) -> bytes:
    """A bar for each trial with its interval, as a PNG file."""
    trials = sorted(experiment.trials, key=lambda trial: trial.value)
    figure = new_figure(7, 0.8 + 0.3 * len(trials))
    axes = figure.subplots()
    for place, trial in enumerate(trials):
        axes.barh(place, trial.value, color=COLOURS[trial.kind], height=0.7)
        if (interval := trial.interval()) is not None:
            axes.plot(interval, [place, place], color="black", linewidth=1)
    axes.set_yticks(range(len(trials)), [shortened(drawable(trial.name), LONGEST) for trial in trials])
    style_axes(axes, x=f"{FIGURES[trials[0].reading.decisive]}, % (lines: 95 % intervals)")
    return figure_bytes(figure)


def report_of(
    experiment: Experiment, recommendation: Recommendation, steps: Sequence[NextStep], data: str
) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "recommendation": recommendation.action,
        "headline": action_in_words(recommendation),
        "reason": recommendation.reason,
        "remarks": [*recommendation.remarks],
        "commands": [step.to_dict() for step in steps],
        "data": data,
        "measured": experiment.measured,
        "learned": experiment.learned,
        "labels": experiment.labelled,
        "figure": experiment.trials[0].reading.decisive,
        "trials": [trial.to_dict() for trial in experiment.trials],
        "skipped": dict(experiment.skipped),
    }
