"""The finding of a check: ok, warning or error, and how to fix it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warning", "error"]
NAMED = 3  # examples in a message


@dataclass(frozen=True)
class Finding:
    """One row of the doctor's table."""

    name: str  # what was checked
    verdict: Verdict  # "error": a run would fail or be wrong; "warning": it would run, but not as well as it could
    found: str  # the state of it, as one line
    fix: str = ""  # what to do about it; empty where nothing is wrong
    names: tuple[str, ...] = ()  # every file or class concerned, for programs; the table shows the first few

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "found": self.found,
            "fix": self.fix,
            "names": list(self.names),
        }


def such_as(names: Sequence[str]) -> str:
    """The first few names, as the end of a sentence: ", such as a, b"."""
    return f", such as {', '.join(names[:NAMED])}" if names else ""


def size(count: float) -> str:
    """Bytes as people read them."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
