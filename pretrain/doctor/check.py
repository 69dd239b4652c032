"""What one check found: ok, warning or error, and the mend."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warning", "error"]
NAMED = 3  # files that a line names


@dataclass(frozen=True)
class Check:
    """One line of the doctor's table.

    Args:
        name: what was looked at.
        verdict: "error": a run would fail or be wrong; "warning": it would run, but not as well as it could.
        found: what is there, in one line.
        mend: what to do about it; empty where all is well.
        names: every file or class that is meant, for programs; the table shows the first few.
    """

    name: str
    verdict: Verdict
    found: str
    mend: str = ""
    names: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"names": list(self.names)}


def such_as(names: Sequence[str]) -> str:
    """The first few names, as the end of a sentence: ", such as a, b"."""
    return f", such as {', '.join(names[:NAMED])}" if names else ""


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """A number and its noun: "1 image", "1,200 images", "2 classes"."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def size(count: float) -> str:
    """Bytes as people read them."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
