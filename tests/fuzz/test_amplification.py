"""Small files that state large contents, in every format: no more than ten times the memory limit is ever taken."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from excb.files.foreign import VARIABLE
from tests.fuzz import bombs, guard


def names() -> list[Any]:
    return [pytest.param(name, marks=[] if bomb.cheap else [pytest.mark.slow]) for name, bomb in bombs.BOMBS.items()]


@pytest.mark.skipif(not guard._peak(), reason="needs /proc")
@pytest.mark.parametrize("name", names())
def test_no_file_takes_more_than_ten_times_the_limit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(bombs.LIMIT))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # which the variable sets
    taken, reason = bombs.taken(name, bombs.write(name, tmp_path))
    assert taken <= bombs.TIMES * bombs.LIMIT * 1e9, f"{taken / 1e6:,.0f} MB"
    assert bool(reason) == bombs.BOMBS[name].refused, reason
