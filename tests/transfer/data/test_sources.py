"""Tests of where images come from: folders, ImageNet's layouts, torchvision's files, and a stand-in for the Hub."""

import io
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import torchvision.datasets
from PIL import Image

from excb.errors import UserError
from excb.images.decoding import BrokenImageError, open_image
from excb.images.scanning import scan_folder
from excb.sources.source import SetSource, numbered
from excb.sources.torchvision_sets import SETS, ArrayImages
from excb.transfer.data import sources
from excb.transfer.data.classes import labelled_folder, with_classes_of
from excb.transfer.data.sources import images_of, open_source, train_and_test
from excb.transfer.embeddings.sources import any_images
from tests.excb.images.shard_files import picture, tar_of, webdataset
from tests.transfer.labelled_images import CLASSES, write_folder

RANDOM = np.random.default_rng(0)


def write_images(folder: Path, *paths: str) -> Path:
    """Tiny pictures, the first pixel's red of each being its place in the list."""
    for number, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(folder / path, format="png")
    return folder


def by_path(images: Any) -> dict[str, str]:
    """Class name by path."""
    return {path: images.classes[label] for path, label in zip(images.paths, images.labels, strict=True)}


# ---------------------------------------------------------------------------------------------------------------------
# Folders
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_folder(tmp_path / "train", each=2, seed=1)
    write_folder(tmp_path / "val", each=1, classes=CLASSES[:3], seed=2)
    return tmp_path


def test_folders_give_the_sets_that_they_always_gave(data: Path) -> None:
    train, test = train_and_test(str(data))
    known = labelled_folder(data / "train")
    expected = with_classes_of(scan_folder(data / "val"), known)
    assert (train.fingerprint, train.classes) == (known.fingerprint, known.classes)
    assert (test.root, test.fingerprint, test.classes) == (data / "val", expected.fingerprint, expected.classes)
    assert open_source(str(data), "train").fingerprint == known.fingerprint


def test_images_of_a_folder_are_its_own_or_those_of_train(tmp_path: Path) -> None:
    notes: list[str] = []
    for name in ("train", "test"):
        write_folder(tmp_path / "data" / name, each=1)
    found = images_of(str(tmp_path / "data"), note=notes.append)
    assert (found.root, len(found), found.classes) == (tmp_path / "data" / "train", 7, CLASSES)
    assert len(notes) == 1
    one = images_of(str(tmp_path / "data" / "test" / "ant"), note=notes.append)
    assert (one.root, len(one), one.labels) == (tmp_path / "data" / "test" / "ant", 1, None)
    alone = write_folder(tmp_path / "alone" / "train", each=1).parent
    assert images_of(str(alone)).root == alone
    assert len(notes) == 1
    with pytest.raises(UserError):
        images_of(str(tmp_path / "nothing"))


def test_test_folder_comes_before_val_and_what_is_named_before_both(data: Path) -> None:
    write_folder(data / "test", each=3, classes=CLASSES[1:3])
    assert len(train_and_test(str(data))[1]) == 6
    train, test = train_and_test(str(data), data / "val")
    assert (len(train), len(test)) == (3, 6)
    train, test = train_and_test(str(data), test=data / "val")
    assert (len(train), len(test)) == (len(open_source(str(data), "train")), 3)
    with pytest.raises(UserError, match="has no use beside both --train and --test"):
        train_and_test(str(data), data / "val", data / "val")
    train, test = train_and_test(None, data / "train", data / "val", rename={"ant": "bee"})
    assert test.labels is not None
    assert test.labels.tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}/nothing", "no folder .*nothing: --data names a folder that holds train/ and test/"),
        ("cifar10", r"no folder cifar10 \(or did you mean torchvision:cifar10\?\)"),
        ("{}/val", "no folder .*val/train: --data names a folder that holds train/ and test/"),
        ("torchvision:flower102", "no torchvision:flower102; did you mean 'FLOWERS102'.* there are CIFAR10"),
        ("torchvision:EuroSAT", "no torchvision:EuroSAT"),
        ("hf:", "hf: needs a data set's name"),
        ("hf:ethz/food101@", "names no configuration after @: leave @ out"),
        ("torchvision:", r"torchvision: needs a data set's name \(with train and test there are"),
        ("torchvison:CIFAR10", r"no folder torchvison:CIFAR10 \(or did you mean torchvision:CIFAR10\?\)"),
        ("multilabel:", "multilabel: needs a folder: multilabel:DIR names one"),
        (None, "name the images with --data DIR"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(text: str | None, words: str, data: Path) -> None:
    with pytest.raises(UserError, match=words) as caught:
        train_and_test(text and text.format(data))
    assert "\n" not in str(caught.value)


def test_classes_that_are_numbers_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    names = [str(number) for number in range(12)]
    write_images(tmp_path, *(f"{split}/{name}/a.png" for split in ("train", "test") for name in names))
    notes: list[str] = []
    train, test = train_and_test(str(tmp_path), note=notes.append)
    for images in (train, test):
        assert images.classes == tuple(names)
        assert by_path(images) == {f"{name}/a.png": name for name in names}
    assert notes == [f"the classes in {tmp_path / 'train'} are numbers: their order is 0, 1 ... 11"]


def test_numbers_with_leading_zeros_need_no_other_order(tmp_path: Path) -> None:
    write_images(tmp_path, *(f"{split}/{number:03}/a.png" for split in ("train", "test") for number in range(12)))
    notes: list[str] = []
    assert by_path(train_and_test(str(tmp_path), note=notes.append)[0])["007/a.png"] == "007"
    assert notes == []


# ---------------------------------------------------------------------------------------------------------------------
# ImageNet
# ---------------------------------------------------------------------------------------------------------------------

WNIDS = ("n01440764", "n01443537", "n15075141")
FLAT = tuple(f"ILSVRC2012_val_0000000{number}.JPEG" for number in range(1, 5))
TRUTH = dict(zip(FLAT, (WNIDS[2], WNIDS[0], WNIDS[2], WNIDS[1]), strict=True))


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """Train in folders, val flat, and ImageNet's own test images, which nobody has labels of."""
    write_images(tmp_path / "train", *(f"{wnid}/{wnid}_7.JPEG" for wnid in WNIDS))
    write_images(tmp_path / "val", *FLAT)
    write_images(tmp_path / "test", "ILSVRC2012_test_00000001.JPEG")
    return tmp_path


@pytest.mark.parametrize("place", ["val.txt", "imagenet_val.txt", "val/val.txt"])
@pytest.mark.parametrize("form", ["{name} {number}", "{name}\t{wnid}", "val/{name} {number}", "./{name} {wnid}\n"])
def test_flat_validation_images_with_a_list(place: str, form: str, imagenet: Path) -> None:
    lines = [form.format(name=name, wnid=wnid, number=WNIDS.index(wnid)) for name, wnid in reversed(TRUTH.items())]
    (imagenet / place).write_text("\n".join(lines), encoding="utf-8")
    _, test = train_and_test(str(imagenet))
    assert test.root == imagenet / "val"
    assert test.classes == WNIDS
    assert by_path(test) == TRUTH


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([f"{name} 3" for name in FLAT], "has the class 3: it needs indices from 0 to 2"),
        ([f"{name} n99999999" for name in FLAT], "has the class n99999999"),
        ([f"{name} 0" for name in FLAT[:2]], f"2 images of .*val not in .*val.txt, such as {FLAT[2]}"),
        ([f"{name} 0" for name in (*FLAT, "x.JPEG")], "1 name of .*val.txt not in .*val, such as x.JPEG"),
        ([f"{FLAT[0]} 0", f"{FLAT[0]} 1"], "more than once"),
        ([FLAT[0]], "is not an image's name and its class"),
    ],
)
def test_wrong_lists_are_refused(lines: Sequence[str], words: str, imagenet: Path) -> None:
    (imagenet / "val.txt").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match=words):
        train_and_test(str(imagenet))


def test_flat_validation_images_without_a_list(imagenet: Path) -> None:
    with pytest.raises(UserError, match=r"val has no class folders: .* or write val.txt beside it"):
        train_and_test(str(imagenet))


def test_class_folders_are_checked_against_imagenets(imagenet: Path, tmp_path: Path) -> None:
    info = pytest.importorskip("timm.data").ImageNetInfo()
    wnids = info.label_names()
    write_images(tmp_path / "all", *(f"{split}/{wnid}/a.JPEG" for split in ("train", "val") for wnid in wnids))
    notes: list[str] = []
    train, test = train_and_test(str(tmp_path / "all"), note=notes.append)
    assert train.classes == test.classes == tuple(wnids)
    assert notes == []
    open_source(str(imagenet), "train", note=notes.append)
    assert notes == [
        f"{imagenet / 'train'} has 3 classes other than ImageNet's 1,000: their indices follow their names"
    ]


# ---------------------------------------------------------------------------------------------------------------------
# torchvision
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[bool, tuple[np.ndarray, list[int]]]:
    """CIFAR-10's files with a handful of images; by `train`, their pixels [N, 32, 32, 3] and labels."""
    folder, written = tmp_path / "cifar-10-batches-py", {}
    folder.mkdir()
    for train, files in ((True, [f"data_batch_{i}" for i in range(1, 6)]), (False, ["test_batch"])):
        rows, labels = RANDOM.integers(0, 256, (3 * len(files), 3072), dtype=np.uint8), []
        for number, file in enumerate(files):
            mine = [int(label) for label in RANDOM.integers(0, 10, 3)]
            with (folder / file).open("wb") as out:
                pickle.dump({"data": rows[3 * number : 3 * number + 3], "labels": mine}, out)
            labels += mine
        pixels = np.stack([[row[plane * 1024 :][:1024].reshape(32, 32) for plane in range(3)] for row in rows])
        written[train] = (np.moveaxis(pixels, 1, 3), labels)
    with (folder / "batches.meta").open("wb") as out:
        pickle.dump({"label_names": [f"class {i}" for i in range(10)]}, out)
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda path, md5: True)  # of the real files
    monkeypatch.setenv("EXCB_DATA", str(tmp_path))
    return written


def test_cifar10(cifar: dict[bool, tuple[np.ndarray, list[int]]]) -> None:
    train, test = train_and_test("torchvision:cifar10")
    for images, (pixels, labels) in ((train, cifar[True]), (test, cifar[False])):
        assert images.labels is not None
        assert images.labels.dtype == np.int64
        assert images.labels.tolist() == labels
        assert all((np.asarray(images.open(i)) == pixels[i]).all() for i in range(len(images)))
        assert images.classes == tuple(f"class {i}" for i in range(10))
    assert test.paths == ["test/00000", "test/00001", "test/00002"]
    assert str(test.root) == "torchvision:CIFAR10"
    copy = pickle.loads(pickle.dumps(test))
    assert (np.asarray(copy.open(2)) == cifar[False][0][2]).all()
    assert len({images.fingerprint for images in (train, test, copy, open_source("TorchVision:CIFAR10", "test"))}) == 2


def test_fingerprint_of_an_array_is_of_its_pixels_and_labels() -> None:
    pixels, labels = RANDOM.integers(0, 256, (4, 5, 6), dtype=np.uint8), np.arange(4)
    first = ArrayImages(Path("a"), "test", pixels, labels, ("w", "x", "y", "z"))
    assert first.open(1).mode == "RGB"
    other = pixels.copy()
    other[3, 4, 5] ^= 1
    prints = {
        ArrayImages(Path("b"), "train", values, numbers, first.classes).fingerprint
        for values, numbers in ((pixels, labels), (other, labels), (pixels, labels[::-1]), (pixels[::-1], labels))
    }
    assert len(prints) == 4
    assert first.fingerprint in prints


def test_all_images_of_stl10_are_for_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def build(_root: Path, *, split: str) -> Any:
        assert split == "train+unlabeled"
        return SimpleNamespace(data=np.arange(48, dtype=np.uint8).reshape(2, 3, 2, 4), labels=np.array([1, -1]))

    monkeypatch.setattr(torchvision.datasets, "STL10", build)
    images = images_of("torchvision:stl10", data_root=tmp_path)
    assert (len(images), images.labels, images.classes) == (2, None, None)
    assert np.asarray(images.open(1))[0, 1].tolist() == [25, 33, 41]


def test_names_of_images_sort_as_their_numbers_do() -> None:
    names = numbered("train", 100_001)
    assert names == sorted(names)
    assert (names[0], names[-1]) == ("train/000000", "train/100000")


def test_pets_and_food_are_lists_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pets = tmp_path / "oxford-iiit-pet"
    write_images(pets / "images", "beagle_1.jpg", "Abyssinian_2.jpg", "beagle_3.jpg")
    (pets / "annotations").mkdir()
    (pets / "annotations" / "trainval.txt").write_text("beagle_1 2 1 1\nAbyssinian_2 1 1 1\n", encoding="utf-8")
    (pets / "annotations" / "test.txt").write_text("beagle_3 2 1 1\nAbyssinian_2 1 1 1\n", encoding="utf-8")
    monkeypatch.setenv("EXCB_DATA", str(tmp_path))
    train, test = train_and_test("torchvision:OxfordIIITPet")
    folder = "oxford-iiit-pet/images"
    assert by_path(train) == {f"{folder}/beagle_1.jpg": "Beagle", f"{folder}/Abyssinian_2.jpg": "Abyssinian"}
    assert by_path(test) == {f"{folder}/beagle_3.jpg": "Beagle", f"{folder}/Abyssinian_2.jpg": "Abyssinian"}
    assert test.open(0).getpixel((0, 0)) == (2, 0, 0)

    food = tmp_path / "elsewhere" / "food-101"
    write_images(food / "images", "pie/1.jpg", "soup/2.jpg", "pie/3.jpg")
    (food / "meta").mkdir()
    (food / "meta" / "train.json").write_text('{"pie": ["pie/1"], "soup": ["soup/2"]}', encoding="utf-8")
    (food / "meta" / "test.json").write_text('{"pie": ["pie/3"], "soup": []}', encoding="utf-8")
    train, test = train_and_test("torchvision:food101", data_root=tmp_path / "elsewhere")
    assert by_path(train) == {"food-101/images/pie/1.jpg": "pie", "food-101/images/soup/2.jpg": "soup"}
    assert by_path(test) == {"food-101/images/pie/3.jpg": "pie"}


def test_validation_images_of_dtd_are_for_training(tmp_path: Path) -> None:
    dtd = tmp_path / "dtd" / "dtd"
    write_images(dtd / "images", "dots/1.jpg", "knit/1.jpg", "dots/2.jpg", "knit/2.jpg", "dots/3.jpg", "knit/3.jpg")
    (dtd / "labels").mkdir()
    for number, split in enumerate(("train", "val", "test"), 1):
        (dtd / "labels" / f"{split}1.txt").write_text(f"dots/{number}.jpg\nknit/{number}.jpg\n", encoding="utf-8")
    train, test = train_and_test("torchvision:dtd", data_root=tmp_path)
    assert [path.removeprefix("dtd/dtd/images/") for path in train.paths] == [
        "dots/1.jpg",
        "knit/1.jpg",
        "dots/2.jpg",
        "knit/2.jpg",
    ]
    assert set(by_path(test).values()) == {"dots", "knit"}
    assert len(test) == 2


def test_every_listed_data_set_is_torchvisions() -> None:
    assert all(hasattr(torchvision.datasets, name) for name in SETS)


@pytest.mark.parametrize("error", [OSError("no network\nat all"), RuntimeError("File not found or corrupted.")])
def test_failed_download_is_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried: list[bool] = []

    def build(root: Path, *, train: bool, download: bool = False) -> Any:
        tried.append(download)
        raise error if download else RuntimeError("Dataset not found or corrupted.")

    monkeypatch.setattr(torchvision.datasets, "CIFAR100", build)
    with pytest.raises(UserError, match=r"torchvision:CIFAR100 is not in .* --data-root DIR") as caught:
        open_source("torchvision:cifar100", "test", data_root=tmp_path)
    assert "\n" not in str(caught.value)
    assert tried == [False, True]


def test_downloads_only_what_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried: list[bool] = []

    def build(root: Path, *, split: str, download: bool = False) -> Any:
        tried.append(download)
        if not any(tried):
            raise RuntimeError("Dataset not found or corrupted.")
        return SimpleNamespace(data=np.arange(48, dtype=np.uint8).reshape(2, 3, 2, 4), labels=np.array([1, 0]))

    monkeypatch.setattr(torchvision.datasets, "SVHN", build)
    notes: list[str] = []
    images = open_source("torchvision:SVHN", "test", data_root=tmp_path, note=notes.append)
    assert np.asarray(images.open(1))[0, 1].tolist() == [25, 33, 41]  # planes become channels
    assert images.classes == ("0", "1")
    open_source("torchvision:SVHN", "test", data_root=tmp_path)
    assert tried == [False, True, False]
    assert notes == [f"downloading SVHN to {tmp_path}"]


# ---------------------------------------------------------------------------------------------------------------------
# The Hugging Face Hub
# ---------------------------------------------------------------------------------------------------------------------


class FakeImage:
    """`datasets.Image`, the type of a column."""

    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class FakeLabel:
    """`datasets.ClassLabel`."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)


class FakeDataset:
    """As much of `datasets.Dataset` as is used; an image is decoded unless its column says otherwise."""

    def __init__(self, features: dict[str, Any], columns: dict[str, list[Any]]) -> None:
        self.features, self.columns, self._fingerprint = features, columns, "abc"

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        assert not any(isinstance(feature, FakeImage) and feature.decode for feature in self.features.values())
        return {name: values[key] for name, values in self.columns.items()}

    def select_columns(self, names: list[str]) -> "FakeDataset":
        return FakeDataset({name: self.features[name] for name in names}, {name: self.columns[name] for name in names})

    def cast_column(self, name: str, feature: Any) -> "FakeDataset":
        return FakeDataset(self.features | {name: feature}, self.columns)


def encoded(red: int, **options: Any) -> dict[str, Any]:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (red, 0, 0)).save(file, format="png", **options)
    return {"bytes": file.getvalue(), "path": None}


def fake_split(labels: Sequence[int | None], images: Sequence[Any] | None = None) -> FakeDataset:
    features = {
        "id": object(),
        "photo": FakeImage(),
        "coarse": FakeLabel("plant", "animal"),
        "fine": FakeLabel("oak", "ant", "bee"),
    }
    rows = [encoded(number) for number in range(len(labels))] if images is None else list(images)
    columns: dict[str, list[Any]] = {
        "id": list(range(len(rows))),
        "photo": rows,
        "coarse": [0] * len(rows),
        "fine": list(labels),
    }
    return FakeDataset(features, columns)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeDataset]:
    """The splits of the only data set of a pretended Hub, some/set."""
    splits = {"train": fake_split([2, 0, 1, 1]), "test": fake_split([1, 2])}

    def load(name: str, config: str | None, *, split: str | None = None) -> Any:
        if name != "some/set" or config not in (None, "large"):
            raise FileNotFoundError(f"Dataset '{name}'\ndoesn't exist on the Hub")
        return list(splits) if split is None else splits[split]

    library = SimpleNamespace(
        Image=FakeImage,
        ClassLabel=FakeLabel,
        load_dataset=load,
        get_dataset_split_names=load,
        exceptions=SimpleNamespace(DatasetsError=RuntimeError),
    )
    monkeypatch.setitem(sys.modules, "datasets", library)
    return splits


def test_columns_are_found_by_their_types_and_the_finest_label_wins(hub: dict[str, FakeDataset]) -> None:
    train, test = train_and_test("hf:some/set@large")
    assert train.classes == test.classes == ("oak", "ant", "bee")
    assert train.labels is not None
    assert train.labels.dtype == np.int64
    assert train.labels.tolist() == [2, 0, 1, 1]
    assert [train.open(i).getpixel((0, 0)) for i in range(4)] == [(i, 0, 0) for i in range(4)]
    assert test.paths == ["test/00000", "test/00001"]
    assert str(test.root) == "hf:some/set@large"
    copy = pickle.loads(pickle.dumps(test))
    assert copy.open(1).getpixel((0, 0)) == (1, 0, 0)
    assert copy.fingerprint == test.fingerprint != train.fingerprint


def test_columns_are_taken_by_name(hub: dict[str, FakeDataset]) -> None:
    noted: list[str] = []
    train_and_test("hf:some/set", note=noted.append)
    assert noted == ["labels of hf:some/set: the column fine, of coarse, fine: name another with ,label=COLUMN"]
    train, test = train_and_test("hf:some/set@large,label=coarse,image=photo", note=pytest.fail)
    assert train.classes == test.classes == ("plant", "animal")
    assert train.fingerprint != train_and_test("hf:some/set@large")[0].fingerprint
    for split, kinds in (("train", ["b", "a", None, "b"]), ("test", ["c", "a"])):
        hub[split].columns["kind"] = kinds
        hub[split].features["kind"] = object()
    hub["train"].columns["kind"][2] = "d"
    train, test = train_and_test("hf:some/set,label=kind")
    assert train.classes == test.classes == ("a", "b", "c", "d")
    assert [list(images.labels) for images in (train, test)] == [[1, 0, 3, 1], [2, 0]]  # type: ignore[arg-type, unused-ignore]
    train, test = train_and_test("hf:some/set,label=id")
    assert train.classes == test.classes == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (",label=fine_label", r"has no column fine_label.*; there are id, photo, coarse, fine"),
        (",label=corse", r"has no column corse; did you mean 'coarse'\?"),
        (",image=fine", "has no images"),
        (",labels=fine", "has no option labels: write hf:ID,label=COLUMN or hf:ID,image=COLUMN"),
        (",label", "has no option label: write hf:ID,label=COLUMN"),
        (",label=photo", "the column photo of .* holds neither whole numbers nor texts"),
    ],
)
def test_columns_that_are_not_there_are_one_line(hub: dict[str, FakeDataset], options: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        train_and_test(f"hf:some/set{options}")
    assert "\n" not in str(caught.value)


def test_images_are_upright_and_broken_ones_are_reported(hub: dict[str, FakeDataset], tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    file = write_images(tmp_path, "on_disk.png") / "on_disk.png"
    stored = [encoded(0, exif=exif), {"bytes": None, "path": str(file)}, {"bytes": b"no image", "path": None}, None]
    hub["test"] = fake_split([0, 1, 2, 0], stored)
    images = open_source("hf:some/set", "test")
    assert images.open(0).size == (2, 3)
    assert images.open(1).size == (4, 4)
    for broken in (2, 3):
        with pytest.raises(BrokenImageError):
            images.open(broken)


@pytest.mark.parametrize("hidden", [-1, None])
def test_validation_takes_the_place_of_a_test_split_without_labels(
    hidden: int | None, hub: dict[str, FakeDataset]
) -> None:
    hub |= {"test": fake_split([hidden, hidden]), "validation": fake_split([0, 1, 2])}
    notes: list[str] = []
    _, test = train_and_test("hf:some/set", note=notes.append)
    assert test.paths[0] == "validation/00000"
    assert notes[1:] == ["the split 'test' of hf:some/set has no labels"]
    del hub["validation"]
    with pytest.raises(UserError, match="no labelled split 'test', only train, test"):
        train_and_test("hf:some/set")


def test_hub_mistakes_are_one_line(hub: dict[str, FakeDataset], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="cannot load hf:other/set: Dataset 'other/set' doesn't exist on the Hub"):
        train_and_test("hf:other/set")
    hub["train"] = fake_split([0]).select_columns(["fine"])
    with pytest.raises(UserError, match="hf:some/set has no images"):
        train_and_test("hf:some/set")
    hub["train"] = fake_split([0]).select_columns(["photo"])
    with pytest.raises(UserError, match="hf:some/set has no classes"):
        train_and_test("hf:some/set")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="needs the package `datasets`: pip install datasets"):
        train_and_test("hf:some/set")


def test_images_without_labels_are_for_training(hub: dict[str, FakeDataset], monkeypatch: pytest.MonkeyPatch) -> None:
    assert images_of("hf:some/set").classes == ("oak", "ant", "bee")
    hub["train"] = fake_split([0, None])
    assert images_of("hf:some/set").labels is None
    hub["train"] = fake_split([0, 1]).select_columns(["photo"])
    for images in (images_of("hf:some/set"), any_images("hf:some/set", note=pytest.fail)):
        assert (len(images), images.labels, images.classes) == (2, None, None)
        assert images.open(1).getpixel((0, 0)) == (1, 0, 0)
    del hub["train"]
    with pytest.raises(UserError, match="hf:some/set has no split 'train', only test: choose another"):
        images_of("hf:some/set")


def test_sources_can_be_mixed_with_folders(hub: dict[str, FakeDataset], tmp_path: Path) -> None:
    write_images(tmp_path / "photos", "bee/1.png", "oak/1.png", "elm/1.png", "ant/1.png")
    train, test = train_and_test("hf:some/set", None, tmp_path / "photos")
    assert train.classes == ("oak", "ant", "bee")
    assert by_path(test) == {f"{name}/1.png": name for name in ("ant", "bee", "elm", "oak")}
    with pytest.raises(UserError, match="have different classes: name a test set with the same ones"):
        train_and_test("hf:some/set", tmp_path / "photos")
    with pytest.raises(UserError, match="--rename is for folders of test images"):
        train_and_test("hf:some/set", rename={"a": "b"})


# ---------------------------------------------------------------------------------------------------------------------
# Tar shards
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Folders of shards: train and val with numbers as classes, and the same classes as folders in tars."""
    for name, keys in (("train", range(12)), ("val", range(12, 17))):
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(2):
            part = tar_of(webdataset(keys[number::2], 3))
            (tmp_path / "set" / name / f"{number}.tar").write_bytes(part)
    return tmp_path / "set"


def test_shards_are_evaluated_as_folders_are(packed: Path) -> None:
    train, test = train_and_test(str(packed))
    assert (len(train), len(test)) == (12, 5)
    assert train.classes == test.classes == ("0", "1", "2")
    assert by_path(train)["0.tar/000004.jpg"] == "1"
    assert by_path(test)["1.tar/000013.jpg"] == "1"
    assert np.array_equal(np.asarray(test.open(0)), np.asarray(open_image(io.BytesIO(picture(12)))))
    again = train_and_test(None, f"{packed}/train/{{0..1}}.tar", f"{packed}/val/*.tar")
    assert [images.fingerprint for images in again] == [train.fingerprint, test.fingerprint]
    assert images_of(str(packed)).fingerprint == images_of(f"{packed}/train").fingerprint == train.fingerprint


def test_remote_shards_are_evaluated(packed: Path) -> None:
    system = fsspec.filesystem("memory")
    for file in packed.rglob("*.tar"):
        system.pipe(f"memory://evaluated/{file.relative_to(packed).as_posix()}", file.read_bytes())
    remote, local = train_and_test("memory://evaluated"), train_and_test(str(packed))
    assert [images.fingerprint for images in remote] == [images.fingerprint for images in local]
    assert str(remote[1].root) == "memory://evaluated/val"
    system.store.clear()


def test_shards_go_with_folders_of_the_same_classes(packed: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "photos", "2/a.png", "0/b.png", "7/c.png")
    train, test = train_and_test(None, str(packed / "train"), tmp_path / "photos")
    assert (train.classes, test.classes) == (("0", "1", "2"), ("0", "1", "2", "7"))
    assert by_path(test) == {"0/b.png": "0", "2/a.png": "2", "7/c.png": "7"}
    train, test = train_and_test(None, tmp_path / "photos", f"{packed}/val/*.tar")
    assert (train.classes, test.classes) == (("0", "2", "7"), ("0", "2", "7", "1"))
    assert test.labels is not None
    assert test.labels.tolist() == [0, 1, 3, 3, 0]  # keys 12, 14, 16, 13, 15


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["SET/train"], "SET/train names shards of one split: name both splits with --train SHARDS"),
        ([None, "SET/plain.tar", "SET/val"], "have no classes: shards need KEY.cls beside every KEY.jpg"),
        ([None, "SET/train", "SET/none-*.tar"], "no tar at .*none"),
        (["memory://nothing"], "no tar at memory://nothing/train"),
    ],
)
def test_mistakes_with_shards_are_one_line(packed: Path, arguments: list[str | None], words: str) -> None:
    (packed / "plain.tar").write_bytes(tar_of({"1.jpg": picture(1), "2.jpg": picture(2)}))
    with pytest.raises(UserError, match=words.replace("SET", str(packed))):
        train_and_test(*(argument and argument.replace("SET", str(packed)) for argument in arguments))


def test_a_source_is_one_entry_of_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[tuple[str, str, Path | None]] = []

    def open_drawer(name: str, split: str, root: Path | None, note: Any) -> ArrayImages:
        opened.append((name, split, root))
        return ArrayImages(Path("drawer:x"), "train", np.zeros((2, 4, 4), np.uint8), np.arange(2), ("ant", "bee"))

    drawer = SetSource("drawer", "drawer:KEY", open_drawer, lambda word: word if word == "moths" else None)
    monkeypatch.setattr(sources, "SOURCES", (*sources.SOURCES, drawer))
    assert len(open_source("Drawer:Top:Left", "train", data_root=tmp_path)) == 2
    assert len(images_of("drawer:low")) == 2
    assert opened == [("Top:Left", "train", tmp_path), ("low", "train", None)]
    with pytest.raises(
        UserError, match=r"no folder moths \(or did you mean drawer:moths\?\): .*multilabel:DIR or drawer:KEY"
    ):
        open_source("moths", "train")
