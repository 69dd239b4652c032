"""Frozen teachers in a plan, against networks that really pass: FLOPs, memory, bytes sent and kept, and messages."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import excb
from excb import method
from excb.console import Reporter
from excb.errors import UserError
from excb.images.scanning import scan_folder
from excb.options import field_types
from excb.pretrain.__main__ import main
from excb.pretrain.distil import similarities
from excb.pretrain.distil.interface import Targets
from excb.pretrain.distil.kept import BATCH, features_of_teacher
from excb.pretrain.distil.teachers import Teacher, ViewTargets
from excb.pretrain.initialise import build_model
from excb.pretrain.overrides import find_recipe, value_of_text
from excb.pretrain.plan import frozen_teachers
from excb.pretrain.plan import plan as planning
from excb.pretrain.plan.flops import communication, count
from excb.pretrain.plan.memory import step_memory
from excb.pretrain.plan.speed import build_trainer, random_batch
from excb.pretrain.plan.trace import Alive, tensors_of, trace_step
from excb.pretrain.recipe import Recipe
from excb.references.untrained import evenly_spread
from tests.pretrain.distil import taught
from tests.pretrain.small_runs import write_images

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
# Of taught.CONV at 40 pixels, whose maps have 20, 20, 10 and 5 cells a side before pooling.
CONV_AT_40 = 2 * 9 * (3 * 6 * 20**2 + 6 * 8 * 20**2 + 8 * 8 * 10**2 + 8 * 12 * 5**2)
VIEW, OTHER = "distil.teacher_sees=view", "distil.teacher_sees=other_view"
TWO, LOCAL = "views.global_views=2", "views.local_views=3"
EVERYTHING = ("distil.similarities=1", "distil.assignments=1", "distil.queue=7", "distil.statistics=whitened")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two teachers of other widths, for images of other sizes."""
    folder = tmp_path_factory.mktemp("teachers")
    conv = taught.write_teacher(folder, taught.CONV, name="conv.pt")
    return [str(conv), str(taught.write_teacher(folder, taught.VIT, crop=32, name="vit.pt"))]


def with_teachers(files: list[str], *values: str, model: dict[str, Any] = taught.CONV) -> tuple[Recipe, list[Teacher]]:
    recipe = taught.recipe(f"distil.teachers={','.join(files)}", *values, model=model)
    return recipe, frozen_teachers.frozen_teachers_of(recipe)


def views_of(recipe: Recipe, images: int) -> list[Tensor]:
    views = recipe.views
    sizes = [(views.global_views, views.global_size), (views.local_views, views.local_size)]
    return [torch.randn(number, images, 3, side, side) for number, side in sizes if number]


def random_targets(teacher: Teacher, images: int) -> Targets:
    return Targets(torch.randn(1, images, teacher.width))


def targets_of(recipe: Recipe, teachers: list[Teacher], views: list[Tensor]) -> list[Targets]:
    """The teachers' targets for every view, or random rows in place of those for images."""
    images = views[0].shape[1]
    if recipe.distil.teacher_sees == "image":
        return [random_targets(each, images) for each in teachers]
    source = ViewTargets(teachers, recipe.distil, mean=recipe.views.mean, std=recipe.views.std, device=CPU)
    return source(torch.arange(images), views)


def loss_of(model: Any, views: list[Tensor], targets: list[Any]) -> Tensor:
    loss: Tensor = model(*views, step_key=1, targets=targets).loss
    return loss


def test_products_of_an_input_are_those_of_its_layers(files: list[str]) -> None:
    recipe, teachers = with_teachers(files[:1])
    report = frozen_teachers.teachers_report(recipe, teachers, images=50)
    assert report is not None
    (row,) = report["networks"]
    weights = 9 * (3 * 6 + 6 * 8 + 8 * 8 + 8 * 12) + 2 * (6 + 8 + 8 + 12)
    assert (row["flops"], row["parameters"], row["input"], row["width"]) == (CONV_AT_40, weights, 40, 12)
    assert report["once"]["flops"] == 50 * CONV_AT_40
    larger = frozen_teachers.teachers_report(*with_teachers(files[:1], "distil.teacher_size=80"), images=50)
    assert larger is not None
    assert larger["networks"][0]["flops"] == 4 * CONV_AT_40


@pytest.mark.parametrize(
    ("values", "passes"),
    [((TWO, LOCAL), 0), ((VIEW, TWO, LOCAL), 5), ((OTHER, TWO, LOCAL), 2), ((VIEW,), 1)],
)
def test_a_step_has_a_pass_for_every_view_that_is_seen(files: list[str], values: tuple[str, ...], passes: int) -> None:
    recipe, teachers = with_teachers(files, *values)
    report = frozen_teachers.teachers_report(recipe, teachers, images=50)
    assert report is not None
    of_one = sum(row["flops"] for row in report["networks"])
    counts = count(recipe, teachers)
    assert (report["views"], counts.flops.frozen_teachers) == (passes, passes * of_one)
    assert counts.flops.image == counts.flops.student + counts.flops.frozen_teachers


@pytest.mark.parametrize(
    ("values", "model"),
    [
        ((), taught.CONV),
        ((TWO, LOCAL, "distil.head=linear"), taught.VIT),
        ((VIEW, TWO, *EVERYTHING), taught.CONV),
        ((OTHER, TWO, "distil.similarities=1"), taught.CONV),
        ((VIEW, LOCAL, "distil.maps=1"), taught.CONV),
        ((VIEW, "distil.maps=1"), taught.VIT),
        ((VIEW, "distil.maps=1"), taught.CONV),
    ],
)
def test_products_of_a_student_and_its_heads_are_those_of_a_real_pass(
    files: list[str], values: tuple[str, ...], model: dict[str, Any]
) -> None:
    recipe, teachers = with_teachers(files, *values, model=model)
    student, images = build_model(recipe, teachers).train(), recipe.optim.batch
    views = views_of(recipe, images)
    targets = targets_of(recipe, teachers, views)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss_of(student, views, targets).backward()
    counts = count(recipe, teachers)
    assert counts.flops.student == counter.get_total_flops() // images
    assert (counts.flops.teacher, counts.flops.loss_head) == (0, 0)
    assert sum(counts.parameters["student"].values()) == sum(value.numel() for value in student.student.parameters())
    assert counts.parameters["student"]["distillation"] > counts.parameters["teacher"]["distillation"] == 0
    assert counts.trained == sum(value.numel() for value in student.parameters() if value.grad is not None)


@pytest.mark.parametrize("values", [("optim.optimizer=sgd",), (VIEW, TWO, *EVERYTHING), (VIEW, "distil.maps=1")])
def test_what_stays_in_memory_is_what_a_trainer_holds(files: list[str], values: tuple[str, ...]) -> None:
    recipe, teachers = with_teachers(files, *values)
    counted = step_memory(recipe, 8, trace_step(recipe, teachers))
    trainer = build_trainer(recipe, CPU, teachers)
    trainer.step(random_batch(recipe, 8), 0)
    student = trainer.model.student
    frozen = [each for teacher in teachers for each in (*teacher.backbone.parameters(), *teacher.backbone.buffers())]
    assert counted.frozen_teachers == sum(each.nbytes for each in frozen)
    assert counted.weights == sum(each.nbytes for each in student.parameters())
    assert counted.gradients == sum(each.grad.nbytes for each in student.parameters() if each.grad is not None)
    states = [value for state in trainer.optimizer.state.values() for value in state.values() if value.ndim]
    assert counted.optimizer == sum(each.nbytes for each in states)
    held = sum(each.nbytes for each in trainer.model.buffers())
    unsaved = 2 * trainer.model.sizes.nbytes  # of s and of the pairs, whose fakes are as long
    assert counted.buffers == pytest.approx(2 * held, abs=unsaved)
    assert counted.loss_head == 0


@pytest.mark.parametrize("values", [(), (VIEW, TWO), (VIEW, "distil.maps=1")])
def test_a_pass_holds_what_is_counted(files: list[str], values: tuple[str, ...]) -> None:
    recipe, teachers = with_teachers(files, *values)
    model, views = build_model(recipe, teachers).train(), views_of(recipe, 8)
    networks = [model, *(each.backbone for each in teachers)]
    weights = [tensor for network in networks for tensor in tensors_of(network)]
    for parameter in model.student.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gradients = [each.grad for each in model.student.parameters() if each.grad is not None]
    with Alive(each.untyped_storage() for each in (*weights, *gradients, *views)) as alive:
        loss_of(model, views, targets_of(recipe, teachers, views)).backward()
    counted = step_memory(recipe, 8, trace_step(recipe, teachers))
    assert counted.activations + counted.passing == pytest.approx(alive.highest, rel=0.02)


def test_the_pass_before_training_holds_what_is_counted(files: list[str]) -> None:
    recipe, teachers = with_teachers(files[:1])
    backbone = teachers[0].backbone
    weights = tensors_of(backbone)
    with torch.no_grad(), Alive(each.untyped_storage() for each in weights) as alive:
        backbone(torch.randn(BATCH, 3, 40, 40))
    counted = frozen_teachers.pass_memory(recipe, teachers)
    assert counted == sum(each.nbytes for each in weights) + alive.highest
    without = with_teachers(files[:1], VIEW, "distil.statistics=none")
    assert frozen_teachers.pass_memory(*without) == 0  # there is no such pass


@pytest.mark.parametrize("queue", [0, 7])
def test_processes_send_rows_and_sizes_as_counted(
    files: list[str], queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, teachers = with_teachers(files, "distil.similarities=1", "distil.assignments=1", f"distil.queue={queue}")
    model, views = build_model(recipe, teachers).train(), views_of(recipe, recipe.optim.batch)
    counts = count(recipe, teachers)
    rows, sizes = list[int](), list[int]()

    def gather(tensor: Tensor) -> Tensor:
        rows.append(tensor.nbytes)
        return tensor

    def mean(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    monkeypatch.setattr(similarities, "gather_rows", gather)
    monkeypatch.setattr(method, "mean_over_ranks", mean)
    targets = [random_targets(each, recipe.optim.batch) for each in teachers]
    output = model(*views, step_key=1, targets=targets)
    model.update(None, 0.9, output.distilled)
    # Of two processes, each sends its half of the rows, and once what is summed.
    sent = communication(recipe, counts, 2)
    assert sent.distillation == sum(rows) / 2 + sum(sizes)
    assert sent.gradients == 4 * counts.trained
    assert communication(recipe, counts, 1).total == 0


@pytest.mark.parametrize(
    ("values", "seen"),
    [((), 9), ((VIEW,), 5), ((VIEW, "distil.statistics=none"), 0), ((VIEW, "distil.features=0", "distil.maps=1"), 0)],
)
def test_what_the_cache_keeps_is_what_extraction_writes(
    files: list[str], values: tuple[str, ...], seen: int, tmp_path: Path
) -> None:
    images = scan_folder(write_images(tmp_path / "images", each=3))
    recipe, teachers = with_teachers(files, "distil.samples=5", "distil.clusters=5", *values)
    report = frozen_teachers.teachers_report(recipe, teachers, len(images))
    assert report is not None
    assert report["once"]["images"] == seen
    sample = images if not values else evenly_spread(images, 5)
    kept = [
        features_of_teacher(each, sample, tmp_path / "cache", Reporter(quiet=True), device=CPU, workers=0)
        for each in (teachers if seen else ())
    ]
    assert report["once"]["kept"] == sum(each.all().nbytes for each in kept)
    assert report["once"]["flops"] == seen * sum(row["flops"] for row in report["networks"])


class Undecided(taught.Plain):
    """A network whose operations depend on values."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images if images.mean().item() > 0 else -images)


def small_values(**distil: Any) -> dict[str, Any]:
    sections: dict[str, dict[str, Any]] = {"distil": distil}
    recipe = find_recipe("distil")
    for word in taught.SMALL:
        name, _, text = word.partition("=")
        section, _, field = name.partition(".")
        kind = field_types(type(getattr(recipe, section)))[field]
        sections.setdefault(section, {})[field] = value_of_text(text, kind)
    return sections | {"model": taught.CONV}


def test_a_network_in_memory_is_counted_and_left_as_it_is() -> None:
    network: nn.Module = taught.Plain()
    report = excb.plan("distil", teacher=network, **small_values())
    (row,) = report["teachers"]["networks"]
    assert row["name"].startswith("memory:Plain@")
    assert (row["input"], row["width"], row["flops"]) == (24, 7, 2 * 3 * 5 * 5 * 7 * 5 * 5)
    assert network.training
    assert all(parameter.requires_grad for parameter in network.parameters())
    with pytest.raises(UserError, match="cannot be counted"):
        excb.plan("distil", teacher=Undecided(), **small_values())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, whatever the machine has, a moment's measuring, and no colours."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("STEP_SECONDS", "LOADER_SECONDS", "TEACHER_SECONDS"):
        monkeypatch.setattr(planning, name, 0.05)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("quick")
def test_the_command_measures_steps_and_teachers(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_images(tmp_path / "images", each=4)
    words = ["plan", "distil", f"distil.teachers={','.join(files)}", "--data", str(folder), *taught.SMALL]
    words += taught.overrides(taught.CONV)
    assert main([*words, "--measure", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    measured = report["measured"]
    speeds = measured["teachers"]["images_per_second"]
    assert list(speeds) == files
    assert measured["teachers"]["hours"] == pytest.approx(sum(12 / speed for speed in speeds.values()) / 3600)
    assert measured["hours"] > 0
    assert main([*words, "--measure", VIEW]) == 0
    text = capsys.readouterr().out
    assert "they see 1 view of every image in every step, counted above" in text
    assert "before training they see 12 images once, for statistics and first clusters: " in text
    assert "before the run, the teachers" in text


@pytest.mark.usefixtures("quick")
def test_a_dry_run_says_what_teachers_take(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_images(tmp_path / "images", each=4)
    words = taught.command(folder, tmp_path / "run", files[0], "--dry-run")
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("it can run, into")
    kept = 12 * 12 * 4 / 2**20
    assert f"before training they see 12 images once: {12 * CONV_AT_40 / 1e6:,.4g} MFLOP" in text
    assert f"then kept in the cache: {kept:,.1f} MiB on disk" in text
    assert not (tmp_path / "run").exists()
    assert main([*words, "distil.assignments=1", "distil.clusters=13"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "distil.clusters=13 from a teacher's features, and these are of 12 images: set distil.clust" in said.err


@pytest.mark.usefixtures("quick")
def test_a_plan_refuses_what_a_run_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_images(tmp_path / "images", each=4)
    for teacher, words in (("mobilnetv2", "did you mean 'mobilenetv2'"), (str(tmp_path / "no.pt"), "no.pt")):
        run = taught.command(folder, tmp_path / "run", teacher)
        lines = []
        for line in (run, [*run, "--dry-run"], ["plan", "distil", f"distil.teachers={teacher}"]):
            assert main(line) == 2
            lines.append(capsys.readouterr().err)
        assert words in lines[0]
        assert lines[0].count("\n") == 1
        assert lines == [lines[0]] * 3
    assert main(["plan", "distil"]) == 2
    assert "this recipe learns from a teacher: name one" in capsys.readouterr().err
