"""Near-duplicates: a threshold that a loop finds too, what shows the same picture, groups to act on."""

import csv
import dataclasses
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import nn

import excb
from excb.errors import UserError
from excb.images import copies
from excb.transfer.cli import main
from excb.transfer.embeddings.copies import overlay, thresholds
from excb.transfer.embeddings.copies.overlay import correlation, same_picture, small_picture
from excb.transfer.embeddings.copies.thresholds import ALTERATIONS
from excb.transfer.embeddings.embeddings import Embeddings
from excb.transfer.embeddings.table.vectors import ArrayRows

pytestmark = pytest.mark.usefixtures("one_thread")


def scene(random: np.random.Generator, size: tuple[int, int] = (80, 60)) -> Image.Image:
    """A picture of soft blobs, unlike any other."""
    blobs = random.integers(0, 256, (9, 9, 3)).astype(np.uint8)
    return Image.fromarray(blobs).resize(size, Image.Resampling.BICUBIC)


class Cells(nn.Module):
    """[B, 3, 32, 32] -> [B, 48]: the mean colours of 4 x 4 cells."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    @staticmethod
    def transform(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image.resize((32, 32)))).permute(2, 0, 1) / 255

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 4).flatten(1) * self.scale


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    """Sixty scenes, ten of them twice: the copy is smaller and of JPEG."""
    folder, random = tmp_path_factory.mktemp("copied"), np.random.default_rng(3)
    for number in range(60):
        image = scene(random)
        image.save(folder / f"{number:02}.png")
        if number < 10:
            image.resize((60, 45)).save(folder / f"{number:02}-copy.jpg", quality=90)
    return excb.embed(Cells(), folder, workers=0, quiet=True)


def original(path: str) -> str:
    return path[:2]


def test_copies_show_the_same_picture_and_other_scenes_do_not() -> None:
    random = np.random.default_rng(0)
    image = scene(random)
    coded = io.BytesIO()
    image.crop((4, 2, 78, 58)).save(coded, "JPEG", quality=60)
    for copy in (image.resize((40, 30)), ImageOps.mirror(image), Image.open(coded), image.convert("L")):
        assert same_picture(small_picture(image), small_picture(copy))
        assert same_picture(small_picture(copy), small_picture(image))
    others = [small_picture(scene(random)) for _ in range(20)]
    assert not any(same_picture(small_picture(image), other) for other in others)
    plain = small_picture(Image.new("RGB", (50, 50), (9, 9, 9)))
    assert not same_picture(plain, plain)


def test_the_correlation_is_that_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "SIDES", (28,))
    random = np.random.default_rng(1)
    first, second = small_picture(scene(random)), small_picture(scene(random))
    best = -1.0
    for whole, part in ((first, second), (second, first)):
        small = np.asarray(part.resize((28, 28), Image.Resampling.BILINEAR), float)
        for pixels in (np.asarray(whole, float), np.asarray(ImageOps.mirror(whole), float)):
            for top in range(5):
                for left in range(5):
                    window = pixels[top : top + 28, left : left + 28]
                    best = max(best, float(np.corrcoef(window.ravel(), small.ravel())[0, 1]))
    assert correlation(first, second) == pytest.approx(best, abs=1e-4)


def test_alterations_are_what_they_say() -> None:
    image = scene(np.random.default_rng(2), (200, 100))
    made = {name: alter(image, np.random.default_rng(0)) for name, alter in ALTERATIONS.items()}
    assert list(made) == ["JPEG", "crop", "resize", "flip", "colour"]
    assert made["JPEG"].size == made["colour"].size == image.size
    assert 0.80 < made["crop"].width * made["crop"].height / 20_000 < 0.91
    assert 0.39 < made["resize"].width / 200 < 0.81
    assert np.array_equal(np.asarray(made["flip"]), np.asarray(image)[:, ::-1])
    for name in ("JPEG", "colour"):
        assert 0 < np.abs(np.asarray(made[name], float) - np.asarray(image)).mean() < 40


def test_the_threshold_is_that_of_a_loop(copied: Embeddings) -> None:
    unit = copied.vectors.astype(float)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    different = np.array(
        [
            max(unit[i] @ unit[j] for j in range(70) if original(copied.paths[i]) != original(copied.paths[j]))
            for i in range(70)
        ]
    )
    limit = math.floor(different[::2].max() * 10_000 + 1) / 10_000  # 1 % of 35 images is none
    near = copied.near_duplicates(quiet=True)
    threshold = near.threshold
    assert threshold is not None
    assert near.cosine == threshold.cosine >= limit
    if near.cosine > limit:  # as high as it takes to find all copies
        assert min(threshold.found.values()) > 0.9
    assert threshold.alarms == (different[1::2] >= near.cosine).mean()
    assert (threshold.altered, threshold.compared) == (35, 35)
    assert set(threshold.found) == set(ALTERATIONS)
    assert threshold.found["JPEG"] == threshold.found["resize"] == 1
    assert {frozenset(group) for group in near} >= {
        frozenset({f"{number:02}.png", f"{number:02}-copy.jpg"}) for number in range(10)
    }
    assert all(group.keep.endswith(".png") for group in near)
    assert repr(near).startswith(
        f"10 groups of near-duplicates, 20 images in them, with a cosine of {near.cosine:.4g} or more, which finds "
        f"{threshold.found_percent:.0f} % of altered copies\n"
    )
    assert copied.near_duplicates(quiet=True) == near


def test_pictures_find_copies_that_the_network_does_not(copied: Embeddings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors that say nothing; above 10,000 images they alone count."""
    rows = np.random.default_rng(0).normal(size=copied.vectors.shape).astype(np.float32)
    blind = dataclasses.replace(copied, rows=ArrayRows(rows))
    near = blind.near_duplicates(quiet=True)
    pairs = [[f"{number:02}-copy.jpg", f"{number:02}.png"] for number in range(10)]
    assert [pair for pair in pairs if pair in map(list, near)] == pairs
    assert near.threshold is not None
    assert near.threshold.found["JPEG"] == near.threshold.found["resize"] == 1
    assert "or pictures that look the same" in str(near.threshold)
    monkeypatch.setattr(copies, "MOST_NEAR", 69)
    assert "pictures" not in str(blind.near_duplicates(quiet=True).threshold)


def test_calibration_asks_for_a_number_where_it_cannot(copied: Embeddings, tmp_path: Path) -> None:
    ask = r"name a cosine, such as near_duplicates\(0\.95\) or --near-duplicates 0\.95"
    with pytest.raises(UserError, match=f"39 images are too few to calibrate by: {ask}"):
        copied[:39].near_duplicates()
    loaded = Embeddings.load(copied.save(tmp_path / "a.npz"))
    with pytest.raises(UserError, match=f"needs the network that made the vectors .*: {ask}"):
        loaded.near_duplicates(quiet=True)
    gone = Embeddings(copied.rows, copied.paths, str(tmp_path), copied.model, backbone=copied.backbone)
    with pytest.raises(UserError, match=f"needs the images, and .* cannot be read: {ask}"):
        gone.near_duplicates(quiet=True)
    assert len(gone.near_duplicates(0.9999)) == len(copied.near_duplicates(0.9999))


def test_a_group_says_which_file_to_keep(tmp_path: Path) -> None:
    sizes = {"=b.png": (30, 20), "a.png": (30, 20), "c.png": (10, 10), "d.png": (30, 20)}
    for name, size in sizes.items():
        Image.new("RGB", size).save(tmp_path / name)
    with (tmp_path / "d.png").open("ab") as stream:
        stream.write(b"\0" * 9)  # the largest file
    angles = np.deg2rad([0, 3, 6, 40, 6])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    made = Embeddings(ArrayRows(vectors), ["=b.png", "a.png", "c.png", "d.png", "gone.png"], str(tmp_path), {})
    near = made.near_duplicates(np.cos(np.deg2rad(3.1)))
    assert near == [["=b.png", "a.png", "c.png", "gone.png"]]
    (group,) = near
    assert (group.keep, group.representative) == ("=b.png", "a.png")  # as many pixels and bytes as a.png
    assert group.others == ["a.png", "c.png"]  # gone.png may have had the most pixels
    assert group.weakest == pytest.approx(np.cos(np.deg2rad(6)))
    wide = made.near_duplicates(0.5)
    assert wide[0].keep == "d.png"
    text = near.to_csv(tmp_path / "near.csv").read_text()
    rows = list(csv.reader(io.StringIO(text)))
    stored = str((tmp_path / "a.png").stat().st_size)
    assert rows[0] == ["group", "keep", "path", "cosine", "width", "height", "bytes"]
    assert rows[1] == ["1", "yes", "./=b.png", "1.000000", "30", "20", stored]
    assert rows[2] == ["1", "no", "a.png", f"{np.cos(np.deg2rad(3)):.6f}", "30", "20", stored]
    assert rows[4] == ["1", "", "gone.png", f"{np.cos(np.deg2rad(6)):.6f}", "", "", ""]
    assert repr(near).splitlines() == [
        "1 group of near-duplicates, 4 images in them, with a cosine of 0.9985 or more",
        f"1 file of these groups, such as gone.png, cannot be read below {tmp_path}: nothing is said about them",
        "  keep =b.png, not a.png, c.png",
    ]


def test_where_no_file_can_be_read_none_is_kept(tmp_path: Path) -> None:
    made = Embeddings(ArrayRows(np.ones((2, 2), np.float32)), ["a.png", "b.png"], "nowhere", {})
    near = made.near_duplicates(0.9)
    assert (near[0].keep, near[0].others) == ("", [])
    assert [row.split(",")[1] for row in near.to_csv(tmp_path / "near.csv").read_text().splitlines()[1:]] == ["", ""]
    assert "2 files of these groups, such as a.png, cannot be read below nowhere" in repr(near)
    assert "  alike: a.png, b.png" in repr(near)


def test_the_command_calibrates_and_writes_a_table(
    run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["search", "--ckpt", str(run), "--data", str(photos), "--workers", "0", "--device", "cpu", "--quiet"]
    assert main([*words, "--near-duplicates"]) == 2
    assert "12 images are too few to calibrate by: name a cosine" in capsys.readouterr().err
    monkeypatch.setattr(thresholds, "FEWEST", 5)
    monkeypatch.setattr(thresholds, "COPIED", 6)
    page = tmp_path / "page.html"
    assert main([*words, "--near-duplicates", "--json", "--out", str(page)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["calibration"]["cosine"] == answer["cosine"]
    assert answer["calibration"]["images_altered"] == 3
    assert ["a/b/03.png", "c/twin.png"] in answer["near_duplicates"]
    assert "calibrated on these images" in page.read_text()
    assert len(page.with_suffix(".csv").read_text().splitlines()) == 1 + sum(map(len, answer["near_duplicates"]))
