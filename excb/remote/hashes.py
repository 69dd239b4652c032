"""Hashes of downloads: published ones, or those recorded at the first download. Wrong files are renamed."""

import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from excb.console import Reporter
from excb.errors import UserError
from excb.files.foreign import open_file
from excb.remote.home import HASHES, home, record_hash, recorded

WRONG = ".wrong"  # ending of a renamed wrong file
DIGEST = "sha256:[0-9a-f]{8,64}|md5:[0-9a-f]{8,32}"  # a hash, or its beginning, in lower case
_CHUNK = 1 << 20  # bytes


class Published(NamedTuple):
    """A published hash, or its beginning."""

    algorithm: str
    digits: str

    @property
    def complete(self) -> bool:
        """Whether it identifies a file, unlike MD5 or the beginning of a hash."""
        return len(self.digits) == 64


def parse_digest(digest: str) -> Published:
    """Read "sha256:HEX" or "md5:HEX". Raises UserError for anything else, or less than 8 digits."""
    if re.fullmatch(DIGEST, digest.lower()) is None:
        raise UserError(f"'{digest}' is not a hash: write sha256:HEX or md5:HEX, with 8 digits at least")
    return Published(*digest.lower().split(":"))


class Hashes:
    """Hashes of bytes that arrive in chunks, by algorithms such as "sha256"."""

    def __init__(self, algorithms: Collection[str]) -> None:
        self._hashes = {name: hashlib.new(name, usedforsecurity=False) for name in algorithms}

    def add(self, chunk: bytes) -> None:
        """Add more bytes."""
        for value in self._hashes.values():
            value.update(chunk)

    def add_file(self, file: Path) -> int:
        """Add a whole file, and return its size in bytes."""
        size = 0
        with open_file(file) as stream:
            while chunk := stream.read(_CHUNK):
                self.add(chunk)
                size += len(chunk)
        return size

    def digits(self) -> dict[str, str]:
        """The hashes in hexadecimal digits."""
        return {name: value.hexdigest() for name, value in self._hashes.items()}


def hashes_of(file: Path, algorithms: Collection[str]) -> dict[str, str]:
    """The hashes of a file in hexadecimal digits. Raises UserError if it cannot be read."""
    hashes = Hashes(algorithms)
    try:
        hashes.add_file(file)
    except OSError as error:
        raise UserError(f"cannot read {file} ({error})") from None
    return hashes.digits()


def verify_hash(
    file: Path,
    hashes: dict[str, str],
    published: Published | None,
    *,
    source: str,
    aside: Path,
    reporter: Reporter,
    name: str,
) -> None:
    """Refuse a file whose hash is wrong, and record the hash of a new one.

    Args:
        file: the file; it is renamed to `aside` if a hash is wrong.
        hashes: its sha256, and that of the published algorithm.
        published: unless it is whole, the hash recorded for `source` is compared as well.
        source: the address.
        aside: new path of a wrong file.
        reporter: shows the hash if none is published.
        name: of the checkpoint, for messages.

    Raises:
        UserError: a hash is wrong. The message names both.
    """
    first = recorded(source)
    expected = [(published, "is published")] if published is not None else []
    if first is not None and not (published and published.complete):
        again = f"was recorded at its first download: if the new one is right, delete that entry in {home() / HASHES}"
        expected.append((Published("sha256", first), again))
    for (algorithm, digits), origin in expected:
        if not hashes[algorithm].startswith(digits):
            file.replace(aside)
            raise UserError(
                f"{name}: {source} is not the file it should be, and kept aside as {aside}: its {algorithm} is "
                f"{hashes[algorithm]}, but {digits} {origin}"
            )
    if first != hashes["sha256"]:
        record_hash(source, hashes["sha256"], file.stat().st_size)
        if published is None:
            reporter.note(f"{name}: no hash of {source} is published: from now on it must be sha256:{hashes['sha256']}")
