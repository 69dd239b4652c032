"""The training step on a fake CUDA device: no wait, no mix of devices, and no more kernels than stated."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from excb.balancing.table import BALANCERS
from excb.hub.backbone import Backbone, Entry
from excb.networks.architecture import Architecture
from excb.networks.blocks import Blocks
from excb.networks.preprocessing import Preprocessing
from excb.pretrain import step as step_module
from excb.pretrain.distil.teachers import Teacher
from excb.pretrain.overrides import apply, find_recipe
from tests.pretrain.fake_steps import ALLOWED, FAMILIES, UNSTATED, figures, gpu_recipe, record, stated

pytestmark = [pytest.mark.fake_cuda, pytest.mark.usefixtures("one_thread")]

TINY = (
    "method.clusters=24",
    "method.hidden=16",
    "method.width=16",
    "views.global_size=32",
    "views.local_size=16",
    "views.eval_resize=32",
    "views.eval_crop=32",
)
RESNET = (
    "model.backbone=timm:resnet10t",
    'model.options={"channels": [8, 8, 16, 16], "stem_width": 4}',
)
VIT = (
    "model.backbone=timm:vit_tiny_patch16_224",
    'model.options={"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 32}',
    "model.drop_path=0.4",
    "optim.optimizer=adamw",
    "optim.clip=3",
)
COLOURS = ("views.jitter=0.8", "views.grey=0.2", "views.blur=0.5,0.5", "views.solarize=0.2,0.2")
NO_CLUSTERS = ("method.clustering=false", "method.predictor=false", "method.teacher_statistics=averaged")
NOT_FUSED = ALLOWED | {"excb.pretrain.optim:conditional_step": "whether to take the step"}


@pytest.mark.parametrize(
    "overrides",
    [
        *[(*RESNET, f"efficiency.precision={precision}") for precision in ("fp32", "bf16", "fp16", "fp64")],
        *[(*VIT, f"efficiency.precision={precision}") for precision in ("fp32", "bf16", "fp16")],
        *[(*network, "efficiency.checkpointing=true", "efficiency.precision=bf16") for network in (RESNET, VIT)],
        *[(*network, "efficiency.accumulate=2", "efficiency.precision=bf16") for network in (RESNET, VIT)],
        *[(f"method.balancing={name}", "efficiency.precision=bf16") for name in BALANCERS],
        *[(f"efficiency.objective={name}",) for name in ("plain", "chunked")],
        COLOURS,
        ("efficiency.channels_last=false",),
        ("method.contrast=1", "method.regression=1"),
        (*NO_CLUSTERS, "method.contrast=1"),
        ("method.winner_gain=1.01", "method.clamp=true", "efficiency.precision=bf16"),
        ("method.sizes_updated=before_balancing", "method.sizes_counted=raw"),
        ("method.teacher_statistics=averaged", "method.teacher_centroids=unit"),
        ("views.local_views=0", "optim.frozen_centroid_epochs=1"),
    ],
    ids=lambda overrides: " ".join(part.split(".")[-1] for part in overrides if "options" not in part),
)
def test_no_option_makes_a_step_wait(overrides: tuple[str, ...]) -> None:
    recipe = apply(find_recipe("conv4_tiny"), [*TINY, *overrides])
    assert record(recipe, 4, steps=1).unexpected(ALLOWED) == {}


@pytest.mark.parametrize("lora", [0, 2])
def test_nor_does_adapting_a_trained_backbone(lora: int) -> None:
    if lora:
        pytest.importorskip("peft")
    anchored = ("adapt.warmup_epochs=0", f"adapt.lora_rank={lora}", "method.centroid_init=random")
    recipe = apply(find_recipe("adapt"), [*TINY, *VIT, *anchored])
    assert record(recipe, 4, steps=1).unexpected(ALLOWED) == {}


@pytest.mark.parametrize(
    "overrides",
    [
        ("distil.features=1",),
        ("distil.features=1", "distil.distance=squared", "distil.statistics=whitened", "efficiency.precision=bf16"),
        ("distil.features=0", "distil.similarities=1", "distil.queue=8", "efficiency.precision=bf16"),
        ("distil.features=0", "distil.assignments=1", "distil.clusters=6", "efficiency.precision=bf16"),
        ("distil.teacher_sees=view", "distil.maps=1", "views.local_views=2"),
        ("distil.teacher_sees=other_view", "views.global_views=2", "method.clustering=true"),
    ],
    ids=lambda overrides: " ".join(part.split(".")[-1] for part in overrides),
)
def test_nor_does_learning_from_teachers(overrides: tuple[str, ...]) -> None:
    alone = ("model.options={}", "distil.teachers=a,b", "distil.assignments=0")
    recipe = apply(find_recipe("distil"), [*TINY, *alone, *overrides])
    network = Architecture("conv4", {"widths": [4, 4, 4, 12]}).build().eval().requires_grad_(False)
    backbone = Backbone(network, Preprocessing(40, 32), Entry("memory", Architecture("conv4")))
    blocks = Blocks(network) if recipe.distil.needs_maps else None
    teachers = [Teacher(name, backbone, backbone.transform, blocks, {}) for name in recipe.distil.teachers]
    assert record(recipe, 4, steps=1, teachers=teachers).unexpected(ALLOWED) == {}


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rank 0 of two, whose collectives move nothing.

    DistributedDataParallel is left out: in its first steps it times itself by events in C++, where no device is faked.
    """
    monkeypatch.setattr(step_module, "average_gradients", lambda *_, **__: None)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize(
    "overrides",
    [
        *[(*RESNET, f"method.balancing={name}") for name in BALANCERS],
        (*RESNET, "method.contrast=1"),
        (*RESNET, "method.contrast=1", "efficiency.checkpointing=true"),
        (*RESNET, "efficiency.accumulate=2"),
        (*VIT, "method.contrast=1", "method.regression=1"),
    ],
    ids=lambda overrides: " ".join(part.split(".")[-1] for part in overrides if "options" not in part),
)
def test_nor_does_what_several_processes_tell_each_other(overrides: tuple[str, ...]) -> None:
    """Statistics of BatchNorm, cluster sizes, rows for contrast and assignments over ranks."""
    recipe = apply(find_recipe("conv4_tiny"), [*TINY, "efficiency.precision=bf16", *overrides])
    assert record(recipe, 4, steps=1).unexpected(ALLOWED) == {}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_only_an_optimizer_that_is_not_fused_waits(optimizer: str) -> None:
    recipe = apply(find_recipe("conv4_tiny"), [*TINY, f"optim.optimizer={optimizer}", "efficiency.fused=false"])
    done = record(recipe, 4, steps=1)
    assert {wait.place for wait in done.unexpected(ALLOWED)} == {"excb.pretrain.optim:conditional_step"}
    assert done.unexpected(NOT_FUSED) == {}


def test_kernels_of_the_augmentation_can_be_switched_off() -> None:
    """Operation by operation, as on a GPU that is too old for them: hundreds of launches, and no wait."""
    with_, without = (
        record(apply(find_recipe("rn18_small"), [*TINY, f"efficiency.fused={fused}"]), 4, steps=1)
        for fused in ("true", "false")
    )
    assert with_.costs["views"].launches == 6  # for each of two sizes: one copy and two kernels
    assert without.costs["views"].launches > 300
    assert {place.place for place in without.unexpected(ALLOWED)} <= {"excb.pretrain.optim:conditional_step"}


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in UNSTATED])
def test_a_step_launches_and_moves_what_is_stated(name: str) -> None:
    """Phase by phase, as in docs/performance.md. A change of the tables there says why."""
    done = record(gpu_recipe(name), FAMILIES[name])
    launches, megabytes = figures(done.costs)
    assert done.unexpected(ALLOWED) == {}
    assert launches == pytest.approx(stated("launches")[name], abs=1)
    assert megabytes == pytest.approx(stated("MB")[name], rel=0.05)
