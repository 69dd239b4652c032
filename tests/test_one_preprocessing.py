"""One record of preprocessing in training, evaluation, embedding, search and exports: the same inputs everywhere."""

import hashlib
import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.features.extraction import Extraction
from excb.hub.catalogue import bundled_folder
from excb.images.image_set import ImageSet
from excb.images.pixels import Pixels
from excb.images.scanning import scan_folder
from excb.networks.features import Inputs
from excb.networks.preprocessing import Preprocessing
from excb.networks.rules import preprocessing_from
from excb.pretrain.loop import run_training
from excb.pretrain.train import changed_recipe
from excb.results.result import ResultRecord
from excb.transfer.task import require_colours
from excb.zoo.export import export
from tests.clone import ROOT
from tests.excb.images.deep_files import BLUE, GREEN, RED, linear_profile
from tests.run_files import TINY_RESNET, features, tiny_recipe, write_run

pytestmark = pytest.mark.usefixtures("one_thread")

OLD = ROOT / "tests" / "old_files"
SIDE, CROP, TOP = 35, 32, 4000
# No field has its usual value, but for those that have one value only.
RECORD = Preprocessing(
    SIDE,
    CROP,
    (0.3, 0.4, 0.5),
    (0.25, 0.2, 0.3),
    "lanczos",
    "squash",
    "down",
    Pixels(3, (0.0,), (float(TOP),), "declared", "stored"),
)
QUICK: dict[str, Any] = {"workers": 0, "batch_size": 8, "quiet": True}
RECIPE: dict[str, dict[str, Any]] = {
    "data": {"range": f"0..{TOP}"},
    "method": {"clusters": 4, "hidden": 8, "width": 4, "kmeans_samples": 8},
    "views": {"global_size": 32, "local_size": 16},
    "optim": {"epochs": 1, "batch": 8, "warmup_epochs": 0.0},
    "adapt": {"warmup_epochs": 0.0, "release_epochs": 0.0},
    "monitor": {"k": 3},
    "efficiency": {"workers": 0, "device": "cpu"},
}


def write_images(folder: Path) -> None:
    """Two classes, each with images in another colour space, of 12 bits, turned by EXIF, and transparent."""
    profile, random = linear_profile(GREEN, RED, BLUE), np.random.default_rng(0)
    for label, shift in (("a", 0), ("b", 90)):
        place = folder / label
        place.mkdir(parents=True)
        for number in range(2):
            coarse = random.integers(shift, shift + 160, (5, 7, 4), dtype=np.uint8)
            colours = Image.fromarray(coarse).resize((57, 40), Image.Resampling.BICUBIC)
            colours.convert("RGB").rotate(180).save(place / f"profile{number}.png", icc_profile=profile)
            colours.save(place / f"clear{number}.png")
            exif = Image.Exif()
            exif[0x0112] = 6
            colours.convert("RGB").save(place / f"turned{number}.jpg", exif=exif, icc_profile=profile)
            deep = random.integers(shift, 4095, (41, 53)).astype(np.uint16)
            Image.fromarray(deep).save(place / f"deep{number}.png")


def by_hand(file: Path) -> Tensor:
    """The input that `RECORD` makes of a file, by Pillow and NumPy alone."""
    image: Image.Image = Image.open(file)
    if file.name.startswith("deep"):
        grey = (np.asarray(image).astype(float).clip(0, TOP) * 255 / TOP).round().astype(np.uint8)
        image = Image.fromarray(np.stack([grey] * 3, axis=-1))
    elif file.name.startswith("turned"):
        image = image.transpose(Image.Transpose.ROTATE_270)
    resized = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    square = np.asarray(resized.crop((1, 1, 1 + CROP, 1 + CROP)), np.float32) / 255
    scaled = (square - np.array(RECORD.mean, np.float32)) / np.array(RECORD.std, np.float32)
    return torch.from_numpy(scaled.astype(np.float32)).permute(2, 0, 1)


class Seen:
    """The images whose inputs were made and compared."""

    def __init__(self) -> None:
        self.paths: set[str] = set()

    def count(self) -> int:
        """Their number since the last call."""
        count = len(self.paths)
        self.paths.clear()
        return count


@contextmanager
def watched() -> Iterator[Seen]:
    """Compares the inputs of all passes over sets with `by_hand`, but for augmented views."""
    get, seen = Inputs.__getitem__, Seen()

    def compared(inputs: Inputs, item: int) -> tuple[int, Tensor | str]:
        index, made = get(inputs, item)
        if type(inputs) is Inputs:
            file = Path(inputs.images.root) / inputs.images.paths[index]
            assert isinstance(made, Tensor), made
            torch.testing.assert_close(made, by_hand(file), rtol=0, atol=1e-5)
            seen.paths.add(str(file))
        return index, made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inputs, "__getitem__", compared)
        yield seen


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "cache"))  # where no features are kept yet
    with watched() as images:
        yield images


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and a network that takes them as `RECORD` says."""
    place = tmp_path_factory.mktemp("one_preprocessing")
    for split in ("train", "test"):
        write_images(place / "data" / split)
    write_run(place / "start", 1, recipe=tiny_recipe(TINY_RESNET), preprocessing=RECORD.to_dict())
    return place


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    """A run that adapts it, whose monitor and verdict are watched."""
    images = scan_folder(place / "data" / "train")
    recipe = changed_recipe("adapt", init=str(place / "start"), **RECIPE)  # type: ignore[arg-type, unused-ignore]
    with watched() as seen:
        assert run_training(recipe, images, place / "run", Reporter(quiet=True)) == 0
    assert seen.count() == len(images)
    return place / "run"


def test_the_record_is_the_one_by_hand(place: Path) -> None:
    backbone = excb.load(place / "start")
    assert backbone.transform == RECORD
    for file in sorted((place / "data").rglob("*.*")):
        torch.testing.assert_close(RECORD(file), by_hand(file), rtol=0, atol=1e-5)
        for name in ("resize", "crop", "mean", "std", "interpolation", "crop_mode", "corner"):
            other = replace(RECORD, **{name: getattr(Preprocessing(36, 34), name)})
            made = other(file)
            assert made.shape != (3, CROP, CROP) or not torch.allclose(made, by_hand(file)), name


def test_older_files_mean_what_they_meant() -> None:
    """Runs, recipes, results and exports without the newer fields are read, and written again as they were."""
    exported = bundled_folder("tiny_grocery")
    assert exported is not None
    files = [*sorted((OLD / "results").glob("*.json")), exported / "config.json"]
    contents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    records = [values["checkpoint" if "checkpoint" in values else "excb"]["preprocessing"] for values in contents]
    for values in records:
        read = preprocessing_from(values)
        assert (read.crop_mode, read.corner, read.pixels) == ("center", "nearest", Pixels())
        assert read.to_dict() == values
    assert excb.load(OLD / "finished").transform == preprocessing_from(records[0])


def test_a_run_evaluates_as_its_start_and_stores_it(run: Path) -> None:
    assert excb.load(run).transform == RECORD
    stored = json.loads((run / "recipe.json").read_text(encoding="utf-8"))["recipe"]
    assert stored["data"]["colours"] == "stored"
    assert stored["views"]["eval_crop_mode"] == RECORD.crop_mode


def test_exports_say_it(run: Path, tmp_path: Path) -> None:
    folder = export(str(run), tmp_path / "exported")
    assert excb.load(folder).transform == RECORD
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))  # the one of the hub
    assert config["excb"]["preprocessing"] == RECORD.to_dict()
    published = config["pretrained_cfg"]
    assert (published["crop_mode"], published["interpolation"]) == ("squash", "lanczos")
    assert (published["mean"], published["std"]) == ([0.3, 0.4, 0.5], [0.25, 0.2, 0.3])
    file = export(str(run), tmp_path / "file.safetensors", format="timm")
    with safe_open(file, "pt") as opened:
        assert json.loads(opened.metadata()["preprocessing"]) == RECORD.to_dict()


def test_onnx_says_it(run: Path, tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason=f"{name}: not installed")
    file = export(str(run), tmp_path / "file.onnx", format="onnx")
    properties = {each.key: each.value for each in importlib.import_module("onnx").load(file).metadata_props}
    stated = Preprocessing.from_dict(json.loads(properties["preprocessing"]))
    assert stated == RECORD
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime: not installed, so features are not compared")
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    files = sorted((run.parent / "data" / "test").rglob("*.*"))
    rows = session.run(["features"], {"images": torch.stack([stated(each) for each in files]).numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(rows), excb.load(run).embed(files), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("protocol", ["knn", "linear"])
def test_evaluation_sees_it_and_says_it(run: Path, seen: Seen, tmp_path: Path, protocol: str) -> None:
    result = excb.evaluate(run, protocol, data=str(run.parent / "data"), **QUICK)
    assert seen.count() == 32
    result.save(tmp_path / "result.json")
    assert ResultRecord.read(tmp_path / "result.json").checkpoint["preprocessing"] == RECORD.to_dict()


def test_embeddings_and_queries_see_it_and_say_it(run: Path, seen: Seen, tmp_path: Path) -> None:
    data, backbone = run.parent / "data" / "test", excb.load(run)
    made = excb.embed(run, data, **QUICK)
    assert seen.count() == 16
    expected = {path: features(backbone, by_hand(data / path)[None])[0].numpy() for path in scan_folder(data).paths}
    for path, row in zip(made.paths, made.vectors, strict=True):
        np.testing.assert_allclose(row, expected[path], rtol=1e-3, atol=1e-4)
    loaded = excb.Embeddings.load(made.save(tmp_path / "vectors.npz"))
    assert loaded.model["preprocessing"] == RECORD.to_dict()
    embedder = excb.Embedder(run, device="cpu")
    for path in ("a/profile0.png", "b/deep1.png", "a/turned1.jpg", "b/clear0.png"):
        assert loaded.search(data / path, k=1)[0].path == path
        np.testing.assert_allclose(backbone.embed(data / path)[0], expected[path], rtol=1e-3, atol=1e-4)
        for column in (np.array([(data / path).read_bytes()], object), np.array([str(data / path)], object)):
            vector = embedder({"bytes": column})["vector"][0]
            np.testing.assert_allclose(vector, expected[path], rtol=1e-3, atol=1e-4)


def test_every_field_enters_the_fingerprint_of_features(run: Path) -> None:
    backbone, images = excb.load(run), scan_folder(run.parent / "data" / "test")

    def key(prepared: Preprocessing) -> str:
        extraction = Extraction(backbone, prepared, images, "pooled", torch.device("cpu"), 8, 0)
        return hashlib.sha256(json.dumps(extraction.description(), sort_keys=True).encode()).hexdigest()

    pixels = (replace(RECORD.pixels, colours="srgb"), replace(RECORD.pixels, high=(4095.0,)), Pixels())
    others = [replace(RECORD, pixels=each) for each in pixels]
    names = ("resize", "crop", "mean", "std", "interpolation", "crop_mode", "corner")
    others += [replace(RECORD, **{name: getattr(Preprocessing(), name)}) for name in names]
    assert len({key(each) for each in (RECORD, *others)}) == len(others) + 1


def test_what_cannot_follow_it_refuses(run: Path) -> None:
    backbone, images = excb.load(run), scan_folder(run.parent / "data" / "test")
    for protocol in ("robustness", "dense", "instances", "detection"):
        with pytest.raises(UserError, match=f"{protocol} converts colours to sRGB by their profiles, and this network"):
            require_colours(backbone, protocol)
    with pytest.raises(UserError, match=r"opened with colours=srgb, and the network takes them stored"):
        Inputs(images, RECORD)  # as of a teacher, in a run on colours in sRGB
    assert isinstance(images, ImageSet)
    assert len(Inputs(replace(images, pixels=RECORD.pixels), RECORD)) == len(images)
