"""Pages of the docs against the records of their figures: figures without a record, and claims beyond it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.figures import Figure, figures_in
from tests.records import Record, claims

DIFFERENT = re.compile(r"\b(?:ahead|behind|leads?|led|beats?|better than|worse than)\b")
EQUAL = re.compile(r"\b(?:level|within chance|may be chance)\b")
MEASURE = re.compile(r"\b(?:points|visible|helps?|gains?|gained|better|worse)\b")
DENIED = re.compile(r"\b(?:no|not|none|never)\b", flags=re.IGNORECASE)


@dataclass(frozen=True)
class Section:
    """Rows of tables, and paragraphs and points of lists, without emphasis, addresses and code blocks."""

    rows: list[str]
    blocks: list[str]

    @property
    def text(self) -> str:
        """All of it."""
        return " ".join(self.rows + self.blocks)

    @property
    def figures(self) -> list[Figure]:
        """The measured figures."""
        return [figure for each in self.rows + self.blocks for figure in figures_in(no_code(each))]

    @property
    def sentences(self) -> list[str]:
        """The sentences outside of tables."""
        return [each for block in self.blocks for each in re.split(r"(?<=[.!?])\s+(?=[A-Z`(])", block)]


def sections(page: Path) -> dict[str, Section]:
    """The sections of a page by heading."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = {}
    for part in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        body = re.sub(r"<!--.*?-->|<[^>]+>|!\[[^]]*\]\([^)]*\)", "", body.replace("**", ""), flags=re.DOTALL)
        body = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", body)
        rows = re.findall(r"^ *\|.*", body, flags=re.MULTILINE)
        rest = re.sub(r"^ *\|.*", "", body, flags=re.MULTILINE)
        blocks = [" ".join(each.split()) for each in re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. ))", rest)]
        found[heading.strip()] = Section(rows, [each for each in blocks if each])
    return found


def no_code(text: str) -> str:
    """A text without the code and equations in its lines."""
    return re.sub(r"`[^`]*`|\$[^$]*\$", "", text)


def faults(page: Path, records: list[Record], exempt: dict[str, str]) -> Iterator[str]:
    """One line for each figure or claim of a page that no record bears out, and for what only a record has."""
    parts = sections(page)
    named = {heading for record in records for heading in record.about["sections"]} | set(exempt)
    yield from (f"{page.name} has no section {heading}" for heading in named - set(parts))
    for heading, section in parts.items():
        own = [record for record in records if heading in record.about["sections"]]
        if own:
            yield from (f"{heading}: {fault}" for fault in _beyond(section, own))
        elif section.figures and heading not in exempt:
            yield f"{heading}: has figures, but no record"
    for record in records:
        yield from _of_record(record, [parts[each] for each in record.about["sections"] if each in parts])


def _beyond(section: Section, records: list[Record]) -> Iterator[str]:
    """Figures and comparisons of a section that are not in its records."""
    others = [figure for record in records for figure in record.others]
    known = [figure for record in records for figure in record.measured + record.results]
    for row in section.rows:
        figures = [each for each in figures_in(no_code(row)) if not any(each.rounds(other) for other in others)]
        if figures and not any(_in_order(figures, line) for record in records for _, line in record.lines):
            yield f"no line of a record has the figures of this row in this order: {row}"
    for block in section.blocks:
        for figure in figures_in(no_code(block)):
            if not any(figure.rounds(each) for each in known):
                yield f"{figure.value:.{figure.decimals}f} is in no record, or not with this interval: {block}"
    unjudged = [words for record in records for words in record.about.get("unjudged", {})]
    for sentence in section.sentences:
        if not any(words in sentence for words in unjudged):
            listed = [claim for record in records for claim in claims(record.about).items() if claim[0] in sentence]
            if missing := _missing(
                no_code(sentence), " ".join(each for _, expressions in listed for each in expressions)
            ):
                yield f"no claim of a record with {missing} is about: {sentence}"


def _missing(sentence: str, judged: str) -> str:
    """The sign that the words of a sentence want of the expressions about it, "" if these have it."""
    if EQUAL.search(sentence):
        return "" if "~" in judged else "~"
    if DIFFERENT.search(sentence) and not DENIED.search(sentence):
        return "" if re.search("[<>]", judged) else "< or >"
    if DIFFERENT.search(sentence) or MEASURE.search(sentence):
        return "" if re.search("[<>~]", judged) else "<, > or ~"
    return ""


def _of_record(record: Record, parts: list[Section]) -> Iterator[str]:
    """Claims that do not hold or that the page does not make, and lines that it has no figure of."""
    text, expressions = " ".join(part.text for part in parts), list[str]()
    for words, listed in claims(record.about).items():
        expressions += listed
        if words not in text:
            yield f"the page does not say what is claimed: {words}"
        yield from (f"{words}: {each}: {fault}" for each in listed if (fault := record.fault_of(each)))
    shown = [figure for part in parts for figure in part.figures] + figures_in(" ".join(expressions))
    values = [Figure(each.value, each.decimals) for each in shown]
    for line, figures in record.lines:
        if not any(value.rounds(figure) for value in values for figure in figures):
            yield f"a line of the record without a figure of the page: {line}"


def _in_order(figures: list[Figure], line: list[Figure]) -> bool:
    """Whether a record's line has these figures in this order, perhaps among others."""
    rest = iter(line)
    return all(any(figure.rounds(each) for each in rest) for figure in figures)
