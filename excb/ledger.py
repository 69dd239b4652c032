"""The ledger: what a search for images or an evaluation left out or doubts, by reason, with counts and a few names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from excb.console import Reporter
from excb.files.records import Rule, condition, count, list_of, record_of, text

NAMED = 3  # names that an entry keeps
SHOWN = 8  # kinds that a line lists; the rest are summed up


@dataclass(frozen=True)
class LedgerEntry:
    """Files, images or rows with one thing in common."""

    reason: str  # in words that may follow a number above one, such as ".mp4" or "hidden files"
    count: int
    names: tuple[str, ...] = ()  # the first few
    advice: str = ""  # what to do or think about it
    left_out: bool = True  # False: used all the same, and doubted
    of: str = ""  # the set, such as "train"

    @property
    def counted(self) -> str:
        """The number and the reason: "1 hidden file", "2 hidden files"."""
        return f"{self.count:,} {_singular(self.reason) if self.count == 1 else self.reason}"

    @property
    def line(self) -> str:
        """The whole entry."""
        place = f"{self.of}: " if self.of else ""
        such_as = f", such as {', '.join(self.names)}" if self.names else ""
        return f"{place}{self.counted}{such_as}" + (f": {self.advice}" if self.advice else "")

    @property
    def part(self) -> str:
        """The entry as one of several in a line."""
        such_as = f"such as {self.names[0]}: " if self.names else ""
        return self.counted + (f" ({such_as}{self.advice})" if self.advice else "")


@dataclass(frozen=True)
class Ledger:
    """All that was left out or is doubted; empty where neither is known of."""

    entries: tuple[LedgerEntry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __add__(self, other: "Ledger") -> "Ledger":
        return Ledger(tuple(dict.fromkeys((*self.entries, *other.entries))))

    @property
    def left_out(self) -> int:
        """Files, images or rows that are in no figure."""
        return sum(entry.count for entry in self.entries if entry.left_out)

    def of(self, name: str) -> "Ledger":
        """The ledger of a set of this name; entries that name a set keep it."""
        return Ledger(tuple(replace(entry, of=entry.of or name) for entry in self.entries))

    def lines(self) -> list[str]:
        """A line for each set of which anything was left out, and one for each doubt."""
        left_out = dict[str, list[LedgerEntry]]()
        for entry in self.entries:
            if entry.left_out:
                left_out.setdefault(entry.of, []).append(entry)
        lines = [f"left out of {name or 'the images'}: {_listed(entries)}" for name, entries in left_out.items()]
        return lines + [entry.line for entry in self.entries if not entry.left_out]

    def tell(self, reporter: Reporter) -> None:
        """Print the lines: as notes what was left out, as warnings what needs an extra or is doubted."""
        for entry_of in dict.fromkeys(entry.of for entry in self.entries):
            own = [entry for entry in self.entries if entry.of == entry_of]
            plain = Ledger(tuple(entry for entry in own if entry.left_out and not entry.advice))
            for line in plain.lines():
                reporter.note(line)
            for line in Ledger(tuple(entry for entry in own if entry not in plain.entries)).lines():
                reporter.warn(line)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without what has its usual value."""
        return {"entries": [_plain(entry) for entry in self.entries]} if self.entries else {}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; `RULE` says what it takes."""
        entries = [each | {"names": tuple(each.get("names", ()))} for each in values.get("entries", ())]
        return cls(tuple(LedgerEntry(**each) for each in entries))


NOTHING = Ledger()
RULE: Rule = record_of(
    {
        "entries": list_of(
            record_of(
                {
                    **dict.fromkeys(("reason", "advice", "of"), text),
                    "count": count,
                    "names": list_of(text),
                    "left_out": condition(lambda value: isinstance(value, bool)),
                },
                required=["reason", "count"],
            )
        )
    }
)


@dataclass
class Tally:
    """A ledger in the making: counts by reason."""

    _counts: dict[tuple[str, str], int] = field(default_factory=dict)
    _names: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, reason: str, name: str, advice: str = "") -> None:
        """Count one file or folder."""
        key = (reason, advice)
        self._counts[key] = self._counts.get(key, 0) + 1
        names = self._names.setdefault(key, [])
        if len(names) < NAMED:
            names.append(name)

    def ledger(self) -> Ledger:
        """The ledger, the most frequent reason first."""
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return Ledger(
            tuple(
                LedgerEntry(reason, number, tuple(self._names[reason, advice]), advice)
                for (reason, advice), number in ordered
            )
        )


def doubt(reason: str, names: Sequence[str], advice: str, *, of: str = "", count: int | None = None) -> Ledger:
    """A ledger of one doubt; empty where there is no name. `count` is how many there are, by default all names."""
    if not names:
        return Ledger()
    number = len(names) if count is None else count
    return Ledger((LedgerEntry(reason, number, tuple(names[:NAMED]), advice, left_out=False, of=of),))


def omission(reason: str, names: Sequence[str]) -> Ledger:
    """A ledger of what was left out for one reason; empty where there is no name."""
    return Ledger((LedgerEntry(reason, len(names), tuple(names[:NAMED])),) if names else ())


# For one of the nouns that reasons are about, and of their verbs.
_NOUNS = {
    "boxes": "box",
    "categories": "category",
    "classes": "class",
    **{f"{one}s": one for one in ("crowd", "figure", "file", "folder", "image", "link", "name", "object", "picture")},
    **{f"{one}s": one for one in ("reading", "row")},
}
_VERBS = {"are": "is", "do": "does", "group": "groups", "have": "has", "leave": "leaves", "look": "looks"}
_PRONOUNS = {"their": "its", "them": "it", "masks": "mask"}


def _singular(reason: str) -> str:
    """A reason that follows "1". The noun that it begins with is in the plural no more, nor is what agrees with it.

    "boxes that leave their image" -> "box that leaves its image"; "of 9 images look alike" -> "of 9 images looks alike"
    """
    words, agreeing = reason.split(" "), _VERBS
    if words[0] != "of":
        agreeing = _VERBS | _PRONOUNS
        first = next((place for place, word in enumerate(words) if word in _NOUNS), None)
        if first is not None:
            words[first] = _NOUNS[words[first]]
    return " ".join(agreeing.get(word, word) for word in words)


def _plain(entry: LedgerEntry) -> dict[str, Any]:
    values = {"reason": entry.reason, "count": entry.count, "names": list(entry.names), "advice": entry.advice}
    kept = {name: value for name, value in values.items() if value}
    return kept | ({"of": entry.of} if entry.of else {}) | ({} if entry.left_out else {"left_out": False})


def _listed(entries: Sequence[LedgerEntry]) -> str:
    """Those with advice, then the most frequent."""
    ordered = sorted(entries, key=lambda entry: (not entry.advice, -entry.count))
    rest = ordered[SHOWN:]
    more = [f"{sum(entry.count for entry in rest):,} of {len(rest)} other kinds"] if rest else []
    return ", ".join([*(entry.part for entry in ordered[:SHOWN]), *more])
