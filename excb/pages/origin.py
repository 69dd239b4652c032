"""The origin of a page: the command, weights and images. A page of something else is not replaced."""

import hashlib
import html
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from excb.errors import UserError
from excb.files.foreign import open_file
from excb.results.replacing import ADVICE, has_content

NAME = "excb-origin"  # of the element in the page's head
_ELEMENT = re.compile(rf'<meta name="{NAME}" content="([^"<>]*)">')
_HEAD = 2**16  # bytes of a page in which the element is


def real_root(root: str) -> str:
    """The root of images, as one folder has it under any of its names; as it is where it is no folder."""
    return os.path.realpath(root) if Path(root).is_dir() else root


@dataclass(frozen=True)
class PageOrigin:
    """The command, the images and the network of a page."""

    command: str  # of `excb-eval`
    images: str  # a hash of their folder, which the page does not name
    weights: str = ""  # SHA-256 of the network's; empty of a page on several networks

    @classmethod
    def of(cls, command: str, root: str, weights: str = "") -> "PageOrigin":
        """Of a page on the images in a folder."""
        place = real_root(root).encode("utf-8", "surrogateescape")
        return cls(command, hashlib.sha256(place).hexdigest()[:16], weights)

    def to_text(self) -> str:
        """For the page, which escapes it."""
        return json.dumps(asdict(self))


def refuse_other_page(file: Path, origin: PageOrigin, *, advice: str = ADVICE) -> None:
    """Refuse to replace what is not a page of this origin.

    Args:
        file: that would be replaced; there may be none, or an empty one.
        origin: of the new page.
        advice: what to do, as the end of a sentence.

    Raises:
        UserError: it is a page of another command, other weights or other images, or no page of this version.
    """
    if not has_content(file):
        return
    with open_file(file) as stream:
        found = _ELEMENT.search(stream.read(_HEAD).decode("utf-8", "replace"))
    try:
        before = PageOrigin(**json.loads(html.unescape(found[1]))) if found else None
    except (ValueError, TypeError):
        before = None
    if before is None:
        raise UserError(f"{file} is there, and is not a page of this version: {advice}")
    if before.command != origin.command:
        raise UserError(f"{file} has a page of {before.command}: {advice}")
    if before.weights != origin.weights:
        raise UserError(f"{file} has the page of another network: {advice}")
    if before.images != origin.images:
        raise UserError(f"{file} has the page of other images: {advice}")
