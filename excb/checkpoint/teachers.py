"""The record of a distilled student's teachers in its files: its rules, and what follows from it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from excb.files.records import (
    Field,
    Rule,
    all_of,
    condition,
    list_of,
    matching,
    number,
    number_in,
    one_of,
    optional,
    record_of,
    table,
)
from excb.networks.rules import LARGEST_SIDE

Labels = Literal["used", "none", "unknown"]  # whether labels reached a network while it was trained

DISTILLATION = "distillation"  # the method of a student, and how its name begins where other losses are added
MOST = 64  # teachers of one student
LARGEST_RECORD = 2**20  # characters and values of all teachers' tables
DEEPEST = 8  # tables and lists within each other
_LONGEST_NAME = 4096  # characters, as of a path; other texts of a record are shorter
_LONGEST_TEXT = 1000
_LARGEST_NETWORK = 10**15  # parameters


def _one_line(longest: int) -> Rule:
    """The rule of one line of printable text that is not empty."""
    return condition(
        lambda value: isinstance(value, str) and len(value) <= longest and value.isprintable() and bool(value.strip())
    )


def _is_small(value: Any) -> bool:
    """Whether a value is plain, shallow and short. A pickle may repeat one list without end: parts are counted."""
    left, waiting = LARGEST_RECORD, [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        parts: list[Any] = []
        if isinstance(each, dict):
            parts = [*each, *each.values()]
        elif isinstance(each, list | tuple):
            parts = [*each]
        elif isinstance(each, str):
            left -= len(each)
        elif each is not None and number(each) is not None and not isinstance(each, bool):
            return False
        left -= 1 + len(parts)
        if left < 0 or depth > DEEPEST:
            return False
        waiting += [(part, depth + 1) for part in parts]
    return True


_text = _one_line(_LONGEST_TEXT)
_TEACHER = {
    "name": _one_line(_LONGEST_NAME),  # as the run was given it
    "method": optional(_text),  # as in the catalogue, such as "DINO" or "Supervised"
    "labels": one_of("used", "none", "unknown"),
    "licence": optional(_text),  # of its weights
    "pretrained_on": optional(_text),  # the images that it learned from
    "source": optional(_text),  # where it was published
    "sha256": matching("[0-9a-f]{64}"),  # of its weights, see `excb.networks.backbone.weights_hash`
    "architecture": record_of({"name": _text, "options": table}, required=("name", "options")),
    "parameters": number_in(0, _LARGEST_NETWORK, integer=True),
    "input": list_of(number_in(1, LARGEST_SIDE, integer=True), 2),  # resize and crop, in pixels
}
# Later versions may say more of a teacher: other fields are kept, within the size of the whole.
_teachers = all_of(
    condition(lambda value: isinstance(value, list | tuple) and len(value) <= MOST),
    condition(_is_small),
    list_of(record_of(_TEACHER, required=_TEACHER, extra=True)),
)
TEACHERS = Field(optional(_teachers), f"a list of up to {MOST} tables that each describe a teacher")


def teachers_in(recipe: Mapping[str, Any] | None) -> list[str]:
    """The teachers that a recipe of ours names, in its plain values; none where the run was not distilled."""
    section = (recipe or {}).get("distil")
    names = section.get("teachers") if isinstance(section, Mapping) else None
    return [str(name) for name in names] if isinstance(names, list | tuple) else []


def labels_of_teachers(teachers: Sequence[Mapping[str, Any]], recipe: Mapping[str, Any] | None = None) -> Labels:
    """Whether labels reached a student through its teachers: "none" only where that is recorded of every one of them.

    Args:
        teachers: their record, of the rules above.
        recipe: of the run, in plain values. A teacher that it names and the record lacks is unknown.
    """
    missing: list[Labels] = ["unknown"] * (len(teachers_in(recipe)) - len(teachers))
    return strongest(*(teacher["labels"] for teacher in teachers), *missing)


def strongest(*labels: Labels) -> Labels:
    """The strongest use of labels: one use is enough, and one unknown leaves the result unknown. "none" if empty."""
    order: tuple[Labels, ...] = ("used", "unknown", "none")
    return next(each for each in order if each in labels or each == "none")
