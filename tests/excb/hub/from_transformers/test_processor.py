"""transformers' image processors: the same inputs as from their PIL form on real photographs, or a refusal."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from excb.errors import UserError
from excb.hub.from_transformers.processor import preprocessing_from_processor
from excb.images.photographs import photograph
from excb.networks.preprocessing import Preprocessing

PHOTOGRAPHS = ("cat", "coffee", "astronaut")
SQUARE = {"height": 60, "width": 60}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("BitImageProcessor", {"size": {"shortest_edge": 256}, "image_mean": [0.485, 0.456, 0.406]}),  # DINOv2's
    *(("BitImageProcessor", {"size": {"shortest_edge": side}, "crop_size": SQUARE}) for side in (60, 61, 62, 63, 90)),
    ("BitImageProcessor", {"size": {"shortest_edge": 55}, "crop_size": SQUARE}),  # black around it
    *(("CLIPImageProcessor", {"resample": resample}) for resample in range(6)),
    ("ViTImageProcessor", {}),
    ("ViTImageProcessor", {"size": SQUARE, "rescale_factor": 1 / 127.5, "image_mean": 1.0, "image_std": 1.0}),
    ("ViTImageProcessor", {"size": SQUARE, "do_normalize": False}),
    ("ViTImageProcessor", {"size": SQUARE, "do_rescale": False, "image_mean": [120.0] * 3, "image_std": [50.0] * 3}),
    ("ViTImageProcessor", {"size": SQUARE, "do_center_crop": True, "crop_size": {"height": 51, "width": 51}}),
    ("SiglipImageProcessor", {}),
    ("ConvNextImageProcessor", {}),  # squashed
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}}),
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}, "crop_pct": 0.95}),
]


def prepared(processor: Any, name: str) -> torch.Tensor:
    values: np.ndarray = np.asarray(processor(photograph(name), return_tensors="np")["pixel_values"][0])
    return torch.from_numpy(values)


@pytest.mark.parametrize(("kind", "values"), CASES)
def test_inputs_are_the_processors(kind: str, values: dict[str, Any]) -> None:
    """Within 1e-5: the same 8-bit pixels (a grey level is 1e-2), scaled in another order."""
    processor = getattr(transformers, f"{kind}Pil")(**values)
    stated = processor.to_dict()
    assert stated["image_processor_type"] == kind
    ours = preprocessing_from_processor(stated)
    assert Preprocessing.from_dict(ours.to_dict()) == ours
    for name in PHOTOGRAPHS:
        scale = max(1.0, float(prepared(processor, name).abs().max()))
        torch.testing.assert_close(ours(photograph(name)), prepared(processor, name), rtol=0, atol=1e-5 * scale)


def test_dinov3s_processor_is_met_within_two_grey_levels() -> None:
    """It has no PIL form: it resizes floating-point tensors, where ours rounds to 8 bits."""
    processor = transformers.DINOv3ViTImageProcessor(size=SQUARE)
    ours = preprocessing_from_processor(processor.to_dict())
    assert (ours.crop_mode, ours.interpolation) == ("squash", "bilinear")
    for name in PHOTOGRAPHS:
        theirs = processor(photograph(name), return_tensors="pt")["pixel_values"][0]
        levels = (ours(photograph(name)) - theirs).abs() * torch.tensor(ours.std).view(3, 1, 1) * 255
        assert float(levels.max()) < 2
        assert float(levels.mean()) < 0.5


@pytest.mark.parametrize("suffix", ["", "Fast", "Pil"])
def test_the_form_that_a_file_names_does_not_matter(suffix: str) -> None:
    stated = {"image_processor_type": f"ViTImageProcessor{suffix}", "size": SQUARE}
    assert preprocessing_from_processor(stated).crop == 60
    older = {"feature_extractor_type": "ViTFeatureExtractor", "size": 60}  # as of 2022
    assert preprocessing_from_processor(older) == preprocessing_from_processor(stated)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_processor_type": "DetrImageProcessor"}, "DetrImageProcessor are prepared in a way that is not known"),
        ({}, "None are prepared in a way that is not known"),
        ({"image_processor_type": "ViTImageProcessor", "do_resize": False}, "does not resize"),
        ({"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 9}}, "only squares"),
        ({"image_processor_type": "CLIPImageProcessor", "do_center_crop": False}, "only squares"),
        ({"image_processor_type": "CLIPImageProcessor", "crop_size": {"height": 8, "width": 9}}, "only squares"),
        ({"image_processor_type": "DINOv3ViTImageProcessor", "resample": 3}, "bilinear alone"),
        *(
            ({"image_processor_type": "ViTImageProcessor", name: odd}, "does not take these values")
            for name, odd in (
                *(("size", "large"), ("resample", 24), ("resample", "x"), ("image_mean", "x")),
                *(("image_mean", [None, 1, 1]), ("image_std", {}), ("rescale_factor", None), ("rescale_factor", 0)),
            )
        ),
    ],
)
def test_what_cannot_be_said_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        preprocessing_from_processor(values)
