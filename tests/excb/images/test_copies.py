"""Tests of copies among images: equal files under any names, each read once, and pictures that look the same."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from excb.images import copies, photographs
from excb.images.image_set import CodedImages, ImageSet
from excb.images.scanning import scan_folder


def write(root: Path, **contents: bytes) -> ImageSet:
    for name, content in contents.items():
        (root / f"{name}.ppm").parent.mkdir(parents=True, exist_ok=True)
        (root / f"{name}.ppm").write_bytes(content)
    return scan_folder(root)


def test_groups_of_equal_files_are_found_by_their_bytes(tmp_path: Path) -> None:
    long = bytes(copies.HEAD + 1)
    first = write(tmp_path / "a", one=b"x1", two=b"x2", three=b"x1", long=long, other=long[:-1] + b"1", empty=b"")
    second = write(tmp_path / "b", four=b"x2", five=b"x3", long=long, empty=b"")
    groups = copies.equal_images([first, second])
    named = [[(number, (first, second)[number].paths[index]) for number, index in group] for group in groups]
    assert sorted(named) == [
        [(0, "long.ppm"), (1, "long.ppm")],
        [(0, "one.ppm"), (0, "three.ppm")],
        [(0, "two.ppm"), (1, "four.ppm")],
    ]
    assert [len(group) for group in copies.equal_images([first, second], named=True)] == [2]  # long.ppm


def test_each_file_is_read_once_although_all_have_one_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = write(tmp_path, **{f"i{number}": number.to_bytes(4, "big") for number in range(50)})
    read, digest = list[int](), copies._digest

    def counted(images: CodedImages, index: int, count: int, *, whole: bool) -> bytes | None:
        read.append(index)
        return digest(images, index, count, whole=whole)

    monkeypatch.setattr(copies, "_digest", counted)
    assert copies.equal_images([images]) == []
    assert sorted(read) == list(range(50))


@pytest.mark.parametrize("kind", ["jpeg 90", "jpeg 30", "half", "0.7", "grey", "brighter"])
def test_changed_copies_of_photographs_are_found_and_other_photographs_are_not(tmp_path: Path, kind: str) -> None:
    pictures = [photographs.photograph(name).reduce(3) for name in photographs.PHOTOGRAPHS]
    for folder in ("train", "test"):
        (tmp_path / folder).mkdir()
    for number, picture in enumerate(pictures):
        place = tmp_path / ("train" if number % 2 else "test")
        picture.save(place / f"{number}.png")
    altered(pictures[3], kind).save(tmp_path / "test" / "copy.png")
    train, test = scan_folder(tmp_path / "train"), scan_folder(tmp_path / "test")
    pairs = [(test.paths[index], train.paths[like]) for index, like in copies.near_copies(train, test)]
    assert pairs == [("copy.png", "3.png")]


def altered(picture: Image.Image, kind: str) -> Image.Image:
    name, _, number = kind.partition(" ")
    if name == "jpeg":
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=int(number))
        return Image.open(stream).convert("RGB")
    if name in ("half", "0.7"):
        share = 0.5 if name == "half" else 0.7
        return picture.resize((int(picture.width * share), int(picture.height * share)))
    return picture.convert("L") if name == "grey" else ImageEnhance.Brightness(picture).enhance(1.2)


def test_plain_and_broken_images_are_no_copies(tmp_path: Path) -> None:
    for folder, shade in (("train", 100), ("test", 101)):
        (tmp_path / folder).mkdir()
        Image.fromarray(np.full((40, 40, 3), shade, np.uint8)).save(tmp_path / folder / "plain.png")
        (tmp_path / folder / "broken.png").write_bytes(b"\x89PNG")
    assert copies.near_copies(scan_folder(tmp_path / "train"), scan_folder(tmp_path / "test")) == []
