"""Files whose content is held: they open as from the disk, until they change, within a bound, and in one process."""

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.images import image_set
from excb.images.decoding import BrokenImageError
from excb.images.image_set import ImageSet, read_once
from excb.images.scanning import scan_folder
from tests.excb.images.messy_folder import PICTURE, write_messy_folder


def opened(images: ImageSet, index: int) -> np.ndarray | str:
    """An image's pixels, or why there are none, without the path that messages of files give."""
    try:
        return np.asarray(images.open(index))
    except BrokenImageError as error:
        return str(error).replace(f" '{images.file(index)}'", "")


def held_set(folder: Path) -> ImageSet:
    """A set of one PNG that was read once."""
    PICTURE.save(folder / "1.png")
    images = ImageSet(folder, ["1.png"])
    assert isinstance(read_once(images, 0), io.BytesIO)
    return images


def test_every_kind_of_file_opens_from_memory_as_from_the_disk(tmp_path: Path) -> None:
    write_messy_folder(tmp_path)
    names = sorted(scan_folder(tmp_path).paths)
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "a" / "0.jpg").read_bytes()[:400])
    (tmp_path / "empty.png").write_bytes(b"")
    names += ["cut.jpg", "empty.png", "missing.jpg", "a/1.heic", "b/4.nef", "b/features.npy", "b/notes.txt"]
    files, remembered = ImageSet(tmp_path, names), ImageSet(tmp_path, names)
    for index in range(len(names)):
        read_once(remembered, index)
    by_name = (".heic", ".heif", ".jxl", ".nef", ".cr2", ".dng", "missing.jpg")
    for index, name in enumerate(names):
        assert (index in remembered.held) != name.lower().endswith(by_name), name
    for index, name in enumerate(names):
        expected, found = opened(files, index), opened(remembered, index)
        assert np.array_equal(expected, found), name


def test_a_held_file_is_not_opened_again(tmp_path: Path) -> None:
    images = held_set(tmp_path)
    file = images.file(0)
    status = file.stat()
    file.write_bytes(bytes(status.st_size))  # other bytes, and by its stamp the same file
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert np.array_equal(opened(images, 0), np.asarray(PICTURE))


def test_a_file_that_changed_is_read_anew(tmp_path: Path) -> None:
    images = held_set(tmp_path)
    mirrored = PICTURE.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    mirrored.save(images.file(0))
    os.utime(images.file(0), ns=(0, 1))
    assert np.array_equal(opened(images, 0), np.asarray(mirrored))


def test_a_file_that_was_removed_cannot_be_read(tmp_path: Path) -> None:
    images = held_set(tmp_path)
    images.file(0).unlink()
    assert "FileNotFoundError" in opened(images, 0)


def test_no_more_than_the_bound_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        PICTURE.save(tmp_path / f"{number}.bmp")
    images = scan_folder(tmp_path)
    size = images.file(0).stat().st_size
    monkeypatch.setattr(image_set, "MOST_HELD", 2 * size + 10)
    sources = [read_once(images, index) for index in range(4)]
    assert [isinstance(source, Path) for source in sources] == [False, False, True, True]
    assert [index in images.held for index in range(4)] == [True, True, False, False]
    assert all(np.array_equal(opened(images, index), np.asarray(PICTURE)) for index in range(4))


def test_contents_are_not_copied_to_new_processes(tmp_path: Path) -> None:
    images = held_set(tmp_path)
    copied = pickle.loads(pickle.dumps(images))
    assert 0 not in copied.held
    assert np.array_equal(opened(copied, 0), np.asarray(PICTURE))
    assert copied == images


class Unhashed(ImageSet):
    """A set whose fingerprint, which takes time in proportion to its images, must not be asked for with each image."""

    @property
    def fingerprint(self) -> str:
        """Never computed here."""
        pytest.fail("the fingerprint was computed")


def test_reading_an_image_takes_no_look_at_the_whole_set(tmp_path: Path) -> None:
    PICTURE.save(tmp_path / "1.png")
    images = Unhashed(tmp_path, ["1.png"])
    read_once(images, 0)
    assert np.array_equal(opened(images, 0), np.asarray(PICTURE))
