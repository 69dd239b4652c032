"""Tests of the recipes: their values against the paper and the authors' code, and every value out of range refused."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from excb.errors import UserError
from excb.networks.preprocessing import Preprocessing
from excb.pretrain.__main__ import main
from excb.pretrain.recipe import Recipe, ViewSettings
from excb.pretrain.recipes import RECIPES
from excb.pretrain.run.run_folder import recipe_differences
from excb.pretrain.study.cell import recipe_digest
from tests.clone import ROOT
from tests.pretrain.small_runs import OVERRIDES, write_images

SECTIONS = ("model", "method", "views", "optim", "adapt", "distil", "monitor", "efficiency", "run")

# Every value of the paper's ResNet-50 with multi-crop: Sec. 4.1 of the paper (ECCV 2024) where it says something, and
# otherwise what it refers to: BYOL's augmentation, DINO's head and blur of local views, torchvision's crops.
RESNET50: dict[str, Any] = {
    "init": None,
    "model.backbone": "resnet50",
    "model.options": {},
    "model.drop_path": 0.0,
    "model.position_interpolation": "antialiased",
    "model.class_token_std": 1e-6,
    "method.clusters": 65_536,
    "method.width": 256,
    "method.hidden": 2048,
    "method.projector_layers": 2,
    "method.predictor_layers": 1,
    "method.predictor": True,
    "method.predictor_input_norm": False,
    "method.projector_output_norm": False,  # ours, as the four below
    "method.clustering": True,
    "method.contrast": 0.0,
    "method.regression": 0.0,
    "method.contrast_temperature": 0.2,
    "method.head": "auto",
    "method.head_batches": "all_views",
    "method.teacher_temperature": 0.04,
    "method.student_temperature": 0.1,
    "method.sizes_momentum": 0.999,
    "method.sizes_counted": "balanced",
    "method.sizes_updated": "after_loss",
    "method.balancing": "linear",
    "method.center_momentum": 0.9,
    "method.sinkhorn_iterations": 3,
    "method.mira_beta": 2 / 3,
    "method.mira_beta_start": None,
    "method.mira_iterations": 30,
    "method.empty_clusters": "noise",
    "method.winner_gain": 1.0,
    "method.clamp": False,
    "method.projector_on_local": True,
    "method.centroid_gradient_from_local": False,
    "method.loss": "cross_entropy",
    "method.loss_reduction": "halves",
    "method.centroid_init": "random",
    "method.kmeans_samples": 500_000,
    "method.kmeans_iterations": 50,
    "method.teacher_momentum": 0.996,
    "method.teacher_momentum_end": 1.0,
    "method.teacher_centroids": "rows",
    "method.teacher_statistics": "own",
    "views.global_views": 2,
    "views.local_views": 6,
    "views.global_size": 224,
    "views.local_size": 96,
    "views.global_scale": (0.2, 1.0),
    "views.local_scale": (0.05, 0.2),
    "views.scale_end": None,
    "views.ratio": (3 / 4, 4 / 3),
    "views.interpolation": "bicubic",
    "views.flip": 0.5,
    "views.jitter": 0.8,
    "views.brightness": 0.4,
    "views.contrast": 0.4,
    "views.saturation": 0.2,
    "views.hue": 0.1,
    "views.grey": 0.2,
    "views.blur": (1.0, 0.1),
    "views.blur_local": 0.5,
    "views.blur_kernel": 23,
    "views.blur_sigma": (0.1, 2.0),
    "views.solarize": (0.0, 0.2),
    "views.mean": (0.485, 0.456, 0.406),
    "views.std": (0.229, 0.224, 0.225),
    "views.eval_resize": 256,
    "views.eval_crop": 224,
    "views.eval_crop_mode": "center",
    "views.eval_interpolation": "bilinear",
    "views.eval_corner": "nearest",
    "optim.optimizer": "sgd",
    "optim.epochs": 400,
    "optim.batch": 1024,
    "optim.base_lr": 0.15,
    "optim.warmup_epochs": 10.0,
    "optim.restarts": (),
    "optim.lr_floor": 0.0,
    "optim.momentum": 0.9,
    "optim.weight_decay": 1e-4,
    "optim.weight_decay_end": 1e-4,
    "optim.centroid_decay": 10.0,
    "optim.centroid_decay_end": 1.0,
    "optim.clip": None,
    "optim.frozen_centroid_epochs": 0,
    "adapt.warmup_epochs": 0.0,  # nothing is adapted
    "adapt.release_epochs": 0.0,
    "adapt.layer_decay": 1.0,
    "adapt.anchor": 0.0,
    "adapt.anchor_end": 0.0,
    "adapt.frozen_statistics": False,
    "adapt.lora_rank": 0,
    "adapt.patience": None,
    "distil.teachers": (),  # nothing is learned from other networks
    "distil.features": 0.0,
    "distil.similarities": 0.0,
    "distil.assignments": 0.0,
    "distil.maps": 0.0,
    "distil.distance": "cosine",
    "distil.teacher_sees": "image",
    "distil.teacher_size": None,
    "distil.teacher_channels": (),
    "distil.statistics": "centred",
    "distil.whitening_floor": 0.1,
    "distil.samples": 10_000,
    "distil.average": 0.125,
    "distil.head": "mlp",
    "distil.hidden": 512,
    "distil.temperature": 0.04,
    "distil.student_temperature": 0.1,
    "distil.queue": 0,
    "distil.clusters": 256,
    "distil.sizes_momentum": 0.99,
    "distil.kmeans_iterations": 50,
    "monitor.every_epochs": 10,
    "monitor.images": 10_000,
    "monitor.share": None,
    "monitor.group": None,
    "monitor.k": 20,
    "monitor.data": None,
    "monitor.source": None,
    "monitor.protocol": None,
    "monitor.wandb": None,
    "efficiency.device": "auto",
    "efficiency.precision": "fp32",  # the paper states none
    "efficiency.tf32": True,
    "efficiency.cudnn_benchmark": False,
    "efficiency.accumulate": 1,
    "efficiency.checkpointing": False,
    "efficiency.compile": False,
    "efficiency.objective": "auto",
    "efficiency.channels_last": True,
    "efficiency.fused": True,
    "efficiency.compression": "none",
    "efficiency.static_graph": False,
    "efficiency.bucket_mb": 25.0,
    "efficiency.workers": -1,
    "efficiency.prefetch": 2,
    "efficiency.decoder": "auto",
    "efficiency.scaled_decoding": False,
    "run.seed": 0,
    "run.save_epochs": 1,
    "run.save_steps": None,
    "run.keep": 3,
    "run.log_steps": 10,
}
# Table 3: two global views only, of at least 0.14 of the image.
TWO_VIEWS: dict[str, Any] = {"views.local_views": 0, "views.global_scale": (0.14, 1.0)}
# "The exact configuration used in DINO": its published ViT-S/16 run, whose learning rate of 0.0005 per 256 images ends
# at 1e-6, which is 5e-4 of the peak of 0.002.
VIT_SMALL: dict[str, Any] = {
    "model.backbone": "vit_small",
    "model.drop_path": 0.1,
    "model.position_interpolation": "dino",
    "model.class_token_std": 0.02,
    "optim.optimizer": "adamw",
    "optim.base_lr": 5e-4,
    "optim.lr_floor": 5e-4,
    "optim.weight_decay": 0.04,
    "optim.weight_decay_end": 0.4,
    "optim.centroid_decay": 1.0,
    "optim.clip": 3.0,
    "optim.frozen_centroid_epochs": 1,
}
# What the authors' released code does differently.
OFFICIAL: dict[str, Any] = {
    "method.predictor_input_norm": True,
    "method.winner_gain": 1.01,
    "method.clamp": True,
    "method.projector_on_local": False,
    "method.loss_reduction": "pairs",
    "method.centroid_init": "kmeans",
    "views.blur": (0.0, 0.9),
    "views.blur_local": 0.0,
    "views.blur_kernel": 9,
    "views.std": (0.228, 0.224, 0.225),
    "optim.lr_floor": 1e-4,
}
OFFICIAL_CROPS: dict[str, Any] = {
    "views.global_scale": (0.26, 1.0),
    "views.local_scale": (0.05, 0.26),
    "views.scale_end": 0.14,
}
OFFICIAL_VIT: dict[str, Any] = {"optim.clip": None, "optim.frozen_centroid_epochs": 0, "optim.centroid_decay": 10.0}

# The paper's runs; these are ours, and judged by what they reach.
OURS = {
    *("quickstart", "photos_small", "photos", "adapt", "distil", "cifar10", "cifar10_small", "conv4_tiny"),
    *("rn10_tiny", "rn18_small"),
}
EXPECTED: dict[str, dict[str, Any]] = {}
for _epochs in (100, 200, 400):
    EXPECTED[f"rn50_{_epochs}ep"] = {"optim.epochs": _epochs}
    EXPECTED[f"rn50_{_epochs}ep_official"] = {"optim.epochs": _epochs} | OFFICIAL | OFFICIAL_CROPS
    EXPECTED[f"rn50_{_epochs}ep_2x224"] = {"optim.epochs": _epochs} | TWO_VIEWS
    EXPECTED[f"rn50_{_epochs}ep_2x224_official"] = {"optim.epochs": _epochs} | TWO_VIEWS | OFFICIAL
for _epochs in (100, 300, 800):
    EXPECTED[f"vits16_{_epochs}ep"] = {"optim.epochs": _epochs} | VIT_SMALL
    EXPECTED[f"vits16_{_epochs}ep_official"] = (
        {"optim.epochs": _epochs} | VIT_SMALL | OFFICIAL | OFFICIAL_CROPS | OFFICIAL_VIT
    )

every_recipe = pytest.mark.parametrize("name", sorted(EXPECTED))


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-12)


def flat(recipe: Recipe) -> dict[str, Any]:
    """Every value of a recipe but its name, as section.field."""
    values = {"init": recipe.init}
    for section in SECTIONS:
        settings = getattr(recipe, section)
        values |= {f"{section}.{field.name}": getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return values


def test_all_recipes_are_there_and_no_other() -> None:
    assert sorted(RECIPES) == sorted(EXPECTED.keys() | OURS)
    assert len(RECIPES) == 2 * (3 + 3 + 3) + len(OURS)


@every_recipe
def test_values_are_those_of_the_paper_or_the_authors_code(name: str) -> None:
    recipe = RECIPES[name]()
    assert recipe.name == name
    assert flat(recipe) == RESNET50 | EXPECTED[name]


@pytest.mark.parametrize("paper", [name for name in sorted(EXPECTED) if f"{name}_official" in EXPECTED])
def test_the_official_family_differs_in_what_the_authors_code_does_and_in_nothing_else(paper: str) -> None:
    text, code = flat(RECIPES[paper]()), flat(RECIPES[f"{paper}_official"]())
    expected = dict(OFFICIAL)
    if "2x224" not in paper:
        expected |= OFFICIAL_CROPS
    if paper.startswith("vits16"):
        expected |= OFFICIAL_VIT
    assert {name: value for name, value in code.items() if value != text[name]} == expected


def test_learning_rates_of_the_paper() -> None:
    peaks = {"rn50_400ep": 0.6, "vits16_800ep": 0.002}  # 0.15 x 1024 / 256; 0.0005 x 1024 / 256 (DINO)
    for name, peak in peaks.items():
        optim = RECIPES[name]().optim
        assert optim.base_lr * optim.batch / 256 == close(peak)
    vit = RECIPES["vits16_800ep"]().optim
    assert vit.lr_floor * 0.002 == close(1e-6)


@every_recipe
def test_recipes_are_frozen_and_share_nothing(name: str) -> None:
    recipe, again = RECIPES[name](), RECIPES[name]()
    for settings in (recipe, *(getattr(recipe, section) for section in SECTIONS)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, dataclasses.fields(settings)[0].name, None)
    again.model.options["depth"] = 3
    assert RECIPES[name]() == recipe != again


@every_recipe
def test_values_are_plain(name: str) -> None:
    recipe = RECIPES[name]().change(run={"seed": 7, "save_steps": 11}, model={"options": {"channels": [1, 2]}})
    written = json.loads(json.dumps(recipe.to_dict()))
    assert written == recipe.to_dict()  # what is read back is what was given
    assert written["views"]["global_scale"] == list(recipe.views.global_scale)


def test_change_replaces_the_named_values_only_and_leaves_the_original() -> None:
    recipe = RECIPES["rn50_100ep"]()
    changed = recipe.change(optim={"epochs": 7, "batch": 64}, run={"seed": 3})
    before, after = flat(recipe), flat(changed)
    assert {k: v for k, v in after.items() if v != before[k]} == {"optim.epochs": 7, "optim.batch": 64, "run.seed": 3}
    assert before["optim.epochs"] == 100


def test_importing_recipes_needs_no_torch() -> None:
    code = (
        "import sys, excb.pretrain.recipes as r; r.RECIPES['vits16_100ep']().to_dict(); print('torch' in sys.modules)"
    )
    # A new interpreter: what it imports is tested.
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


# ---------------------------------------------------------------------------------------------------------------------
# Scales of crops
# ---------------------------------------------------------------------------------------------------------------------


def test_scales_of_the_paper_stay_as_they_are() -> None:
    views = RECIPES["rn50_100ep"]().views
    assert {views.scales(epoch, 100) for epoch in (0, 1, 50, 99)} == {((0.2, 1.0), (0.05, 0.2))}


def test_scales_of_the_authors_code_move_on_a_cosine_from_first_to_last_epoch() -> None:
    views = RECIPES["rn50_100ep_official"]().views
    assert views.scales(0, 101) == ((close(0.26), 1.0), (0.05, close(0.26)))
    assert views.scales(50, 101) == ((close(0.20), 1.0), (0.05, close(0.20)))
    assert views.scales(100, 101) == ((close(0.14), 1.0), (0.05, close(0.14)))
    for epoch in range(101):
        moved = 0.14 + 0.5 * 0.12 * (1 + math.cos(math.pi * epoch / 100))
        assert views.scales(epoch, 101)[0][0] == close(moved)
        assert views.scales(epoch, 101)[1][1] == views.scales(epoch, 101)[0][0]


def test_scales_of_a_run_of_one_epoch_are_the_first_ones() -> None:
    views = RECIPES["rn50_100ep_official"]().views
    assert views.scales(0, 1) == ((close(0.26), 1.0), (0.05, close(0.26)))


def test_evaluation_uses_the_recipes_sizes_and_normalisation() -> None:
    usual = ViewSettings(eval_resize=70, eval_crop=60, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert usual.preprocessing == Preprocessing(70, 60, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    views = dataclasses.replace(usual, eval_crop_mode="squash", eval_interpolation="lanczos", eval_corner="down")
    assert views.preprocessing == dataclasses.replace(
        usual.preprocessing, crop_mode="squash", interpolation="lanczos", corner="down"
    )


def test_recipes_of_a_centre_crop_are_stored_as_before() -> None:
    """So the files and the digests of runs that began before the fields existed are those of today."""
    usual = RECIPES["quickstart"]()
    added = {"eval_crop_mode", "eval_interpolation", "eval_corner"}
    assert added.isdisjoint(usual.to_dict()["views"])
    assert added <= usual.all_values()["views"].keys()
    other = usual.change(views={"eval_crop_mode": "border"})
    assert added & other.to_dict()["views"].keys() == {"eval_crop_mode"}
    assert recipe_digest(other) != recipe_digest(usual)
    # Differences are seen from either side.
    assert recipe_differences(usual.to_dict(), other.to_dict()) == ["views.eval_crop_mode was center, now border"]
    assert recipe_differences(other.to_dict(), usual.to_dict()) == ["views.eval_crop_mode was border, now center"]
    assert recipe_differences(other.to_dict(), other.to_dict()) == []
    ranged = usual.change(data={"range": "0..4095"})
    assert ranged.to_dict()["data"] == {"channels": None, "range": "0..4095"}
    stored = usual.change(data={"colours": "stored"})
    assert stored.to_dict()["data"]["colours"] == "stored"
    assert recipe_differences(usual.to_dict(), stored.to_dict()) == ["data.colours was srgb, now stored"]


# ---------------------------------------------------------------------------------------------------------------------
# Values out of range
# ---------------------------------------------------------------------------------------------------------------------

NAN = float("nan")
OUT_OF_RANGE: dict[str, list[Any]] = {
    "model.drop_path": [-0.1, 1.0, NAN],
    "model.class_token_std": [0.0, -0.02, NAN],
    "method.clusters": [-1, 0, 1],
    "method.width": [0],
    "method.hidden": [0],
    "method.projector_layers": [-1],
    "method.predictor_layers": [-1],
    "method.teacher_temperature": [0.0, -1.0, NAN],
    "method.student_temperature": [0.0, -1.0, NAN],
    "method.contrast": [-1.0, NAN],
    "method.regression": [-1.0, NAN],
    "method.contrast_temperature": [0.0, -1.0, NAN],
    "method.sizes_momentum": [-0.1, 1.1, NAN],
    "method.center_momentum": [-0.1, 1.1, NAN],
    "method.sinkhorn_iterations": [-1],
    "method.mira_beta": [-0.1, 1.0, NAN],
    "method.mira_beta_start": [-0.1, 1.0, NAN],
    "method.mira_iterations": [-1],
    "method.winner_gain": [0.0, NAN],
    "method.kmeans_samples": [0],
    "method.kmeans_iterations": [0],
    "method.teacher_momentum": [-0.1, 1.1, NAN],
    "method.teacher_momentum_end": [-0.1, 1.1, NAN],
    "views.global_views": [0, -1],
    "views.local_views": [-1],
    "views.global_size": [7, 0, -224],
    "views.local_size": [7],
    "views.global_scale": [(0.0, 1.0), (0.5, 0.2), (0.2, 1.1), (NAN, 1.0)],
    "views.local_scale": [(0.0, 0.2), (0.2, 0.05), (0.05, 2.0), (0.05, NAN)],
    "views.scale_end": [0.0, 1.1, -0.1, NAN, 0.04],  # 0.04 is below the smallest local share of 0.05
    "views.ratio": [(0.0, 1.0), (2.0, 1.0), (NAN, 1.0)],
    "views.flip": [-0.1, 1.1, NAN],
    "views.jitter": [-0.1, 1.1, NAN],
    "views.brightness": [-0.1, 1.1, NAN],
    "views.contrast": [-0.1, 1.1, NAN],
    "views.saturation": [-0.1, 1.1, NAN],
    "views.hue": [-0.1, 0.51, NAN],
    "views.grey": [-0.1, 1.1, NAN],
    "views.blur": [(-0.1, 0.0), (0.0, 1.1), (NAN, 0.0)],
    "views.blur_local": [-0.1, 1.1, NAN],
    "views.blur_kernel": [0, 8, -3],
    "views.blur_sigma": [(0.0, 1.0), (2.0, 0.1), (NAN, 1.0)],
    "views.solarize": [(-0.1, 0.0), (0.0, 1.1), (0.0, NAN)],
    "views.std": [(0.0, 0.2, 0.2), (0.2, -0.2, 0.2), (0.2, 0.2, NAN)],
    "views.eval_resize": [7],
    "views.eval_crop": [7, 257],
    "optim.epochs": [0, -1],
    "optim.batch": [0, -1],
    "optim.base_lr": [0.0, -0.1, NAN],
    "optim.warmup_epochs": [-0.1, NAN],
    "optim.restarts": [(0,), (9, 4)],
    "optim.lr_floor": [-0.1, NAN],
    "optim.momentum": [-0.1, 1.0, NAN],
    "optim.weight_decay": [-0.1, NAN],
    "optim.weight_decay_end": [-0.1, NAN],
    "optim.centroid_decay": [-0.1, NAN],
    "optim.centroid_decay_end": [-0.1, NAN],
    "optim.clip": [0.0, -1.0, NAN],
    "optim.frozen_centroid_epochs": [-1],
    "adapt.warmup_epochs": [-0.1, NAN],
    "adapt.release_epochs": [-0.1, NAN],
    "adapt.layer_decay": [0.0, 1.1, NAN],
    "adapt.anchor": [-1.0, NAN],
    "adapt.anchor_end": [-1.0, NAN],
    "adapt.lora_rank": [-1],
    "adapt.patience": [0],
    "distil.teachers": [("one",), ("one", "one"), (" ",)],  # the first with no objective
    "distil.features": [-1.0, NAN],
    "distil.similarities": [-1.0, NAN],
    "distil.assignments": [-1.0, NAN],
    "distil.maps": [-1.0, NAN, 1.0],  # 1: not of a whole image
    "distil.teacher_size": [7],
    "distil.teacher_channels": [(0,), (0, 1, -1), (0, 1, 2, 3)],
    "distil.whitening_floor": [0.0, -1.0, NAN],
    "distil.samples": [1],
    "distil.average": [-0.1, 1.1, NAN],
    "distil.hidden": [0],
    "distil.temperature": [0.0, -1.0, NAN],
    "distil.student_temperature": [0.0, -1.0, NAN],
    "distil.queue": [-1],
    "distil.clusters": [1],
    "distil.sizes_momentum": [-0.1, 1.1, NAN],
    "distil.kmeans_iterations": [0],
    "monitor.every_epochs": [0],
    "monitor.images": [1],
    "monitor.share": [0.0, -1.0, NAN],
    "monitor.group": [0, 9],
    "monitor.k": [0],
    "monitor.data": [""],
    "monitor.source": [""],
    "monitor.protocol": ["", "linear"],
    "efficiency.accumulate": [0],
    "efficiency.workers": [-2],
    "efficiency.bucket_mb": [0.0, -1.0],
    "efficiency.prefetch": [0],
    "run.seed": [-1, 2**63],
    "run.save_epochs": [0],
    "run.save_steps": [0],
    "run.keep": [0],
    "run.log_steps": [0],
}
# Of these any value has a meaning, or only what runs the recipe can tell whether it has.
ANY_VALUE = {"init", "model.backbone", "model.options", "views.mean", "efficiency.device", "monitor.wandb"}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in OUT_OF_RANGE.items() for value in values]
)
def test_value_out_of_range_is_refused_by_its_name(name: str, value: Any) -> None:
    section, field = name.split(".")
    with pytest.raises(UserError) as caught:
        RECIPES["rn50_100ep"]().change(**{section: {field: value}})
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model.drop_path", 0.99),
        ("method.clusters", 2),
        ("method.projector_layers", 0),
        ("method.teacher_momentum", 1.0),
        ("views.global_size", 8),
        ("views.global_scale", (1.0, 1.0)),
        ("views.scale_end", 0.05),
        ("views.hue", 0.5),
        ("views.blur_kernel", 1),
        ("views.eval_crop", 256),
        ("optim.epochs", 1),
        ("optim.momentum", 0.0),
        ("optim.warmup_epochs", 1000.0),
        ("optim.clip", 1e-3),
        ("monitor.images", 2),
        ("efficiency.workers", 0),
        ("efficiency.prefetch", 1),
        ("run.seed", 2**63 - 1),
        ("run.save_steps", 1),
    ],
)
def test_value_at_the_edge_of_its_range_is_taken(name: str, value: Any) -> None:
    section, field = name.split(".")
    assert flat(RECIPES["rn50_100ep"]().change(**{section: {field: value}}))[name] == value


def test_a_moving_scale_stays_between_the_smallest_local_and_the_largest_global_share() -> None:
    moving = ViewSettings(global_scale=(0.2, 0.5), scale_end=0.1)
    assert moving.scales(9, 10) == ((close(0.1), 0.5), (0.05, close(0.1)))
    with pytest.raises(UserError, match=r"views\.scale_end"):
        ViewSettings(global_scale=(0.2, 0.5), scale_end=0.6)
    with pytest.raises(UserError, match=r"views\.scale_end"):
        ViewSettings(global_scale=(0.2, 1.0), local_scale=(0.3, 0.4), scale_end=0.3)  # starts at 0.2, below 0.3


ONE_VIEW = {"global_views": 1, "local_views": 0}


def test_one_view_alone_is_refused() -> None:
    recipe = RECIPES["quickstart"]()
    with pytest.raises(UserError, match=r"two views: raise views\.global_views"):
        recipe.change(views=ONE_VIEW)
    with pytest.raises(UserError, match=r"two views: raise views\.global_views"):  # the method's losses need them
        RECIPES["distil"]().change(method={"clustering": True})
    assert recipe.change(views={"global_views": 1, "local_views": 1}).views.global_views == 1


def test_a_teacher_needs_no_second_view_unless_it_sees_another_than_the_student() -> None:
    recipe = RECIPES["distil"]()
    assert recipe.change(views=ONE_VIEW, distil={"teacher_sees": "view"}).views.global_views == 1
    with pytest.raises(UserError, match=r"other_view needs two views: raise views\.global_views"):
        recipe.change(views=ONE_VIEW, distil={"teacher_sees": "other_view"})


def test_every_number_has_a_range_that_is_tested() -> None:
    types = {name: type(value) for name, value in RESNET50.items()}
    numbers = {name for name, kind in types.items() if kind in (int, float, tuple, type(None))}
    assert numbers - ANY_VALUE == set(OUT_OF_RANGE)


@pytest.mark.parametrize(
    ("section", "field"),
    [("method", "balancing"), ("views", "interpolation"), ("optim", "optimizer"), ("efficiency", "precision")],
)
def test_choices_are_checked_from_python_too(section: str, field: str) -> None:
    with pytest.raises(UserError, match=rf"{section}\.{field} must be one of .*, not 'adam'"):
        RECIPES["quickstart"]().change(**{section: {field: "adam"}})


def test_a_micro_batch_is_an_equal_share() -> None:
    recipe = RECIPES["rn50_100ep"]().change(optim={"batch": 48}, efficiency={"accumulate": 3})
    assert recipe.micro_batch(4) == 4
    with pytest.raises(UserError, match=r"48 images cannot be shared by 5 processes.*multiple of 15"):
        recipe.micro_batch(5)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        (
            {"efficiency": {"objective": "triton", "precision": "fp64"}},
            r"efficiency\.objective=triton needs efficiency\.precision=bf16 or fp16 or fp32",
        ),
        ({"optim": {"batch": 9}, "efficiency": {"accumulate": 2}}, r"set optim\.batch to a multiple of 2"),
        (
            {"views": {"global_views": 1}, "method": {"predictor": False, "projector_on_local": False}},
            "the loss has no pair of views",
        ),
        ({"efficiency": {"accumulate": 2}, "method": {"sizes_updated": "before_balancing"}}, "the whole batch at once"),
        ({"efficiency": {"accumulate": 2}, "method": {"balancing": "sinkhorn"}}, "the whole batch at once"),
        ({"efficiency": {"accumulate": 2}, "method": {"balancing": "mira"}}, "the whole batch at once"),
        ({"efficiency": {"accumulate": 2}, "distil": {"similarities": 1.0}}, "the whole batch at once"),
        (
            {"method": {"clustering": False, "predictor": False, "teacher_statistics": "averaged", "contrast": 0.0}},
            r"leaves no loss: set method\.contrast=1 or method\.regression=1, or learn from a teacher",
        ),
        ({"method": {"balancing": "centering", "winner_gain": 1.01}}, r"set method\.winner_gain=1"),
        ({"method": {"balancing": "mira", "clamp": True}}, r"method\.clamp=false"),
    ],
)
def test_what_does_not_go_together_is_refused_when_a_recipe_is_made(
    changes: dict[str, dict[str, Any]], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=cause):
        RECIPES["quickstart"]().change(**changes)
    overrides = [
        f"{section}.{name}={str(value).lower()}"
        for section, values in changes.items()
        for name, value in values.items()
    ]
    assert main(["show", "quickstart", *overrides]) == 2
    assert re.search(cause, capsys.readouterr().err)


def test_k_means_of_too_few_views_is_refused_before_anything_is_projected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = RECIPES["quickstart"]().change(
        method={"centroid_init": "kmeans", "clusters": 40, "kmeans_samples": 30}, optim={"batch": 16}
    )
    assert recipe.change(method={"clusters": 32}).kmeans_steps(1000) == 2  # whole batches, 30 samples at least
    with pytest.raises(UserError, match=r"32 training views for 40 clusters: lower method\.clusters to at most 32"):
        recipe.kmeans_steps(1000)
    with pytest.raises(UserError, match=r"16 training views for 40 clusters"):
        recipe.kmeans_steps(31)
    images = write_images(tmp_path / "images", each=8)  # 24
    overrides = ["method.centroid_init=kmeans", "method.clusters=17"]
    run = ["train", "quickstart", "--data", str(images), "--out", str(tmp_path / "run"), *OVERRIDES, "optim.batch=16"]
    assert main([*run, *overrides]) == 2
    said = capsys.readouterr().err
    assert "16 training views for 17 clusters: lower method.clusters to at most 16" in said
    assert "projecting" not in said
    assert not (tmp_path / "run").exists()


def test_an_epoch_has_whole_batches_only() -> None:
    recipe = RECIPES["quickstart"]().change(optim={"batch": 10})
    assert [recipe.steps_per_epoch(images) for images in (10, 19, 20)] == [1, 1, 2]
    with pytest.raises(UserError, match="the batch of 10 is larger than the set of 9 images"):
        recipe.steps_per_epoch(9)
