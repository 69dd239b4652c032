"""Initial weights: random, from any backbone, or from a full checkpoint (both networks, centroids and sizes s)."""

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from excb import seeding
from excb.checkpoint import stored
from excb.console import plural
from excb.distributed.collectives import broadcast, gather_rows, run_on_rank0
from excb.errors import UserError, require
from excb.files import json_text
from excb.hub import loading
from excb.images.image_set import Images
from excb.method import ExCB
from excb.networks.architecture import CHANNELS, POSITIONS, RGB, Architecture
from excb.networks.backbone import check_resolution, feature_width, has_batchnorm, shapes_only, uncompiled
from excb.networks.blocks import Blocks

from .adapt.first_layer import adapted_weights
from .channels import changes_for, fit_channels
from .data.batch import ViewBatch
from .distil.distillation import Distillation, TeacherHead
from .distil.teachers import Teacher
from .recipe import CLASS_TOKEN_STD, Recipe
from .run.run_folder import stored_recipe
from .step import Trainer

_ADAPTED = "weights repeated in turn, or summed for one channel"
TEACHERS_PART = "student.distillation."  # tensors that belong to a run's frozen teachers
_CHECKED = set[str]()  # backbones of this process's runs: those of a study are one


def build_model(recipe: Recipe, teachers: Sequence[Teacher] = ()) -> ExCB:
    """Build student and teacher with random weights that depend on the seed only.

    Args:
        recipe: of the run.
        teachers: frozen ones that the student learns from; the other weights do not depend on them.

    Raises:
        UserError: the backbone does not exist, cannot take views of the recipe's sizes, or has no maps to compare.
    """
    architecture, token_std = recipe.model.architecture, recipe.model.class_token_std
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.fold(seeding.Purpose.WEIGHTS, recipe.run.seed))
        student = architecture.build(drop_path=recipe.model.drop_path)
        if token_std != CLASS_TOKEN_STD:  # else it has that already
            nn.init.trunc_normal_(_class_token(student, recipe.model.backbone), std=token_std)
        model = ExCB(student, architecture.build(), recipe.method, backend=recipe.efficiency.objective)
        if teachers:
            model.learn_from(distillation(recipe, student, [(each.width, each.map_width) for each in teachers]))
    check_resolution(model.teacher.backbone, _sizes(recipe))
    return model


def distillation(recipe: Recipe, student: nn.Module, widths: Sequence[tuple[int, int | None]]) -> Distillation:
    """The comparison of a student with frozen teachers: a head for each, with random weights from torch's generator.

    Args:
        recipe: of the run.
        student: its backbone.
        widths: of the vectors and of the maps of each teacher.

    Raises:
        UserError: the student has no maps, and maps are compared.
    """
    settings, views = recipe.distil, recipe.views
    map_width = Blocks(student).stages[-1].width if settings.needs_maps else None
    heads = [
        TeacherHead(
            settings,
            width=feature_width(student),
            teacher_width=width,
            map_widths=None if map_width is None or theirs is None else (map_width, theirs),
            style="batchnorm" if has_batchnorm(student) else "gelu",
        )
        for width, theirs in widths
    ]
    return Distillation(settings, heads, globals_=views.global_views, views=views.global_views + views.local_views)


def check_backbone(recipe: Recipe) -> None:
    """Refuse what `build_model` refuses of a backbone, without making weights or computing anything.

    Raises:
        UserError: as `build_model`.
    """
    model, sizes = recipe.model, _sizes(recipe)
    if (checked := repr((model.architecture, model.drop_path, sizes))) in _CHECKED:
        return
    with shapes_only():
        network = model.architecture.build(drop_path=model.drop_path)
    check_resolution(network, sizes)
    _CHECKED.add(checked)


def _sizes(recipe: Recipe) -> list[int]:
    """Sides in pixels of the images that the backbone will see."""
    views = recipe.views
    return sorted({views.global_size, views.eval_crop} | ({views.local_size} if views.local_views else set()))


def adopted(recipe: Recipe, note: Callable[[str], None], *, begun: Path | None = None) -> Recipe:
    """The recipe with architecture and sizes of the checkpoint that it starts from, where it leaves them to that.

    Args:
        recipe: as the command line makes it.
        note: called with a message that says what was adopted.
        begun: the `recipe.json` of the same run, started before: it has these values, even if the checkpoint is gone.

    Raises:
        UserError: the checkpoint cannot be read, or its values make no recipe.
    """
    if recipe.init is None or not recipe.adopts:
        return recipe
    before = begun_values(begun, recipe.init)
    checkpoint = None if before else loading.read(recipe.init)
    values = _values_of(checkpoint, recipe) if checkpoint is not None else before or {}
    changes: dict[str, dict[str, Any]] = {}
    for name in recipe.adopts:
        section, field = name.split(".")
        if field in (known := values.get(section, {})):  # an older run lacks fields that were added since
            value = known[field]
            changes.setdefault(section, {})[field] = tuple(value) if isinstance(value, list) else value
    channels = changes.get("model", {}).get("options", {}).get(CHANNELS, RGB)
    settled = replace(recipe, adopts=()).change(**changes_for(recipe, channels, changes))
    settled = fit_channels(settled, recipe.data.channels or channels)
    if checkpoint is not None:
        views = settled.views
        sizes = f"{views.global_size} pixels" + (f", local {views.local_size}" if views.local_views else "")
        backbone, evaluated = _describe(settled.model.architecture), views.preprocessing.in_short
        note(f"init={recipe.init} sets backbone {backbone}, views of {sizes}, and evaluation: {evaluated}")
    return settled


def begun_values(file: Path | None, init: str) -> dict[str, Any] | None:
    """The recipe's values in a run that has trained from the same checkpoint; None if there is none."""
    try:
        text = stored_recipe(file.parent) if file is not None else None
        recipe = None if text is None else json_text.parse(text)["recipe"]
        return recipe if recipe is not None and recipe["init"] == init else None
    except (OSError, ValueError, KeyError, TypeError):  # RunFolder says what is wrong with it
        return None


def _values_of(checkpoint: stored.Stored, recipe: Recipe) -> dict[str, dict[str, Any]]:
    """A checkpoint's values of the fields that a run may adopt; views of a foreign one follow its crop."""
    architecture, prepared, views = checkpoint.architecture, checkpoint.preprocessing, recipe.views
    side = prepared.crop
    grid = next(patch for patch in (16, 14, 8, 1) if side % patch == 0)
    local = max(grid, round(views.local_size * side / views.global_size / grid) * grid)
    trained = (checkpoint.facts.get("recipe") or {}).get("views") or {}
    return {
        "model": {
            "backbone": architecture.name,
            "options": architecture.foreign_options,
            POSITIONS: architecture.positions,
        },
        "views": {
            "global_size": trained.get("global_size", side),
            "local_size": trained.get("local_size", max(8, local)),
            "eval_resize": prepared.resize,
            "eval_crop": side,
            "mean": tuple(prepared.mean),
            "std": tuple(prepared.std),
            "eval_crop_mode": prepared.crop_mode,
            "eval_interpolation": prepared.interpolation,
            "eval_corner": prepared.corner,
        },
        "data": {"colours": prepared.pixels.colours},
    }


def _class_token(network: nn.Module, name: str) -> Tensor:
    token = getattr(network, "cls_token", None)
    if not isinstance(token, Tensor):
        raise UserError(f"{name} has no class token: set model.class_token_std={CLASS_TOKEN_STD:g}")
    return token


def start_from(model: ExCB, recipe: Recipe, images: Images) -> str:
    """Load what `recipe.init` names into a new model and return a message that says what was loaded.

    A backbone is loaded into both networks. A full checkpoint provides both networks and, for the same K, the centroids
    and s. With other images s is reset. A recipe that adapts a backbone takes the teacher's alone, from any checkpoint.

    Raises:
        UserError: nothing can be loaded from there, or its architecture differs.
    """
    assert recipe.init is not None
    checkpoint = loading.read(recipe.init)
    ours = recipe.model.architecture
    # The same weights serve either interpolation of position embeddings, and the run's own is in its checkpoints.
    wanted, built = (replace(each, options=each.foreign_options) for each in (checkpoint.architecture, ours))
    adapted = wanted.channels == RGB != built.channels
    if adapted:
        wanted = wanted.of_channels(built.channels)
    if wanted != built:
        raise UserError(
            f"init={recipe.init} is a {_describe(wanted)}, the recipe's backbone a {_describe(built)}: "
            f"set {_overrides(wanted, built)} or choose another checkpoint"
        )
    if recipe.adapt.active or not checkpoint.full or adapted:
        tensors, file = checkpoint.tensors, str(checkpoint.file)
        if adapted:
            tensors = adapted_weights(tensors, model.teacher.backbone.state_dict(), built.channels, what=file)
        for network in (model.student, model.teacher):
            stored.load_strictly(network.backbone, tensors, what=file)
        done = f"backbone from {recipe.init}; heads, centroids and s start from scratch"
        if adapted:
            done += f"; its first layer, of {RGB} channels, is adapted to {built.channels} as timm does: {_ADAPTED}"
    else:
        done = _continue(model, checkpoint, images, recipe.init)
    if checkpoint.architecture.positions != ours.positions:
        done += (
            f"; its {POSITIONS} was {checkpoint.architecture.positions}, now {ours.positions} "
            f"(model.{POSITIONS}={checkpoint.architecture.positions} keeps it)"
        )
    return done


def _overrides(wanted: Architecture, ours: Architecture) -> str:
    """The overrides that change a recipe's backbone to the wanted one."""
    options = shlex.quote(f"model.options={json.dumps(wanted.options)}")
    if wanted.name == ours.name:
        return options
    name = f"model.backbone={wanted.name}"
    return name if wanted.options == ours.options else f"{name} {options}"


def _continue(model: ExCB, checkpoint: stored.Stored, images: Images, init: str) -> str:
    """Load from a full checkpoint everything that is still valid for this model and these images."""
    tensors: dict[str, Tensor] = checkpoint.contents["model"]
    data = checkpoint.contents.get("data")
    same_images = isinstance(data, dict) and data.get("fingerprint") == images.fingerprint
    require("sizes" in tensors, f"{checkpoint.file} is not a whole checkpoint of a run (no sizes): use another one")
    new: dict[str, Tensor] = model.state_dict()
    balance = {name for name in new if name.startswith("balancer.")}  # a balancer's state besides s
    fresh = balance - tensors.keys()
    clusters_changed = tensors["sizes"].shape != new["sizes"].shape
    if clusters_changed:
        fresh |= {"student.centroids.weight", "teacher.centroids.weight", "sizes"} | balance
    elif not same_images:
        fresh |= {"sizes"} | balance
    if model.student.predictor is not None and not any(name.startswith("student.predictor.") for name in tensors):
        fresh |= {name for name in new if name.startswith("student.predictor.")}
    fresh |= {name for name in new if name.startswith(TEACHERS_PART)}
    # Of another balancer, or of a run's own teachers.
    foreign = {name for name in tensors if name.startswith(("balancer.", TEACHERS_PART))} - balance
    kept = {name: value for name, value in tensors.items() if name not in fresh | foreign}
    if model.student.predictor is None:
        kept = {name: value for name, value in kept.items() if not name.startswith("student.predictor.")}
    stored.load_strictly(model, kept | {name: new[name] for name in fresh}, what=f"{checkpoint.file} (full checkpoint)")
    parts = ["centroids and s" if clusters_changed else "s" if "sizes" in fresh else ""]
    parts += ["the balancer"] if balance & fresh and "sizes" not in fresh else []
    parts += ["predictor"] if any("predictor" in name for name in fresh) else []
    reset = " and ".join(part for part in parts if part)
    rest = f"; {reset} start from scratch" if reset else ", centroids and s too"
    step = checkpoint.facts.get("step")
    return f"both networks from {init}{'' if step is None else f', step {step}'}{rest}"


def _describe(architecture: Architecture) -> str:
    return architecture.name + "".join(f" {name}={value}" for name, value in architecture.options.items())


def start_centroids(
    trainer: Trainer,
    batches: Iterable[ViewBatch],
    recipe: Recipe,
    *,
    advance: Callable[[], None],
    asked: Callable[[], bool],
) -> str | None:
    """Initialise the centroids by k-means of projected training views, alternating between global views by batch.

    Every rank passes its part of the batches. `advance` is called after every batch. `asked` says whether the run is
    asked to stop, the same on all ranks. Returns a message; None if it is asked to stop, and then nothing has changed.
    """
    model, rows = trainer.model, list[Tensor]()
    with uncompiled(model.teacher.backbone):
        for number, batch in enumerate(batches):
            view = slice(number % recipe.views.global_views, number % recipe.views.global_views + 1)
            views = trainer.views(batch.global_crops[view], batch.global_parameters[view])
            assert views is not None
            rows.append(gather_rows(model.project(views[0])))
            advance()
            if asked():
                return None
    samples = torch.cat(rows)
    # Sums on a GPU differ between ranks: rank 0 computes, and the others receive its result.
    run_on_rank0(lambda: model.start_centroids(samples, seed=recipe.run.seed))
    broadcast([model.student.centroids.weight, model.teacher.centroids.weight])
    return f"centroids start from k-means of {plural(len(samples), 'view')}"
