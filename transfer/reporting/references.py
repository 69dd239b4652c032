"""References beside the figures of a result: guessing, features that no network makes, the same network untrained."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from excb.console import Reporter
from excb.inference.paired import Paired
from excb.inference.tiers import LEVEL
from excb.ledger import Ledger, doubt
from excb.references import patches
from excb.references.baselines import WITHOUT_NETWORK
from excb.references.guessing import CHANCE, MAJORITY, chance, majority
from excb.references.untrained import NETWORK
from excb.results.result import ResultRecord

from ..task import UNKNOWN
from .predictions import Predictions

if TYPE_CHECKING:
    from ..task import Task

PATCHES = patches.NAME
NEIGHBOURS = "neighbours"  # what a head is compared with: the vote on the features that it saw
TITLES = {
    NEIGHBOURS: "k-NN of the same features",
    NETWORK: "untrained",
    **{name: title for name, (title, _) in WITHOUT_NETWORK.items()},
    PATCHES: patches.TITLE,
    MAJORITY: "majority class",
    CHANCE: "chance",
}
_BESIDE = "beside "  # how a sentence on a reference begins
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
    return doubt(f"figures that guessing brings above {MOST_BY_CHANCE:.0f} %", names, "a high figure says little")


Answered = tuple[ResultRecord, Any]  # a result, and the answers for every test image; None where there are none


def with_references(own: Answered, references: Mapping[str, Answered], *, main: str) -> ResultRecord:
    """A result with the figures of references, and notes on those that are not beaten.

    The strongest is named with its figure. One is called better only where a paired test on the same images says so at
    5 %; the sampling unit is that of `Paired.compared`.

    Args:
        own: of the checkpoint.
        references: by their names in results, measured in the same way.
        main: the figure that names the strongest.
    """
    figures = {name: dict(each[0].figures) for name, each in references.items()}
    known = {name: values[main] for name, values in figures.items() if main in values}
    strongest = max(known, key=lambda name: known[name], default=None)
    if strongest is not None:
        known = {strongest: known[strongest]} | known
    notes = [_beside(own, name, references[name], strongest=name == strongest) for name in known]
    result = own[0]
    return replace(result, references=result.references | figures, notes=[*result.notes, *filter(None, notes)])


def _beside(own: Answered, name: str, reference: Answered, *, strongest: bool) -> str:
    """A sentence on the figures in which a checkpoint does not beat a reference; empty where it beats it in all."""
    ours, theirs = own[0].figures, reference[0].figures
    compared = {
        figure: _compared(own[1], reference[1], figure)
        for figure in ours
        if ("top1" in figure or "mAP" in figure) and figure in theirs
    }
    better = [figure for figure, p in compared.items() if theirs[figure] > ours[figure] and (p is None or p < LEVEL)]
    equal = [figure for figure, p in compared.items() if figure not in better and p is not None and p >= LEVEL]
    title = f"{title_of(name)}, the strongest reference" if strongest else title_of(name)
    parts = [
        f"{words} in {_named(figures, ours, theirs)}"
        for words, figures in (("better", better), ("no different within chance", equal))
        if figures
    ]
    return f"{_BESIDE}{title}: {'; '.join(parts)}" if parts else ""


def _compared(ours: Any, theirs: Any, figure: str) -> float | None:
    """The p-value of a paired test; None of answers that cannot be paired."""
    pairs = isinstance(ours, Paired) and isinstance(theirs, Paired) and type(ours) is type(theirs)
    if not pairs or figure not in ours.testable or figure not in theirs.testable:
        return None
    return float(ours.compared(figure, theirs, figure).p_value)


def _named(figures: Sequence[str], ours: Mapping[str, float], theirs: Mapping[str, float]) -> str:
    more = f" and {len(figures) - _NAMED} more" if len(figures) > _NAMED else ""
    first = [f"{figure} ({theirs[figure]:.2f} against {ours[figure]:.2f} %)" for figure in figures[:_NAMED]]
    return f"{', '.join(first)}{more}"


def below(result: ResultRecord) -> list[str]:
    """A sentence for each top-1 accuracy below that of always guessing.

    It says that nothing was learned where all are below: those of clean images may be above, of corrupted ones not.
    """
    guesses = {name: guess for name, guess in result.references.get(MAJORITY, {}).items() if "top1" in name}
    low = [name for name, guess in guesses.items() if result.figures.get(name, guess) < guess]
    sentences = []
    for figure in low:
        guess, votes = guesses[figure], result.references.get(NEIGHBOURS, {}).get(figure, 0.0)
        failed = "the head learned nothing" if votes > guess else "nothing was learned"
        sentences.append(
            f"{figure} of {result.figures[figure]:.2f} % is below the {guess:.2f} % of always guessing the most "
            f"frequent class{f': {failed}' if low == [*guesses] else ''}"
        )
    return sentences


def tell_notes(result: ResultRecord, reporter: Reporter, *, said: Collection[str] = ()) -> None:
    """Print a result's notes, less those that `print_references` warns of, and what the task said when it opened.

    Args:
        result: whose notes.
        reporter: prints them.
        said: other notes that were printed before.
    """
    warned = {*_warnings(result), *said}
    for note in result.notes:
        if note not in warned and not note.startswith(UNKNOWN):
            reporter.note(note)


def _warnings(result: ResultRecord) -> list[str]:
    return [*below(result), *(note for note in result.notes if note.startswith(_BESIDE))]


def title_of(name: str) -> str:
    """The usual name of a reference; checkpoints have their own."""
    return TITLES.get(name, name)


def titles_of(results: Iterable[ResultRecord]) -> dict[str, str]:
    """The names of the references that any of the results has, in their order."""
    there = dict.fromkeys(name for result in results for name in result.references)
    return {name: title_of(name) for name in [*TITLES, *there] if name in there}


def rows(result: ResultRecord, figures: Sequence[str], names: Iterable[str]) -> list[list[str]]:
    """A table of figures and these references, in percent; a line each."""
    return [
        [figure, f"{result.figures[figure]:.2f}"]
        + [f"{values[figure]:.2f}" if figure in (values := result.references.get(name, {})) else "" for name in names]
        for figure in figures
    ]


def print_references(result: ResultRecord, reporter: Reporter) -> None:
    """Print the main figures beside their references, and warn of figures that these beat."""
    if result.references:
        known = [name for name in result.figures if any(name in values for values in result.references.values())]
        main = [name for name in known if name in result.per_class] or known
        titles = titles_of([result])
        header = ["figure", "measured", *titles.values()]
        reporter.table("References, %", header, rows(result, main[:_MOST], titles))
    for sentence in _warnings(result):
        reporter.warn(sentence)
