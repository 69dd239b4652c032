"""The precision of `auto` on a device; a run keeps it, and TF32 reaches networks only and is gone after a step."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.errors import UserError
from excb.exact import exact_products
from excb.images.scanning import scan_folder
from excb.objective import table
from excb.pretrain import loop, precision
from excb.pretrain import step as step_module
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.precision import gpu_products, resolved
from excb.pretrain.recipe import EfficiencySettings, Recipe
from excb.pretrain.recipes import RECIPES
from excb.pretrain.run.remote_mirror import run_place
from excb.remote import object_store
from tests.faulty_store import FaultyStore
from tests.pretrain.small_runs import OVERRIDES, write_images
from tests.pretrain.test_step import batch_of, trainer

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
AUTO = Recipe(name="any").change(efficiency={"precision": "auto"})
CLUSTERS, WIDTH, HIDDEN = 13, 11, 17  # sizes that nothing else has


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, int]], None]:
    """Sets the compute capability of a GPU that is not there."""
    return lambda value: monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: value)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [((7, 0), "fp32"), ((7, 5), "fp32"), ((8, 0), "bf16"), ((8, 9), "bf16"), ((9, 0), "bf16"), ((12, 0), "bf16")],
)
def test_auto_is_bf16_from_ampere_on(
    capability: Callable[[tuple[int, int]], None], value: tuple[int, int], wanted: str
) -> None:
    capability(value)
    assert resolved(AUTO, CUDA).efficiency.precision == wanted
    for named in ("fp32", "bf16", "fp16", "fp64"):
        chosen = AUTO.change(efficiency={"precision": named})
        assert resolved(chosen, CUDA) is chosen
        assert resolved(AUTO, CUDA, begun=named).efficiency.precision == named


@pytest.mark.parametrize(
    ("recipe", "values", "wanted"),
    [
        ("photos_small", [], "bf16"),
        ("rn18_small", [], "bf16"),
        ("conv4_tiny", [], "fp32"),  # as fast
        ("rn10_tiny", [], "fp32"),  # views of which torch computes wrong numbers
        ("rn18_small", ["model.backbone=timm:mobilenetv2_100"], "fp32"),  # slower: depthwise
    ],
)
def test_auto_is_bf16_on_cpus_that_have_it_for_networks_that_are_faster_in_it(
    monkeypatch: pytest.MonkeyPatch, recipe: str, values: list[str], wanted: str
) -> None:
    settled = apply(find_recipe(recipe), [*values, "efficiency.precision=auto"])
    for capabilities in ({"avx512_bf16": True}, {"avx512_bf16": False, "amx_bf16": True}):
        monkeypatch.setattr(torch.cpu, "get_capabilities", capabilities.copy)
        assert resolved(settled, CPU).efficiency.precision == wanted
        assert resolved(settled, CPU, begun="fp32").efficiency.precision == "fp32"
    for capabilities in ({}, {"avx512_bf16": False, "amx_bf16": False}):
        monkeypatch.setattr(torch.cpu, "get_capabilities", capabilities.copy)
        assert resolved(settled, CPU).efficiency.precision == "fp32"


def test_views_that_the_backbone_cannot_take_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    vit = ["model.backbone=timm:vit_tiny_patch16_224", "views.global_size=50", "efficiency.precision=auto"]
    with pytest.raises(
        UserError, match=r"the backbone cannot take images of 50 x 50 pixels \(.*\): choose another size"
    ):
        resolved(apply(find_recipe("conv4_tiny"), vit), CPU)


def test_all_ranks_need_a_gpu_with_bf16(
    capability: Callable[[tuple[int, int]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    capability((9, 0))
    monkeypatch.setattr(precision, "gather_numbers", lambda own: torch.tensor([own, [False]]))
    assert resolved(AUTO, CUDA).efficiency.precision == "fp32"


def test_a_loss_backend_that_needs_another_precision_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.BACKENDS, "new", table.Backend("a_new_backend", precisions=("bf16",)))
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    recipe = AUTO.change(efficiency={"objective": "new"})
    with pytest.raises(UserError, match=r"efficiency\.objective=new needs efficiency\.precision=bf16"):
        resolved(recipe, CPU)


def test_recipes_of_ours_are_automatic_and_the_papers_are_not() -> None:
    ours = {
        "quickstart",
        "rn18_small",
        "photos_small",
        "photos",
        "adapt",
        "distil",
        "cifar10",
        "cifar10_small",
        "conv4_tiny",
        "rn10_tiny",
    }
    assert {name for name, make in RECIPES.items() if make().efficiency.precision == "auto"} == ours
    assert {make().efficiency.precision for name, make in RECIPES.items() if name not in ours} == {"fp32"}


# ---------------------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), each=3)


def pretrain(images: Path, out: Path | str, *overrides: str) -> list[str]:
    """Run the loop in this process for one epoch; the notes that it prints."""
    notes: list[str] = []
    reporter = Reporter(quiet=True)
    reporter.note = notes.append  # type: ignore[assignment, method-assign]
    recipe = apply(find_recipe("quickstart"), [*OVERRIDES, "optim.epochs=1", *overrides])
    assert recipe.efficiency.precision in ("auto", *(word.partition("=")[2] for word in overrides))
    place = run_place(str(out))
    assert loop.run_training(recipe, scan_folder(images), place, reporter, table=False, verdict=False) == 0
    return notes


def stored(out: Path) -> tuple[str, str]:
    """The precision in a run's recipe.json and in its newest checkpoint."""
    begun = json.loads((out / "recipe.json").read_text(encoding="utf-8"))
    kept = run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(out)[0])
    return begun["recipe"]["efficiency"]["precision"], kept["recipe"]["efficiency"]["precision"]


def test_a_run_stores_what_auto_was_and_keeps_it(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    pretrain(images, out)
    assert stored(out) == ("fp32", "fp32")
    other = tmp_path / "other"
    pretrain(images, other, "run.save_steps=1", "efficiency.precision=fp64")  # stands for what a GPU would choose
    (note,) = [note for note in pretrain(images, other) if "precision" in note]
    assert note.startswith("the run stays in fp64, in which it began, where efficiency.precision=auto would be fp32 on")
    assert stored(other) == ("fp64", "fp64")
    assert not any("precision" in note for note in pretrain(images, other, "efficiency.precision=fp32"))
    assert stored(other) == ("fp64", "fp64")  # a finished run keeps its own
    run_checkpoint.in_run(other)[0].unlink()
    pretrain(images, other, "run.save_steps=1", "efficiency.precision=fp32")
    assert stored(other) == ("fp32", "fp32")  # others may change it


def test_another_machine_keeps_it_too(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "PAUSES", (0.0, 0.0, 0.0))
    FaultyStore.reset()
    url = "faulty://bucket/run"
    try:
        for machine, overrides in (("one", ["efficiency.precision=fp64"]), ("two", [])):
            monkeypatch.setenv("EXCB_CACHE", str(tmp_path / machine))
            pretrain(images, url, *overrides)
            assert stored(run_place(url).folder) == ("fp64", "fp64")
    finally:
        FaultyStore.reset()


def test_a_run_that_was_refused_before_its_first_step_decides_nothing(images: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"recipe": {"efficiency": {"precision": "fp64"}}}')
    pretrain(images, tmp_path)
    assert stored(tmp_path) == ("fp32", "fp32")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"recipe": 1}', '{"recipe": {"efficiency": {"precision": "auto"}}}'])
def test_a_damaged_recipe_is_refused_as_such(images: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(UserError, match=r"recipe\.json is damaged"):
        pretrain(images, tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# TF32
# ---------------------------------------------------------------------------------------------------------------------

BACKENDS: Any = torch.backends


def settings() -> tuple[Any, ...]:
    """All that a run may set, by both of torch's interfaces."""
    newer = BACKENDS.cuda.matmul, BACKENDS.mkldnn.matmul, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn
    older: list[Any] = []
    for ask in (torch.get_float32_matmul_precision, lambda: BACKENDS.cudnn.allow_tf32):
        try:
            older.append(ask())
        except RuntimeError:
            older.append("not to be said")
    return *(each.fp32_precision for each in newer), *older, BACKENDS.cudnn.benchmark


@pytest.fixture
def as_before() -> Iterator[None]:
    """Torch's own settings before and after the test."""
    usual = settings()
    yield
    torch.set_float32_matmul_precision("highest")
    BACKENDS.cudnn.allow_tf32, BACKENDS.cudnn.benchmark = True, False
    names = BACKENDS.cuda.matmul, BACKENDS.mkldnn.matmul, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn
    for each, value in zip(names, usual[:4], strict=True):
        each.fp32_precision = value
    assert settings() == usual


def by_newer_interface() -> None:
    BACKENDS.cuda.matmul.fp32_precision = "tf32"
    BACKENDS.cudnn.conv.fp32_precision = "ieee"


def by_older_interface() -> None:
    torch.set_float32_matmul_precision("medium")
    BACKENDS.cudnn.allow_tf32 = False
    BACKENDS.cudnn.benchmark = True


@pytest.mark.parametrize("program", [lambda: None, by_newer_interface, by_older_interface])
@pytest.mark.parametrize(("tf32", "wanted"), [(True, "high"), (False, "highest")])
def test_a_program_gets_its_settings_back(
    as_before: None, program: Callable[[], None], tf32: bool, wanted: str
) -> None:
    program()
    before = settings()
    efficiency = EfficiencySettings(tf32=tf32, cudnn_benchmark=tf32)
    with gpu_products(efficiency, CPU):
        assert settings() == before
    with suppress(ZeroDivisionError), gpu_products(efficiency, CUDA):
        assert torch.get_float32_matmul_precision() == wanted
        assert (BACKENDS.cudnn.allow_tf32, BACKENDS.cudnn.benchmark) == (tf32, tf32)
        with exact_products(CPU):
            assert BACKENDS.cuda.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == wanted
        raise ZeroDivisionError
    assert settings() == before


class Products(TorchDispatchMode):
    """Records the shapes of every matrix product, whether it is of a backward pass, and how a GPU would multiply."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[tuple[tuple[int, ...], ...], bool, str]] = []

    def __torch_dispatch__(self, function: Any, _types: Any, inputs: Any = (), keywords: Any = None) -> Any:
        aten = torch.ops.aten
        if function.overloadpacket in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.mv, aten.addmv):
            shapes = tuple(tuple(each.shape) for each in inputs if isinstance(each, torch.Tensor))
            backward = torch._C._current_graph_task_id() != -1
            self.seen.append((shapes, backward, BACKENDS.cuda.matmul.fp32_precision))
        return function(*inputs, **(keywords or {}))


@pytest.mark.parametrize(
    "overrides",
    [
        ("efficiency.objective=chunked", "method.contrast=1", "method.regression=1"),
        ("efficiency.objective=plain",),
        ("method.balancing=sinkhorn",),
        ("method.balancing=mira",),
        ("method.balancing=centering",),
    ],
    ids=lambda overrides: overrides[0].partition("=")[2],
)
def test_networks_multiply_in_tf32_and_similarities_exactly(
    as_before: None, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_module, "gpu_products", lambda efficiency, _device: gpu_products(efficiency, CUDA))
    sizes = (f"method.clusters={CLUSTERS}", f"method.width={WIDTH}", f"method.hidden={HIDDEN}")
    one, before = trainer(*sizes, *overrides), settings()
    with Products() as products:
        one.step(batch_of(one, 0), 0)
    assert settings() == before
    images, views, globals_ = 8, 4, 2
    cosines = [  # NT-Xent's and BYOL's
        ((views * images, WIDTH), (WIDTH, globals_ * images)),
        ((images, views, WIDTH), (images, WIDTH, globals_)),
    ]
    exact, networks = set[str](), set[str]()
    for shapes, backward, how in products.seen:
        if backward and "efficiency.objective=plain" in overrides:
            continue  # autograd differentiates it, in TF32; the other backends compute gradients themselves
        decides = any(CLUSTERS in shape for shape in shapes) or (not backward and shapes in cosines)
        if decides:
            exact.add(how)
        elif any(HIDDEN in shape for shape in shapes):
            networks.add(how)
    assert (exact, networks) == ({"ieee"}, {"tf32"})
    found = {shapes for shapes, _, _ in products.seen}
    assert found.issuperset(cosines) == ("method.contrast=1" in overrides)
