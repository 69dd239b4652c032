"""The report of `excb-eval all`: one page with every figure, its interval, its picture and how it was measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from excb.console import plural
from excb.files.foreign import read_bytes
from excb.pages.frame import data_address, render_page
from excb.results.pictures import CONFUSION, picture_beside
from excb.results.result import ResultRecord, folder_name, interval_text

from ..protocols import headline, kind_of, title
from ..reporting.fields import readable
from ..reporting.references import titles_of
from .suite import StepOutcome

_FEW = 5  # classes that are named as the best and the worst
_HIDDEN = frozenset({"sweep", "settings"})  # of settings: too long to read


@dataclass(frozen=True)
class ReportLine:
    """A figure of the table."""

    figure: str
    title: str
    value: float
    interval: tuple[float, float] | None
    spread: str  # over seeds, in words; empty where there is one
    first: bool  # of its result
    result: ResultRecord


@dataclass(frozen=True)
class ReportSection:
    """A protocol's panel; the best and worst classes are of the headline's figure, with their values."""

    title: str
    notes: Sequence[str]
    picture: str | None  # of the confusions
    figure: str
    best: Sequence[tuple[float, str]]
    worst: Sequence[tuple[float, str]]
    settings: Sequence[tuple[str, str]]


def render_report(outcomes: Sequence[StepOutcome]) -> str:
    """The page of what was measured; at least one protocol was."""
    measured = [(one, one.result) for one in outcomes if one.result is not None]
    results = [result for _, result in measured]
    first = results[0]
    name = str(first.checkpoint.get("name") or first.checkpoint.get("source"))
    return render_page(
        "report",
        title=f"Evaluation of {name}",
        style="base report",
        subtitles=[_subject(first)],
        figures=[_headline(result) for result in results],
        footer="Percent, with 95 % intervals over the test images. Written by `excb-eval all`.",
        references=titles_of(results),
        lines=[line for result in results for line in _lines(result)],
        sections=[_section(one, result) for one, result in measured],
        absent=[(one.step.title, one.step.skipped or one.failed) for one in outcomes if one.result is None],
        environment=_terms(first.environment | {"measured": first.created}),
    )


def _subject(first: ResultRecord) -> str:
    images = " and ".join(
        plural(first.data[part]["images"], f"{part} image") for part in ("train", "test") if part in first.data
    )
    data = folder_name(str(first.data.get("test", {}).get("root", ""))).rpartition("/")
    network = str(first.checkpoint.get("architecture", "")).removeprefix("timm:")
    return f"{network} · {data[0] or data[2]}: {images}, {first.data.get('classes')} classes"


def _headline(result: ResultRecord) -> tuple[str, str, str]:
    figure = headline(result.figures)
    return title(figure), f"{result.figures[figure]:.2f}", interval_text(result.intervals.get(figure))


def _lines(result: ResultRecord) -> Iterator[ReportLine]:
    """The figures; those of single seeds, and their spread, are not lines of their own."""
    figures, seeds = result.figures, len(result.settings.get("seeds", []))
    shown = [figure for figure in figures if kind_of(figure) is not None] or list(figures)
    for figure in shown:
        deviation = figures.get(f"{figure}_sd")
        spread = "" if deviation is None else f"± {deviation:.2f} over {plural(seeds, 'seed')}"
        interval = result.intervals.get(figure)
        yield ReportLine(figure, title(figure), figures[figure], interval, spread, figure == shown[0], result)


def _section(one: StepOutcome, result: ResultRecord) -> ReportSection:
    figure = headline(result.figures)
    by_class = [(value, name) for name, value in result.per_class.get(figure, {}).items() if value is not None]
    ranked = sorted(by_class, key=lambda each: (-each[0], each[1]))
    most = min(_FEW, len(ranked) // 2)
    settings = {name: value for name, value in result.settings.items() if name not in _HIDDEN}
    return ReportSection(
        one.step.title,
        result.remarks,
        _picture(one),
        title(figure),
        ranked[:most],
        ranked[len(ranked) - most :],
        _terms(settings | {"protocol hash": result.protocol_hash}),
    )


def _picture(one: StepOutcome) -> str | None:
    """The confusion matrix that lies beside the result."""
    assert one.file is not None
    file = picture_beside(one.file, CONFUSION)
    return data_address(read_bytes(file)) if file.is_file() else None


def _terms(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), _readable(value)) for name, value in values.items()]


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_readable(each)}" for name, each in value.items())
    return readable(value)
