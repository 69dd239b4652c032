"""Tests of the packaged photographs: they are real, their patches never share a pixel, and a missing one is told."""

import importlib.machinery
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.errors import UserError
from excb.images import photographs
from excb.images.decoding import open_image
from excb.images.scanning import scan_folder


@pytest.fixture
def coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two photographs whose colours are their coordinates show where a patch was cut."""
    rows, columns = np.mgrid[:300, :420]
    picture = Image.fromarray(np.stack([rows % 256, columns % 256, rows // 256 * 16 + columns // 256], 2).astype("u1"))
    monkeypatch.setattr(photographs, "open_image", lambda _file: picture)
    monkeypatch.setattr(photographs, "PHOTOGRAPHS", dict.fromkeys(["a", "b"], "skimage/data/coffee.png"))


@pytest.mark.usefixtures("coordinates")
def test_train_and_test_patches_share_no_pixel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photographs, "TRAIN", 60)
    monkeypatch.setattr(photographs, "TEST", 40)
    photographs.write_patches(tmp_path)
    seen: dict[str, set[tuple[int, ...]]] = {"train": set(), "test": set()}
    for split, pixels in seen.items():
        images = scan_folder(tmp_path / split)
        assert len(images) == 2 * {"train": photographs.TRAIN, "test": photographs.TEST}[split]
        for index in range(len(images)):
            patch = np.array(open_image(images.file(index)))
            assert patch.shape == (photographs.SIDE, photographs.SIDE, 3)
            pixels |= set(map(tuple, patch.reshape(-1, 3).tolist()))
    assert not seen["train"] & seen["test"]


@pytest.mark.usefixtures("coordinates")
@pytest.mark.parametrize("side", [20, 88, photographs.TILE])
def test_patches_of_any_side_stay_within_squares_of_their_colour(side: int) -> None:
    for parity, split in enumerate(photographs.SPLITS):
        for patch in photographs.patches("b", split, 12, side):
            pixels = np.array(patch).astype(int)
            assert pixels.shape == (side, side, 3)
            rows = pixels[..., 0] + 256 * (pixels[..., 2] // 16)
            columns = pixels[..., 1] + 256 * (pixels[..., 2] % 16)
            (square,) = {tuple(square) for square in np.stack([rows, columns], 2).reshape(-1, 2) // photographs.TILE}
            assert sum(square) % 2 == parity


@pytest.mark.usefixtures("coordinates")
def test_patches_are_the_same_at_every_call_and_differ_between_photographs() -> None:
    first, again, other = (
        [patch.tobytes() for patch in photographs.patches(name, "train", 6)] for name in ("a", "a", "b")
    )
    assert first == again
    assert len(set(first)) == 6
    assert not set(first) & set(other)


def test_the_photographs_are_real_and_large_enough() -> None:
    for name in photographs.PHOTOGRAPHS:
        image = photographs.photograph(name)
        tiles = (image.width // photographs.TILE) * (image.height // photographs.TILE)
        assert tiles >= 12
        assert np.array(image).std() > 10


def test_patches_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photographs, "TRAIN", 2)
    monkeypatch.setattr(photographs, "TEST", 1)
    photographs.write_patches(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.png")}
    assert len(before) == 3 * len(photographs.PHOTOGRAPHS)
    photographs.write_patches(tmp_path)
    assert before == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.png")}


def test_patches_are_as_many_as_asked_for(tmp_path: Path) -> None:
    photographs.write_patches(tmp_path, train=2, test=1)
    assert {split: len(scan_folder(tmp_path / split)) for split in photographs.SPLITS} == {"train": 26, "test": 13}


def test_patches_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "train").touch()
    with pytest.raises(UserError, match="cannot write"):
        photographs.write_patches(tmp_path)


@pytest.mark.parametrize("package", ["absent", "without the file"])
def test_a_missing_photograph_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    spec = importlib.machinery.ModuleSpec("skimage", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(photographs, "find_spec", lambda _name: None if package == "absent" else spec)
    with pytest.raises(photographs.PhotographError, match="pip install scikit-image"):
        photographs.photograph("cat")


def test_a_damaged_photograph_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "chelsea.png").write_bytes(b"no picture")
    spec = importlib.machinery.ModuleSpec("skimage", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(photographs, "find_spec", lambda _name: spec)
    with pytest.raises(photographs.PhotographError, match=r"chelsea\.png is damaged"):
        photographs.photograph("cat")
