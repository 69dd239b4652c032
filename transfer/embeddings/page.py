"""The findings of a search as one page: each query beside its nearest images, and groups of near-duplicates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from excb.console import plural
from excb.images.picture import as_channels
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.pages.gallery import GallerySection, Picture, PictureGroup, render_gallery
from excb.results.result import folder_name

from .copies.near_duplicates import KEEP, DuplicateGroup, NearDuplicates
from .embeddings import Embeddings, Match
from .replacing import Source

MOST_GROUPS, MOST_IN_GROUP = 100, 12  # that the page shows: a few megabytes of pictures

Progress = Callable[[int], None]


@dataclass(frozen=True)
class SearchFindings:
    """The findings to show."""

    queries: Sequence[tuple[str, Sequence[Match]]]  # each query's file, and its nearest images
    groups: NearDuplicates | None = None  # None where not asked for

    @property
    def pictures(self) -> int:
        """Pictures that the page has."""
        shown = sum(min(len(group), MOST_IN_GROUP) for group in (self.groups or ())[:MOST_GROUPS])
        return sum(1 + len(matches) for _, matches in self.queries) + shown


def render_search(
    findings: SearchFindings,
    embeddings: Embeddings,
    *,
    progress: Progress = lambda _done: None,
) -> str:
    """The page.

    Args:
        findings: what was searched for and found.
        embeddings: that were searched.
        progress: called after every picture.
    """
    root, prepared = Path(embeddings.root), embeddings.model.get("preprocessing") or {}
    pixels = Pixels.from_dict(prepared["pixels"]) if "pixels" in prepared else EIGHT_BIT

    def picture(path: str, *, below: Path = root, mark: str = "", caption: str | None = None) -> Picture:
        made = Picture.of(path, lambda: as_channels(below / path, pixels), mark=mark, caption=caption)
        progress(1)
        return made

    sections = []
    for name, matches in findings.queries:
        query = picture(name, below=Path(), caption="query")
        near = [picture(match.path, mark=f"{match.cosine:.3f}") for match in matches]
        sections.append(GallerySection(Path(name).name, [PictureGroup(near, query)]))
    if findings.groups is not None:
        sections.append(_duplicates(findings.groups, picture))
    heading = "Nearest images" if findings.queries else "Near-duplicates"
    weights = str(embeddings.model.get("weights_sha256", ""))[:16]
    return render_gallery(
        f"{heading} in {root.name}",
        sections,
        heading=heading,
        subtitles=[
            f"{plural(len(embeddings), 'image')} in {folder_name(embeddings.root)}",
            f"features of {embeddings.model.get('name')}",
        ],
        origin=Source.of(embeddings).page("search"),
        footer=f"Cosines of {plural(embeddings.rows.width, 'feature')}; weights {weights}; by excb-eval search.",
    )


def _duplicates(groups: NearDuplicates, picture: "Callable[..., Picture]") -> GallerySection:
    shown = [_group(group, picture) for group in groups[:MOST_GROUPS]]
    hidden = len(groups) - len(shown)
    notes = [f"{plural(hidden, 'smaller group has', 'smaller groups have')} no picture here."] if hidden else []
    limit = str(groups.threshold or f"cosine from {groups.cosine:g}")
    notes += [f"Near-duplicates: {limit}.", f"Kept: {KEEP}. Cosines are with the kept image."]
    notes += [f"{groups.unread}."] if groups.unread else []
    counted = f"{plural(len(groups), 'group')} of near-duplicates, {plural(sum(map(len, groups)), 'image')}"
    return GallerySection(counted, shown, notes)


def _group(group: DuplicateGroup, picture: "Callable[..., Picture]") -> PictureGroup:
    """The images of a group, the kept one first."""
    ordered = sorted(group.members, key=lambda member: member.path != group.keep)
    shown = [
        picture(each.path, mark="keep" if each.path == group.keep else f"{each.cosine:.3f}")
        for each in ordered[:MOST_IN_GROUP]
    ]
    hidden = len(ordered) - len(shown)
    notes = [f"and {plural(hidden, 'more image')}"] if hidden else []
    notes += [f"the two that are least alike: {group.weakest:.3f}"] if len(ordered) > 2 else []
    return PictureGroup(shown, notes=notes)
