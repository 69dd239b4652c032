"""`excb-eval overlap`: planted crops, JPEGs and flips are found, and what is none is not; k-NN by a loop; files."""

import csv
import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import excb
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from tests.browser import chromium
from tests.forked import launch
from tests.transfer.labelled_images import knn_by_loop

pytestmark = pytest.mark.usefixtures("one_thread")

CLASSES = ("ant", "bee", "cat")
COPIES = ("flip", "jpeg", "same", "crop")
BY_HASH = ("flip", "jpeg", "same")  # what 10 bits find: a crop moves all low frequencies


def scene(random: np.random.Generator, side: int = 64) -> Image.Image:
    """A picture of its own: smooth patches of colour, which low frequencies tell apart."""
    small = Image.fromarray(random.integers(0, 256, (5, 6, 3)).astype(np.uint8))
    return small.resize((side + 8, side), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 train images of each of three classes; 4 test images of each that are new, and one copy of each kind."""
    place, random = tmp_path_factory.mktemp("overlap"), np.random.default_rng(3)
    for name in CLASSES:
        for part in ("train", "test"):
            (place / part / name).mkdir(parents=True)
        for number in range(20):
            scene(random).save(place / "train" / name / f"{number:02}.png")
        for number in range(4):
            scene(random).save(place / "test" / name / f"new{number}.png")
        for number, kind in enumerate(COPIES):
            with Image.open(place / "train" / name / f"{number:02}.png") as image:
                target = place / "test" / name / f"{kind}-of-{number:02}"
                if kind == "jpeg":
                    image.save(target.with_suffix(".jpg"), quality=20)
                elif kind == "crop":
                    image.crop((2, 2, 70, 62)).save(target.with_suffix(".png"))
                else:
                    (ImageOps.mirror(image) if kind == "flip" else image).save(target.with_suffix(".png"))
    return place


def words(place: Path, *more: str, train: str = "train", test: str = "test") -> list[str]:
    usual = ["--workers", "0", "--device", "cpu", "--no-cache", "--quiet"]
    return ["overlap", "--train", str(place / train), "--test", str(place / test), *usual, *more]


def answer(capsys: pytest.CaptureFixture[str], line: list[str]) -> dict[str, Any]:
    assert main([*line, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def named(pairs: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """The names of each pair's test and train image."""
    return {(pair["test"], pair["train"]) for pair in pairs}


def expected(kinds: Sequence[str] = COPIES) -> set[tuple[str, str]]:
    endings = {"jpeg": ".jpg"}
    return {
        (f"{name}/{kind}-of-{number:02}{endings.get(kind, '.png')}", f"{name}/{number:02}.png")
        for name in CLASSES
        for number, kind in enumerate(COPIES)
        if kind in kinds
    }


def test_hashes_alone_find_flips_and_jpegs_and_nothing_else(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, words(place, "--bits", "10", "--calibrate", "0"))
    assert named(found["pairs"]) == expected(BY_HASH)
    for pair in found["pairs"]:
        assert pair["mirrored"] == ("flip" in pair["test"])
        assert pair["cosine"] is None
    assert all(pair["bits"] == 0 for pair in found["pairs"] if "same" in pair["test"])
    assert found["figures"] == {"overlap_images": 37.5}
    low, high = found["intervals"]["overlap_images"]
    assert low < 37.5 < high


def test_features_and_hashes_calibrated_find_every_copy(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, words(place, "--ckpt", "conv4_photos"))
    assert expected() <= named(found["pairs"])
    exact = [pair for pair in found["pairs"] if "same" in pair["test"] and pair["train"].endswith("02.png")]
    assert [pair["cosine"] for pair in exact] == [1.0] * 3
    assert found["figures"]["planted_either_flip"] == 100
    assert found["figures"]["planted_hash_jpeg"] > 90
    assert found["figures"]["planted_either_false"] <= 10
    assert 0 < found["settings"]["cosine"] < 1
    images = found["data"]["train"]["images"]  # fewer than twice the 200 that are planted by default
    assert found["notes"] == [
        f"{images // 2} train images planted, half of {images}, not 200: the other half chose the thresholds"
    ]


def test_knn_with_and_without_them_is_that_of_a_loop(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = words(place, "--ckpt", "conv4_photos", "--cosine", "1", "--bits", "10", "--calibrate", "0")
    found = answer(capsys, line)["figures"]
    backbone = excb.load("conv4_photos")

    def features(part: str, keep: str) -> tuple[np.ndarray, list[str]]:
        files = [file for file in sorted((place / part).rglob("*.*")) if re.match(keep, file.name)]
        rows = [backbone.embed(file)[0].double().numpy() for file in files]
        return np.stack(rows), [file.parent.name for file in files]

    bank = features("train", "")
    for figure, keep in (("all", ""), ("without", "new|crop"), ("only", "flip|jpeg|same")):
        wanted, _ = knn_by_loop(*bank, *features("test", keep), k=20, temperature=0.07)
        assert found[f"overlap_knn_{figure}"] == pytest.approx(wanted, abs=1e-3)
    assert len({found[f"overlap_knn_{figure}"] for figure in ("all", "without", "only")}) == 3


def test_other_classes_and_no_labels_give_no_knn_figure(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flat").mkdir()
    for file in (place / "test").rglob("*.*"):
        (tmp_path / "flat" / f"{file.parent.name}_{file.name}").write_bytes(file.read_bytes())
    line = ["--ckpt", "conv4_photos", "--cosine", "1", "--bits", "10", "--calibrate", "0"]
    found = answer(capsys, words(tmp_path, *line, train=str(place / "train"), test="flat"))
    assert list(found["figures"]) == ["overlap_images"]
    assert len(found["pairs"]) == len(expected(BY_HASH))


def test_a_shard_gives_the_pairs_of_its_folder(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(tmp_path / "test-0.tar", "w") as tar:
        for number, file in enumerate(sorted((place / "test").rglob("*.*"))):
            tar.add(file, f"{number:03}{file.suffix}")
            label = str(CLASSES.index(file.parent.name)).encode()
            info = tarfile.TarInfo(f"{number:03}.cls")
            info.size = len(label)
            tar.addfile(info, io.BytesIO(label))
    line = ["--bits", "10", "--calibrate", "0"]
    shards = answer(capsys, words(place, *line, test=str(tmp_path / "test-0.tar")))
    folder = answer(capsys, words(place, *line))
    assert Counter(pair["train"] for pair in shards["pairs"]) == Counter(pair["train"] for pair in folder["pairs"])


def test_unreadable_images_are_left_out(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (place / "test" / "ant").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "broken.png").write_bytes(b"no image")
    line = ["--ckpt", "conv4_photos", "--cosine", "1", "--bits", "10", "--calibrate", "0"]
    found = answer(capsys, words(place, *line, test=str(tmp_path)))
    assert found["data"]["test"]["images"] == 8
    assert {(f"ant/{pair['test']}", pair["train"]) for pair in found["pairs"]} == {
        pair for pair in expected(BY_HASH) if pair[0].startswith("ant")
    }


def test_result_list_and_page_are_written(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "overlap.json"
    assert main(words(place, "--ckpt", "conv4_photos", "--out", str(out))) == 0
    printed = capsys.readouterr().out
    assert "of 24 test images overlap with 60 train images" in printed
    result = ResultRecord.read(out)
    assert result.protocol == "overlap"
    rows = list(csv.DictReader(io.StringIO((tmp_path / "overlap.pairs.csv").read_text())))
    assert {row["test"] for row in rows} >= {test for test, _ in expected()}
    assert len({row["test"] for row in rows}) == round(result.figures["overlap_images"] * 24 / 100)
    page = (tmp_path / "overlap.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
    assert page.count('src="data:image/jpeg') == len(rows) + len({row["test"] for row in rows})
    assert "mirrored" in page


@pytest.mark.browser
def test_the_page_in_a_browser_fits_a_phone_and_asks_for_nothing(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "overlap.json"
    assert main(words(place, "--ckpt", "conv4_photos", "--out", str(out), "--json")) == 0
    with chromium() as page:
        for width, phone in ((1280, False), (390, True)):
            page.size(width, 900, phone=phone)
            page.open(out.with_suffix(".html"))
            page.settle()
            assert page.run("document.documentElement.scrollWidth") <= width
        assert page.problems == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--test", ""], "name both sets of images: --train SOURCE --test SOURCE"),
        (["--out", "a.html"], "--out a.html: the result is written to a file that ends in .json"),
        (["--cosine", "0.5"], "--cosine is of features: name a checkpoint with --ckpt"),
        (["--feature-precision", "bf16"], "--feature-precision is of a checkpoint's features: name it with --ckpt"),
        (["--crop", "48"], "--crop is of a checkpoint's features: name it with --ckpt"),
        (["--cosine", "80", "--ckpt", "conv4_photos"], "--cosine must be above -1 and at most 1"),
        (["--bits", "65"], "--bits must lie in 0 to 64, such as 8, not 65"),
        (["--k", "0"], "--k must be at least 1"),
        (["--calibrate", "-1"], "--calibrate must be at least 0"),
        (["--calibrate", "0"], "--calibrate 0 needs thresholds: name --bits"),
        (
            ["--calibrate", "9", "--train", "{place}/test/ant"],
            "8 train images are too few to set thresholds by: name --bits, and --calibrate 0",
        ),
        (["--control", "classes", "--train", "{place}/train/ant"], "--control classes needs train images with labels"),
        (["--train", "nowhere"], "no folder nowhere"),
    ],
)
def test_mistakes_end_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main([*words(place), *(each.format(place=place) for each in more)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_two_processes_give_the_answer_of_one(place: Path, tmp_path: Path) -> None:
    results = []
    for processes in (1, 2):
        out = tmp_path / f"{processes}.json"
        line = words(place, "--ckpt", "conv4_photos", "--out", str(out))
        assert (main(line) if processes == 1 else launch("excb.transfer.cli", line, 2)) == 0
        results.append((ResultRecord.read(out).figures, out.with_name(f"{processes}.pairs.csv").read_text()))
    assert results[0] == results[1]


def test_the_dry_run_computes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(place, "--dry-run")) == 0
    assert "a perceptual hash of every image" in capsys.readouterr().out
