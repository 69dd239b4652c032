"""Frozen teachers: loading them, what they see of the student's views, and that they stay as they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import functional as vision

import excb
from excb.errors import UserError
from excb.hub.adopted import adopt
from excb.networks.preprocessing import Preprocessing
from excb.pretrain.distil.settings import DistilSettings
from excb.pretrain.distil.teachers import Teacher, ViewInputs, ViewTargets, load_teachers
from tests.pretrain.distil import taught

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
MEAN, STD = (0.1, 0.5, 0.7), (0.3, 0.2, 0.25)  # of the student's views
THEIRS: dict[str, Any] = {"mean": (0.4, 0.3, 0.2), "std": (0.5, 0.25, 0.2)}
MAPS = DistilSettings(maps=1.0, features=1.0, teacher_sees="view")


def picture(side: int, seed: int = 0) -> Image.Image:
    """Smooth colours with detail, so that resizing matters."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8))
    return coarse.resize((side, side), Image.Resampling.BICUBIC)


def view_of(image: Image.Image) -> Tensor:
    """The student's normalised view [1, 3, S, S] of these pixels."""
    pixels = torch.from_numpy(np.array(image)).movedim(-1, 0).double() / 255
    return ((pixels - torch.tensor(MEAN).double()[:, None, None]) / torch.tensor(STD).double()[:, None, None])[None]


def by_hand(image: Image.Image) -> Tensor:
    """The network's inputs for pixels that already have the teacher's size."""
    tensor = vision.to_tensor(image)
    return torch.stack([(tensor[c] - THEIRS["mean"][c]) / THEIRS["std"][c] for c in range(3)])


def test_views_of_the_teachers_size_are_normalised_as_by_hand() -> None:
    inputs = ViewInputs(Preprocessing(48, 40, **THEIRS), MEAN, STD, CPU)
    torch.testing.assert_close(inputs(view_of(picture(40)))[0].float(), by_hand(picture(40)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("side", [24, 70])
def test_views_of_another_size_are_resized_as_the_teacher_resizes(side: int, interpolation: Any) -> None:
    prepared = Preprocessing(40, 40, **THEIRS, interpolation=interpolation)
    found = ViewInputs(prepared, MEAN, STD, CPU)(view_of(picture(side)))[0]
    wanted = prepared(picture(side))  # of 8-bit pixels, which are rounded
    scale = torch.tensor(THEIRS["std"])[:, None, None]
    assert ((found - wanted) * scale * 255).abs().max() < 2.1  # rounded and clipped after each direction
    other = Preprocessing(40, 40, **THEIRS, interpolation="bilinear" if interpolation == "bicubic" else "bicubic")
    assert ((found - other(picture(side))) * scale * 255).abs().max() > 3


def test_inputs_have_the_type_of_the_views() -> None:
    inputs = ViewInputs(Preprocessing(48, 40, **THEIRS), MEAN, STD, CPU)
    for dtype in (torch.float32, torch.float64):
        assert inputs(view_of(picture(24)).to(dtype)).dtype is dtype


def test_a_transform_of_torchvisions_says_how_it_normalises_and_another_must_not_be_guessed() -> None:
    known = adopt(taught.Plain(side=40)).transform
    view = view_of(picture(40))
    found = ViewInputs(known, MEAN, STD, CPU)(view)[0].float()
    torch.testing.assert_close(found, taught.Plain(side=40).transform(picture(40)), rtol=1e-5, atol=1e-5)
    unknown = adopt(taught.Plain(side=40, normalised=False)).transform
    with pytest.raises(UserError, match=r"does not say how it normalises.*distil\.teacher_sees=image"):
        ViewInputs(unknown, MEAN, STD, CPU)


# ---------------------------------------------------------------------------------------------------------------------
# Loading
# ---------------------------------------------------------------------------------------------------------------------


def state(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def test_a_teacher_in_memory_stays_as_its_owner_has_it() -> None:
    owned = taught.Plain()
    before = state(owned)
    (teacher,) = taught.teachers(DistilSettings(features=1.0), adopt(owned), dtype=torch.float64)
    assert owned.training
    assert all(one.requires_grad and one.dtype is torch.float32 for one in owned.parameters())
    assert not any(module.training for module in teacher.backbone.modules())
    assert not any(one.requires_grad for one in teacher.backbone.parameters())
    inputs = torch.randn(2, 3, 24, 24, dtype=torch.float64)
    rows, maps = teacher.look(inputs)
    assert maps is None
    assert teacher.width == rows.shape[1] == 7
    torch.testing.assert_close(rows, owned.eval().double()(inputs).detach())
    assert all(torch.equal(value.float(), before[name].float()) for name, value in state(owned).items())


@pytest.mark.parametrize("network", ["CONV", "RESNET", "VIT"])
def test_vectors_beside_maps_are_those_without(network: str, tmp_path: Path) -> None:
    backbone = taught.load(taught.write_teacher(tmp_path, getattr(taught, network), crop=32))
    (with_maps,) = taught.teachers(MAPS, backbone)
    (without,) = taught.teachers(DistilSettings(features=1.0), backbone)
    inputs = torch.randn(2, 3, 32, 32)
    rows, maps = with_maps.look(inputs)
    torch.testing.assert_close(rows, without.look(inputs)[0])
    torch.testing.assert_close(rows, backbone(inputs).detach())
    assert maps is not None
    assert maps.shape[:2] == (2, with_maps.map_width)
    assert without.map_width is None


def test_teachers_of_files_come_in_their_order_at_the_size_asked_for(tmp_path: Path) -> None:
    files = [
        taught.write_teacher(tmp_path, taught.VIT, crop=32, name="vit.pt"),
        taught.write_teacher(tmp_path, taught.CONV, crop=40, name="conv.pt"),
    ]
    names = tuple(map(str, files))
    own = load_teachers(DistilSettings(features=1.0, teachers=names), CPU)
    assert [(each.name, each.transform.crop) for each in own] == [(names[0], 32), (names[1], 40)]
    larger = load_teachers(DistilSettings(features=1.0, teachers=names, teacher_size=48), CPU)
    assert [each.transform.crop for each in larger] == [48, 48]
    assert [each.look(torch.randn(1, 3, 48, 48))[0].shape for each in larger] == [(1, 12), (1, 12)]


def test_a_teacher_in_memory_takes_the_size_asked_for(tmp_path: Path) -> None:
    backbone = taught.load(taught.write_teacher(tmp_path, taught.CONV))
    (teacher,) = taught.teachers(DistilSettings(features=1.0, teacher_size=60), backbone)
    assert (teacher.transform.resize, teacher.transform.crop) == (72, 60)  # in the proportion of 48 and 40
    assert teacher.backbone.transform == teacher.transform
    assert teacher.facts["input"] == [72, 60]
    assert backbone.transform.crop == 40


@pytest.mark.parametrize("size", [30, 12])
def test_a_size_that_the_patches_do_not_divide_is_refused(size: int, tmp_path: Path) -> None:
    name = str(taught.write_teacher(tmp_path, taught.VIT, crop=32))
    with pytest.raises(UserError, match=rf"{size} is not a multiple of the patches"):
        load_teachers(DistilSettings(features=1.0, teachers=(name,), teacher_size=size), CPU)


def refusal(settings: DistilSettings, model: object) -> str:
    with pytest.raises(UserError) as caught:
        taught.teachers(settings, adopt(model))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_a_teacher_in_memory_cannot_do_is_refused(tmp_path: Path) -> None:
    sized = DistilSettings(features=1.0, teacher_size=44)
    assert "distil.teacher_size=44 cannot change" in refusal(sized, taught.Plain())
    vit = taught.write_teacher(tmp_path, taught.VIT, crop=32)
    assert "cannot take inputs of 44 x 44 pixels: choose another distil.teacher_size" in refusal(
        sized, taught.load(vit)
    )
    assert "cannot teach maps: " in refusal(MAPS, taught.Plain())
    deep = {"backbone": taught.VIT["backbone"], "options": taught.VIT["options"] | {"depth": 4}}
    last4 = excb.load(taught.write_teacher(tmp_path, deep, crop=32), features="last4")
    assert "cannot teach maps: it was loaded with features='last4'" in refusal(MAPS, last4)
    (teacher,) = taught.teachers(DistilSettings(features=1.0), last4)
    assert teacher.width == teacher.look(torch.randn(1, 3, 32, 32))[0].shape[1] == 48


# ---------------------------------------------------------------------------------------------------------------------
# What they make of views
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> list[Teacher]:
    """A conv4 and a ResNet with maps, of different sizes."""
    files = [
        taught.write_teacher(tmp_path, taught.CONV, name="a.pt"),
        taught.write_teacher(tmp_path, taught.RESNET, crop=64, name="b.pt"),
    ]
    return taught.teachers(MAPS, *map(taught.load, files), dtype=torch.float64)


def targets_of(several: list[Teacher], settings: DistilSettings, views: list[Tensor]) -> list[Any]:
    source = ViewTargets(several, settings, mean=MEAN, std=STD, device=CPU)
    return source(torch.arange(views[0].shape[1]), views)


def test_the_teacher_sees_every_view_for_itself(two: list[Teacher]) -> None:
    views = [torch.stack([torch.cat([view_of(picture(side, seed=10 * v + n)) for n in range(3)]) for v in range(count)])
             for count, side in ((2, 32), (1, 16))]  # fmt: skip
    found = targets_of(two, MAPS, views)
    for teacher, each in zip(two, found, strict=True):
        inputs = ViewInputs(teacher.transform, MEAN, STD, CPU)
        assert each.rows.shape == (3, 3, teacher.width)
        assert [part.shape[:3] for part in each.maps] == [(2, 3, teacher.map_width), (1, 3, teacher.map_width)]
        singles = [(part, v) for part in range(2) for v in range(len(views[part]))]
        for number, (part, v) in enumerate(singles):
            for n in range(3):
                rows, cells = teacher.look(inputs(views[part][v, n : n + 1]))
                torch.testing.assert_close(each.rows[number, n], rows[0])
                assert cells is not None
                torch.testing.assert_close(each.maps[part][v, n], cells[0])


def test_other_views_are_the_global_ones(two: list[Teacher]) -> None:
    plain = [Teacher(each.name, each.backbone, each.transform, None) for each in two]
    views = [torch.randn(2, 3, 3, 32, 32, dtype=torch.float64), torch.randn(1, 3, 3, 16, 16, dtype=torch.float64)]
    other = targets_of(plain, DistilSettings(features=1.0, teacher_sees="other_view"), views)
    every = targets_of(plain, DistilSettings(features=1.0, teacher_sees="view"), views)
    for few, all_ in zip(other, every, strict=True):
        assert few.rows.shape[0] == 2
        torch.testing.assert_close(few.rows, all_.rows[:2])
        assert few.maps is None


def test_looking_changes_nothing(two: list[Teacher]) -> None:
    before = [state(each.backbone.network) for each in two]
    for found in targets_of(two, MAPS, [torch.randn(1, 3, 3, 32, 32, dtype=torch.float64)]):
        assert not found.rows.requires_grad
        assert not any(part.requires_grad for part in found.maps)
    for each, was in zip(two, before, strict=True):
        assert all(torch.equal(value, was[name]) for name, value in each.backbone.network.state_dict().items())
        assert not each.backbone.network.training
