"""Whether intervals hold the truth in 95 % of simulated evaluations, and tests call equals different in 5 %.

Each is drawn 200 times, which tells 90 % from 95 %. `python -m benchmarks.coverage` draws more, over more
numbers of images, and prints the table of docs/evaluation.md.
"""

import pytest

from benchmarks.coverage import CASES, TIERS, Case, held, one_tier

TRIALS = 200


@pytest.mark.parametrize("case", [case for case in CASES if case.quick], ids=lambda case: case.name)
def test_intervals_hold_the_truth(case: Case) -> None:
    share = held(case, TRIALS)
    assert case.least - 0.035 <= share <= case.most + 0.035  # what 200 trials tell


@pytest.mark.parametrize("checkpoints", TIERS)
def test_equal_checkpoints_have_one_tier(checkpoints: int) -> None:
    assert one_tier(checkpoints, 60) >= 0.9
