"""Tests of the proposal: it follows the images and the time, and the command that it prints runs."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from excb.errors import UserError
from excb.images.pixels import Pixels
from excb.images.scanning import scan_folder
from excb.pretrain.__main__ import main
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan import choice, frozen_teachers
from excb.pretrain.plan.choice import choose_recipe
from excb.pretrain.plan.devices import GPUS, find_gpu
from excb.pretrain.plan.flops import count
from excb.pretrain.recipes import RECIPES, about
from tests.pretrain.distil import taught
from tests.pretrain.small_runs import write_images

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), each=12)


@pytest.fixture(autouse=True)
def a_machine_of_known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_images_per_second", lambda *_: 10.0)


class Pretended:
    """A set of any size."""

    def __init__(self, images: Any, number: int) -> None:
        self._images, self._number, self.root = images, number, images.root

    def __len__(self) -> int:
        return self._number

    def source(self, index: int) -> Any:
        return self._images.source(index % len(self._images))


def values(number: int, images: Path, **options: Any) -> dict[str, str]:
    pretended: Any = Pretended(scan_folder(images), number)
    proposed = choose_recipe(pretended, "photos", CPU, **options)
    apply(find_recipe(proposed.recipe), proposed.values)  # a recipe
    return dict(value.split("=") for value in proposed.values)


def test_it_follows_the_number_of_images(images: Path) -> None:
    small, usual, many = (values(number, images) for number in (100, 2_640, 50_000))
    assert small["optim.batch"] == "16"
    assert "optim.batch" not in usual  # the recipe's 64
    assert (small["method.clusters"], usual.get("method.clusters"), many["method.clusters"]) == ("4", "128", "2048")
    assert int(small["optim.epochs"]) > int(usual["optim.epochs"]) > int(many["optim.epochs"]) == 10
    assert small["views.global_size"] == "32"  # images of 36 pixels
    assert json.loads(small["model.options"]) == find_recipe("cifar10_small").model.options
    assert all(each["views.jitter"] == "0.4" for each in (small, usual, many))


@pytest.mark.parametrize(("side", "finer"), [(32, True), (95, True), (96, False), (300, False)])
def test_a_finer_stem_is_for_small_images(side: int, *, finer: bool) -> None:
    _, proposed = choice._small(2_640, side, CPU, [], Pixels())
    recipe = apply(find_recipe("photos_small"), proposed)
    assert recipe.model.options.get("stem") == (2 if finer else None)
    assert recipe.views.global_size == (32 if finer else 64)


def test_only_images_in_colour_have_colours_to_change(images: Path) -> None:
    reasons: list[str] = []
    _, proposed = choice._small(2_640, 64, CPU, reasons, Pixels(channels=12))
    assert not any("jitter" in each for each in (*proposed, *reasons))


@pytest.mark.parametrize(
    ("number", "gib", "recipe", "chosen"),
    [
        (50_000, 80, "photos", "optim.batch=256"),
        (50_000, 10, "photos", "optim.batch=64"),
        (1_300_000, 80, "rn50_100ep", "efficiency.accumulate=2"),
    ],
)
def test_on_a_gpu_it_follows_the_memory(
    number: int, gib: int, recipe: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    reasons: list[str] = []
    name, proposed = choice._large(number, torch.device("cuda"), 1, reasons)
    assert name == recipe
    assert proposed[-1] == chosen
    assert "efficiency.precision=auto" in proposed
    assert "bf16, which efficiency.precision=auto is on such a GPU" in reasons
    apply(find_recipe(name), proposed)  # a recipe


@pytest.mark.parametrize("number", [50_000, 1_300_000])
def test_gpus_that_cannot_share_a_batch_are_one_line(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    with pytest.raises(UserError, match=r"3 GPUs cannot share the batch of .* equally: name --gpus"):
        choice._large(number, torch.device("cuda"), 3, [])


def test_it_follows_the_time(images: Path) -> None:
    assert int(values(3_600, images, hours=1)["optim.epochs"]) == 10  # 36,000 images in an hour
    long = values(3_600, images, hours=1_000)
    assert 15_000 < int(long["optim.epochs"]) * (3_600 // 64) < 17_000
    assert values(3_600, images, hours=0.2)["optim.warmup_epochs"] == "0.2"
    with pytest.raises(UserError, match=r"one epoch takes about 6 min 0 s here, more than --hours 0\.01: allow"):
        values(3_600, images, hours=0.01)
    with pytest.raises(UserError, match="--hours must be above 0"):
        values(3_600, images, hours=0)
    with pytest.raises(UserError, match="holds 20 images, too few to learn from"):
        values(20, images)


def test_few_images_are_advised_to_start_from_a_trained_network(images: Path) -> None:
    proposed = choose_recipe(scan_folder(images), "my photos", CPU)
    assert any("excb-pretrain adapt NAME --data 'my photos'" in reason for reason in proposed.reasons)
    assert proposed.hours == pytest.approx(int(dict(v.split("=") for v in proposed.values)["optim.epochs"]) * 36 / 36e3)
    assert shlex.split(proposed.command)[:4] == ["excb-pretrain", "photos_small", "--data", "my photos"]


def test_a_trained_network_is_named_beside_the_proposal(images: Path) -> None:
    pretended: Any = Pretended(scan_folder(images), 2_640)
    for number, words in ((pretended, "starts from random weights"), (scan_folder(images), "fewer than 1,000 images")):
        (reason,) = (each for each in choose_recipe(number, "my photos", CPU).reasons if "trained network" in each)
        assert words in reason
        for command in ("adapt NAME --data 'my photos'", "distil NAME --data 'my photos'"):
            assert f"excb-pretrain {command}" in reason
        assert "excb.load('NAME')" in reason


def test_large_photographs_are_to_be_copied_first(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_side_of", lambda _: 767)
    assert not any("shrink" in reason for reason in choose_recipe(scan_folder(images), "my photos", CPU).reasons)
    monkeypatch.setattr(choice, "_side_of", lambda _: 768)
    (advice,) = (
        reason for reason in choose_recipe(scan_folder(images), "my photos", CPU).reasons if "shrink" in reason
    )
    assert advice.endswith("excb-pretrain shrink --data 'my photos' --out 'my photos256' --side 256")


def test_the_command_that_it_prints_is_one(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["choose", "--no-pilots", "--data", str(images), "--json", "--gpus", "0"]) == 0
    proposed = json.loads(capsys.readouterr().out)
    words = shlex.split(proposed["command"])
    assert main(["show", *words[1:], "--quiet"]) == 0
    assert main(["choose", "--no-pilots", "--data", str(images)]) == 0
    assert "- 36 images, their shorter side 36 pixels (median)" in capsys.readouterr().out


def test_a_folder_that_gets_no_page_is_named(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "page"
    assert main(["choose", "--no-pilots", "--data", str(images), "--gpus", "0", "--out", str(folder)]) == 0
    assert f"--out {folder}: no page is written, since --no-pilots tries nothing" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("name", ["quickstart", "photos_small", "photos", "cifar10", "cifar10_small", "conv4_tiny"])
def test_what_list_says_of_cost_is_what_plan_counts(name: str) -> None:
    assert about(name).gflop == pytest.approx(count(RECIPES[name]()).flops.image / 1e9, rel=0.01)


def test_what_list_says_of_a_student_is_what_plan_counts(tmp_path: Path) -> None:
    wide = {"backbone": "conv4", "options": {"widths": [4, 4, 4, 1280]}}  # as MobileNetV2's features
    recipe = apply(find_recipe("distil"), [f"distil.teachers={taught.write_teacher(tmp_path, wide)}"])
    counted = count(recipe, frozen_teachers.frozen_teachers_of(recipe)).flops.image
    assert about("distil").gflop == pytest.approx(counted / 1e9, rel=0.01)


def test_list_says_what_recipes_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    rows = {row["recipe"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == RECIPES.keys()
    assert rows["photos_small"]["purpose"] == "photographs of your own, on one machine"
    assert (rows["rn50_100ep"]["input"], rows["rn50_100ep"]["on CPU"]) == ("224 px", "months")
    assert rows["rn18_small"]["on CPU"].endswith(" h")
    assert (rows["distil"]["views"], rows["distil"]["clusters"]) == ("one view", "none")
    assert (rows["adapt"]["views"], rows["adapt"]["clusters"]) == ("two views", "128")


def test_gpus_by_name() -> None:
    assert find_gpu("A100") is GPUS["a100"]
    with pytest.raises(UserError, match=r"no GPU is called so; did you mean 'a100'\?"):
        find_gpu("a1000")
