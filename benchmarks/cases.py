"""A case of a simulation: a kind of interval or test, the truth that it is about, and how often it should hold it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

Draws = ParamSpec("Draws")
Drawn = TypeVar("Drawn")

HOLDS, ERRS = (0.93, 0.97), (0.04, 0.06)  # the share of trials in which intervals hold the truth, and tests err

Trial = Callable[[np.random.Generator], bool]  # whether an interval holds the truth, or a test calls equals different


@dataclass(frozen=True)
class Case:
    """A kind of interval or test.

    Attributes:
        name: for people.
        trial: draws an evaluation and judges it.
        least: of the share of trials, at least this is right.
        most: and at most this.
        quick: how many trials are a test of the suite; 0 is none.
    """

    name: str
    trial: Trial
    least: float = HOLDS[0]
    most: float = HOLDS[1]
    quick: int = 0


def inside(ends: tuple[float, float] | None, truth: float) -> bool:
    """Whether an interval in percent holds a truth in percent."""
    assert ends is not None
    return ends[0] <= truth <= ends[1]


def drawn_once(draw: Callable[Draws, Drawn]) -> Callable[Draws, Drawn]:
    """A function that draws with a generator, its first argument, and remembers: cases share what they draw."""
    known = dict[Any, tuple[Drawn, Any]]()

    @wraps(draw)
    def remembered(*args: Draws.args, **options: Draws.kwargs) -> Drawn:
        random: Any = args[0]
        key = random.bit_generator.state["state"]["state"], args[1:], tuple(options.items())
        if key not in known:
            known[key] = draw(*args, **options), random.bit_generator.state
        drawn, random.bit_generator.state = known[key]
        return drawn

    return remembered


def held(case: Case, trials: int) -> float:
    """The share of seeded trials that a case holds in."""
    random = np.random.default_rng(0)
    return sum(case.trial(random) for _ in range(trials)) / trials
