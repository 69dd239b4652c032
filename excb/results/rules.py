"""What the fields of a result file may be: files may have been edited by hand, or made up."""

import math
from collections.abc import Callable, Iterator
from typing import Any

Rule = Callable[[Any], bool]


def wrong_field(values: dict[str, Any]) -> str | None:
    """The first field that is not of the kind that readers count on, as "data.train.images"; None where all are.

    Args:
        values: of a result file, with all of its fields.
    """
    return next(_wrong(values), None)


def _wrong(values: dict[str, Any]) -> Iterator[str]:
    for name, rule in _FIELDS.items():
        if not rule(values[name]):
            yield name
            return  # the rest counts on these
    for path, rule in _INNER.items():
        *outer, last = path.split(".")
        inner: Any = values
        for name in outer:
            inner = inner.get(name) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            for key in inner if last == "*" else {last} & inner.keys():
                if not rule(inner[key]):
                    yield f"{'.'.join(outer)}.{key}"
    if (told := values["predictions"]) and not (_plain_name(told.get("file")) and _text(told.get("sha256"))):
        yield "predictions"


def is_number(value: Any) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _table(value: Any) -> bool:
    return isinstance(value, dict)


def _or_none(rule: Rule) -> Rule:
    return lambda value: value is None or rule(value)


def _pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value))


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _shares(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_or_none(is_number), value.values()))


def _plain_name(value: Any) -> bool:
    """Of a file beside the result: none that could lead elsewhere."""
    return (
        isinstance(value, str) and 0 < len(value) < 256 and value not in (".", "..") and not set("/\\\0") & set(value)
    )


_FIELDS: dict[str, Rule] = {
    **dict.fromkeys(("protocol", "created"), _text),
    "seconds": is_number,
    "notes": lambda value: isinstance(value, list) and all(map(_text, value)),
    **dict.fromkeys(
        ("figures", "settings", "checkpoint", "data", "intervals", "per_class", "predictions", "claims", "environment"),
        _table,
    ),
}
_INNER: dict[str, Rule] = {
    "figures.*": is_number,
    "intervals.*": _pair,
    "per_class.*": _shares,
    "claims.*": _table,
    "settings.settings": _table,
    "settings.share": _or_none(_table),
    **{
        f"checkpoint.{name}": _or_none(_text) for name in ("name", "source", "architecture", "weights_sha256", "recipe")
    },
    **{f"checkpoint.{name}": _or_none(_table) for name in ("preprocessing", "pretraining")},
    **{f"checkpoint.{name}": _or_none(is_number) for name in ("epoch", "step")},
    **{f"checkpoint.pretraining.{name}": _or_none(_text) for name in ("method", "crops")},
    **{f"checkpoint.pretraining.{name}": _or_none(is_number) for name in ("epochs", "batch")},
    **{f"data.{part}": _table for part in ("train", "test")},
    **{f"data.{part}.{name}": _text for part in ("train", "test") for name in ("root", "fingerprint")},
    **{f"data.{part}.images": _count for part in ("train", "test")},
    "data.classes": _or_none(_count),
}
