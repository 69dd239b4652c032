"""Tests of what every protocol starts from: labels, sizes, devices and broken images, checked before the work."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.features import precision
from excb.images.scanning import scan_folder
from excb.ledger import NOTHING
from excb.networks.backbone import weights_hash
from excb.networks.preprocessing import Preprocessing
from excb.transfer.data.classes import labelled_folder
from excb.transfer.task import Task, automatic_batch, largest_batch
from tests.run_files import TINY_VIT, tiny_recipe, write_run
from tests.transfer.labelled_images import assert_features, features_by_loop, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("task")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_run(place / "vit", 5, recipe=tiny_recipe(TINY_VIT, eval_resize=36, eval_crop=32))
    write_folder(place / "train", each=2, seed=1)
    write_folder(place / "test", each=1, seed=2)
    return place


def prepare(place: Path, run: str = "run", **options: Any) -> Task:
    usual: dict[str, Any] = {"device": "cpu", "batch": 4, "workers": 0}
    return Task.prepare(str(place / run), place / "train", place / "test", **usual | options)


# ---------------------------------------------------------------------------------------------------------------------
# Features
# ---------------------------------------------------------------------------------------------------------------------


def test_features_and_labels_of_images_of_every_mode(place: Path) -> None:
    rows, labels = prepare(place).features(labelled_folder(place / "train"), "train", Reporter(quiet=True))
    expected, names = features_by_loop(excb.load(place / "run"), place / "train")
    assert rows.shape == (14, 32)
    assert_features(rows.numpy(), expected)
    assert labels.tolist() == [sorted(set(names)).index(name) for name in names]


@pytest.mark.parametrize("options", [{"batch": 1}, {"batch": 100}, {"workers": 2}])
def test_features_depend_neither_on_batch_nor_on_workers(place: Path, options: dict[str, Any]) -> None:
    images = labelled_folder(place / "test")
    usual, _ = prepare(place).features(images, "test", Reporter(quiet=True))
    other, _ = prepare(place, **options).features(images, "test", Reporter(quiet=True))
    torch.testing.assert_close(other, usual, rtol=1e-4, atol=1e-5)


def test_network_is_the_teacher_unless_the_student_is_asked_for(place: Path) -> None:
    images = labelled_folder(place / "test")
    student = prepare(place, network="student")
    rows, _ = student.features(images, "test", Reporter(quiet=True))
    expected, _ = features_by_loop(excb.load(place / "run", network="student"), place / "test")
    assert_features(rows.numpy(), expected)
    assert student.describe()["checkpoint"]["network"] == "student"
    assert prepare(place).describe()["checkpoint"]["network"] == "teacher"


@pytest.mark.parametrize("harm", ["empty", "cut short", "text"])
def test_broken_image_is_an_error_that_names_it(place: Path, tmp_path: Path, harm: str) -> None:
    folder = write_folder(tmp_path / "images", each=2, classes=("ant", "bee"))
    file = folder / "bee" / "1.png"
    data = {"empty": b"", "cut short": file.read_bytes()[:200], "text": b"no image"}[harm]
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"1 of 4 images in .* cannot be read, such as bee/1\.png \(.+\): fix or"):
        prepare(place).features(labelled_folder(folder), "train", Reporter(quiet=True))


def test_description_of_checkpoint_and_data(place: Path) -> None:
    train, test = scan_folder(place / "train"), scan_folder(place / "test")
    described = prepare(place, resize=40).describe()
    assert described.pop("ledger") == NOTHING
    assert described["checkpoint"].pop("weights_sha256") == weights_hash(excb.load(place / "run").network)
    assert described == {
        "checkpoint": {
            "name": "run step 5",
            "source": str(place / "run" / "checkpoints" / "step-5.pt"),
            "architecture": "timm:resnet10t",
            "network": "teacher",
            "step": 5,
            "epoch": 0.5,
            "recipe": "quickstart",
            "pretraining": {"method": "ExCB + contrast", "epochs": 0, "batch": 128, "crops": "2x48+2x32"},
            "preprocessing": {
                "resize": 40,
                "crop": 32,
                "mean": [0.485, 0.456, 0.406],
                "std": [0.229, 0.224, 0.225],
                "interpolation": "bilinear",
            },
        },
        "data": {
            "train": {"root": str(place / "train"), "images": 14, "fingerprint": train.fingerprint},
            "test": {"root": str(place / "test"), "images": 7, "fingerprint": test.fingerprint},
            "classes": 7,
            "unknown_classes": {},
        },
    }


# ---------------------------------------------------------------------------------------------------------------------
# Sizes, device, batch
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, (36, 32)),  # the checkpoint's
        ({"resize": 50}, (50, 32)),
        ({"resize": 24}, (24, 24)),  # the crop cannot stay larger
        ({"crop": 16}, (36, 16)),
        ({"crop": 48}, (48, 48)),  # and the shorter side not smaller
        ({"resize": 60, "crop": 40}, (60, 40)),
        ({"resize": 8, "crop": 8}, (8, 8)),
    ],
)
def test_sizes(place: Path, options: dict[str, Any], sizes: tuple[int, int]) -> None:
    task = prepare(place, **options)
    assert (task.preprocessing.resize, task.preprocessing.crop) == sizes
    assert (task.preprocessing.mean, task.preprocessing.std) == (
        task.backbone.transform.mean,
        task.backbone.transform.std,
    )
    rows, _ = task.features(task.test, "test", Reporter(quiet=True))
    expected, _ = features_by_loop(excb.load(place / "run"), place / "test", Preprocessing(*sizes))
    assert_features(rows.numpy(), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"resize": 0},
        {"crop": 0},
        {"resize": -40},
        {"crop": -1},
        {"resize": 7},
        {"crop": 7},
        {"resize": 30, "crop": 31},
    ],
)
def test_sizes_out_of_range_are_refused(place: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"--resize|--crop"):
        prepare(place, **options)


def test_size_that_the_network_cannot_take_is_refused_before_the_work(place: Path) -> None:
    assert prepare(place, "vit", crop=48).preprocessing.crop == 48
    with pytest.raises(UserError, match="cannot take images of 50 x 50 pixels"):
        prepare(place, "vit", crop=50)


@pytest.mark.parametrize("options", [{"batch": 0}, {"batch": -1}, {"workers": -1}])
def test_batch_and_workers_out_of_range(place: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--batch-size must be at least 1 and --workers at least 0"):
        prepare(place, **options)


def test_refused_half_precision_names_the_option(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "BOUND", -1.0)
    with pytest.raises(UserError, match=r"^bf16 changes the features .* use --feature-precision fp32$"):
        prepare(place, precision="bf16")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", ""])
def test_device_that_cannot_be_used(place: Path, device: str) -> None:
    with pytest.raises(UserError, match=f"device '{device}' cannot be used here .*: use cpu, cuda or auto") as caught:
        prepare(place, device=device)
    assert "\n" not in str(caught.value)


def test_automatic_device_is_one_that_is_there(place: Path) -> None:
    task = prepare(place, device="auto")
    assert task.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert next(task.backbone.parameters()).device.type == task.device.type


class Memory(nn.Module):
    """A network that holds batches up to a size, and what it was given."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.given = most, list[int]()

    def forward(self, images: Tensor) -> Tensor:
        self.given.append(len(images))
        if len(images) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return images.mean((1, 2, 3))


@pytest.mark.parametrize(
    ("most", "largest", "given"),
    [(32, 32, [32, 64]), (200, 128, [32, 64, 128, 256]), (10**9, 1024, [32, 64, 128, 256, 512, 1024])],
)
def test_batches_double_until_they_do_not_fit(most: int, largest: int, given: list[int]) -> None:
    memory = Memory(most)
    assert largest_batch(memory, 2, torch.device("cpu")) == largest
    assert memory.given == given


def test_memory_that_is_too_small() -> None:
    with pytest.raises(UserError, match="32 images do not fit into the memory of cpu: name a smaller --batch-size"):
        largest_batch(Memory(31), 2, torch.device("cpu"))


def test_automatic_batch_on_the_cpu(place: Path) -> None:
    memory = Memory(0)
    assert automatic_batch(memory, 2, torch.device("cpu")) == 64
    assert memory.given == []
    assert prepare(place, batch="auto").batch == 64


@pytest.mark.gpu
def test_automatic_batch_on_a_gpu(place: Path) -> None:
    assert prepare(place, batch="auto", device="cuda").batch == 512


# ---------------------------------------------------------------------------------------------------------------------
# Kinds of features
# ---------------------------------------------------------------------------------------------------------------------


def test_class_tokens_are_kept_beside_pooled_features(place: Path, tmp_path: Path) -> None:
    write_run(
        place / "deep", 5, recipe=tiny_recipe(TINY_VIT | {"options": {"embed_dim": 12, "depth": 4, "num_heads": 2}})
    )
    task = prepare(place, "deep", cache=tmp_path)
    for _ in range(2):  # computed, then read
        pooled, _ = task.features(task.test, "test", Reporter(quiet=True))
        tokens, labels = task.features(task.test, "test", Reporter(quiet=True), kind="last4_cls")
        assert (tokens.shape, len(labels)) == ((7, 48), 7)
        torch.testing.assert_close(tokens[:, -12:], pooled)


def test_features_that_the_network_has_not(place: Path) -> None:
    task = prepare(place)
    with pytest.raises(UserError, match="only ViTs have class tokens"):
        task.features(task.test, "test", Reporter(quiet=True), kind="last4_cls")
    kind: Any = "last"
    with pytest.raises(UserError, match="features are pooled or last4_cls, not 'last'"):
        task.features(task.test, "test", Reporter(quiet=True), kind=kind)


# ---------------------------------------------------------------------------------------------------------------------
# timm's models
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """timm without a network: its "published" weights are random ones, and the networks that have them."""
    published: list[nn.Module] = []
    create = timm.create_model

    def create_model(name: str, *, pretrained: bool = False, **options: Any) -> nn.Module:
        network: nn.Module = create(name, **options)
        if pretrained:
            published.append(network.eval())
        return network

    monkeypatch.setattr(timm, "create_model", create_model)
    return published


@pytest.mark.parametrize(
    ("name", "preprocessing"),
    [
        ("test_resnet", Preprocessing(168, 160, (0.5,) * 3, (0.5,) * 3, "bilinear")),
        ("test_vit.r160_in1k", Preprocessing(168, 160, (0.5,) * 3, (0.5,) * 3, "bicubic")),
    ],
)
def test_timm_model_with_its_own_preprocessing(
    place: Path, published: list[nn.Module], name: str, preprocessing: Preprocessing
) -> None:
    task = Task.prepare(f"timm:{name}", place / "train", place / "test", device="cpu", batch=4, workers=0)
    assert task.preprocessing == preprocessing
    rows, _ = task.features(task.test, "test", Reporter(quiet=True))
    files = sorted(path for path in (place / "test").rglob("*") if path.is_file())
    with torch.no_grad():
        expected = torch.cat([published[0](preprocessing(Image.open(file).convert("RGB"))[None]) for file in files])
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)
    checkpoint = task.describe()["checkpoint"]
    assert (checkpoint["source"], checkpoint["network"]) == (f"timm:{name}", "pretrained")


def test_timm_vit_takes_other_sizes(place: Path, published: list[nn.Module]) -> None:
    task = Task.prepare("timm:test_vit", place / "train", place / "test", device="cpu", workers=0, crop=64)
    assert task.backbone(torch.zeros(1, 3, 64, 64)).shape == (1, task.backbone.width)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet5000", "no backbone is called 'timm:resnet5000'; did you mean"),
        ("test_resnet.nonsense", r"no published weights for timm:test_resnet.nonsense \(.+\): check the name"),
        ("test_resnet", r"no published weights for timm:test_resnet \(.+\): check the name and the connection"),
    ],
)
def test_timm_model_that_cannot_be_had(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    def offline(*_arguments: Any, **_options: Any) -> None:
        raise FileNotFoundError("cannot find the requested files\nsecond line")  # as huggingface_hub does

    monkeypatch.setattr(timm.models._builder, "load_state_dict_from_hf", offline)
    with pytest.raises(UserError, match=message) as caught:
        Task.prepare(f"timm:{name}", place / "train", place / "test", device="cpu", workers=0)
    assert "\n" not in str(caught.value)


def test_timm_model_has_no_student(place: Path) -> None:
    with pytest.raises(UserError, match="timm:test_resnet has no student: leave --network out"):
        Task.prepare("timm:test_resnet", place / "train", place / "test", network="student")


# ---------------------------------------------------------------------------------------------------------------------
# Labels
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["train", "test"])
@pytest.mark.parametrize("kind", ["loose", "loose beside classes"])
def test_images_outside_class_folders_are_refused(place: Path, tmp_path: Path, which: str, kind: str) -> None:
    folder = write_folder(tmp_path / "images", each=1, classes=("ant", "bee"))
    loose = folder / "ant" if kind == "loose" else folder
    (folder / "bee" / "0.png").rename(loose / "loose.png")
    folders = {"train": place / "train", "test": place / "test"} | {which: loose}
    with pytest.raises(UserError, match=f"{loose} has no classes: put the images of each class into a sub-folder"):
        Task.prepare(str(place / "run"), folders["train"], folders["test"], device="cpu", workers=0)
