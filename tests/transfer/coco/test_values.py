"""Numbers in annotations: whatever JSON can hold is a box or an area, or None."""

from typing import Any

import pytest

from excb.transfer.coco.values import area_of, box_of, mask_of

HUGE = 10**400  # JSON holds it, and no float does


@pytest.mark.parametrize("number", [HUGE, -HUGE, float("nan"), float("inf"), None, "one", [1], {}])
def test_what_is_no_number_is_no_box_area_or_mask(number: Any) -> None:
    assert box_of([0, 0, 5, number]) is None
    assert area_of(number) is None
    assert mask_of([[0, 0, 5, 0, 5, number]], 9, 9)[0] is None


def test_boxes_and_areas() -> None:
    assert box_of([1, 2.5, 3, 4]) == (1.0, 2.5, 3.0, 4.0)
    assert box_of([1, 2, 3]) is None
    assert area_of(12) == 12.0
