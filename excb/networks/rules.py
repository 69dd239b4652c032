"""What a file of unknown origin may say of an architecture and of preprocessing."""

from typing import Any

from excb.files.records import (
    Field,
    RecordError,
    all_of,
    check,
    list_of,
    matching,
    number,
    number_in,
    one_of,
    table,
    where,
)
from excb.networks.architecture import FORBIDDEN, Architecture
from excb.networks.preprocessing import Preprocessing

LARGEST_SIDE = 2**14  # pixels
LARGEST_OPTION = 2**20  # such as a width; a list of a billion stages would fill the memory before it is refused


def _in_bounds(value: Any) -> bool:
    """Whether every number in a value is one that a network could be built with."""
    if isinstance(value, dict | list):
        return all(map(_in_bounds, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int | float) or abs(value) <= LARGEST_OPTION


_side = Field(number_in(1, LARGEST_SIDE, whole=True), f"a whole number of pixels up to {LARGEST_SIDE:,}")
PREPROCESSING = {
    "resize": _side,
    "crop": _side,
    "mean": Field(list_of(number, 3), "three numbers"),
    "std": Field(list_of(all_of(number, where(lambda value: value > 0)), 3), "three numbers above 0"),
    "interpolation": Field(one_of("bilinear", "bicubic"), '"bilinear" or "bicubic"'),
}
_ARCHITECTURE = {
    "name": Field(matching(r"(timm:|torchvision:)?[A-Za-z0-9]\w*(\.\w+)?"), "a plain name"),
    "options": Field(all_of(table, where(_in_bounds)), f"a table with numbers up to {LARGEST_OPTION:,}"),
}


def architecture_from(values: dict[str, Any]) -> Architecture:
    """The architecture that a file states.

    Raises:
        RecordError: it states none, or more than an architecture.
    """
    check(values, _ARCHITECTURE, what="architecture", required=_ARCHITECTURE, extra=True)
    if refused := sorted(FORBIDDEN & values["options"].keys()):
        raise RecordError(f"architecture may not have the option {', '.join(refused)}")
    return Architecture(values["name"], values["options"])


def preprocessing_from(values: dict[str, Any]) -> Preprocessing:
    """The preprocessing that a file states; what it leaves out is as usual.

    Raises:
        RecordError: no image can pass what it states.
    """
    check(values, PREPROCESSING, what="preprocessing")
    return Preprocessing.from_dict(values)
