"""Copies among images: files of equal bytes under any name, and pictures that look the same."""

import hashlib
import io
import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from excb.files.foreign import open_file, read_bytes
from excb.images import depth
from excb.images.decoding import BrokenImageError, open_smaller
from excb.images.digests import digests_of, files_of, keep_digests, status_of
from excb.images.image_set import CodedImages, read_once
from excb.images.pixels import EIGHT_BIT, PixelsError, Source
from excb.images.shards import ShardImages

MOST = 100_000  # images whose files are compared whatever their names; of more, listing and reading take minutes
HEAD = 2**16  # bytes that are compared first
MOST_AT_ONCE = 2**25  # bytes of a file that is read into memory

# Near-copies: their small grey pictures correlate, and so do the differences of neighbouring pixels (dHash), which
# pictures of other skies do not. Between grocery128's train and test photographs no pair passes; all of 100 copies pass
# that were made smaller, saved again (JPEG, quality 20 to 90) or turned grey, 98 at 0.7 of their sides.
MOST_NEAR, MOST_BYTES = 10_000, 2**30  # images, and bytes of their files, that are decoded for it
SIDE = 16  # pixels of the small grey picture
SMALL = f"grey {SIDE} 1"  # its name in the table of digests
CORRELATED = 0.95  # least correlation of two small pictures
BITS = 30  # most of the hash's 240 that differ
PLAIN = 2.0  # standard deviation in grey levels up to which a picture shows too little to be recognised
ROWS = 1024  # pictures that are compared with all others at once

Place = tuple[int, int]  # the number of a set, and of an image in it


def equal_images(sets: Sequence[CodedImages], *, named: bool = False) -> list[list[Place]]:
    """Groups of images whose stored bytes are equal; files that cannot be read are in none.

    Only images that share a size are read, each once: O(N), whatever their sizes. Unchanged files are read once and
    for all (`excb.images.digests`).

    Args:
        sets: the images.
        named: whether only files of one name are compared, which reads far less of large sets.
    """
    places = [(number, index) for number, images in enumerate(sets) for index in range(len(images))]
    groups = [places]
    if named:
        names = {place: PurePosixPath(sets[place[0]].paths[place[1]]).name for place in places}
        groups = _parted(groups, names)
    files = dict(zip(places, chain.from_iterable(map(_files, sets)), strict=True))
    statuses = {place: status_of(files[place]) for group in groups for place in group}
    sizes = {place: _size(sets[place[0]], place[1], status) for place, status in statuses.items()}
    groups = _parted(groups, sizes)
    longer = [group for group in groups if (sizes[group[0]] or 0) > HEAD]
    short = [group for group in groups if (sizes[group[0]] or 0) <= HEAD]
    short = _parted(short, _digests(sets, short, files, statuses, HEAD, whole=True))
    longer = _parted(longer, _digests(sets, longer, files, statuses, HEAD))
    return sorted([*short, *_parted(longer, _digests(sets, longer, files, statuses, -1))])


def _parted(groups: Iterable[list[Place]], keys: Mapping[Place, Hashable]) -> list[list[Place]]:
    """Each group split by a key; only parts of two or more stay, and none whose key is None."""
    parts = []
    for group in groups:
        by_key = defaultdict[Hashable, list[Place]](list)
        for place in group:
            by_key[keys[place]].append(place)
        parts += [part for value, part in by_key.items() if value is not None and len(part) > 1]
    return parts


def _files(images: CodedImages) -> list[Path | str | None]:
    return files_of(images, range(len(images)))


def _size(images: CodedImages, index: int, status: os.stat_result | None) -> int | None:
    """An image's size in bytes; None if it is missing or empty."""
    if isinstance(images, ShardImages):
        return int(images.index.sizes[index]) or None
    if status is not None:
        return status.st_size or None
    try:
        source = images.source(index)
        return source.getbuffer().nbytes or None if isinstance(source, io.BytesIO) else None
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        return None


def _digests(
    sets: Sequence[CodedImages],
    groups: Sequence[list[Place]],
    files: Mapping[Place, Path | str | None],
    statuses: Mapping[Place, os.stat_result | None],
    count: int,
    *,
    whole: bool = False,
) -> dict[Place, bytes | None]:
    """`_digest` of all images of the groups; with `whole`, of files that have no more bytes, which are held."""
    places = [place for group in groups for place in group]
    digests = digests_of(
        f"sha256 of {count}",
        [files[place] for place in places],
        lambda turn: _digest(sets[places[turn][0]], places[turn][1], count, whole=whole),
        statuses=[statuses[place] for place in places],
    )
    return dict(zip(places, digests, strict=True))


def _digest(images: CodedImages, index: int, count: int, *, whole: bool) -> bytes | None:
    """A hash of the first bytes, or of all for -1; None if they cannot be read."""
    try:
        source = read_once(images, index) if whole else images.source(index)
        with open_file(source) if isinstance(source, str | Path) else source as stream:
            return hashlib.sha256(stream.read(count)).digest()
    except (OSError, BrokenImageError):
        return None


def look_once(sets: Sequence[CodedImages]) -> None:
    """Read each file once for what `equal_images` and `near_copies` ask of it, which then find it in the table.

    What passes through networks afterwards is held, where there is room.
    """
    filed = [(images, *each) for images in sets for each in enumerate(_files(images)) if each[1] is not None]

    def look(number: int) -> Sequence[bytes | None]:
        images, index, _ = filed[number]
        source = read_once(images, index)
        try:
            content = read_bytes(Path(source), MOST_AT_ONCE) if isinstance(source, str | Path) else source.read()
        except OSError:  # of frames of a video, and large files, each digest is read alone
            return None, None
        return hashlib.sha256(content[:HEAD]).digest(), _small_of(io.BytesIO(content))

    keep_digests((f"sha256 of {HEAD}", SMALL), [file for _, _, file in filed], look)


def comparable(sets: Sequence[CodedImages]) -> bool:
    """Whether sets are small enough for `near_copies`: it decodes all of their images, about 0.4 ms each of 128 pixels.

    JPEGs of any size are decoded at an eighth of their sides where that suffices.
    """
    if sum(map(len, sets)) > MOST_NEAR:
        return False
    stored = ((images, index, file) for images in sets for index, file in enumerate(_files(images)))
    return sum(_size(images, index, status_of(file)) or 0 for images, index, file in stored) <= MOST_BYTES


def near_copies(train: CodedImages, test: CodedImages) -> list[tuple[int, int]]:
    """Test images that look as a train image does: their indices, and that of the train image most like each.

    Copies are found that were scaled, saved again, or changed in brightness, contrast or colour; cropped, turned and
    mirrored ones are not, which `excb-eval overlap` finds.
    """
    (bank, known), (queries, asked) = _small_pictures(train), _small_pictures(test)
    pairs = sorted(((query, bits, column) for query, column, bits in _alike(queries, bank)), reverse=True)
    best = {query: column for query, _, column in pairs}  # the fewest bits come last
    return [(int(asked[query]), int(known[column])) for query, column in sorted(best.items())]


def near_pairs(images: CodedImages) -> list[tuple[int, int]]:
    """Pairs of images of one set that look the same, as `near_copies` finds them; each pair once, ascending."""
    pictures, own = _small_pictures(images)
    return [(int(own[row]), int(own[column])) for row, column, _ in _alike(pictures, pictures) if row < column]


def look_alike(first: Image.Image, second: Image.Image) -> bool:
    """Whether `near_pairs` takes two opened images for one."""
    pictures = np.stack([np.asarray(_grey(image), np.float32) for image in (first, second)])
    return float(pictures.std((1, 2)).min()) > PLAIN and any(True for _ in _alike(pictures[:1], pictures[1:]))


def _alike(queries: np.ndarray, bank: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Rows of queries and of a bank of small pictures that look the same, and the bits of their hashes that differ."""
    if not len(bank) or not len(queries):
        return
    unit_bank, bank_hashes, query_hashes = _unit(bank), _hashes(bank), _hashes(queries)
    for start in range(0, len(queries), ROWS):
        correlations = _unit(queries[start : start + ROWS]) @ unit_bank.T
        for row, column in np.argwhere(correlations >= CORRELATED).tolist():
            bits = int(np.bitwise_count(query_hashes[start + row] ^ bank_hashes[column]).sum())
            if bits <= BITS:
                yield start + row, column, bits


def _small_pictures(images: CodedImages) -> tuple[np.ndarray, np.ndarray]:
    """Small grey pictures, float32 [N, SIDE, SIDE], and whose: plain and unreadable images have none."""
    numbers = range(len(images))
    found = digests_of(SMALL, _files(images), lambda number: _small(images, number))
    indices = [number for number in numbers if (picture := found[number]) is not None and len(picture) == SIDE * SIDE]
    pictures = np.frombuffer(b"".join(found[number] or b"" for number in indices), np.uint8).astype(np.float32)
    pictures = pictures.reshape(-1, SIDE, SIDE)
    shown = pictures.std(axis=(1, 2)) > PLAIN
    return pictures[shown], np.array(indices, np.int64)[shown]


def _small(images: CodedImages, index: int) -> bytes | None:
    """An image's small grey picture as bytes; None of a broken image, which is reported where it is used."""
    try:
        return _small_of(images.source(index))
    except BrokenImageError:
        return None


def _small_of(source: Source) -> bytes | None:
    try:
        try:
            image: Image.Image = open_smaller(source, _shrink, EIGHT_BIT)[0]
        except PixelsError:  # more bits or other channels: no set's range is needed to see that two images are alike
            image = _stretched(depth.read_values(source, len("RGB")))
    except BrokenImageError:
        return None
    return _grey(image).tobytes()


def _grey(image: Image.Image) -> Image.Image:
    return image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=2.0)


def _stretched(values: np.ndarray) -> Image.Image:
    """The mean of all channels as a grey image, its own least and greatest value as black and white."""
    grey = values.reshape(*values.shape[:2], -1).mean(axis=2, dtype=np.float64)
    finite = grey[np.isfinite(grey)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    scaled = (np.nan_to_num(grey, nan=low, posinf=high, neginf=low) - low) * (255 / max(high - low, 1e-12))
    return Image.fromarray(scaled.round().astype(np.uint8))


def _shrink(size: tuple[int, int]) -> int:
    return next((divisor for divisor in (8, 4, 2) if min(size) >= 2 * SIDE * divisor), 1)


def _unit(pictures: np.ndarray) -> np.ndarray:
    """Rows [N, SIDE²] of mean 0 and length 1, whose products are correlations."""
    rows = pictures.reshape(len(pictures), -1)
    rows = rows - rows.mean(1, keepdims=True)
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _hashes(pictures: np.ndarray) -> np.ndarray:
    """dHash: whether each pixel is brighter than its left neighbour, uint8 [N, 30]."""
    return np.packbits((pictures[:, :, 1:] > pictures[:, :, :-1]).reshape(len(pictures), -1), axis=1)
