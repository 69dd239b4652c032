"""Runs that end without curves and without a verdict, which take twice as long as nine steps of a tiny network."""

import pytest

VARIABLE = "EXCB_TESTS_SHORT_END"  # forked programs (`tests.forked`) that have it end so as well


def end_shortly(patch: pytest.MonkeyPatch) -> None:
    """Leave out curves and verdict of the runs of this process, until the patch is undone."""
    from excb.pretrain.figures import curves
    from excb.pretrain.training import judging

    patch.setattr(curves, "draw_curves", lambda *_, **__: None)
    patch.setattr(judging, "verdict", lambda *_, **__: None)
