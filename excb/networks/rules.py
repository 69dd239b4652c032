"""Rules for the architecture and preprocessing in a file of unknown origin."""

from typing import Any, get_args

from excb.console import plural
from excb.errors import UserError
from excb.files import records
from excb.files.records import Field, RecordError, all_of, condition, list_of, number_in
from excb.images.pixels import Background, Colours, Orientation
from excb.networks.architecture import FORBIDDEN, MOST_CHANNELS, Architecture
from excb.networks.preprocessing import Corner, CropMode, Interpolation, Preprocessing

LARGEST_SIDE = 2**14  # pixels
LARGEST_OPTION = 2**20  # such as a width; a billion stages would fill the memory before they are refused


def _in_bounds(value: Any) -> bool:
    """Whether every number in a value is small enough for a network."""
    if isinstance(value, dict | list):
        return all(map(_in_bounds, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int | float) or abs(value) <= LARGEST_OPTION


def _one_of(words: Any) -> Field:
    """One of the words of a Literal."""
    names = get_args(words)
    return Field(records.one_of(*names), " or ".join(f'"{name}"' for name in names))


_side = Field(number_in(1, LARGEST_SIDE, integer=True), f"a whole number of pixels up to {LARGEST_SIDE:,}")
PREPROCESSING = {
    "resize": _side,
    "crop": _side,
    "mean": Field(list_of(records.number), "numbers"),
    "std": Field(list_of(all_of(records.number, condition(lambda value: value > 0))), "numbers above 0"),
    "interpolation": _one_of(Interpolation),
    "crop_mode": _one_of(CropMode),
    "corner": _one_of(Corner),
    "pixels": Field(
        records.record_of(
            {
                "channels": number_in(1, MOST_CHANNELS, integer=True),
                "low": list_of(records.number),
                "high": list_of(records.number),
                "origin": records.one_of("8-bit", "declared", "measured"),
                "colours": records.one_of(*get_args(Colours)),
                "orientation": records.one_of(*get_args(Orientation)),
                "background": records.one_of(*get_args(Background)),
            }
        ),
        "a table of channels, low, high, origin, colours, orientation and background",
    ),
}
_ARCHITECTURE = {
    "name": Field(records.matching(r"(timm:|torchvision:|transformers:)?[A-Za-z0-9]\w*(\.\w+)?"), "a plain name"),
    "options": Field(all_of(records.table, condition(_in_bounds)), f"a table with numbers up to {LARGEST_OPTION:,}"),
}


def architecture_from(values: dict[str, Any]) -> Architecture:
    """The architecture in a file's record. Raises RecordError for an invalid one, or forbidden options."""
    records.check_record(values, _ARCHITECTURE, what="architecture", required=_ARCHITECTURE, extra=True)
    if refused := sorted(FORBIDDEN & values["options"].keys()):
        raise RecordError(f"architecture may not have the option {', '.join(refused)}")
    return Architecture(values["name"], values["options"])


def preprocessing_from(values: dict[str, Any]) -> Preprocessing:
    """The preprocessing in a file's record, with defaults. Raises RecordError for an unknown or invalid field."""
    records.check_record(values, PREPROCESSING, what="preprocessing")
    try:
        preprocessing = Preprocessing.from_dict(values)
    except UserError as error:  # a range that is none
        raise RecordError(f"preprocessing: {error}") from None
    counts = len(preprocessing.mean), len(preprocessing.std)
    if set(counts) != {preprocessing.pixels.channels}:
        raise RecordError(
            f"preprocessing has {counts[0]} means and {counts[1]} std for "
            f"{plural(preprocessing.pixels.channels, 'channel')}"
        )
    return preprocessing
