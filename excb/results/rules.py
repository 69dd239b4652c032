"""The rules for the fields of a result file, which may have been edited by hand or made up."""

from typing import Any

from excb import ledger
from excb.files.records import Rule, condition, count, list_of, number, optional, record_of, table, table_of, text


def wrong_field(values: dict[str, Any]) -> str | None:
    """The first field that is not of the kind that readers count on, as "data.train.images"; None where all are."""
    return _RESULT(values)


def _is_plain_name(value: Any) -> bool:
    """Whether it is the name of a file beside the result, not a path that could lead elsewhere."""
    return (
        isinstance(value, str) and 0 < len(value) < 256 and value not in (".", "..") and not set("/\\\0") & set(value)
    )


def _open(fields: dict[str, Rule]) -> Rule:
    """A table that may have these fields and others."""
    return record_of(fields, extra=True)


_predictions = record_of({"file": condition(_is_plain_name), "sha256": text}, required=["file", "sha256"], extra=True)
_pretraining = _open(
    {"method": optional(text), "crops": optional(text), "epochs": optional(number), "batch": optional(number)}
)
_checkpoint = _open(
    {
        **dict.fromkeys(("name", "source", "architecture", "weights_sha256", "recipe"), optional(text)),
        **dict.fromkeys(("epoch", "step"), optional(number)),
        "preprocessing": optional(table),
        "pretraining": optional(_pretraining),
        "training_ledger": optional(ledger.RULE),
    }
)
_images = _open({"root": text, "fingerprint": text, "images": count})
_RESULT = _open(
    {
        "protocol": text,
        "created": text,
        "seconds": number,
        "notes": list_of(text),
        "figures": table_of(number),
        "settings": _open({"settings": table, "share": optional(table)}),
        "checkpoint": _checkpoint,
        "data": _open({"train": _images, "test": _images, "classes": optional(count)}),
        "intervals": table_of(list_of(number, 2)),
        "inference": table_of(table_of(text)),
        "per_class": table_of(table_of(optional(number))),
        "predictions": lambda value: None if value == {} or _predictions(value) is None else "",
        "claims": table_of(table),
        "references": table_of(table_of(number)),
        "ledger": ledger.RULE,
        "environment": table,
    }
)
