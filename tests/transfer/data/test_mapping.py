"""One range for train and test images: declared, the network's own, or measured on the train images."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import excb
from excb.errors import UserError
from excb.images.image_set import CLIPPED, ImageSet
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.images.scanning import scan_folder
from excb.networks.preprocessing import Preprocessing
from excb.transfer.data.mapping import declared_pixels, on_one_mapping
from tests.excb.images.deep_files import ramp, write
from tests.run_files import tiny_recipe, write_run

pytestmark = pytest.mark.usefixtures("one_thread")
USUAL = Preprocessing(36, 32)


def folder(place: Path, *tops: float, low: float = 0, kind: type = np.uint16) -> ImageSet:
    for number, top in enumerate(tops):
        write(place / f"{number}.png", ramp(low, top, kind, 40))
    return scan_folder(place)


class Said:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def mapped(
        self, train: ImageSet, test: ImageSet, prepared: Preprocessing = USUAL, declared: Pixels | None = None
    ) -> tuple[ImageSet, ImageSet, Preprocessing]:
        return on_one_mapping(train, test, prepared, declared, note=self.notes.append, warn=self.warnings.append)  # type: ignore[return-value, unused-ignore]


def test_the_train_images_say_the_range(tmp_path: Path) -> None:
    train, test = folder(tmp_path / "train", 4095, 255), folder(tmp_path / "test", 5000)
    said = Said()
    mapped, other, prepared = said.mapped(train, test)
    assert mapped.pixels == other.pixels == prepared.pixels == Pixels(3, (0.0,), (4095.0,), "measured")
    assert "1 with values outside, which are clipped" in said.notes[1]


def test_a_networks_own_range_comes_first_and_a_declared_one_before_it(tmp_path: Path) -> None:
    train, own = folder(tmp_path, 4095), USUAL.with_range("0..4000")
    assert Said().mapped(train, train, own)[2].pixels == own.pixels
    declared = declared_pixels("0..65535", None, own.pixels)
    assert Said().mapped(train, train, own, declared)[2].pixels.range == "0..65535"


def test_a_network_of_stored_colours_keeps_them(tmp_path: Path) -> None:
    own = replace(USUAL, pixels=Pixels(colours="stored"))
    train = folder(tmp_path / "train", 200, kind=np.uint8)
    mapped, other, prepared = Said().mapped(train, train, own)
    assert mapped is other
    assert mapped.pixels == prepared.pixels == own.pixels
    deep = folder(tmp_path / "deep", 4095)
    assert Said().mapped(deep, deep, own)[2].pixels == Pixels(3, (0.0,), (4095.0,), "measured", "stored")
    declared = declared_pixels("0..9000", None, own.pixels)
    assert Said().mapped(deep, deep, own, declared)[0].pixels == Pixels(3, (0.0,), (9000.0,), "declared", "stored")
    assert declared_pixels(None, 3, own.pixels) == own.pixels
    assert declared_pixels(None, 4, own.pixels) == Pixels(4, colours="stored")


@pytest.mark.parametrize("top", [65535, 300])
def test_a_range_that_contradicts_the_networks_is_said(tmp_path: Path, top: int) -> None:
    said = Said()
    train = folder(tmp_path, top, top)
    said.mapped(train, train, USUAL.with_range("0..4095"))
    assert "do not look like 0..4095, which the network was trained with" in said.warnings[0]
    assert "mapped from the network's own 0..4095" in said.notes[0] or top == 65535
    fits = Said()
    fits.mapped(folder(tmp_path / "fits", 4000), train, USUAL.with_range("0..70000"), Pixels.declared("0..4095"))
    assert not fits.warnings


def test_ordinary_images_stay_as_they_are(tmp_path: Path) -> None:
    train = folder(tmp_path, 255, kind=np.uint8)
    said = Said()
    assert said.mapped(train, train) == (train, train, USUAL)
    assert not said.notes


def test_a_range_for_8_bit_images_is_refused(tmp_path: Path) -> None:
    train = folder(tmp_path, 255, kind=np.uint8)
    with pytest.raises(UserError, match="leave --range out"):
        Said().mapped(train, train, USUAL, Pixels.declared("0..100"))


def test_deep_train_and_shallow_test_images_are_refused(tmp_path: Path) -> None:
    train, test = folder(tmp_path / "train", 4095), folder(tmp_path / "test", 255, kind=np.uint8)
    for pair in ((train, test), (test, train)):
        with pytest.raises(UserError, match=r"declare the range of the former with --range"):
            Said().mapped(*pair)


def test_nothing_declared_is_nothing() -> None:
    assert declared_pixels(None, None, EIGHT_BIT) is None
    assert declared_pixels(None, 12, EIGHT_BIT) == Pixels(12)


def test_an_evaluation_records_the_range_and_keeps_its_features_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    for part, each in (("train", 3), ("test", 1)):
        for number, top in enumerate((4095, 2000)):
            for image in range(each):
                write(tmp_path / part / f"class{number}" / f"{image}.png", ramp(image, top, np.uint16, 40))
    usual = {"data": tmp_path, "k": [1], "quiet": True, "device": "cpu", "workers": 0, "cache": tmp_path / "cache"}
    measured = excb.evaluate(tmp_path / "run", "knn", **usual)  # type: ignore[arg-type, unused-ignore]
    record = json.loads(measured.record.to_json())["checkpoint"]["preprocessing"]["pixels"]
    assert record == Pixels(3, (0.0,), (4095.0,), "measured").to_dict()
    excb.evaluate(tmp_path / "run", "knn", range="0..65535", **usual)  # type: ignore[arg-type, unused-ignore]
    kept = [entry for entry in (tmp_path / "cache" / "features").iterdir() if entry.is_dir()]
    assert len(kept) == 4  # two sets, twice
    found = excb.embed(tmp_path / "run", tmp_path / "train", quiet=True, device="cpu", workers=0, no_cache=True)
    query = str(tmp_path / "train" / "class0" / "0.png")
    assert found.search(query, k=1)[0].cosine == pytest.approx(1, abs=1e-5)


def test_an_evaluation_counts_the_images_outside_the_range_also_of_kept_features(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    for part, tops in (("train", (90, 200)), ("test", (80, 70))):
        for name in ("ant", "bee"):
            for number, top in enumerate(tops):
                write(tmp_path / part / name / f"{number}.png", ramp(0, top + (name == "bee"), np.uint16, 40))
    usual = {"k": [1], "quiet": True, "device": "cpu", "workers": 1, "cache": tmp_path / "cache", "range": "0..100"}
    for _ in range(2):
        measured = excb.evaluate(tmp_path / "run", "knn", data=tmp_path, **usual)  # type: ignore[arg-type, unused-ignore]
        (entry,) = [each for each in measured.record.ledger.entries if each.reason == CLIPPED]
        assert (entry.of, entry.count, entry.names) == ("train", 2, ("ant/1.png", "bee/1.png"))
        del usual["k"]
        found = excb.embed(tmp_path / "run", tmp_path / "train", **usual)  # type: ignore[arg-type, unused-ignore]
        usual["k"] = [1]
        (entry,) = [each for each in found.ledger.entries if each.reason == CLIPPED]
        assert entry.count == 2
