"""References beside the figures of a result: guessing, and the same network untrained."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from excb.console import Reporter
from excb.references.guessing import CHANCE, MAJORITY, chance, majority
from excb.references.untrained import NETWORK
from excb.results.result import Result

from .predictions import Predictions

if TYPE_CHECKING:
    from ..task import Task

PIXELS = "pixels"
TITLES = {NETWORK: "untrained", PIXELS: "raw pixels", MAJORITY: "majority class", CHANCE: "chance"}
_MOST = 12  # rows of the table in a terminal


def guesses(task: "Task", scored: Predictions) -> dict[str, dict[str, float]]:
    """Accuracy of always guessing the most frequent classes of the train images, and by chance, for every figure."""
    assert task.train.labels is not None
    train, found = torch.from_numpy(task.train.labels), dict[str, dict[str, float]]()
    for name, guess in ((MAJORITY, majority), (CHANCE, chance)):
        values = {top: round(guess(train, scored.targets, within=top), 4) for top in (1, 5)}
        found[name] = {
            template.format(f"top{top}"): value for template in scored.values for top, value in values.items()
        }
    return found


def with_untrained(result: Result, twin: Result) -> Result:
    """A result with the figures of the same network untrained among its references."""
    return replace(result, references=result.references | {NETWORK: dict(twin.figures)})


def below(result: Result) -> list[str]:
    """A sentence for each top-1 accuracy that is below what guessing the most frequent class gives."""
    return [
        f"{figure} of {result.figures[figure]:.2f} % is below the {value:.2f} % of always guessing the most frequent "
        "class: nothing was learned"
        for figure, value in result.references.get(MAJORITY, {}).items()
        if "top1" in figure and result.figures.get(figure, value) < value
    ]


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
