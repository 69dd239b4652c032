"""The memory that a search plans for."""

import pytest

from excb.neighbours.memory import search_memory

pytestmark = pytest.mark.usefixtures("one_thread")


def test_plan_adds_up() -> None:
    one = search_memory(1_000_000, 384, 4000, 200)
    assert one.bank >= 1_000_000 * 384 * 4
    assert one.answer == 4000 * 200 * 16
    assert one.total == one.bank + one.queries + one.tiles + one.answer < 3e9
    assert "bank 1,000,000 x 384 1.56 GB" in one.text
    assert "\n" not in one.text
    shared, streamed = (
        search_memory(1_000_000, 384, 4000, 200, processes=4),
        search_memory(1_000_000, 384, 4000, 200, streamed=True),
    )
    assert shared.bank == one.bank // 4
    assert "in each of 4 processes" in shared.text
    assert streamed.bank == 28_000_000
    assert "read in tiles" in streamed.text
