"""Tests of what is odd about a train and a test set: empty classes, swapped splits, images in both."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.images import copies
from excb.images.scanning import scan_folder
from excb.ledger import NOTHING
from excb.transfer.data.concerns import OLD, concerns
from tests.excb.images.deep_files import write
from tests.transfer.labelled_images import write_folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_folder(tmp_path / "train", each=4, classes=("ant", "bee"), seed=1)
    write_folder(tmp_path / "test", each=2, classes=("ant", "bee"), seed=2)
    return tmp_path


def found(place: Path, train: str = "train", test: str = "test") -> list[str]:
    return concerns(scan_folder(place / train), scan_folder(place / test)).lines()


def test_usual_sets_are_no_concern(place: Path) -> None:
    (place / "train" / ".hidden").mkdir()
    assert concerns(scan_folder(place / "train"), scan_folder(place / "test")) == NOTHING


def test_empty_class_folders(place: Path) -> None:
    for name in ("cat", "dog"):
        (place / "train" / name).mkdir()
    (place / "train" / "cat" / "notes.txt").write_text("words", encoding="utf-8")
    (place / "test" / "eel").mkdir()
    assert found(place) == [
        "train: 2 class folders without an image, such as cat, dog: not taken for classes",
        "test: 1 class folder without an image, such as eel: not taken for classes",
    ]


def test_classes_that_no_test_image_has(place: Path) -> None:
    shutil.copytree(place / "train" / "ant", place / "train" / "fox")
    for file in (place / "train" / "fox").iterdir():  # other pictures
        Image.open(file).convert("RGB").transpose(Image.Transpose.ROTATE_90).save(file)
    assert found(place) == ["test: 1 class without a test image, such as fox: not covered by any figure"]


def test_swapped_splits(place: Path) -> None:
    assert found(place, "test", "train") == ["train: 4 images, fewer than the 8 of test: are the two swapped?"]


def pattern(seed: int, side: int = 96) -> np.ndarray:
    """A picture [side, side] of values 0..1: patches of noise on a slope."""
    random = np.random.default_rng(seed)
    patches = random.normal(0, 0.2, (6, 6)).repeat(side // 6, 0).repeat(side // 6, 1)
    return (np.mgrid[:side, :side][0] / side + patches).clip(0, 1)


KINDS: dict[str, tuple[str, Callable[[int], np.ndarray], type]] = {
    "16 bits": (".png", lambda seed: pattern(seed) * 4000, np.uint16),
    "16-bit TIFFs": (".tif", lambda seed: pattern(seed) * 9000, np.uint16),
    "floats": (".tif", lambda seed: pattern(seed) * 3 - 1, np.float32),
    "twelve bands": (".npy", lambda seed: pattern(seed)[..., None] ** np.linspace(0.5, 2, 12) * 9000, np.uint16),
    "twelve bands in TIFFs": (".tif", lambda seed: pattern(seed)[..., None] ** np.linspace(0.5, 2, 12), np.float32),
}


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_any_depth_and_of_many_channels_are_found(tmp_path: Path, kind: str) -> None:
    """A copy of the file under another name, and one of other brightness, size and noise; other pictures are none."""
    suffix, values, stored = KINDS[kind]
    for part, numbers in (("train", range(6)), ("test", range(6, 10))):
        for number in numbers:
            write(tmp_path / part / f"a/{number}{suffix}", values(number).astype(stored))
    shutil.copy(tmp_path / "train" / f"a/0{suffix}", tmp_path / "test" / f"a/same{suffix}")
    near = values(1)[::2, ::2]
    near = 0.8 * near + np.random.default_rng(0).normal(0, 1e-3 * near.std(), near.shape)
    write(
        tmp_path / "test" / f"a/near{suffix}",
        np.maximum(near, near.min() if stored is np.float32 else 0).astype(stored),
    )
    assert concerns(scan_folder(tmp_path / "train"), scan_folder(tmp_path / "test")).lines() == [
        f"test: 1 of 6 images is among the train images too, such as a/same{suffix} = a/0{suffix}: {OLD}",
        f"test: 1 of 6 images looks like a train image, such as a/near{suffix} ~ a/1{suffix}: {OLD}",
    ]


def test_identical_images_whatever_their_names(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 1):
        shutil.copy(place / "train" / "ant" / f"{number}.png", place / "test" / "bee" / f"same{number}.png")
    shutil.copy(place / "train" / "ant" / "0.png", place / "train" / "ant" / "again.png")
    assert found(place) == [
        "train: 1 file that the set holds under another name too, such as ant/again.png = ant/0.png: each counts again",
        "test: 2 of 6 images are among the train images too, such as bee/same0.png = ant/0.png, "
        "bee/same1.png = ant/1.png: figures on copies say nothing about new images",
    ]
    monkeypatch.setattr(copies, "MOST", 3)
    (line,) = found(place)
    assert line == "15 images, more than the 3 that are searched for copies: excb-eval overlap searches them"


def test_test_images_that_look_like_a_train_image(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.mgrid[:96, :96][0] * 2.5
    for number in range(2):
        noise = np.random.default_rng(number).normal(0, 60, (6, 6, 3)).repeat(16, 0).repeat(16, 1)
        picture = Image.fromarray((rows[..., None] + noise).clip(0, 255).astype(np.uint8))
        picture.save(place / "train" / "bee" / f"large{number}.png")
        if number == 0:
            picture.resize((70, 70)).save(place / "test" / "bee" / "small.jpg", quality=60)
    assert found(place) == [
        "test: 1 of 5 images looks like a train image, such as bee/small.jpg ~ bee/large0.png: "
        "figures on copies say nothing about new images"
    ]
    monkeypatch.setattr(copies, "MOST_NEAR", 3)
    assert found(place) == [
        "15 images, more than the 3 (or 1 GiB) that are searched for near-copies: excb-eval overlap searches them"
    ]
