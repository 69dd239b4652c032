"""Resume only the same run: everything that defines a run must be equal, except what may change between two starts."""

import os
from collections.abc import Collection, Mapping
from typing import Any

from excb.errors import UserError

HASH_LENGTH = 64  # hexadecimal digits of a SHA-256, which nobody wants to read


def require_same_run(
    place: str | os.PathLike[str],
    before: Any,
    now: Mapping[str, Any],
    *,
    advice: str,
    resumable_changes: Collection[str] = (),
) -> None:
    """Compare what defines the run stored at `place` with what defines the run that is to resume it.

    Args:
        place: file or folder of the stored run, for the message.
        before: what was stored: plain values by name. Anything but a mapping counts as empty.
        now: the same of the new start.
        advice: what the user can do, as the end of a sentence.
        resumable_changes: names that may differ, with dots between the levels ("optim" or "optim.epochs").

    Raises:
        UserError: the runs differ; the message names every field that does.
    """
    if changed := changes(before, now, resumable_changes=resumable_changes):
        raise UserError(f"{os.fspath(place)} belongs to another run ({'; '.join(changed)}): {advice}")


def changes(before: Any, now: Mapping[str, Any], *, resumable_changes: Collection[str] = ()) -> list[str]:
    """Every field that differs, as "section.field was A, now B"; of a hash only that it differs.

    Arguments are those of `require_same_run`.
    """
    return _changes(before if isinstance(before, Mapping) else {}, now, "", resumable_changes)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str, ignored: Collection[str]) -> list[str]:
    changed: list[str] = []
    for field in [*now, *(each for each in before if each not in now)]:
        name, old, new = f"{prefix}{field}", before.get(field, "not set"), now.get(field, "not set")
        if name in ignored or (old == new and (field in before) == (field in now)):
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changed += _changes(old, new, f"{name}.", ignored)
        else:
            hashed = any(isinstance(value, str) and len(value) == HASH_LENGTH for value in (old, new))
            changed.append(f"other {name}" if hashed else f"{name} was {old}, now {new}")
    return changed
