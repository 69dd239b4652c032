"""From the results of all contenders to a table for each head."""

from collections.abc import Mapping, Sequence

import numpy as np

from excb.references.guessing import MAJORITY, TITLES
from excb.results.result import Result

from ..every.suite import Outcome
from .choosing import OpenSet
from .running import Contender, answers_of
from .standings import Standing, Table, table


def gathered(
    contenders: Sequence[Contender], outcomes: Mapping[str, Sequence[Outcome]], opened: Sequence[OpenSet]
) -> list[Table]:
    """A table for each head, with all that could be measured.

    Args:
        contenders: checkpoints and references.
        outcomes: of every contender, by name.
        opened: the sets.

    Raises:
        UserError: the answers of a result are gone.
    """
    results = {
        one.name: {made.step.name: made for made in outcomes[one.name] if made.result is not None} for one in contenders
    }
    heads = dict.fromkeys(
        head for made in results.values() for one in made.values() if one.result for head in one.result.figures
    )
    draws = {name: {key: _draws(made[key], opened) for key in made} for name, made in results.items()}
    sets = [each.entry.name for each in opened]
    return [
        table(
            head,
            [
                *(_standing(one, head, results[one.name], draws[one.name]) for one in contenders),
                _majority(head, [made for each in results.values() for made in each.values()]),
            ],
            sets,
        )
        for head in heads
    ]


def _draws(made: Outcome, opened: Sequence[OpenSet]) -> dict[str, np.ndarray]:
    """Bootstrap draws of a result by head."""
    assert made.result is not None
    assert made.file is not None
    metric = next(each.entry.metric for each in opened if each.entry.name == made.step.name)
    targets, answers = answers_of(made.result, made.file)
    return {head: metric.draws(each, targets) for head, each in answers.items()}


def _standing(
    one: Contender, head: str, made: Mapping[str, Outcome], draws: Mapping[str, Mapping[str, np.ndarray]]
) -> Standing:
    there = {name: each.result for name, each in made.items() if each.result and head in each.result.figures}
    return Standing(
        one.name,
        one.reference,
        {name: result.figures[head] for name, result in there.items()},
        {name: result.intervals[head] for name, result in there.items()},
        {name: draws[name][head] for name in there if head in draws[name]},
    )


def _majority(head: str, made: Sequence[Outcome]) -> Standing:
    """What answers without a look at an image give, which is the same for all contenders."""

    def of(result: Result | None) -> float | None:
        return None if result is None else result.references[MAJORITY].get(head)

    figures = {each.step.name: value for each in made if (value := of(each.result)) is not None}
    return Standing(TITLES[MAJORITY], True, figures, {}, {})
