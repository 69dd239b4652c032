"""References beside the figures of a result: guessing, features that no network makes, the same network untrained."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from excb.console import Reporter
from excb.ledger import Ledger, doubt
from excb.references import patches
from excb.references.baselines import WITHOUT_NETWORK
from excb.references.guessing import CHANCE, MAJORITY, chance, majority
from excb.references.untrained import NETWORK
from excb.results.result import Result

from .predictions import Predictions

if TYPE_CHECKING:
    from ..task import Task

PIXELS, HISTOGRAM = WITHOUT_NETWORK  # by these names they are in results
PATCHES = patches.NAME
# The options that ask for them.
OPTIONS = {NETWORK: "untrained", PIXELS: "pixels", HISTOGRAM: "histogram", PATCHES: "patches"}
TITLES = {
    NETWORK: "untrained",
    **{name: title for name, (title, _) in WITHOUT_NETWORK.items()},
    PATCHES: patches.TITLE,
    MAJORITY: "majority class",
    CHANCE: "chance",
}
_RIVALS = {
    NETWORK: "the same network untrained does",
    PIXELS: "raw pixels do",
    HISTOGRAM: "colour histograms do",
    PATCHES: f"{patches.TITLE} do",
}
MOST_BY_CHANCE = 50.0  # percent of a figure that says something
_MOST = 12  # rows of the table in a terminal
_NAMED = 3  # figures that a sentence names, at most


def guesses(task: "Task", scored: Predictions) -> dict[str, dict[str, float]]:
    """Accuracy of always guessing the most frequent classes of the train images, and by chance, for every figure."""
    assert task.train.labels is not None
    train, figures = torch.from_numpy(task.train.labels), dict[str, dict[str, float]]()
    for name, guess in ((MAJORITY, majority), (CHANCE, chance)):
        values = {top: round(guess(train, scored.targets, within=top), 4) for top in (1, 5)}
        figures[name] = {
            template.format(f"top{top}"): value for template in scored.values for top, value in values.items()
        }
    return figures


def nearly_by_chance(references: Mapping[str, Mapping[str, float]]) -> Ledger:
    """The figures that guessing at random nearly reaches, such as top-5 of three classes."""
    high = {figure: value for figure, value in references.get(CHANCE, {}).items() if value > MOST_BY_CHANCE}
    names = [f"{figure} ({value:.0f} %)" for figure, value in high.items()]
    return doubt(f"figures that guessing brings above {MOST_BY_CHANCE:.0f} %", names, "they say little")


def with_reference(result: Result, name: str, reference: Result) -> Result:
    """A result with the figures of another among its references, and a note where those are higher."""
    own = {name: dict(reference.figures)}
    return replace(result, references=result.references | own, notes=[*result.notes, *_beaten(result, own)])


def below(result: Result) -> list[str]:
    """A sentence for each top-1 accuracy below that of always guessing, and for each reference that does better."""
    guessing = [
        f"{figure} of {result.figures[figure]:.2f} % is below the {value:.2f} % of always guessing the most frequent "
        "class: nothing was learned"
        for figure, value in result.references.get(MAJORITY, {}).items()
        if "top1" in figure and result.figures.get(figure, value) < value
    ]
    return guessing + _beaten(result, result.references)


def _beaten(result: Result, references: Mapping[str, Mapping[str, float]]) -> list[str]:
    sentences = []
    for name, does in _RIVALS.items():
        worse = [
            f"{figure} ({result.figures[figure]:.2f} against {value:.2f} %)"
            for figure, value in references.get(name, {}).items()
            if ("top1" in figure or "mAP" in figure) and result.figures.get(figure, value) < value
        ]
        if worse:
            more = f" and {len(worse) - _NAMED} more" if len(worse) > _NAMED else ""
            sentences.append(f"{does} better in {', '.join(worse[:_NAMED])}{more}")
    return sentences


def rows(result: Result, figures: Sequence[str]) -> list[list[str]]:
    """A table of figures and their references, in percent; a line each."""
    return [
        [figure, f"{result.figures[figure]:.2f}"]
        + [f"{values[figure]:.2f}" if figure in (values := result.references.get(name, {})) else "" for name in TITLES]
        for figure in figures
    ]


def print_references(result: Result, reporter: Reporter) -> None:
    """Print the main figures beside their references, and warn of figures that guessing beats."""
    if result.references:
        known = [name for name in result.figures if any(name in values for values in result.references.values())]
        main = [name for name in known if name in result.per_class] or known
        names = ["figure", "measured", *TITLES.values()]
        shown = [column for column, _ in enumerate(names) if column < 2 or [*TITLES][column - 2] in result.references]
        table = [[row[column] for column in shown] for row in rows(result, main[:_MOST])]
        reporter.table("References, %", [names[column] for column in shown], table)
    for sentence in below(result):
        reporter.warn(sentence)
