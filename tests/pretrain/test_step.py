"""One step: micro-batches, precisions, recomputed activations and compiled backbones leave it what it is."""

import copy
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from excb.distributed.batchnorm import SyncBatchNorm
from excb.errors import UserError
from excb.networks.activation_checkpointing import recompute_blocks
from excb.networks.architecture import Architecture
from excb.pretrain import step as step_module
from excb.pretrain.data.batch import ViewBatch
from excb.pretrain.data.views import ViewMaker
from excb.pretrain.initialise import build_model
from excb.pretrain.optim import Schedules, build_optimizer
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.precision import resolved
from excb.pretrain.step import BufferSnapshot, NotFiniteError, Trainer
from excb.seeding import generator
from tests.cuda_waits import no_waiting_for_a_gpu
from tests.pretrain.small_runs import OVERRIDES

pytestmark = pytest.mark.usefixtures("one_thread")

VIT = (
    "model.backbone=timm:vit_tiny_patch16_224",
    'model.options={"patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2, "img_size": 32}',
    "model.drop_path=0.4",
    "optim.optimizer=adamw",
    "optim.base_lr=0.01",
)
RESNET = ("model.backbone=resnet18", "model.options={}")


def trainer(
    *overrides: str, prepare: Callable[[nn.Module], object] = lambda _student: None, device: str = "cpu"
) -> Trainer:
    """A trainer of a small recipe; `prepare_model` may change the student's backbone."""
    recipe = apply(find_recipe("quickstart"), [*OVERRIDES, "optim.warmup_epochs=0", *overrides])
    recipe = resolved(recipe, torch.device(device))
    model = build_model(recipe)
    prepare(model.student.backbone)
    if recipe.efficiency.precision == "fp64":
        model.double()
    model.to(device)
    schedules = Schedules(recipe.optim, recipe.method, steps_per_epoch=4)
    optimizer = build_optimizer(model.student, recipe.optim, fused=recipe.efficiency.fused)
    return Trainer(model.train(), optimizer, schedules, recipe, torch.device(device))


def batch_of(trainer: Trainer, number: int, images: int = 8) -> ViewBatch:
    """A batch of smooth random pictures."""
    from PIL import Image

    views = trainer.recipe.views
    maker = ViewMaker(views, seed=3, epochs=3)
    rows: list[list[Any]] = []
    for sample in range(images):
        noise = generator(1, number, sample).integers(0, 256, (6, 6, 3), dtype="uint8")
        image = Image.fromarray(noise).resize((40, 40), Image.Resampling.BICUBIC)
        row: list[Any] = []
        for part in (range(views.global_views), range(views.global_views, views.global_views + views.local_views)):
            row += maker.cut(image, epoch=0, sample=sample, views=part)
        rows.append(row)
    stacks = [torch.stack([torch.from_numpy(array) for array in column], dim=1) for column in zip(*rows, strict=True)]
    samples = torch.arange(images)
    return ViewBatch(stacks[0], stacks[1], stacks[2], stacks[3], samples, samples, [])


def steps(trainer: Trainer, count: int = 6) -> list[float]:
    """Train; loss and gradient norm of every step."""
    done = [trainer.step(batch_of(trainer, step), step) for step in range(count)]
    return [float(figure) for output, norm in done for figure in (output.loss, norm)]


def assert_close(first: Trainer, second: Trainer, tolerance: float) -> None:
    """Networks, sizes and statistics agree."""
    ours, theirs = first.model.state_dict(), second.model.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("parts", [2, 8])
@pytest.mark.parametrize("method", ["sizes_counted=balanced", "sizes_counted=raw", "balancing=centering"])
def test_accumulation_is_one_large_batch(parts: int, method: str) -> None:
    settings = (*VIT, "efficiency.precision=fp64", f"method.{method}", "optim.clip=0.5")
    whole, split = trainer(*settings), trainer(*settings, f"efficiency.accumulate={parts}")
    assert steps(whole) == pytest.approx(steps(split), rel=1e-9)
    assert_close(whole, split, 1e-8)  # AdamW divides by a gradient's size: rounding counts where one is near zero


def test_accumulation_with_batchnorm_differs_by_batch_statistics_only() -> None:
    # The same images twice: then every micro-batch has the statistics of the whole batch.
    whole, split = (trainer("efficiency.precision=fp64", f"efficiency.accumulate={parts}") for parts in (1, 2))
    results = []
    for each in (whole, split):
        half = batch_of(each, 0, images=4)
        assert half.local_crops is not None
        assert half.local_parameters is not None
        twice = ViewBatch(
            torch.cat([half.global_crops, half.global_crops], dim=1),
            torch.cat([half.global_parameters, half.global_parameters], dim=1),
            torch.cat([half.local_crops, half.local_crops], dim=1),
            torch.cat([half.local_parameters, half.local_parameters], dim=1),
            torch.cat([half.samples, half.samples]),
            torch.cat([half.used, half.used]),
            [],
        )
        output, norm = each.step(twice, 0)
        results.append((float(output.loss), float(norm)))
    assert results[0] == pytest.approx(results[1], rel=1e-9)
    torch.testing.assert_close(whole.model.sizes, split.model.sizes, rtol=1e-12, atol=0)
    weights = [dict(each.model.student.named_parameters()) for each in (whole, split)]
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-9, atol=1e-9)


def saved_bytes(work: Callable[[], Any]) -> int:
    """Bytes of the distinct tensors that the backward pass of `work` will need."""
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = work()
    del kept
    return sum(seen.values())


@pytest.mark.parametrize("network", [VIT, RESNET, ()], ids=["vit", "resnet18", "timm resnet"])
def test_recomputing_changes_memory_and_nothing_else(network: tuple[str, ...]) -> None:
    plain, recomputed = trainer(*network), trainer(*network, prepare=recompute_blocks)
    assert steps(plain, 3) == steps(recomputed, 3)
    for (name, value), other in zip(
        plain.model.state_dict().items(), recomputed.model.state_dict().values(), strict=True
    ):
        assert torch.equal(value, other), name


@pytest.mark.parametrize("name", ["eva02_tiny_patch14_224", "beit_base_patch16_224", "vit_small_patch16_dinov3"])
def test_blocks_that_take_keywords_are_recomputed_too(name: str) -> None:
    options = {"img_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 2, "patch_size": 16}
    network = Architecture(f"timm:{name}", options).build().train()
    views = torch.randn(2, 3, 32, 32)
    gradients = []
    for prepare in (lambda _network: None, recompute_blocks):
        prepare(network)
        network.zero_grad()
        network(views).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_recomputing_saves_memory() -> None:
    views = torch.randn(8, 3, 32, 32)
    network = Architecture("resnet18").build().train()
    before = saved_bytes(lambda: network(views))
    recompute_blocks(network)
    assert saved_bytes(lambda: network(views)) < 0.5 * before


def test_recomputing_refuses_unknown_networks() -> None:
    with pytest.raises(UserError, match="ResNets and ViTs only"):
        recompute_blocks(nn.Sequential(nn.Linear(2, 2)))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_stays_close_to_fp32(precision: str) -> None:
    exact, half = (trainer(*VIT, "method.head=batchnorm", f"efficiency.precision={p}") for p in ("fp32", precision))
    half.scaler.load_state_dict(half.scaler.state_dict() | ({"scale": 8.0} if precision == "fp16" else {}))
    loss, norm = steps(half, 1)
    wanted_loss, wanted_norm = steps(exact, 1)
    assert loss == pytest.approx(wanted_loss, rel=0.01)
    assert norm == pytest.approx(wanted_norm, rel=0.1)
    assert loss != wanted_loss  # so that it was half precision
    assert all(value.dtype == torch.float32 for value in half.model.state_dict().values() if value.is_floating_point())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_an_overflow_of_fp16_leaves_the_step_out_and_lowers_the_scale(optimizer: str) -> None:
    half = trainer(*VIT, "efficiency.precision=fp16", f"optim.optimizer={optimizer}")
    half.scaler.load_state_dict(half.scaler.state_dict() | {"scale": 2.0**40})
    before = copy.deepcopy(dict(half.model.student.named_parameters()))
    half.step(batch_of(half, 0), 0)
    half.synchronize()
    for values in half.optimizer.state.values():  # no momentum of a step that was not taken
        assert not any(value.any() for value in values.values())
    assert half.scaler.get_scale() == 2.0**39
    for name, value in half.model.student.named_parameters():
        assert torch.equal(value, before[name])
    again = trainer(*VIT, "efficiency.precision=fp16", f"optim.optimizer={optimizer}")
    again.restore(half.state())
    assert again.scaler.get_scale() == 2.0**39


def everything(trainer: Trainer) -> dict[str, Tensor]:
    """Copies of all that steps move: networks, sizes, momenta."""
    momenta = {
        f"{number} {name}": value
        for number, values in enumerate(trainer.optimizer.state.values())
        for name, value in values.items()
    }
    return {name: value.clone() for name, value in (trainer.model.state_dict() | momenta).items()}


Views = Callable[[Tensor | None, Tensor | None], Tensor | None]


def spoilt(views: Views) -> Views:
    """Views of which one image's are NaN."""

    def make(crops: Tensor | None, parameters: Tensor | None) -> Tensor | None:
        made = views(crops, parameters)
        return made if made is None else made.index_fill(1, torch.tensor([0], device=made.device), float("nan"))

    return make


@pytest.mark.parametrize(
    "settings",
    [
        VIT,
        (),
        (*VIT, "efficiency.precision=fp16"),  # where convolutions in fp16 would take minutes on a CPU
        (*VIT, "efficiency.fused=false"),
        ("efficiency.fused=false", "efficiency.accumulate=2"),
        ("method.teacher_statistics=averaged", "method.balancing=centering"),
        (*VIT, "method.sizes_updated=after_loss", "method.teacher_centroids=unit", "optim.clip=0.5"),
    ],
    ids=["vit", "timm resnet", "fp16", "not fused", "micro-batches", "averaged statistics", "as published"],
)
@pytest.mark.parametrize("raised", ["when asked", "by the next step"])
def test_what_is_not_finite_is_named_and_moves_nothing(settings: tuple[str, ...], raised: str) -> None:
    ill = trainer(*settings)
    ill.step(batch_of(ill, 0), 0)
    good = batch_of(ill, 1)
    before = everything(ill)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ill, "views", spoilt(ill.views))
        ill.step(good, 1)
    with pytest.raises(NotFiniteError, match=r"the loss is nan, the gradient of .* more is not finite") as refusal:
        ill.synchronize() if raised == "when asked" else ill.step(good, 2)  # which alone could be taken
    assert refusal.value.step == 1
    after = everything(ill)
    assert after.keys() == before.keys()
    for name, value in after.items():
        assert torch.equal(value, before[name]), name


class NumbersRead(TorchDispatchMode):
    """Counts tensors whose value Python asks for: on a GPU each waits until all work is done."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, function: Any, _types: Any, inputs: Any = (), keywords: Any = None) -> Any:
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)
        return function(*inputs, **(keywords or {}))


def test_statistics_over_ranks_of_a_rejected_step_are_restored() -> None:
    layer = SyncBatchNorm(nn.BatchNorm1d(3))
    layer(torch.randn(4, 3))
    before = copy.deepcopy(layer.state_dict())
    snapshot = BufferSnapshot(list(layer.buffers()))
    snapshot.take()
    layer(torch.full((4, 3), torch.inf))
    assert not layer.state_dict()["running_var"].isfinite().any()
    snapshot.restore_unless(torch.tensor(False))
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


def test_bf16_is_refused_on_cpus_where_torch_computes_wrong_numbers() -> None:
    recipe = find_recipe("rn10_tiny").change(efficiency={"precision": "bf16"})
    with pytest.raises(UserError, match=r"resnet10t with views of 16 pixels.*efficiency\.precision=auto"):
        step_module.prepare_model(build_model(recipe), recipe, torch.device("cpu"))
    larger = recipe.change(views={"local_size": 40, "global_size": 40})
    step_module.prepare_model(build_model(larger), larger, torch.device("cpu"))


# No ResNet in bf16: oneDNN's convolution of one pixel reads memory that nobody wrote (torch 2.15), NaN now and then.
@pytest.mark.parametrize(("network", "precision"), [(VIT, "bf16"), (VIT, "fp16"), (RESNET, "fp32")])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_step_reads_no_number(network: tuple[str, ...], optimizer: str, precision: str) -> None:
    settings = f"optim.optimizer={optimizer}", f"efficiency.precision={precision}"
    one = trainer(*network, "efficiency.accumulate=2", "optim.clip=0.5", *settings)
    one.step(batch_of(one, 0), 0)
    with NumbersRead() as read:
        one.step(batch_of(one, 1), 1)
    assert read.count == 0
    with read:  # so that the count is sharp
        torch.ones(()).item()
    assert read.count == 1


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_fused_optimizer_takes_the_steps_of_one_that_is_not(optimizer: str) -> None:
    settings = (*VIT, f"optim.optimizer={optimizer}", "efficiency.precision=fp64")
    fused, listed = trainer(*settings), trainer(*settings, "efficiency.fused=false")
    assert steps(fused) == pytest.approx(steps(listed), rel=1e-9)
    assert_close(fused, listed, 1e-9)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("network", [VIT, RESNET], ids=["vit", "resnet18"])
def test_compiled_backbones_take_the_same_steps(network: tuple[str, ...]) -> None:
    def compile_in_place(backbone: nn.Module) -> None:
        backbone.compile(dynamic=False)

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    settings = (*network, "efficiency.precision=fp64")
    plain, compiled = trainer(*settings), trainer(*settings, prepare=compile_in_place)
    assert steps(plain, 3) == pytest.approx(steps(compiled, 3), rel=1e-9)
    assert_close(plain, compiled, 1e-9)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # one for each resolution


# ---------------------------------------------------------------------------------------------------------------------
# On a GPU
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "tf32", "tolerance"),
    [("fp32", "false", 1e-3), ("fp32", "true", 0.01), ("bf16", "true", 0.02), ("fp16", "true", 0.01)],
)
@pytest.mark.parametrize("network", [VIT, RESNET], ids=["vit", "resnet18"])
def test_a_gpu_takes_the_cpus_steps(network: tuple[str, ...], precision: str, tf32: str, tolerance: float) -> None:
    settings = (*network, "method.head=batchnorm", "optim.base_lr=1e-4")
    cpu = trainer(*settings)
    gpu = trainer(*settings, f"efficiency.precision={precision}", f"efficiency.tf32={tf32}", device="cuda")
    assert steps(gpu)[::2] == pytest.approx(steps(cpu)[::2], rel=tolerance)  # losses
    torch.testing.assert_close(gpu.model.sizes.cpu(), cpu.model.sizes, rtol=0, atol=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("network", [VIT, RESNET], ids=["vit", "resnet18"])
def test_a_step_does_not_wait_for_a_gpu(network: tuple[str, ...]) -> None:
    one = trainer(*network, "efficiency.precision=bf16", "optim.clip=0.5", device="cuda")
    for number in (0, 1):
        one.step(batch_of(one, number), number)
    batch = batch_of(one, 2).pin_memory()
    with no_waiting_for_a_gpu():
        one.step(batch, 2)


@pytest.mark.gpu
def test_a_refused_step_moves_nothing_on_a_gpu() -> None:
    ill = trainer(*RESNET, "efficiency.precision=bf16", device="cuda")
    ill.step(batch_of(ill, 0), 0)
    ill.synchronize()
    before = everything(ill)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ill, "views", spoilt(ill.views))
        ill.step(batch_of(ill, 1), 1)
    with pytest.raises(NotFiniteError) as refusal:
        ill.step(batch_of(ill, 2), 2)
    assert refusal.value.step == 1
    for name, value in everything(ill).items():
        assert torch.equal(value, before[name]), name


@pytest.mark.gpu
@pytest.mark.parametrize("network", [VIT, RESNET], ids=["vit", "resnet18"])
def test_compiled_backbones_take_the_same_steps_on_a_gpu(network: tuple[str, ...]) -> None:
    settings = (*network, "method.head=batchnorm", "optim.base_lr=1e-4", "efficiency.precision=bf16")
    plain = trainer(*settings, device="cuda")
    compiled = trainer(*settings, device="cuda", prepare=lambda backbone: backbone.compile(dynamic=False))
    assert steps(plain)[::2] == pytest.approx(steps(compiled)[::2], rel=0.02)
    assert plain.model.state_dict().keys() == compiled.model.state_dict().keys()


@pytest.mark.gpu
def test_recomputing_saves_a_gpus_memory() -> None:
    used = []
    for prepare in (lambda _backbone: None, recompute_blocks):
        one = trainer("model.backbone=resnet50", "model.options={}", device="cuda", prepare=prepare)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        one.step(batch_of(one, 0, images=128), 0)
        used.append(torch.cuda.max_memory_allocated() - before)
    assert used[1] < 0.7 * used[0]
