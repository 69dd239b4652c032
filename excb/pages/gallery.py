"""Pages of pictures: images beside those that are like them, each small and held by the page."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
from PIL import Image

from excb.errors import UserError
from excb.images.decoding import BrokenImageError
from excb.images.picture import visible_rgb
from excb.pages.frame import Figure, data_address, render_page
from excb.pages.origin import PageOrigin

SIDE, QUALITY = 220, 75  # longer side in pixels, for screens of two dots a pixel too; of JPEG
NARROW = 3  # pictures of a group that leaves room for another one beside it


@dataclass(frozen=True)
class Picture:
    """An image on a page.

    Attributes:
        path: that its caption's title has.
        source: its data; None where it is gone, which a grey square shows.
        mark: the beginning of its caption, in bold.
        caption: the rest of it.
    """

    path: str
    source: str | None
    mark: str
    caption: str

    @property
    def name(self) -> str:
        """Of its file."""
        return PurePath(self.path).name

    @classmethod
    def of(
        cls,
        path: str,
        open_image: Callable[[], Image.Image | np.ndarray],
        *,
        mark: str = "",
        caption: str | None = None,
    ) -> "Picture":
        """An image that may have gone since it was listed; by default its caption is its path."""
        try:
            source = thumbnail(open_image())
        except (UserError, BrokenImageError):
            source = None
        return cls(path, source, mark, path if caption is None else caption)


@dataclass(frozen=True)
class PictureGroup:
    """Images that are like each other, and like `query` where there is one."""

    near: Sequence[Picture]
    query: Picture | None = None
    title: str = ""
    notes: Sequence[str] = ()

    @property
    def narrow(self) -> bool:
        """Whether another one fits beside it."""
        return self.query is None and len(self.near) <= NARROW


@dataclass(frozen=True)
class GallerySection:
    """A panel of a page."""

    title: str
    groups: Sequence[PictureGroup]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class GalleryTable:
    """A panel with a table of text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str


def thumbnail(image: Image.Image | np.ndarray) -> str:
    """A whole image, as people see it, as a small JPEG without metadata, as the text of a data address."""
    small = visible_rgb(image).copy()
    small.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=QUALITY, optimize=True, exif=b"", icc_profile=None)
    return data_address(buffer.getvalue(), "image/jpeg")


def render_gallery(
    title: str,
    sections: Sequence[GallerySection],
    *,
    heading: str,
    subtitles: Sequence[str],
    footer: str,
    figures: Sequence[Figure] = (),
    table: GalleryTable | None = None,
    notes: Sequence[str] = (),
    origin: PageOrigin | None = None,
) -> str:
    """The page as HTML; arguments as `frame.render_page`."""
    return render_page(
        "gallery",
        title=title,
        style="base search",
        heading=heading,
        subtitles=subtitles,
        figures=figures,
        footer=footer,
        sections=sections,
        table=table,
        notes=notes,
        origin=origin,
    )
