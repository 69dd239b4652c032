"""What a search found as one page that holds all it needs: each query beside its nearest images, and duplicates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from excb.errors import UserError
from excb.images.picture import as_rgb
from excb.results.result import folder_name

from ..reporting.markup import Html, element, join, page
from ..reporting.thumbnails import thumbnail
from .embeddings import Embeddings, Match

MOST_GROUPS, MOST_IN_GROUP = 100, 12  # that the page shows: a few megabytes of pictures

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Found:
    """What was found."""

    queries: Sequence[tuple[str, Sequence[Match]]]  # each query's file, and its nearest images
    groups: Sequence[Sequence[str]] | None = None  # of near-duplicates, the largest first; None where not asked for

    @property
    def pictures(self) -> int:
        """Pictures that the page has."""
        shown = sum(min(len(group), MOST_IN_GROUP) for group in (self.groups or ())[:MOST_GROUPS])
        return sum(1 + len(matches) for _, matches in self.queries) + shown


class _Shown(NamedTuple):
    """Opens images for their pictures."""

    root: Path
    progress: Progress

    def picture(self, path: str, *, caption: Html | str) -> Html:
        """An image with its caption; one that is gone, or is no file, has a grey square."""
        try:
            image: Image.Image | None = as_rgb(self.root / path)
        except UserError:
            image = None
        self.progress(1)
        name = Path(path).name
        shown = (
            element("div", class_="gone", role="img", aria_label=f"{name} is not there")
            if image is None
            else element("img", src=thumbnail(image), alt=name, loading="lazy")
        )
        return element("figure", shown, element("figcaption", caption, title=path))


def render(
    found: Found, embeddings: Embeddings, *, cosine: float | None = None, progress: Progress = lambda _done: None
) -> str:
    """The page.

    Args:
        found: what was searched for and found.
        embeddings: that were searched.
        cosine: from which images count as near-duplicates.
        progress: called after every picture.
    """
    shown = _Shown(Path(embeddings.root), progress)
    head = element(
        "header",
        element("h1", "Nearest images" if found.queries else "Near-duplicates"),
        element("p", f"{len(embeddings):,} images in {folder_name(embeddings.root)}", class_="subtitle"),
        element("p", f"features of {embeddings.model.get('name')}", class_="subtitle"),
        class_="masthead",
    )
    sections = [_query(name, matches, shown) for name, matches in found.queries]
    if found.groups is not None:
        sections.append(_groups(found.groups, cosine, shown))
    weights = str(embeddings.model.get("weights_sha256", ""))[:16]
    foot = element("footer", f"Cosines of {embeddings.rows.width} features; weights {weights}; by excb-eval search.")
    title = f"{'Nearest images' if found.queries else 'Near-duplicates'} in {Path(embeddings.root).name}"
    return page(title, join(head, *sections, foot), style="search")


def _query(name: str, matches: Sequence[Match], shown: _Shown) -> Html:
    query = _Shown(Path(), shown.progress).picture(name, caption="query")
    nearest = [
        shown.picture(match.path, caption=join(element("b", f"{match.cosine:.3f}"), " ", match.path))
        for match in matches
    ]
    body = element("div", query, element("div", *nearest, class_="pictures"), class_="query")
    return element("section", element("h2", Path(name).name), body, class_="panel")


def _groups(groups: Sequence[Sequence[str]], cosine: float | None, shown: _Shown) -> Html:
    images = sum(map(len, groups))
    title = f"{len(groups):,} groups of near-duplicates, {images:,} images"
    parts = [_group(group, shown) for group in groups[:MOST_GROUPS]]
    hidden = len(groups) - len(parts)
    more = element("p", f"{hidden:,} smaller groups have no picture here.", class_="note") if hidden else None
    rule = element("p", f"Linked by cosines from {cosine:g}.", class_="note") if cosine is not None else None
    return element("section", element("h2", title), *parts, more, rule, class_="panel")


def _group(group: Sequence[str], shown: _Shown) -> Html:
    pictures = [shown.picture(path, caption=path) for path in group[:MOST_IN_GROUP]]
    hidden = len(group) - len(pictures)
    more = element("p", f"and {hidden:,} more images", class_="note") if hidden else None
    return element("div", element("div", *pictures, class_="pictures"), more, class_="group")
