"""Tests of the table of corruptions: what words name, and AlexNet's errors against figures published by others."""

import pytest

from excb.errors import UserError
from excb.transfer.robustness.names import ALEXNET, ALL, COMMON, corruptions_named

# ResNet-50's top-1 on ImageNet-C and its CE, as published beside each other with timm's weights of 2019.
PUBLISHED = {
    "brightness": (68.02, 56.64),
    "contrast": (39.06, 71.43),
    "defocus_blur": (38.75, 74.71),
    "elastic_transform": (45.25, 84.75),
    "fog": (45.83, 66.11),
    "frost": (38.14, 74.84),
    "gaussian_noise": (29.29, 79.77),
    "glass_blur": (26.79, 88.61),
    "impulse_noise": (23.81, 82.58),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_errors_of_alexnet_are_those_of_published_corruption_errors(name: str) -> None:
    accuracy, error = PUBLISHED[name]
    assert (100 - accuracy) / ALEXNET[name] == pytest.approx(error, abs=0.02)


def test_words_name_corruptions_and_groups() -> None:
    assert (len(COMMON), len(ALL), list(ALEXNET)) == (15, 19, list(COMMON))
    assert corruptions_named(["common"]) == COMMON
    assert corruptions_named(["saturate", "noise", "shot_noise"]) == (
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "saturate",
    )
    assert corruptions_named(["none"]) == ()
    with pytest.raises(UserError, match="did you mean 'gaussian_noise'"):
        corruptions_named(["gausian_noise"])
    with pytest.raises(UserError, match="none stands alone"):
        corruptions_named(["none", "fog"])
