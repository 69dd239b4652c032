"""Evaluation on a fake CUDA device: what waits is known by name, and devices never mix."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from excb.console import Reporter
from excb.features.precision import Precision
from excb.neighbours.nearest import nearest
from excb.transfer.dense.heads import linear as dense_linear
from excb.transfer.dense.heads.recipes import LinearRecipe
from excb.transfer.dense.patches import features as dense_features
from excb.transfer.detection.setup.samples import Loader
from excb.transfer.detection.torchvision.training import Training
from excb.transfer.finetuning import training
from excb.transfer.finetuning.training import Settings
from excb.transfer.instances.ranking import positions
from excb.transfer.linear.probe import Probe
from excb.transfer.probes.recipes import PROTOCOLS
from excb.transfer.task import Task
from tests.fake_cuda import CUDA, FakeCuda, fake_cuda
from tests.run_files import TINY_VIT, tiny_recipe, write_run
from tests.transfer.detection.tiny_detector import make_job, small_networks
from tests.transfer.labelled_images import write_folder
from tests.transfer.tiny_coco import write_coco

pytestmark = [
    pytest.mark.fake_cuda,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),  # copy.deepcopy does
]
# What the CPU may wait for, and why.
ALLOWED: dict[str, str] = {
    "torch.nn.modules.module:Module.to.<locals>.convert": "weights are copied to the GPU once",
    "excb.networks.backbone:weights_hash": "a checkpoint's identity, once",
    "excb.distributed.machine:start_copy.<locals>.wait": "a batch's features or a step's loss, while the next runs",
    "excb.transfer.probes.heads:HeadBank.__init__": "the first weights, once",
    "excb.transfer.probes.heads:HeadBank._chunks": "features to score, thousands of rows at once",
    "excb.transfer.probes.heads:HeadBank.score": "the scores of these",
    "excb.transfer.probes.heads:HeadBank.top.<locals>.<listcomp>": "predictions for these",
    "excb.transfer.probes.heads:HeadBank.finite": "a run's figures, once",
}
QUIET = Reporter(quiet=True)

# The exact search decides by values which rows are left to compare, a block of queries at a time.
SEARCH = ALLOWED | dict.fromkeys(
    (
        "excb.neighbours.unit_rows:UnitRows.__init__",
        "excb.neighbours.unit_rows:UnitRows.raw_span",
        "excb.neighbours.unit_rows:UnitRows.raw",
        "excb.neighbours.centring:Centre.rows",
        "excb.neighbours.centring:_longest",
        "excb.neighbours.proposals:_sample",
        "excb.neighbours.proposals:propose_with_torch",
        "excb.neighbours.proposals:_Table._above_floor",
        "excb.neighbours.proposals:_Table.add",
        "excb.neighbours.search:Search.run",
        "excb.neighbours.search:Search._narrow",
        "excb.neighbours.search:Search._quick",
        "excb.neighbours.search:Search._compare",
        "excb.neighbours.nearest:_search",
    ),
    "how much there is to compare",
)


# What torchvision's Mask R-CNN asks the GPU for, most of it once an image. Our part asks for one thing an image.
DETECTION = {
    **dict.fromkeys(
        (
            "torchvision.models.detection._utils:BoxCoder.decode_single",
            "torchvision.models.detection._utils:BoxCoder.encode_single",
            "torchvision.ops.boxes:_batched_nms_coordinate_trick",
        ),
        "a few numbers from the CPU",
    ),
    **dict.fromkeys(
        (
            "torchvision.models.detection.rpn:RegionProposalNetwork.filter_proposals",
            "torchvision.ops.boxes:nms",
            "torchvision.ops.boxes:remove_small_boxes",
        ),
        "which proposals are kept",
    ),
    **dict.fromkeys(
        (
            "torchvision.models.detection._utils:BalancedPositiveNegativeSampler.__call__",
            "torchvision.models.detection._utils:Matcher.set_low_quality_matches_",
            "torchvision.models.detection.roi_heads:RoIHeads.subsample",
            "torchvision.models.detection.rpn:RegionProposalNetwork.compute_loss",
        ),
        "which anchors and proposals are sampled",
    ),
    "torchvision.models.detection.roi_heads:fastrcnn_loss": "which regions are of an object",
    "excb.transfer.detection.torchvision.heads:SharedHeads._losses.<locals>.<listcomp>": "the same",
    "excb.distributed.machine:start_copy.<locals>.wait": "a step's losses, in the next step",
}
FPN = DETECTION | {
    "torchvision.ops.poolers:_multiscale_roi_align": "which level a region is of",
    "torchvision.models.detection.roi_heads:RoIHeads.forward": "which regions are of an object",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("evaluation")
    for name, model in (("resnet", None), ("vit", TINY_VIT)):
        write_run(place / name, 5, recipe=tiny_recipe(model, eval_resize=48, eval_crop=48))
    for name in ("train", "test"):
        write_folder(place / name, each=3)
    return place


def prepare(cuda: FakeCuda, place: Path, network: str = "resnet", precision: Precision = "fp32") -> Task:
    task = Task.prepare(str(place / network), place / "train", place / "test", device="cuda", batch=4, workers=0)
    task = replace(task, precision=precision)  # fake features have no values to check
    cuda.reset()
    return task


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("network", ["resnet", "vit"])
def test_features_are_read_back_while_the_next_batch_runs(place: Path, network: str, precision: Precision) -> None:
    with fake_cuda() as cuda:
        task = prepare(cuda, place, network, precision)
        rows, _ = task.features(task.train, "train", QUIET)
    assert len(rows) == len(task.train)
    assert cuda.record.unexpected(ALLOWED) == {}


class TenViews:
    """Patches of ten views of 2 x 2 in place of stored ones."""

    width, whole, chosen = 8, torch.ones(40, 8), np.arange(40)

    def __len__(self) -> int:
        return 40

    def rows(self, start: int, stop: int) -> Tensor:
        return self.whole[start:stop]

    def view(self, view: int) -> Tensor:
        return self.rows(4 * view, 4 * view + 4)


@pytest.mark.parametrize("loss", ["patches", "pixels"])
def test_a_step_of_a_dense_head_waits_for_nothing(loss: Literal["patches", "pixels"]) -> None:
    labels = SimpleNamespace(classes=3, shares=lambda chosen: torch.ones(len(chosen), 3) / 3)
    memory: Any = SimpleNamespace(patches=TenViews(), labels=labels)
    views: Any = SimpleNamespace(mask=lambda _view: np.zeros((32, 32), np.uint8))
    recipe = LinearRecipe(lr=0.1, weight_decay=0.0, schedule="cosine", input="batchnorm", loss=loss, batch=8, steps=3)
    grid = dense_features.Grid(height=2, width=2, channels=8, stride=16)
    with fake_cuda() as cuda:
        head = dense_linear.LinearHead(torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)).to(CUDA)
        cuda.reset()
        dense_linear._train(head, memory, views, grid, recipe, seed=0, device=CUDA, progress=lambda _done: None)
    assert cuda.record.waits == {}


@pytest.mark.parametrize(("rows", "k"), [(32, 5), (8192, 1)])
def test_neighbours_wait_for_blocks_of_queries_never_for_single_ones(rows: int, k: int) -> None:
    with fake_cuda() as cuda:
        nearest(torch.ones(rows, 16), torch.ones(64, 16), k, backend="torch", device="cuda")
    assert cuda.record.unexpected(SEARCH) == {}
    assert sum(cuda.record.waits.values()) < 64


def test_ranks_wait_for_blocks_of_queries_never_for_single_ones() -> None:
    judged = [np.arange(query % 5) for query in range(64)]
    with fake_cuda() as cuda:
        positions(torch.ones(1000, 16), torch.ones(64, 16), judged, device=torch.device("cuda"))
    allowed = dict.fromkeys(
        ("excb.neighbours.unit_rows:UnitRows.__init__", "excb.neighbours.unit_rows:UnitRows.raw_span"),
        "rows, span by span",
    ) | dict.fromkeys(
        (
            "excb.neighbours.unit_rows:UnitRows.raw",
            "excb.transfer.instances.ranking:_judged_keys.<locals>.<genexpr>",
            "excb.transfer.instances.ranking:positions",
        ),
        "which images are judged, and their ranks, a block of queries at a time",
    )
    assert cuda.record.unexpected(allowed) == {}
    assert sum(cuda.record.waits.values()) < 64


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("network", ["resnet", "vit"])
def test_fine_tuning_reads_a_loss_while_the_next_step_runs(
    place: Path, network: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(backbone_lr=0.1, head_lr=0.1, epochs=2, batch=8, precision=cast(Any, precision))
    order: list[str] = []
    reading, step = training._Training._reading, torch.optim.SGD.step

    def noted(*arguments: Any) -> Callable[[], float]:
        read = reading(*arguments)

        def noted_read() -> float:
            order.append(f"read {arguments[2]}")
            return read()

        return noted_read

    def stepped(optimizer: torch.optim.SGD) -> Any:
        order.append("step")
        return step(optimizer)

    monkeypatch.setattr(training._Training, "_reading", noted)
    monkeypatch.setattr(torch.optim.SGD, "step", stepped)
    with fake_cuda() as cuda:
        task = prepare(cuda, place, network)
        training.finetune(task, np.arange(len(task.train)), settings, seed=0, reporter=QUIET)
    assert cuda.record.unexpected(ALLOWED) == {}
    epoch = -(-len(task.train) // settings.batch)
    assert epoch > 1
    wanted: list[str] = []
    for number in range(2 * epoch):
        wanted += ["step"] if number % epoch == 0 else ["step", f"read {number - 1}"]
        wanted += [f"read {number}"] if (number + 1) % epoch == 0 else []
    assert order == wanted


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize(("architecture", "allowed", "waits"), [("c4", DETECTION, 15), ("fpn", FPN, 19)])
def test_detection_waits_where_torchvision_counts_boxes(
    tmp_path: Path, architecture: str, allowed: dict[str, str], waits: int, precision: str
) -> None:
    """Never for a loss before the next step runs, nor for images. The number is that of an image and a step."""
    with small_networks():
        job = make_job(write_coco(tmp_path / "coco"), tmp_path, architecture=architecture, precision=precision)
        batch = next(iter(Loader(job.train, job.settings)))
        with fake_cuda() as cuda:
            training = Training(replace(job, device=CUDA))
            read = training.step(batch, 0)
            cuda.reset()
            training.step(batch, 1)
            read()
    assert cuda.record.unexpected(allowed) == {}
    assert sum(cuda.record.waits.values()) <= waits * len(batch)


@pytest.mark.parametrize("name", ["resnet", "simsiam", "fast"])
def test_linear_heads_train_without_waits(place: Path, name: str) -> None:
    plan = replace(PROTOCOLS[name], epochs=2, batch=8, lr=(0.1, 0.3))
    with fake_cuda() as cuda:
        probe = Probe(prepare(cuda, place), QUIET, plan, select="holdout", seed=0)
        if plan.augmented:
            probe.through_backbone(None)
        else:
            probe.on_features()
    assert cuda.record.unexpected(SEARCH) == {}  # the vote of neighbours beside the heads, once they are trained
