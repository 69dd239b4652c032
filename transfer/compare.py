"""Whether two results differ by more than chance: a paired test on the same test images."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from excb.console import Reporter, plural
from excb.errors import UserError, nearest_name
from excb.inference.paired import Paired, PairedTest
from excb.inference.tiers import LEVEL
from excb.results.result import ResultRecord

from . import protocols
from .protocol import Fields
from .reporting.fields import differences, named, readable
from .reporting.report import paired_beside


class Side(NamedTuple):
    """One of two results."""

    name: str  # its file, or what else to call it
    result: ResultRecord
    scored: Paired

    @classmethod
    def of(cls, file: Path) -> "Side":
        """A result's FILE.json, with its predictions beside it. Raises UserError if it cannot be read."""
        result = ResultRecord.read(file)
        scored = protocols.answers_beside(result, file)
        return cls(str(file), result, paired_beside(result, file) if scored is None else scored)


def compare_results(
    first: Path | Side, second: Path | Side, reporter: Reporter, *, figure: str | None = None, table: bool = True
) -> dict[str, Any]:
    """Compare two results image by image: a paired test, and the interval of the difference.

    Hits, of top-1 and top-5 accuracy, take McNemar's test with the mid-P value; scores that are numbers, such as
    average precision, take a randomisation test. So does the mIoU of segmentation, where images change sides with all
    their pixels. The mAP of images with several labels takes the jackknife.

    Args:
        first: a result's FILE.json, with its predictions beside it; or what such files hold.
        second: another's.
        reporter: prints notes, progress and tables.
        figure: one figure that both have, or "A:B" for figure A of the first and B of the second; by default every
            main figure (top-1, mAP) that both have. Each is tested alone: of twenty tests of equals, one says "real".
        table: print the table.

    Returns:
        {"first", "second", "images", "warnings", "notes", "figures"}, ready for JSON. Notes qualify the figures of one
        result or both. Every figure has "first", "second" and
        "difference" (second minus first) in percent, its 95 % "interval", the images that only one has right (or
        scores higher on), the "p_value", the "test" and the sampling "unit" that it is over, whether the difference is
        "real" at 5 %, and all that in "words".

    Raises:
        UserError: a file cannot be read, the test images differ, or a figure is in none or one of them.
    """
    sides = [Side.of(each) if isinstance(each, Path) else each for each in (first, second)]
    (name_first, result_a, scored_a), (name_second, result_b, scored_b) = sides
    _check_same_images(sides[0], sides[1])
    pairs = _pairs(scored_a, scored_b, figure)
    warnings = _differences(result_a, result_b, pairs)
    tests = {
        name_a if name_a == name_b else f"{name_a}:{name_b}": scored_a.compared(name_a, scored_b, name_b)
        for name_a, name_b in pairs
    }
    figures = {name: _to_dict(test) for name, test in tests.items()}
    notes = _qualifying(result_a, result_b)
    for warning in warnings:
        reporter.warn(warning)
    for note in notes:
        reporter.note(note)
    if table:
        names = dict.fromkeys(test.test for test in tests.values())
        _print(reporter, name_first, name_second, figures, len(scored_a.names), test=" / ".join(names))
    return {
        "first": name_first,
        "second": name_second,
        "images": len(scored_a.names),
        "warnings": warnings,
        "notes": notes,
        "figures": figures,
    }


def _check_same_images(first: Side, second: Side) -> None:
    """A paired test needs the same images with the same labels."""
    a, b = first.scored, second.scored
    if a.judged != b.judged:
        raise UserError(
            f"{first.name} is of protocol {first.result.protocol}, and {second.name} of {second.result.protocol}: "
            f"one judges {a.judged}, the other {b.judged}; compare results of one kind"
        )
    if list(a.names) != list(b.names):
        differing = len(set(a.names) ^ set(b.names))
        raise UserError(
            f"{first.name} and {second.name} are about different test images ({len(a.names):,} and {len(b.names):,}, "
            f"{differing:,} in one of them only): evaluate both on the same --test folder"
        )
    a.require_same_truth(b, first.name, second.name)


def _differences(a: ResultRecord, b: ResultRecord, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The differences that make the figures answers to unlike questions."""
    warnings = []
    unlike = dict.fromkeys(
        words for name_a, name_b in pairs for words in differences(_fields(a, name_a), _fields(b, name_b))
    )
    if a.protocol != b.protocol:
        warnings.append(f"figures under unlike protocols: {a.protocol} and {b.protocol}")
    elif unlike:
        warnings.append(f"figures under unlike protocols: {a.protocol} with {', '.join(unlike)}")
    prepared = [result.checkpoint.get("preprocessing") or {} for result in (a, b)]
    if prepared[0] != prepared[1]:
        warnings.append(f"images prepared in unlike ways: {', '.join(differences(*prepared))}")
    train = [result.data.get("train", {}).get("fingerprint") for result in (a, b)]
    if train[0] != train[1]:
        warnings.append("figures under unlike protocols: the train images differ")
    warnings += _of_one_ledger(a, b)
    seeds = [name for name in ("seed", "seeds") if name in a.settings and name in b.settings]
    unlike_seeds = [name for name in seeds if a.settings[name] != b.settings[name]]
    return warnings + [
        f"other {name}: {readable(a.settings[name])}, not {readable(b.settings[name])}" for name in unlike_seeds
    ]


def _of_one_ledger(a: ResultRecord, b: ResultRecord) -> list[str]:
    """Lines of what was left out or doubted in both, or in one of them."""
    return _of_both([result.ledger_lines for result in (a, b)])


def _qualifying(a: ResultRecord, b: ResultRecord) -> list[str]:
    """The notes of both results, or of one of them: few labels, a head that failed, references, chance."""
    return _of_both([result.notes for result in (a, b)])


def _of_both(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines that both have, then those of each alone."""
    both = [line for line in lines[0] if line in lines[1]]
    only = [
        f"{which} only: {line}"
        for which, own in zip(("first", "second"), lines, strict=True)
        for line in own
        if line not in both
    ]
    return both + only


def _fields(result: ResultRecord, figure: str) -> Fields:
    """The settings of a result that define its figure; the leaderboard ranks within equal ones."""
    settings = json.loads(json.dumps(result.settings))
    protocol, kind = protocols.protocol_of_result(result.protocol), protocols.kind_of(figure)
    return named(settings) if protocol is None or kind is None else protocol.fields_of(settings, kind)


def _pairs(a: Paired, b: Paired, figure: str | None) -> list[tuple[str, str]]:
    if figure is None:
        if not (both := [(name, name) for name in a.main if name in b.main]):
            raise UserError(f"no main figure is in both: name one of each, such as --figure {a.main[0]}:{b.main[0]}")
        return both
    names = figure.split(":") if ":" in figure else [figure, figure]
    if len(names) != 2:
        raise UserError(f"--figure {figure}: name one figure, or two as A:B")
    for name, scores, which in zip(names, (a.testable, b.testable), ("first", "second"), strict=True):
        if name not in scores:
            raise UserError(
                f"--figure {figure}: the {which} result has no predictions of {name}{nearest_name(name, scores)} "
                f"(it has {', '.join(scores)})"
            )
    return [(names[0], names[1])]


def _to_dict(test: PairedTest) -> dict[str, Any]:
    real = test.p_value < LEVEL
    if test.difference == 0:
        words = "both are right equally often" if test.test.startswith("McNemar") else "both score the same"
    else:
        better = "second" if test.difference > 0 else "first"
        words = f"the {better} is better by {abs(test.difference):.2f} points, " + (
            "a real difference at 5 %" if real else "which may be chance: not a real difference at 5 %"
        )
    return {
        "first": round(test.first, 4),
        "second": round(test.second, 4),
        "difference": round(test.difference, 4),
        "interval": None if test.interval is None else [*test.interval],
        "only_first_right": test.only_first,
        "only_second_right": test.only_second,
        "p_value": test.p_value,
        "test": test.test,
        "unit": test.unit,
        "real": real,
        "words": words,
    }


def _print(
    reporter: Reporter, first: str, second: str, figures: dict[str, dict[str, Any]], images: int, *, test: str
) -> None:
    header = ["figure", "first %", "second %", "difference", "95 %", f"{test} p"]
    rows = [
        [
            name,
            f"{values['first']:.2f}",
            f"{values['second']:.2f}",
            f"{values['difference']:+.2f}",
            "too few images" if values["interval"] is None else "{:+.2f} to {:+.2f}".format(*values["interval"]),
            f"{values['p_value']:.3g}",
        ]
        for name, values in figures.items()
    ]
    reporter.table(f"{first} (first) and {second} (second), {plural(images, 'test image')}", header, rows)
    for name, values in figures.items():
        reporter.answer(f"{name}: {values['words']}")
