"""The fields that define a protocol: which settings count, and how people read them."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

# Settings that a protocol found or drew by itself, or that say who it is by.
OUTCOMES = frozenset({"chosen", "sweep", "select_images", "seed", "seeds", "source", "assumed"})
# Settings that are not stated where they are as they have always been.
IMPLIED = {"feature_precision": "fp32"}
OTHER, UNSTATED = "other protocol", "not stated"  # fields of published figures that no command here could give
_NAMES = {"temperature": "T", "weight_decay": "weight decay", "lr_batch": "lr per images"}
_FIRST = ("k", "T", "recipe", "engine", "epochs", "batch", "lr", "weight decay", "backbone_lr", "head_lr", "schedule",
          "share", "gallery", "select")  # fmt: skip


def named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without outcomes, under the names that people read."""
    return {_NAMES.get(name, name): value for name, value in settings.items() if name not in OUTCOMES}


def without(settings: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Settings but for those of the given names."""
    left_out = set(names)
    return {name: value for name, value in settings.items() if name not in left_out}


def digest(fields: Mapping[str, Any]) -> str:
    """Equal for equal protocols: 12 hexadecimal digits."""
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The differences between two protocols, field by field: "k 20, not 200"."""
    if OTHER in one:
        return [one[OTHER]]
    names = [*one, *(name for name in other if name not in one)]
    both = [(name, *(each.get(name, IMPLIED.get(name)) for each in (one, other))) for name in names]
    return [_difference(name, value, unlike) for name, value, unlike in both if value != unlike]


def _difference(name: str, value: Any, other: Any) -> str:
    if name == UNSTATED:
        return f"{value}: stated nowhere" if value else f"{other}: stated here"
    return f"{name.replace('_', ' ')} {readable(value)}, not {readable(other)}"


def readable(value: Any) -> str:
    """A setting as people read it; of many values their number and their range."""
    if isinstance(value, list | tuple):
        if len(value) > 4 and all(isinstance(each, int | float) for each in value):
            return f"{len(value)} from {min(value):g} to {max(value):g}"
        return " ".join(map(readable, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)


def settings_line(fields: Mapping[str, Any]) -> str:
    """The settings that people ask for first, on one line."""
    parts = [f"{name.replace('_', ' ')} {readable(fields[name])}" for name in _FIRST if fields.get(name) is not None]
    if "resize" in fields and "crop" in fields:
        parts.append(f"images {fields['resize']} → {fields['crop']} px")
    return " · ".join(parts)
