"""All teachers together: heads, weights and means against the loops, and where gradients reach."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from excb.method import ExCB
from excb.pretrain.distil.distillation import Distillation, TeacherHead
from excb.pretrain.distil.interface import Targets
from excb.pretrain.distil.settings import DistilSettings
from excb.pretrain.distil.statistics import Statistics
from excb.pretrain.distil.teachers import Teacher, ViewTargets
from excb.pretrain.initialise import build_model
from excb.pretrain.recipe import Recipe
from tests.pretrain.distil import cases, loops, taught

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTHS = 5, 7  # of two teachers
FEATURES = 6  # of the student
ALL = {"features": 1.0, "similarities": 0.5, "assignments": 0.25}
IMAGES = 4


def distillation(settings: DistilSettings, *, maps: tuple[int, int] | None = None) -> Any:
    """Of two teachers, in float64, started with random rows; its weights are large enough to matter."""
    torch.manual_seed(0)
    heads = [
        TeacherHead(settings, width=FEATURES, teacher_width=width, map_widths=maps, style="gelu") for width in WIDTHS
    ]
    made = Distillation(settings, heads, globals_=cases.GLOBALS, views=cases.VIEWS).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(20)
    for number, head in enumerate(heads):
        sample = 1 + cases.random(30, WIDTHS[number], seed=30 + number)
        cells = 1 + cases.random(50, maps[1], seed=40 + number) if maps else None
        head.start(sample, cells, seed=0)
    return made


def rows_of(count: int) -> list[Targets]:
    return [Targets(1 + cases.random(count, IMAGES, width, seed=20 + width)) for width in WIDTHS]


@cases.every_way
@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_the_loss_is_the_weighted_sum_of_means_over_teachers(sees: str, head: str) -> None:
    settings = cases.settings(**ALL, teacher_sees=sees, head=head, hidden=9, clusters=4, queue=3, samples=30)
    made, features = distillation(settings), cases.random(cases.VIEWS, IMAGES, FEATURES)
    targets = rows_of({"image": 1, "view": cases.VIEWS, "other_view": cases.GLOBALS}[sees])
    weights = cases.weights(sees)
    found = made(features, [], targets)

    terms: dict[str, list[Tensor]] = {name: [] for name in ALL}
    for one, wanted in zip(made.heads, targets, strict=True):
        predicted = [[one.rows(row[None])[0] for row in view] for view in features]
        assert wanted.rows is not None
        unit = [[one.statistics(row) for row in view] for view in wanted.rows]
        terms["features"].append(loops.features(predicted, unit, weights, kind="cosine"))
        taus = {"tau_t": 0.3, "tau_s": 0.5}
        queue = list(one.objectives["similarities"].queue)
        terms["similarities"].append(loops.similarities(predicted, unit, weights, queue, **taus))
        clusters = one.objectives["assignments"]
        sizes = clusters.sizes.tolist()
        terms["assignments"].append(loops.assignments(predicted, unit, weights, clusters.centroids, sizes, **taus)[0])
    means = {name: sum(values) / len(WIDTHS) for name, values in terms.items()}
    assert found.terms.keys() == ALL.keys()
    for name, mean in means.items():
        torch.testing.assert_close(found.terms[name], mean, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.loss, sum(ALL[name] * mean for name, mean in means.items()), rtol=1e-8, atol=1e-9)


def test_a_batch_updates_each_teachers_own_queue_and_sizes() -> None:
    made = distillation(cases.settings(**ALL, clusters=4, queue=3, samples=30))
    found = made(cases.random(cases.VIEWS, IMAGES, FEATURES), [], rows_of(1))
    before = {name: value.clone() for name, value in made.named_buffers()}
    made.update(found.pending)
    for number, (head, wanted) in enumerate(zip(made.heads, rows_of(1), strict=True)):
        assert wanted.rows is not None
        torch.testing.assert_close(head.objectives["similarities"].queue, head.statistics(wanted.rows)[0][:3])
        winners = found.pending[f"{number}.assignments"].flatten().tolist()
        counted = [winners.count(k) / len(winners) for k in range(4)]
        sizes = before[f"heads.{number}.objectives.assignments.sizes"]
        wanted_sizes = [0.99 * float(s) + 0.01 * c for s, c in zip(sizes, counted, strict=True)]
        assert head.objectives["assignments"].sizes.tolist() == pytest.approx(wanted_sizes)


@pytest.mark.parametrize("distance", ["cosine", "squared"])
def test_maps_of_both_resolutions_are_compared_cell_by_cell(distance: str) -> None:
    settings = cases.settings(maps=2.0, teacher_sees="view", distance=distance, statistics="whitened")
    made = distillation(settings, maps=(3, 5))
    mine = [cases.random(2, IMAGES, 3, 2, 2, seed=50), cases.random(1, IMAGES, 3, 4, 4, seed=51)]
    theirs = [
        Targets(
            None, (1 + cases.random(2, IMAGES, 5, 4, 4, seed=60 + n), 1 + cases.random(1, IMAGES, 5, 2, 2, seed=70 + n))
        )
        for n in range(2)
    ]
    found = made(cases.random(cases.VIEWS, IMAGES, FEATURES), mine, theirs)

    losses = []
    for head, wanted in zip(made.heads, theirs, strict=True):
        assert wanted.maps is not None
        coarse = torch.stack([torch.stack([loops.averaged(each, 2, 2) for each in view]) for view in wanted.maps[0]])
        fine = torch.stack([torch.stack([loops.bilinear(each, 4, 4) for each in view]) for view in wanted.maps[1]])
        total = torch.zeros((), dtype=torch.float64)
        for part, cells in zip(mine, (coarse, fine), strict=True):
            kernel, bias = head.cells.weight[..., 0, 0], head.cells.bias
            predicted = (torch.einsum("oc,vbchw->vbohw", kernel, part) + bias[:, None, None]).detach()
            unit = head.map_statistics(cells.movedim(2, -1)).movedim(-1, 2)
            total = total + loops.maps(predicted, unit, [1 / cases.VIEWS] * len(part), kind=distance)
        losses.append(total)
    mean = torch.stack(losses).sum() / 2
    torch.testing.assert_close(found.terms["maps"].detach(), mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.loss.detach(), 2 * mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["features", "similarities", "assignments"])
@pytest.mark.parametrize("distance", ["cosine", "squared"])
def test_an_image_that_the_teacher_could_not_read_teaches_nothing(name: str, distance: str) -> None:
    made = distillation(cases.settings(**{name: 1.0}, distance=distance, clusters=4, queue=3, samples=30))
    features = cases.random(cases.VIEWS, IMAGES, FEATURES).requires_grad_()
    targets = rows_of(1)
    for each in targets:
        assert each.rows is not None
        each.rows[:, 2] = 0
    (gradient,) = torch.autograd.grad(made(features, [], targets).loss, features)
    assert not gradient[:, 2].any()
    assert bool(gradient[:, [0, 1, 3]].any(-1).all())


def test_rows_are_not_needed_to_start_where_there_are_no_statistics() -> None:
    """Of every view, without statistics and clusters, no image passes before training: the queue starts empty."""
    settings = cases.settings(features=1.0, similarities=1.0, queue=3, statistics="none", teacher_sees="view")
    head: Any = TeacherHead(settings, width=FEATURES, teacher_width=5, map_widths=None, style="gelu")
    head.start(torch.empty(0, 0), None, seed=0)
    assert not head.objectives["similarities"].queue.any()


def test_a_head_is_linear_or_has_one_hidden_layer_of_the_students_style() -> None:
    def kinds(head: str, style: Any) -> list[str]:
        settings = cases.settings(features=1.0, head=head, hidden=9)
        made = TeacherHead(settings, width=FEATURES, teacher_width=5, map_widths=None, style=style)
        assert made.rows is not None
        return [type(module).__name__ for module in made.rows]

    assert kinds("linear", "batchnorm") == ["Linear"]
    assert kinds("mlp", "batchnorm") == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert kinds("mlp", "gelu") == ["Linear", "GELU", "Linear"]


@pytest.mark.parametrize("name", ["features", "similarities", "assignments"])
def test_the_loss_by_chance_is_that_of_a_student_that_says_nothing(name: str) -> None:
    """Of a full queue, whose rows are keys as those of the batch's other images are."""
    made = distillation(cases.settings(**{name: 1.0}, clusters=4, queue=3, samples=30))
    for head in made.heads:
        with torch.no_grad():
            for parameter in head.rows.parameters():
                parameter.zero_()
    found = made(cases.random(cases.VIEWS, IMAGES, FEATURES), [], rows_of(1)).loss
    (one, _) = made.heads
    assert found.item() == pytest.approx(one.objectives[name].chance(one.objectives[name].settings, IMAGES), rel=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# In a whole model
# ---------------------------------------------------------------------------------------------------------------------

ON = (
    "distil.features=1",
    "distil.similarities=1",
    "distil.assignments=1",
    "distil.queue=3",
    "distil.teacher_sees=view",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two teachers of different widths and input sizes."""
    folder = tmp_path_factory.mktemp("teachers")
    return [
        taught.write_teacher(folder, taught.CONV, name="conv.pt"),
        taught.write_teacher(folder, taught.RESNET, seed=2, crop=48, name="resnet.pt"),
    ]


def model_and_loss(recipe: Recipe, files: list[Path]) -> tuple[ExCB, Any, list[Teacher]]:
    """A student after one pass of random views, and what the pass returned."""
    several = taught.teachers(recipe.distil, *map(taught.load, files), dtype=torch.float64)
    model = taught.student(recipe, several)
    views = recipe.views
    source = ViewTargets(several, recipe.distil, mean=views.mean, std=views.std, device=torch.device("cpu"))
    seen = [part for part in taught.views_of(recipe, IMAGES) if part is not None]
    for head, teacher in zip(distillation_of(model).heads, several, strict=True):
        rows = torch.randn(20, teacher.width, generator=torch.Generator().manual_seed(1))
        cells = None if teacher.map_width is None else torch.randn(20, teacher.map_width)
        head.start(rows.double(), cells, seed=0)
    keys = torch.arange(IMAGES)
    step = model(*taught.views_of(recipe, IMAGES), step_key=1, sample_keys=keys, targets=source(keys, seen))
    return model, step, several


def distillation_of(model: ExCB) -> Any:
    """The part that learns from teachers."""
    return model.student.distillation


def without_gradient(module: nn.Module) -> set[str]:
    return {name for name, one in module.named_parameters() if one.grad is None or not one.grad.any()}


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("network", ["CONV", "RESNET", "VIT"])
def test_gradients_reach_backbone_and_heads_and_nothing_else(network: str, head: str, files: list[Path]) -> None:
    local = 32 if network == "VIT" else 16
    more = ("distil.maps=1", f"distil.head={head}", "views.local_views=1", f"views.local_size={local}")
    recipe = taught.recipe(*ON, *more, model=getattr(taught, network))
    model, step, several = model_and_loss(recipe, files)
    step.loss.backward()
    student = model.student
    # A bias in front of BatchNorm changes nothing.
    lost = {name for name in without_gradient(student.backbone) if "bias" not in name}
    assert not lost
    heads = distillation_of(model).heads
    assert {name for name in without_gradient(heads) if not name.endswith("rows.0.bias")} == set()
    for still in (student.projector, student.centroids, model.teacher, *(each.backbone for each in several)):
        assert all(one.grad is None for one in still.parameters())
    assert (step.clusters, step.contrast, step.regression) == (None, None, None)
    torch.testing.assert_close(step.loss, step.distilled.loss)


def test_the_methods_own_losses_stand_beside(files: list[Path]) -> None:
    more = (*ON, "method.clustering=true", "method.contrast=0.5", "method.predictor=true", "views.global_views=2")
    recipe = taught.recipe(*more)
    model, step, _ = model_and_loss(recipe, files)
    own = step.clusters.loss + 0.5 * step.contrast
    torch.testing.assert_close(step.loss, own + step.distilled.loss)
    step.loss.backward()
    assert not {name for name in without_gradient(model.student.projector) if "bias" not in name}
    assert not without_gradient(model.student.centroids)


def test_all_parameters_have_gradients_where_a_network_has_layers_behind_its_last_map(files: list[Path]) -> None:
    """DistributedDataParallel waits for the gradient of every parameter that wants one."""
    recipe = taught.recipe("distil.features=0", "distil.maps=1", "distil.teacher_sees=view", model=taught.CONVNEXT)
    model, step, _ = model_and_loss(recipe, files)
    step.loss.backward()
    assert [name for name, one in model.named_parameters() if one.requires_grad and one.grad is None] == []


def test_the_state_dict_holds_the_backbone_once_and_restores_everything(files: list[Path]) -> None:
    recipe = taught.recipe(*ON, "distil.maps=1")
    model, step, several = model_and_loss(recipe, files)
    model.update(None, 0.9, step.distilled)
    state = model.state_dict()
    backbone = model.student.backbone.state_dict()
    assert {name for name in state if name.startswith("student.")} == {
        f"student.{part}.{name}"
        for part in ("backbone", "projector", "centroids", "distillation")
        for name in getattr(model.student, part).state_dict()
    }
    places = [value.data_ptr() for name, value in state.items() if name.startswith("student.") and value.numel()]
    assert len(places) == len(set(places)) >= len(backbone)
    assert not any("teacher_networks" in name or "blocks.network" in name for name in state)
    other = taught.student(recipe.change(run={"seed": 9}), several)
    other.load_state_dict(state)
    assert all(torch.equal(value, state[name]) for name, value in other.state_dict().items())


def test_other_weights_do_not_depend_on_the_teachers(files: list[Path]) -> None:
    recipe = taught.recipe(*ON)
    taught_student = taught.student(recipe, taught.teachers(recipe.distil, taught.load(files[0])), dtype=torch.float32)
    alone = build_model(recipe).state_dict()
    state = taught_student.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in alone.items())
    assert {name.split(".")[1] for name in state.keys() - alone.keys()} == {"distillation"}


def test_statistics_of_maps_are_those_of_cells(files: list[Path]) -> None:
    recipe = taught.recipe(
        "distil.features=0", "distil.maps=1", "distil.teacher_sees=view", "distil.statistics=whitened"
    )
    several = taught.teachers(recipe.distil, taught.load(files[0]))
    model = taught.student(recipe, several)
    cells = 2 + cases.random(60, 12, seed=3)
    (head,) = distillation_of(model).heads
    head.start(torch.empty(0, 0), cells, seed=0)
    wanted = Statistics(12, "whitened", floor=0.1).double()
    wanted.start(cells)
    assert torch.equal(head.map_statistics(cells), wanted(cells))
    assert head.statistics is None
