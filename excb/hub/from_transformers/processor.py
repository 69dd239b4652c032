"""transformers' `preprocessor_config.json` in our terms: what its image processor does, or a refusal."""

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from excb.errors import UserError, first_line, require
from excb.files.foreign import parsing
from excb.networks.from_transformers.families import transformers_library
from excb.networks.preprocessing import Preprocessing

# Image processors that resize, crop, rescale and normalise, and do nothing else.
PROCESSORS = (
    *("BitImageProcessor", "CLIPImageProcessor", "ConvNextImageProcessor"),
    *("DINOv3ViTImageProcessor", "SiglipImageProcessor", "ViTImageProcessor"),
)
# Of `ConvNextImageProcessor`, which squashes images of at least so many pixels, and crops smaller ones.
SQUASHED = 384
_FIELDS = (
    *("do_resize", "size", "resample", "do_center_crop", "crop_size", "crop_pct", "do_pad"),
    *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
)


def preprocessing_from_processor(values: Mapping[str, Any]) -> Preprocessing:
    """The preprocessing that a `preprocessor_config.json` states.

    It is that of the processor's PIL form (`use_fast=False`, `...Pil`): the same pixels, scaled in another order, which
    moves an input by less than 1e-5. Processors that work on tensors resize a little differently; DINOv3's has no other
    form and is met within two grey levels.

    Args:
        values: the file's; what it leaves out is as transformers has it by default.

    Raises:
        UserError: an image processor of another kind, or one that gives no square images of one size.
    """
    kind = _kind(values)
    try:
        with parsing():
            return _stated_by(kind, {name: values[name] for name in _FIELDS if name in values})
    except (OSError, ValueError) as error:
        raise UserError(f"transformers' {kind} does not take these values: {first_line(error)}") from None


def _stated_by(kind: str, values: Mapping[str, Any]) -> Preprocessing:
    stated: Any = getattr(transformers_library(), kind)(**values)
    # Beyond bilinear its floating-point pixels overshoot, which those of 8 bits cannot.
    bilinear = stated.resample == Image.Resampling.BILINEAR
    require(bilinear or kind != "DINOv3ViTImageProcessor", f"this {kind} is known with bilinear alone")
    resize, crop, mode = _geometry(kind, stated)
    mean, std = _normalisation(stated)
    return Preprocessing(
        resize,
        crop,
        mean,
        std,
        Image.Resampling(stated.resample).name.lower(),  # type: ignore[arg-type]  # one of ours
        mode,  # type: ignore[arg-type]  # likewise
        "nearest" if mode == "squash" and resize == crop else "down",
    )


def _kind(values: Mapping[str, Any]) -> str:
    """The processor's class, whichever of its forms a file names."""
    stated = values.get("image_processor_type") or values.get("feature_extractor_type")
    kind = str(stated).replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    require(
        kind in PROCESSORS,
        f"images of transformers' {stated} are prepared in a way that is not known here: {', '.join(PROCESSORS)} are",
    )
    return kind


def _geometry(kind: str, stated: Any) -> tuple[int, int, str]:
    """Resize, crop and crop mode."""
    require(bool(stated.do_resize), f"this {kind} does not resize, and images of one size are needed")
    require(not stated.do_pad, f"this {kind} pads images, which is not known here")
    size, cropped = _sides(stated.size), _sides(stated.crop_size) if stated.do_center_crop else {}
    edge = size.get("shortest_edge")
    if kind == "ConvNextImageProcessor" and edge is not None and not cropped:
        return (edge, edge, "squash") if edge >= SQUASHED else (int(edge / stated.crop_pct), edge, "center")
    crop = cropped.get("height", size.get("height", 0))
    square = size.keys() == {"height", "width"} and len({*size.values()}) == 1
    whole = not cropped or (cropped.keys() == {"height", "width"} and len({*cropped.values()}) == 1)
    require(
        crop > 0 and whole and (square or size.keys() == {"shortest_edge"}),
        f"this {kind} makes images of size {size}, cropped to {cropped or 'nothing'}: only squares are supported",
    )
    return (edge, crop, "center") if edge is not None else (size["height"], crop, "squash")


def _sides(size: Any) -> dict[str, int]:
    names = ("height", "width", "shortest_edge", "longest_edge", "max_height", "max_width")
    sides = {name: getattr(size, name, None) for name in names}
    return {name: side for name, side in sides.items() if side is not None}


def _normalisation(stated: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of channels in [0, 1], whatever range the processor gives them."""
    scale = 255 * float(stated.rescale_factor) if stated.do_rescale else 255.0
    scale = 1.0 if abs(scale - 1) < 1e-9 else scale
    mean, std = (stated.image_mean, stated.image_std) if stated.do_normalize else (0.0, 1.0)
    both = tuple(tuple(float(one) / scale for one in (_three(values))) for values in (mean, std))
    return both[0], both[1]


def _three(values: float | Sequence[float]) -> Sequence[float]:
    return values if isinstance(values, Sequence) else [values] * 3
