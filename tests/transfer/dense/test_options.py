"""Tests of the dense protocol's options: a paper's settings, what overrides them, and what has no use."""

from typing import Any

import pytest

from excb.errors import UserError
from excb.option_parser import of_values
from excb.transfer.dense.heads.recipes import LINEAR, LOGISTIC, SETTINGS, DenseSettings
from excb.transfer.dense.options import DenseOptions


def options(**given: Any) -> DenseOptions:
    return of_values(DenseOptions, {"data": "set", **given}, owner="dense")


def test_named_settings_change_defaults_and_options_change_both() -> None:
    assert options().resolved == DenseSettings()
    capi = options(settings="capi", size=448).resolved
    assert (capi.size, capi.mask_size, capi.heads) == (448, "input", ("logreg",))
    hummingbird = options(settings="hummingbird").resolved  # images are resized to a square, not cropped
    assert (hummingbird.mode, hummingbird.size, hummingbird.interpolation) == ("resize", 512, "bilinear")
    windows = options(settings="dinov2", k=20, heads=["knn", "linear", "knn"]).resolved
    assert (windows.mode, windows.step, windows.k, windows.heads) == ("window", 341, 20, ("knn", "linear"))
    with pytest.raises(UserError, match=r"settings must be one of .*did you mean 'dinov"):
        options(settings="dinov1")
    for name in SETTINGS:
        made = options(settings=name)
        made.check(None)
        assert made.resolved.linear in LINEAR
        assert made.resolved.logistic in LOGISTIC


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"settings": "capi", "k": 5}, "--k is an option of the head knn"),
        ({"heads": "linear", "parts": 8}, "--parts is an option of the head knn"),
        ({"heads": "linear", "backend": "torch"}, "--backend is an option of the head knn"),
        ({"heads": "knn", "linear": "dinov2"}, "--linear is an option of the head linear"),
        ({"logistic": "capi"}, "--logistic is an option of the head logreg"),
        ({"resize": 80}, "--resize has no use with --mode resize"),
        ({"settings": "dinov2", "mode": "crop", "step": 30}, "--step has no use with --mode crop"),
    ],
)
def test_options_without_use_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        options(**given).check(None)
