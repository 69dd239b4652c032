"""Compiled backbones with recomputed blocks, in several processes, in every precision: one graph a network."""

import copy
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.backends.distributed import DDPOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion

from excb.errors import UserError
from excb.networks.activation_checkpointing import recompute_blocks
from excb.networks.architecture import Architecture
from excb.pretrain import step as step_module
from excb.pretrain.initialise import build_model
from excb.pretrain.overrides import apply, find_recipe
from tests.forked import launch
from tests.pretrain.compiled_steps import PRECISIONS, RESNET, VIT, compiled_by, compiled_step, matrix
from tests.pretrain.small_runs import OVERRIDES
from tests.pretrain.test_step import saved_bytes

pytestmark = pytest.mark.usefixtures("one_thread")

ROUNDING = {"fp64": 1e-9, "fp32": 1e-5, "bf16": 0.1, "fp16": 0.02}
NETWORKS = 2  # the student's and the teacher's


def assert_whole(
    rows: list[dict[str, Any]], precisions: tuple[str, ...], checkpointing: tuple[bool, ...] = (False, True)
) -> None:
    """Each network is one graph, and the step is that of networks that are not compiled."""
    assert [(row["precision"], row["checkpointing"]) for row in rows] == [*itertools.product(precisions, checkpointing)]
    for row in rows:
        assert (row["breaks"], row["graphs"]) == (0, NETWORKS), row
        (loss, norm), (plain_loss, plain_norm) = row["compiled"], row["plain"]
        assert loss == pytest.approx(plain_loss, rel=ROUNDING[row["precision"]])
        if math.isfinite(plain_norm):  # fp16's first steps overflow, until its scale is low enough
            assert norm == pytest.approx(plain_norm, rel=ROUNDING[row["precision"]])


def test_vits_in_one_process() -> None:
    assert_whole(matrix(VIT, PRECISIONS, "eager"), PRECISIONS)


def test_vits_in_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled in both; with recomputed blocks, a torch that may not is refused in one line."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert launch("tests.pretrain.compiled_steps", [str(tmp_path)], 2) == 0
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        assert_whole(found["stored"], PRECISIONS, (False,))
        if torch.__version__ < step_module.COMPILES_RECOMPUTED:
            assert re.fullmatch(
                r"torch \S+ may not compile recomputed blocks .*: install torch 2\.15 .*", found["refusal"]
            )
        else:
            assert_whole(found["recomputed"], PRECISIONS, (True,))


def test_graphs_are_split_for_gradients_that_travel_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DistributedDataParallel has a compiled network split at its buckets, also where blocks are recomputed."""
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 1024)
    splits: list[int] = []
    usual = DDPOptimizer.compile_fn

    def counted(optimizer: DDPOptimizer, *inputs: Any, **options: Any) -> Any:
        made = usual(optimizer, *inputs, **options)
        splits.append(len(optimizer.buckets))
        return made

    monkeypatch.setattr(DDPOptimizer, "compile_fn", counted)
    options = {"patch_size": 16, "embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 32}
    plain = Architecture("timm:vit_tiny_patch16_224", options).build().train()
    network, views = copy.deepcopy(plain), torch.randn(4, 3, 32, 32)
    recompute_blocks(network)
    with compiled_by("aot_eager"):
        network.compile(dynamic=False)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        DistributedDataParallel(nn.Sequential(network), bucket_cap_mb=0.01)(views).sum().backward()
    finally:
        dist.destroy_process_group()
    plain(views).sum().backward()
    assert min(splits) > 1
    assert not torch._dynamo.utils.counters["graph_break"]
    for ours, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_resnets_in_one_process() -> None:
    """Of the precisions, that without autocast and that with a gradient scale: the ViTs have all four."""
    # BatchNorm's statistics change in the graph, which torch's `eager` backend repeats as it is.
    backend = "aot_eager_decomp_partition"
    assert_whole(matrix(RESNET, ("fp32", "fp16"), backend, (True,)), ("fp32", "fp16"), (True,))
    assert_whole(matrix(RESNET, ("fp32",), backend, (False,)), ("fp32",), (False,))


def test_an_older_torch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "world_size", lambda: 2)
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.14.1+cu130"))
    small = (*OVERRIDES, *VIT, "efficiency.compile=true", "efficiency.checkpointing=true")
    recipe = apply(find_recipe("quickstart"), small)
    with pytest.raises(UserError, match=r"torch 2\.14\.1\+cu130 may not compile .*: install torch 2\.15 or newer"):
        step_module.prepare_model(build_model(recipe), recipe, torch.device("cpu"))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own look, where it goes on
def test_a_break_would_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from timm.models.vision_transformer import Block

    usual = Block.forward

    def broken(block: Block, rows: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return usual(block, rows)

    monkeypatch.setattr(Block, "forward", broken)
    assert compiled_step((*VIT, "efficiency.precision=fp32"), "eager", checkpointing=False)["breaks"] > 0


def test_compiled_networks_recompute_too() -> None:
    options = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 32}
    views, sizes = torch.randn(4, 3, 32, 32), []
    for recompute in (False, True):
        torch._dynamo.reset()
        network = Architecture("timm:vit_tiny_patch16_224", options).build().train()
        if recompute:
            recompute_blocks(network)
        with compiled_by("aot_eager_decomp_partition"):
            network.compile(dynamic=False)
        sizes.append(saved_bytes(lambda network=network: network(views)))  # type: ignore[misc]
    assert sizes[1] < 0.5 * sizes[0]
