"""The page of a folder of photographs: figures first, then pictures to look at."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from excb.console import plural
from excb.pages.frame import Figure, render_page
from excb.pages.gallery import GallerySection, Picture, PictureGroup
from excb.pages.origin import PageOrigin
from excb.results.result import folder_name

from .findings import Findings
from .prediction import Guess, GuessedLabels

MOST_CLASSES, EACH = 30, 6  # classes with guesses, and guesses of each, that have pictures
MOST_UNSURE, MOST_ERRORS, MOST_COPIES, MOST_NEXT, IN_GROUP = 24, 48, 20, 60, 6
Show = Callable[[str, str, str], Picture]


def pictures_of(findings: Findings) -> int:
    """How many pictures the page has."""
    return sum(
        len(group.near)
        for section in _sections(findings, lambda *given: Picture(given[0], None, "", ""))
        for group in section.groups
    )


def render_photos(
    findings: Findings, *, origin: PageOrigin | None = None, progress: Callable[[int], None] = lambda _done: None
) -> str:
    """The page as HTML, of an origin; `progress` is called after every picture."""
    images = findings.images
    number = {path: index for index, path in enumerate(images.paths)}

    def show(path: str, mark: str, caption: str) -> Picture:
        made = Picture.of(path, lambda: images.open(number[path]), mark=mark, caption=caption)
        progress(1)
        return made

    comparison = findings.comparison
    figures: list[Figure] = [("images", f"{len(images):,}", f"{findings.labelled:,} labelled")]
    if comparison is not None:
        low, high = comparison.best.interval
        figures.append(
            ("best network", comparison.best.name, f"{comparison.best.accuracy:.1f} % ({low:.1f} to {high:.1f})")
        )
    if findings.predictions is not None:
        sure = len(findings.predictions.sure)
        figures.append(("sure guesses", f"{sure:,}", f"of {len(findings.predictions):,} for images without a label"))
    return render_page(
        "photos",
        title=f"Photographs in {Path(str(images.root)).name}",
        style="base search choice",
        heading="Your photographs",
        subtitles=[f"{folder_name(str(images.root))}: {findings.inventory}."],
        figures=figures,
        footer="Cross-validated; copies and series are never on both sides. Written by excb-eval photos.",
        words=f"No network is compared: {findings.why}." if comparison is None else comparison.words,
        figure="" if comparison is None else comparison.figure,
        entries=[] if comparison is None else [*comparison.of("network"), *comparison.of("reference")],
        ledger=findings.ledger.lines(),
        classes=sorted(findings.classes.items(), key=lambda item: (-item[1], item[0])),
        table=None,
        sections=_sections(findings, show),
        notes=[],
        origin=origin,
    )


def _sections(findings: Findings, show: Show) -> list[GallerySection]:
    sections = []
    if findings.next is not None:
        near = [show(path, f"{place}.", path) for place, path in enumerate(findings.next.paths[:MOST_NEXT], 1)]
        why = {
            "coverage": "They stand for many images that have no label yet.",
            "uncertainty": "The model is least sure of them.",
            "k-center": "They are least like anything with a label.",
        }[findings.next.rule]
        sections.append(GallerySection("Label these next", [PictureGroup(near)], [why]))
    if findings.errors:
        near = [
            show(each.path, each.suggestion, f"labelled {each.label} ({100 * each.probability:.0f} %): {each.path}")
            for each in findings.errors[:MOST_ERRORS]
        ]
        notes = [
            "Each was predicted by models that did not see it, from all other labels; percentages say how likely the "
            "label is, and what stands in bold is what the image looks like. Look before you change anything."
        ]
        notes += [findings.doubt] if findings.doubt else []
        sections.append(
            GallerySection(f"{plural(len(findings.errors), 'label')} to look at", [PictureGroup(near)], notes)
        )
    if findings.predictions is not None:
        sections += _guesses(findings.predictions, show)
    if findings.copies:
        groups = [
            PictureGroup([show(path, "", path) for path in group[:IN_GROUP]]) for group in findings.copies[:MOST_COPIES]
        ]
        hidden = len(findings.copies) - len(groups)
        notes = (
            [f"{plural(hidden, 'smaller group has', 'smaller groups have')} no picture here; photos.csv has all."]
            if hidden
            else []
        )
        sections.append(
            GallerySection(f"{plural(len(findings.copies), 'group')} of copies and near-copies", groups, notes)
        )
    return sections


def _guesses(predictions: GuessedLabels, show: Show) -> list[GallerySection]:
    by_class = defaultdict[str, list[Guess]](list)
    for guess in predictions.sure:
        by_class[guess.label].append(guess)
    sections = []
    largest = sorted(by_class.items(), key=lambda item: (-len(item[1]), item[0]))
    groups = [
        PictureGroup(
            [_sure(guess, show) for guess in _spread(own, EACH)],
            title=f"{name}: {plural(len(own), 'sure guess', 'sure guesses')}",
        )
        for name, own in largest[:MOST_CLASSES]
    ]
    hidden = len(largest) - len(groups)
    notes = [
        f"{predictions.certainty.words} By {predictions.network}; photos.csv has all guesses.",
        "This holds for images like the labelled ones. One that shows none of the classes is given one of them all the "
        "same, sometimes as a sure guess.",
    ]
    notes += [f"{plural(hidden, 'class has', 'classes have')} no picture here."] if hidden else []
    sections.append(GallerySection(f"{plural(len(predictions.sure), 'sure guess', 'sure guesses')}", groups, notes))
    if predictions.unsure:
        title = plural(len(predictions.unsure), "unsure guess", "unsure guesses")
        # Where none is sure, the likeliest ones are of more use than the least likely.
        some = predictions.unsure if predictions.sure else predictions.unsure[::-1]
        which = "The least sure ones are shown." if predictions.sure else "The likeliest ones are shown."
        near = [_unsure(guess, show) for guess in some[:MOST_UNSURE]]
        sections.append(GallerySection(title, [PictureGroup(near)], [which]))
    return sections


def _sure(guess: Guess, show: Show) -> Picture:
    """Under a title that names its class."""
    if guess.copy_of:
        return show(guess.path, "copy", f"of {guess.copy_of}: {guess.path}")
    return show(guess.path, f"{100 * guess.probability:.0f} %", guess.path)


def _unsure(guess: Guess, show: Show) -> Picture:
    second = f"or {guess.second}: " if guess.second else ""
    return show(guess.path, f"{guess.label} {100 * guess.probability:.0f} %", second + guess.path)


def _spread(guesses: Sequence[Guess], most: int) -> list[Guess]:
    """Some guesses from the likeliest to the least likely, so that a look shows both."""
    if len(guesses) <= most:
        return list(guesses)
    return [guesses[round(place * (len(guesses) - 1) / (most - 1))] for place in range(most)]
