"""Whether intervals hold the truth in 95 % of simulated evaluations, and tests call equals different in 5 %.

Each is drawn 200 or 60 times, which tells 90 or 86 % from 95 %. `python -m benchmarks.coverage` draws more, over more
numbers of images, and prints the table of docs/evaluation.md.
"""

import pytest

from benchmarks.cases import Case, held
from benchmarks.coverage import CASES, TIERS, one_tier


@pytest.mark.parametrize("case", [case for case in CASES if case.quick], ids=lambda case: case.name)
def test_intervals_hold_the_truth(case: Case) -> None:
    share, slack = held(case, case.quick), 2.3 * (0.95 * 0.05 / case.quick) ** 0.5  # what so many trials tell
    assert case.least - slack <= share <= case.most + slack


@pytest.mark.parametrize("checkpoints", TIERS)
def test_equal_checkpoints_have_one_tier(checkpoints: int) -> None:
    assert one_tier(checkpoints, 60) >= 0.9
