"""Tests of a detection run's settings: against Detectron2's own configuration, the linear rule, and wrong options."""

import subprocess
import sys
from dataclasses import asdict, fields
from typing import Any

import pytest

from excb.errors import UserError
from excb.transfer.detection.setup.settings import RECIPES, SCHEDULES, DetectionSettings, parse_option, settings_for
from tests.clone import ROOT

CHANGED = {"norm": "FrozenBN", "extra_norm": False, "freeze_at": 2, "precise_bn": False}  # what stock Detectron2 has


def test_every_option_says_what_it_does_and_where_it_comes_from() -> None:
    for entry in fields(DetectionSettings):
        assert entry.metadata["doc"], entry.name
        assert entry.metadata["source"], entry.name


def test_the_two_recipes_differ_as_published() -> None:
    ssl, stock = asdict(settings_for("1x")), asdict(settings_for("1x", "stock"))
    assert {name: value for name, value in stock.items() if value != ssl[name]} == CHANGED
    assert (ssl["norm"], ssl["extra_norm"], ssl["freeze_at"], ssl["input_format"]) == ("SyncBN", True, 0, "RGB")
    assert not ssl["stride_in_1x1"]


def test_schedules() -> None:
    one, two = settings_for("1x"), settings_for("2x")
    assert (one.iterations, one.steps, two.iterations, two.steps) == (
        90_000,
        (60_000, 80_000),
        180_000,
        (120_000, 160_000),
    )
    assert one.base_lr == two.base_lr == 0.02
    smoke, overfit = settings_for("smoke"), settings_for("overfit")
    assert max(smoke.min_sizes) <= 320
    assert smoke.test_size <= 320
    assert smoke.iterations <= 20
    assert (overfit.min_sizes, overfit.test_size, overfit.batch, overfit.rois) == ((192,), 192, 4, 32)
    assert overfit.optimizer == "adamw"
    for schedule in SCHEDULES:
        for recipe in RECIPES:
            settings = settings_for(schedule, recipe)
            assert max(settings.steps) < settings.iterations


@pytest.mark.detectron2
@pytest.mark.filterwarnings("ignore")  # Detectron2's own, at import
def test_stock_is_detectron2s() -> None:
    from detectron2 import model_zoo

    theirs = model_zoo.get_config("COCO-InstanceSegmentation/mask_rcnn_R_50_C4_1x.yaml")
    ours = settings_for("1x", "stock")
    pairs: list[tuple[Any, Any]] = [
        (ours.norm, theirs.MODEL.RESNETS.NORM),
        (ours.freeze_at, theirs.MODEL.BACKBONE.FREEZE_AT),
        (ours.min_sizes, theirs.INPUT.MIN_SIZE_TRAIN),
        (ours.test_size, theirs.INPUT.MIN_SIZE_TEST),
        (ours.max_size, theirs.INPUT.MAX_SIZE_TRAIN),
        (ours.max_size, theirs.INPUT.MAX_SIZE_TEST),
        (ours.batch, theirs.SOLVER.IMS_PER_BATCH),
        (ours.base_lr, theirs.SOLVER.BASE_LR),
        (ours.momentum, theirs.SOLVER.MOMENTUM),
        (ours.weight_decay, theirs.SOLVER.WEIGHT_DECAY),
        (ours.warmup, theirs.SOLVER.WARMUP_ITERS),
        (ours.iterations, theirs.SOLVER.MAX_ITER),
        (ours.steps, theirs.SOLVER.STEPS),
        (ours.rois, theirs.MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE),
        (ours.rpn_post_test, theirs.MODEL.RPN.POST_NMS_TOPK_TEST),
        (ours.rpn_pre_test, theirs.MODEL.RPN.PRE_NMS_TOPK_TEST),
        (ours.precise_bn, theirs.TEST.PRECISE_BN.ENABLED),
        (ours.precise_bn_iterations, theirs.TEST.PRECISE_BN.NUM_ITER),
        (ours.save_every, theirs.SOLVER.CHECKPOINT_PERIOD),
        (ours.precision == "amp", theirs.SOLVER.AMP.ENABLED),
    ]
    for mine, other in pairs:
        assert mine == (tuple(other) if isinstance(mine, tuple) else other)
    assert theirs.SOLVER.WEIGHT_DECAY_NORM == 0
    assert theirs.SOLVER.WARMUP_FACTOR == 0.001
    assert theirs.MODEL.RESNETS.STRIDE_IN_1X1  # of the caffe-style weights that stock starts from


@pytest.mark.detectron2
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("schedule", ["1x", "2x"])
@pytest.mark.parametrize("batch", [2, 4, 8, 32, 64])
def test_the_linear_rule_is_detectron2s(schedule: str, batch: int) -> None:
    from detectron2 import model_zoo
    from detectron2.engine import DefaultTrainer

    theirs = model_zoo.get_config("COCO-InstanceSegmentation/mask_rcnn_R_50_C4_1x.yaml")
    base = settings_for(schedule)
    theirs.SOLVER.MAX_ITER, theirs.SOLVER.STEPS = base.iterations, base.steps
    # It scales with the number of GPUs, of which each keeps its share of the batch.
    theirs.SOLVER.REFERENCE_WORLD_SIZE = 16
    solver = DefaultTrainer.auto_scale_workers(theirs, batch).SOLVER
    assert batch == solver.IMS_PER_BATCH
    ours = settings_for(schedule, batch=batch)
    assert ours.base_lr == pytest.approx(solver.BASE_LR)
    assert (ours.iterations, ours.steps, ours.warmup) == (solver.MAX_ITER, tuple(solver.STEPS), solver.WARMUP_ITERS)


def test_the_linear_rule_keeps_epochs() -> None:
    half = settings_for("1x", batch=8)
    assert (half.batch, half.base_lr, half.iterations, half.steps) == (8, 0.01, 180_000, (120_000, 160_000))
    assert half.warmup == 2000
    assert settings_for("1x", batch=16) == settings_for("1x")
    # The short schedules are recipes of their own.
    assert asdict(settings_for("smoke", batch=4)) == asdict(settings_for("smoke")) | {"batch": 4}


def test_options_stand_as_they_are() -> None:
    settings = settings_for("1x", "stock", batch=8, options={"base_lr": 0.1, "norm": "BN"})
    assert (settings.base_lr, settings.norm, settings.iterations) == (0.1, "BN", 180_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("norm=BN", ("norm", "BN")),
        ("min_sizes=480,512", ("min_sizes", (480, 512))),
        ("min_sizes=480", ("min_sizes", (480,))),
        ("mean=103.5,116,124", ("mean", (103.5, 116.0, 124.0))),
        ("extra_norm=False", ("extra_norm", False)),
        ("precise_bn=true", ("precise_bn", True)),
        ("base_lr=1e-3", ("base_lr", 0.001)),
        ("freeze_at=2", ("freeze_at", 2)),
    ],
)
def test_options_of_the_command_line(text: str, expected: tuple[str, Any]) -> None:
    name, value = parse_option(text)
    assert (name, value) == expected
    assert type(value) is type(expected[1])
    assert getattr(settings_for("1x", options={name: value}), name) == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("norm", "'norm' sets no option.*OPTION=VALUE"),
        ("nrom=BN", "'nrom=BN' sets no option; did you mean 'norm'"),
        ("=3", "'=3' sets no option"),
        ("extra_norm=1", "extra_norm must be true or false, not '1'"),
        ("batch=many", "batch must be like 16, not 'many'"),
        ("batch=1.5", "batch must be like 16, not '1.5'"),
        ("min_sizes=480,", "min_sizes must be like"),
        ("base_lr=", "base_lr must be like 0.02, not ''"),
    ],
)
def test_wrong_options_of_the_command_line(text: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        parse_option(text)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"norm": "GN"}, "norm must be one of SyncBN, .*not 'GN'"),
        ({"architecture": "c5"}, "architecture must be one of c4, fpn"),
        ({"rios": 3}, "no option 'rios'; did you mean 'rois'"),
        ({"freeze_at": 6}, "freeze_at must lie between 0 and 5"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"batch": "4"}, "batch takes a whole number, not '4'"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"base_lr": 0.0}, "base_lr must be above 0"),
        ({"base_lr": float("nan")}, "base_lr takes a finite number"),
        ({"min_sizes": ()}, "min_sizes must be one or more"),
        ({"min_sizes": (0, 5)}, "min_sizes must be one or more"),
        ({"min_sizes": (1400,)}, "min_sizes must be at most max_size"),
        ({"test_size": 1400}, "test_size must be above 0, and at most max_size"),
        ({"steps": (5, 3)}, "steps must ascend"),
        ({"steps": (0, 3)}, "steps must be above 0"),
        ({"rois": 0}, "rois must be at least 1"),
        ({"save_every": 0}, "save_every must be at least 1"),
    ],
)
def test_values_out_of_range(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        settings_for("1x", options=options)


def test_unknown_names_and_batches() -> None:
    with pytest.raises(UserError, match=r"no schedule is named '1y'; did you mean '1x'.*smoke"):
        settings_for("1y")
    with pytest.raises(UserError, match=r"no recipe is named 'moco' \(there are ssl, stock\)"):
        settings_for("1x", "moco")
    with pytest.raises(UserError, match="batch must be at least 1"):
        settings_for("1x", batch=0)


def test_settings_load_neither_torch_nor_detectron2() -> None:
    code = "import sys, excb.transfer.detection.setup.settings; print({'torch', 'detectron2'} & set(sys.modules))"
    # A new interpreter: what it imports is tested.
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "set()\n"
