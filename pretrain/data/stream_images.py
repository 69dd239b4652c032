"""Images of Parquet files that come one after another, shard by shard, and a few of them that are kept.

Rows are read here, a row group at a time: the iterators of `datasets` hold whole files in memory, and hang at the end
of a process that leaves one of them open.
"""

import hashlib
import importlib
import io
import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from PIL import Image

from excb.errors import UserError, require
from excb.images.decoding import BrokenImageError, open_image
from excb.remote import byte_ranges

KEPT = 2048  # images, that figures are measured on and that stand in for broken ones


@dataclass(frozen=True)
class KeptImages:
    """A few of a stream's images, in memory.

    Args:
        root: name of the stream.
        contents: the images as they are stored.
        paths: their names.
        fingerprint: the stream's.
    """

    root: str
    contents: Sequence[bytes]
    paths: Sequence[str]
    fingerprint: str
    labels: None = None
    classes: None = None

    def __len__(self) -> int:
        """Number of images."""
        return len(self.contents)

    def stamp(self, _index: int) -> str:
        """Nothing: they do not change."""
        return ""

    def source(self, index: int) -> io.BytesIO:
        """One image as it is stored."""
        return io.BytesIO(self.contents[index])

    def open(self, index: int) -> Image.Image:
        """One image as upright 8-bit RGB.

        Raises:
            BrokenImageError: it cannot be read.
        """
        return open_image(self.source(index))


@dataclass(frozen=True)
class StreamImages:
    """Images that come one after another, shard by shard; none can be asked for by its number.

    Args:
        root: as the user named it.
        files: the shards, paths or URLs of Parquet files.
        sizes: images in each.
        column: that holds the images.
        buffer: images that wait to be drawn from, over all lanes.
    """

    root: str
    files: tuple[str, ...]
    sizes: tuple[int, ...]
    column: str
    buffer: int
    labels: None = None
    classes: None = None
    paths: Sequence[str] = ()

    def __len__(self) -> int:
        """Number of images."""
        return sum(self.sizes)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # not the images that are kept

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.files)

    @property
    def fingerprint(self) -> str:
        """A hash of what the order of images depends on, but for the seed."""
        names = [file.rpartition("/")[2] for file in self.files]  # wherever they lie
        return hashlib.sha256(repr((names, self.sizes, self.column, self.buffer)).encode()).hexdigest()

    def stamp(self, _index: int) -> str:
        """Nothing is known."""
        return ""

    def source(self, _index: int) -> io.BytesIO:
        """A stream gives no image by its number.

        Raises:
            BrokenImageError: always.
        """
        raise BrokenImageError(f"{self.root} is a stream: no image of it can be asked for")

    def open(self, index: int) -> Image.Image:
        """See `source`.

        Raises:
            BrokenImageError: always.
        """
        return open_image(self.source(index))

    def rows(self, shard: int, first: int = 0) -> Generator[bytes]:
        """A shard's images as they are stored, from a row on; an image that is missing is empty.

        Raises:
            UserError: the shard cannot be read.
        """
        import pyarrow.parquet

        expected = trouble()
        try:
            with (
                byte_ranges.stream(self.files[shard]) as stream,
                pyarrow.parquet.ParquetFile(stream, pre_buffer=False) as file,
            ):
                for group in range(file.num_row_groups):
                    size = file.metadata.row_group(group).num_rows
                    if first < size:
                        table = file.read_row_group(group, columns=[self.column], use_threads=False)
                        for value in table.column(0)[first:]:
                            yield _content(value.as_py())
                    first = max(0, first - size)
        except expected as error:
            raise UserError(
                f"cannot read {self.files[shard]} ({byte_ranges.reason(error)}): check your access to it"
            ) from None

    @cached_property
    def kept(self) -> KeptImages:
        """The first images of all shards in turn, `KEPT` at most."""
        each = -(-KEPT // self.shards)
        found = [
            (row, shard, content)
            for shard in range(min(self.shards, KEPT))
            for row, content in enumerate(itertools.islice(self.rows(shard), each))
        ]
        chosen = sorted(found)[:KEPT]
        require(len(chosen) > 1, f"{self.root} holds {len(chosen)} image: pretraining needs many")
        names = [image_name(shard, row) for row, shard, _ in chosen]
        return KeptImages(self.root, [content for _, _, content in chosen], names, self.fingerprint)


def image_name(shard: int, row: int) -> str:
    """What an image of a stream is called in messages."""
    return f"shard {shard}, row {row}"


def trouble() -> tuple[type[Exception], ...]:
    """What the libraries raise where a data set cannot be read."""
    own: type[Exception] = importlib.import_module("datasets").exceptions.DatasetsError
    arrow: type[Exception] = importlib.import_module("pyarrow").ArrowException
    return (*byte_ranges.failures(), own, arrow)


def _content(value: dict[str, Any] | None) -> bytes:
    """An image's bytes; none where the row holds no image or only a path, which is told when it is decoded."""
    return bytes((value or {}).get("bytes") or b"")
