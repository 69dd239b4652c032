"""The doctor's look into files: cut, changed, empty and missing ones are found, where headers or pixels show it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.console import Reporter
from excb.images.scanning import scan_folder
from excb.images.shards import open_shards
from excb.pretrain.doctor import files
from excb.pretrain.doctor.files import check_files
from excb.pretrain.doctor.finding import Finding
from excb.sources.opening import read_list
from tests.excb.images.shard_files import pack_folder
from tests.pretrain.small_runs import write_images

QUIET = Reporter(quiet=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", classes=2, each=10, side=12)


def judged(
    folder: Path, *, max_share: float = 0.06, side: int | None = 8, everything: bool = False
) -> dict[str, Finding]:
    findings = check_files(scan_folder(folder), QUIET, max_share=max_share, side=side, everything=everything)
    return {finding.name: finding for finding in findings}


def test_sound_files(folder: Path) -> None:
    findings = judged(folder)
    assert list(findings) == ["headers", "pixels", "image sizes"]
    assert {finding.verdict for finding in findings.values()} == {"ok"}
    assert "all 20 images" in findings["pixels"].found


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n"])
def test_a_file_without_a_header(folder: Path, content: bytes) -> None:
    (folder / "class1" / "3.png").write_bytes(content)
    findings = judged(folder)
    assert findings["headers"].verdict == "warning"  # one of twenty, 6 % are max_share
    assert [name.partition(" ")[0] for name in findings["headers"].names] == ["class1/3.png"]
    assert findings["pixels"].verdict == "ok"  # reported once
    assert judged(folder, max_share=0.01)["headers"].verdict == "error"


def write_cut_jpeg(file: Path) -> None:
    """A picture whose header is whole, and whose pixels end in the middle."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "JPEG")
    file.write_bytes(file.read_bytes()[:3000])


def test_a_missing_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("class0/0.png\nnowhere.png\n")
    finding = check_files(read_list(tmp_path / "list.txt", folder), QUIET, max_share=0.01)[0]
    assert finding.verdict == "error"
    assert finding.names[0].startswith("nowhere.png (FileNotFoundError")


def test_cut_pixels_are_found_by_decoding(folder: Path) -> None:
    write_cut_jpeg(folder / "class0" / "2.png")
    findings = judged(folder)
    assert findings["headers"].verdict == "ok"
    assert findings["pixels"].verdict == "warning"
    assert [name.partition(" ")[0] for name in findings["pixels"].names] == ["class0/2.png"]


def test_a_sample_is_spread_over_the_set_and_all_is_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SAMPLE", 3)
    write_cut_jpeg(folder / "class1" / "2.png")  # neither at an end nor in the middle
    sampled = judged(folder)["pixels"]
    assert sampled.verdict == "ok"
    assert "3 of 20 images" in sampled.found
    assert "--all" in sampled.found
    assert judged(folder, everything=True)["pixels"].verdict == "warning"


def test_images_smaller_than_a_view(folder: Path) -> None:
    assert judged(folder, side=12)["image sizes"].verdict == "ok"
    for number in range(5):
        Image.fromarray(np.zeros((9, 30, 3), np.uint8)).save(folder / "class0" / f"{number}.png")
    finding = judged(folder, side=12)["image sizes"]
    assert finding.verdict == "ok"  # what to do about it, the rule of views says
    assert "9 to 12 pixels" in finding.found
    assert "25% are smaller" in finding.found


def test_images_in_shards(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "class1" / "3.png").write_bytes(b"no image")
    shards = open_shards(str(pack_folder(folder, tmp_path / "shards", count=2)))
    whole = {finding.name: finding for finding in check_files(shards, QUIET, max_share=0.06, side=8, everything=True)}
    assert {name: finding.verdict for name, finding in whole.items()} == {
        "headers": "warning",
        "pixels": "ok",
        "image sizes": "ok",
    }
    assert whole["headers"].names[0].startswith("001.tar/class1/3.png (")
    monkeypatch.setattr(files, "SAMPLE", 5)
    sample = check_files(shards, QUIET, max_share=0.06)
    assert [finding.found.partition(":")[0] for finding in sample] == ["5 of 20 images"] * 2


def test_images_much_larger_than_the_views_are_to_be_copied(tmp_path: Path) -> None:
    write_images(tmp_path / "large", classes=1, each=3, side=1_000)
    finding = judged(tmp_path / "large", side=100)["image sizes"]
    assert finding.verdict == "warning"
    assert "excb-pretrain shrink --data DIR --out DIR2 --side 400" in finding.fix
    assert judged(tmp_path / "large", side=126)["image sizes"].verdict == "ok"
