"""Tests of compressed run-length codes: against COCO's own tools, and codes that these must never see."""

import numpy as np
import pytest

from excb.transfer.coco.run_lengths import run_lengths
from tests.transfer.tiny_coco import run_length


@pytest.mark.parametrize("seed", range(20))
def test_runs_are_those_that_cocos_tools_wrote(seed: int) -> None:
    from pycocotools import mask as coco

    random = np.random.default_rng(seed)
    mask = random.random((random.integers(1, 90), random.integers(1, 400))) < random.choice([0.001, 0.1, 0.5, 1.0])
    code = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    wanted = run_length(mask)["counts"]
    assert run_lengths(code["counts"].decode()).tolist() == (wanted if wanted[-1] else wanted[:-1])  # no run at the end


@pytest.mark.parametrize("code", ["", "o", "1o", "\x7f", "é", " ", "oooooooo1", "\ud800", "1\0"])
def test_what_is_no_code_is_refused(code: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - words differ
        run_lengths(code)
