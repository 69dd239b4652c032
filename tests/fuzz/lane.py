"""How many inputs are tried, which ones, and how many really were: a short lane for CI and a long one."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from tests.fuzz.guard import guard

LONGER = 4  # times as many inputs with --run-slow


class Lane:
    """The lane of this run.

    Attributes:
        slow: many inputs, drawn anew in every run from `seed`; else few, and the same in every run.
        seed: of the slow lane.
        planned: inputs by kind, of the tests that were collected.
        tried: inputs by kind that were really read.
        refused: those of them that ended in a clean error.
    """

    def __init__(self) -> None:
        self.slow = False
        self.seed = int.from_bytes(os.urandom(4), "big")
        self.planned, self.tried, self.refused = Counter[str](), Counter[str](), Counter[str]()

    def summary(self) -> str:
        """One line of what was tried."""
        kinds = ", ".join(f"{kind} {count:,} ({self.refused[kind]:,})" for kind, count in sorted(self.tried.items()))
        seed = f", seed {self.seed}" if self.slow else ""
        return f"fuzz: {self.tried.total():,} inputs{seed}, none beyond a clean error unless a test failed: {kinds}"


LANE = Lane()


def fuzz(
    kind: str, /, *, inputs: int, examples: Sequence[dict[str, Any]] = (), **drawn: st.SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make a test of a function that reads one input under a guard.

    Args:
        kind: of the input, for the count.
        inputs: how many in the short lane.
        examples: inputs that are tried in every run besides, such as those that once failed.
        drawn: what the function takes after the guard.
    """
    planned = inputs * (LONGER if LANE.slow else 1)
    LANE.planned[kind] += planned

    def decorate(read: Callable[..., None]) -> Callable[[], None]:
        tried = 0

        def one(values: dict[str, Any]) -> None:
            nonlocal tried
            with guard() as watch:
                tried += 1
                LANE.tried[kind] += 1
                read(watch, **values)
                LANE.refused[kind] += watch.refused

        made: Any = hypothesis.given(values=st.fixed_dictionaries(drawn))(one)
        for example in examples:
            made = hypothesis.example(values=example)(made)
        if LANE.slow:
            made = hypothesis.seed(LANE.seed)(made)
        made = hypothesis.settings(
            max_examples=planned,
            derandomize=not LANE.slow,
            database=None,
            deadline=None,
            print_blob=True,
            phases=(Phase.explicit, Phase.generate),  # to make an input smaller takes minutes, and most are small
            suppress_health_check=list(HealthCheck),
        )(made)

        def test() -> None:
            made()
            assert tried >= planned, f"{tried} inputs of {planned}: there are no more of this kind"

        test.__name__, test.__doc__, test.__module__ = read.__name__, read.__doc__, read.__module__
        return test

    return decorate
