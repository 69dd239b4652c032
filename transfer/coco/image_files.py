"""The image files of an annotation file: which are there, under which name, and of which size."""

import os
from collections import defaultdict
from functools import cached_property
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qs, unquote, urlsplit

from excb.images.decoding import stored_and_upright_size

DEEPEST = 64  # folders in a name that may belong to it: each more is a look into one, for a longer and longer path


class ImageFiles:
    """The files below a folder, found as exporters name them.

    Folders are listed once, because asking for each file can take minutes on a network's disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listed: dict[str, set[str]] = {}

    def find(self, name: str) -> str | None:
        r"""The path below the folder of the file that a name means; None if there is none, or several may be meant.

        The name itself comes first. Then it is read with slashes for backslashes and without URL encoding, and leading
        folders are left out one after another: `images\1\a%20b.jpg` is `1/a b.jpg` below `images`. Last, its file
        name is looked for at any depth.
        """
        if self._exists(name):
            return name
        for path in _meanings(name):
            parts = [part for part in PurePosixPath(path).parts if part not in ("/", ".")]
            if ".." in parts:
                continue
            for first in range(max(0, len(parts) - DEEPEST), len(parts)):
                if self._exists(shorter := "/".join(parts[first:])):
                    return shorter
            if parts and len(found := self._by_name.get(parts[-1], [])) == 1:
                return found[0]
        return None

    def sizes(self, name: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """Width and height as stored, and after the EXIF tag's rotation. Raises BrokenImageError."""
        return stored_and_upright_size(self.folder / name)

    def _exists(self, name: str) -> bool:
        folder, _, file = name.rpartition("/")
        if folder not in self._listed:
            try:
                with os.scandir(self.folder / folder) as entries:
                    self._listed[folder] = {entry.name for entry in entries}
            except (OSError, ValueError):  # no such folder, or an impossible name
                self._listed[folder] = set()
        return file in self._listed[folder]

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        """Paths of all files below the folder, by their file names."""
        found = defaultdict[str, list[str]](list)
        for place, _, files in os.walk(self.folder):
            below = os.path.relpath(place, self.folder)
            for file in files:
                found[file].append(file if below == "." else PurePosixPath(below, file).as_posix())
        return found


def _meanings(name: str) -> list[str]:
    """Paths that a name may mean, the likeliest first."""
    slashed = name.replace("\\", "/")
    meanings = [slashed, unquote(slashed)]
    address = urlsplit(slashed)
    if address.query:  # Label Studio's local files: /data/local-files/?d=images/a.jpg
        meanings += [unquote(address.path), *(value for values in parse_qs(address.query).values() for value in values)]
    return list(dict.fromkeys(meanings))
