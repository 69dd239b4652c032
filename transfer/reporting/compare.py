"""Whether two results differ by more than chance: a paired test on the same test images."""

from pathlib import Path
from typing import Any

from torch import Tensor

from excb.console import Reporter
from excb.errors import UserError, nearest_name
from excb.results.result import Result

from . import scoring
from .report import Predictions, read

LEVEL = 0.05


def compare(
    first: Path, second: Path, reporter: Reporter, *, figure: str | None = None, table: bool = True
) -> dict[str, Any]:
    """Compare two results image by image: the exact McNemar test, and the paired bootstrap of the difference.

    Args:
        first: a result's FILE.json; FILE.npz lies beside it.
        second: another's.
        reporter: where to talk.
        figure: one figure that both have, or "A:B" for figure A of the first and B of the second; by default every
            top-1 figure that both have. Each is tested by itself: of twenty tests of equals, one says "real".
        table: print the table.

    Returns:
        {"first", "second", "images", "warnings", "figures"}, ready for JSON. Every figure has "first", "second" and
        "difference" (second minus first) in percent, its 95 % "interval", the images that only one has right, the
        "p_value", whether the difference is "real" at 5 %, and all that in "words".

    Raises:
        UserError: a file cannot be read, the test images differ, or a figure is in none or one of them.
    """
    (result_a, predictions_a), (result_b, predictions_b) = read(first), read(second)
    _check_same_images(predictions_a, predictions_b, first, second)
    warnings = _differences(result_a, result_b)
    hits_a, hits_b = _hits(predictions_a), _hits(predictions_b)
    pairs = _pairs(hits_a, hits_b, figure)
    figures = {
        name_a if name_a == name_b else f"{name_a}:{name_b}": _test(hits_a[name_a], hits_b[name_b])
        for name_a, name_b in pairs
    }
    for warning in warnings:
        reporter.warn(warning)
    if table:
        _print(reporter, first, second, figures, len(predictions_a.targets))
    return {
        "first": str(first),
        "second": str(second),
        "images": len(predictions_a.targets),
        "warnings": warnings,
        "figures": figures,
    }


def _check_same_images(a: Predictions, b: Predictions, first: Path, second: Path) -> None:
    """A paired test needs the same images with the same classes; classes may be numbered otherwise."""
    if list(a.names) != list(b.names):
        differing = len(set(a.names) ^ set(b.names))
        raise UserError(
            f"{first} and {second} are about different test images ({len(a.names):,} and {len(b.names):,}, "
            f"{differing:,} in one of them only): evaluate both on the same --test folder"
        )
    for name, true_a, true_b in zip(a.names, a.targets.tolist(), b.targets.tolist(), strict=True):
        if a.classes[true_a] != b.classes[true_b]:
            raise UserError(
                f"{name} is of class {a.classes[true_a]} in {first}, but {b.classes[true_b]} in {second}: "
                "evaluate both with the same labels (and --rename)"
            )


def _differences(a: Result, b: Result) -> list[str]:
    """What makes the figures answers to unlike questions."""
    found = []
    if a.protocol != b.protocol:
        found.append(f"figures under unlike protocols: {a.protocol} and {b.protocol}")
    elif a.protocol_hash != b.protocol_hash:
        keys = sorted(
            key for key in a.settings.keys() | b.settings.keys() if a.settings.get(key) != b.settings.get(key)
        )
        found.append(f"figures under unlike protocols: {a.protocol} with other {', '.join(keys)}")
    train = [result.data.get("train", {}).get("fingerprint") for result in (a, b)]
    if train[0] != train[1]:
        found.append("figures under unlike protocols: the train images differ")
    return found


def _hits(predictions: Predictions) -> dict[str, Tensor]:
    return predictions.hits(within=1) | predictions.hits(within=5)


def _pairs(a: dict[str, Tensor], b: dict[str, Tensor], figure: str | None) -> list[tuple[str, str]]:
    """The figures to compare, of the first and of the second."""
    if figure is None:
        both = [(name, name) for name in a if name in b and "top1" in name]
        if not both:
            raise UserError(
                f"no top-1 figure is in both: name one of each, such as --figure {next(iter(a))}:{next(iter(b))}"
            )
        return both
    names = figure.split(":") if ":" in figure else [figure, figure]
    if len(names) != 2:
        raise UserError(f"--figure {figure}: name one figure, or two as A:B")
    for name, known, which in zip(names, (a, b), ("first", "second"), strict=True):
        if name not in known:
            raise UserError(
                f"--figure {figure}: the {which} result has no predictions of {name}{nearest_name(name, known)} "
                f"(it has {', '.join(known)})"
            )
    return [(names[0], names[1])]


def _test(first: Tensor, second: Tensor) -> dict[str, Any]:
    """Test one pair of figures."""
    only_first, only_second = scoring.discordant(first, second)
    low, high = scoring.difference_interval(first, second)
    p_value = scoring.mcnemar(first, second)
    real = p_value < LEVEL
    difference = 100 * (only_second - only_first) / len(first)
    if difference == 0:
        words = "both are right equally often"
    else:
        better = "second" if difference > 0 else "first"
        words = f"the {better} is better by {abs(difference):.2f} points, " + (
            "a real difference at 5 %" if real else "which may be chance: not a real difference at 5 %"
        )
    return {
        "first": round(scoring.percent(first), 4),
        "second": round(scoring.percent(second), 4),
        "difference": round(difference, 4),
        "interval": [low, high],
        "only_first_right": only_first,
        "only_second_right": only_second,
        "p_value": p_value,
        "real": real,
        "words": words,
    }


def _print(reporter: Reporter, first: Path, second: Path, figures: dict[str, dict[str, Any]], images: int) -> None:
    header = ["figure", "first %", "second %", "difference", "95 %", "McNemar p"]
    rows = [
        [
            name,
            f"{found['first']:.2f}",
            f"{found['second']:.2f}",
            f"{found['difference']:+.2f}",
            "{:+.2f} to {:+.2f}".format(*found["interval"]),
            f"{found['p_value']:.3g}",
        ]
        for name, found in figures.items()
    ]
    reporter.table(f"{first} (first) and {second} (second), {images:,} test images", header, rows)
    for name, found in figures.items():
        reporter.answer(f"{name}: {found['words']}")
