"""Images of Parquet files, read sequentially shard by shard, and a few of them that are kept in memory.

Rows are read here, one row group at a time: the iterators of `datasets` hold whole files in memory, and hang when a
process ends while one of them is open.
"""

import hashlib
import importlib
import io
import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from PIL import Image

from excb.errors import UserError, require
from excb.images.decoding import BrokenImageError, open_image
from excb.images.pixels import EIGHT_BIT, ClippedImages, Notice, Pixels, notice_of
from excb.remote import byte_ranges

KEPT = 2048  # images, for the monitor and as replacements of broken ones
FIRST_SAMPLE = 2**32  # samples from here on are images that are not kept


@dataclass(frozen=True)
class StreamMarks:
    """The marks of a stream's images with values outside the range, by their places in it."""

    marks: ClippedImages
    starts: tuple[int, ...]  # number of each shard's first image
    kept: Sequence[tuple[int, int]]  # shard and row of the images that are kept in memory

    def at(self, sample: int) -> Notice:
        """Marks an image: one that is kept by its index, any other by `sample_of`."""
        shard, row = self.kept[sample] if sample < FIRST_SAMPLE else ((sample >> 32) - 1, sample % FIRST_SAMPLE)
        return self.marks.at(self.starts[shard] + row)


def sample_of(shard: int, row: int) -> int:
    """The number of a stream's image among samples: beyond the indices of images that are kept in memory."""
    return ((shard + 1) << 32) | row


@dataclass(frozen=True)
class KeptImages:
    """A few of a stream's images, in memory."""

    root: str
    contents: Sequence[bytes]
    paths: Sequence[str]
    fingerprint: str
    labels: None = None
    classes: None = None
    pixels: Pixels = EIGHT_BIT  # how stored values become channels
    clipped: "StreamMarks | None" = field(default=None, compare=False, repr=False)  # those of the whole stream

    def __len__(self) -> int:
        return len(self.contents)

    def stamp(self, _index: int) -> str:
        """An empty stamp: they do not change."""
        return ""

    def source(self, index: int) -> io.BytesIO:
        """One encoded image."""
        return io.BytesIO(self.contents[index])

    def open(self, index: int) -> Any:
        """One image upright, in 8 bits: see `Images.open`.

        Raises:
            BrokenImageError: it cannot be read.
        """
        return open_image(self.source(index), self.pixels, notice_of(self, index))


@dataclass(frozen=True)
class StreamImages:
    """Images that are read sequentially, shard by shard; there is no access by index."""

    root: str
    files: tuple[str, ...]  # the shards, paths or URLs of Parquet files
    sizes: tuple[int, ...]  # images in each
    column: str
    buffer: int  # images in the shuffle buffers of all shard readers together
    labels: None = None
    classes: None = None
    paths: Sequence[str] = ()
    pixels: Pixels = EIGHT_BIT  # how stored values become channels
    clipped: ClippedImages | None = field(default=None, compare=False, repr=False)  # see `ImageSet`

    def __len__(self) -> int:
        return sum(self.sizes)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without the images kept in memory

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.files)

    @property
    def fingerprint(self) -> str:
        """A hash of everything but the seed that determines the order of images."""
        names = [file.rpartition("/")[2] for file in self.files]  # in any folder
        return hashlib.sha256(repr((names, self.sizes, self.column, self.buffer)).encode()).hexdigest()

    def stamp(self, _index: int) -> str:
        """An empty stamp."""
        return ""

    def open(self, _index: int) -> Image.Image:
        """Refuse: a stream has no access by index.

        Raises:
            BrokenImageError: always.
        """
        raise BrokenImageError(f"{self.root} is a stream: its images have no index")

    def rows(self, shard: int, first: int = 0) -> Generator[bytes]:
        """A shard's encoded images from row `first` on; a missing image is empty.

        Raises:
            UserError: the shard cannot be read.
        """
        import pyarrow.parquet

        expected = trouble()
        try:
            with (
                byte_ranges.open_sequential(self.files[shard]) as stream,
                pyarrow.parquet.ParquetFile(stream, pre_buffer=False) as file,
            ):
                for group in range(file.num_row_groups):
                    size = file.metadata.row_group(group).num_rows
                    if first < size:
                        table = file.read_row_group(group, columns=[self.column], use_threads=False)
                        for value in table.column(0)[first:]:
                            # Empty if there is no image or only a path, which decoding then reports.
                            yield bytes((value.as_py() or {}).get("bytes") or b"")
                    first = max(0, first - size)
        except expected as error:
            raise UserError(
                f"cannot read {self.files[shard]} ({byte_ranges.reason(error)}): check your access to it"
            ) from None

    @cached_property
    def kept(self) -> KeptImages:
        """The first images of the shards, interleaved, at most `KEPT`."""
        each = -(-KEPT // self.shards)
        first = [
            (row, shard, content)
            for shard in range(min(self.shards, KEPT))
            for row, content in enumerate(itertools.islice(self.rows(shard), each))
        ]
        kept = sorted(first)[:KEPT]
        require(len(kept) > 1, f"{self.root} holds {len(kept)} image: pretraining needs many")
        names = [image_name(shard, row) for row, shard, _ in kept]
        contents = [content for _, _, content in kept]
        return KeptImages(self.root, contents, names, self.fingerprint, pixels=self.pixels, clipped=self._marks(kept))

    def _marks(self, kept: Sequence[tuple[int, int, bytes]]) -> StreamMarks | None:
        if self.clipped is None:
            return None
        starts = tuple(itertools.accumulate(self.sizes[:-1], initial=0))
        return StreamMarks(self.clipped, starts, [(shard, row) for row, shard, _ in kept])


def image_name(shard: int, row: int) -> str:
    """Name of a stream's image, for messages."""
    return f"shard {shard}, row {row}"


def trouble() -> tuple[type[Exception], ...]:
    """Exceptions of the libraries for data sets that cannot be read."""
    own: type[Exception] = importlib.import_module("datasets").exceptions.DatasetsError
    arrow: type[Exception] = importlib.import_module("pyarrow").ArrowException
    return (*byte_ranges.failures(), own, arrow)
