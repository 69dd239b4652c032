"""First weights: random ones, those of any loadable backbone, or a full checkpoint's both networks, centroids and s."""

import json
import shlex
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from excb import seeding
from excb.checkpoint import stored
from excb.distributed.collectives import broadcast, gather_rows, run_on_rank0
from excb.errors import UserError
from excb.hub import loading
from excb.images.image_set import Images
from excb.method import ExCB
from excb.networks.architecture import Architecture
from excb.networks.backbone import check_resolution, uncompiled

from .data.loader import Batch
from .recipe import Recipe
from .step import Trainer


def build_model(recipe: Recipe) -> ExCB:
    """Student and teacher with random weights that depend on the seed only.

    Raises:
        UserError: no such backbone, or it cannot take views of the recipe's sizes.
    """
    architecture = Architecture(recipe.model.backbone, recipe.model.options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.fold(seeding.Purpose.WEIGHTS, recipe.run.seed))
        student = architecture.build(drop_path=recipe.model.drop_path)
        model = ExCB(student, architecture.build(), recipe.method, backend=recipe.efficiency.objective)
    views = recipe.views
    sizes = {views.global_size, views.eval_crop} | ({views.local_size} if views.local_views else set())
    check_resolution(model.teacher.backbone, sorted(sizes))
    return model


def start_from(model: ExCB, recipe: Recipe, images: Images) -> str:
    """Load what `recipe.init` names into a new model.

    A backbone alone goes into both networks. A full checkpoint gives both networks and, where K is the same, centroids
    and s; s starts anew where the images are others.

    Returns:
        What was taken, in one line.

    Raises:
        UserError: nothing loadable there, or of another architecture.
    """
    assert recipe.init is not None
    found = loading.read(recipe.init)
    ours = Architecture(recipe.model.backbone, recipe.model.options)
    if found.architecture != ours:
        raise UserError(
            f"init={recipe.init} is a {_describe(found.architecture)}, the recipe's backbone a {_describe(ours)}: "
            f"set {_settings(found.architecture, ours)} or choose another checkpoint"
        )
    if not found.full:
        for network in (model.student, model.teacher):
            stored.load_strictly(network.backbone, found.tensors, what=str(found.file))
        return f"backbone from {found.file}; heads, centroids and s start anew"
    return _continue(model, found, images)


def _settings(wanted: Architecture, ours: Architecture) -> str:
    """The overrides that make a recipe's backbone another one."""
    options = shlex.quote(f"model.options={json.dumps(wanted.options)}")
    if wanted.name == ours.name:
        return options
    name = f"model.backbone={wanted.name}"
    return name if wanted.options == ours.options else f"{name} {options}"


def _continue(model: ExCB, found: stored.Stored, images: Images) -> str:
    """Go on from a full checkpoint: keep all that still has its meaning."""
    tensors: dict[str, Tensor] = found.contents["model"]
    new: dict[str, Tensor] = model.state_dict()
    balance = {name for name in new if name.startswith("balancer.")}  # what a balancer remembers besides s
    fresh = balance - tensors.keys()
    clusters_changed = tensors["sizes"].shape != new["sizes"].shape
    if clusters_changed:
        fresh |= {"student.centroids.weight", "teacher.centroids.weight", "sizes"} | balance
    elif found.contents["data"]["fingerprint"] != images.fingerprint:
        fresh |= {"sizes"} | balance
    had_predictor = any(name.startswith("student.predictor.") for name in tensors)
    if model.student.predictor is not None and not had_predictor:
        fresh |= {name for name in new if name.startswith("student.predictor.")}
    foreign = {name for name in tensors if name.startswith("balancer.")} - balance  # of another balancer
    kept = {name: value for name, value in tensors.items() if name not in fresh | foreign}
    if model.student.predictor is None:
        kept = {name: value for name, value in kept.items() if not name.startswith("student.predictor.")}
    stored.load_strictly(model, kept | {name: new[name] for name in fresh}, what=f"{found.file} (full checkpoint)")
    parts = ["centroids and s" if clusters_changed else "s" if "sizes" in fresh else ""]
    parts += ["the balancer"] if balance & fresh and "sizes" not in fresh else []
    parts += ["predictor"] if any("predictor" in name for name in fresh) else []
    anew = " and ".join(part for part in parts if part)
    return f"both networks from {found.file}" + (f"; {anew} start anew" if anew else ", centroids and s too")


def _describe(architecture: Architecture) -> str:
    options = "".join(f" {name}={value}" for name, value in architecture.options.items())
    return f"{architecture.name}{options}"


def start_centroids(
    trainer: Trainer,
    batches: Iterable[Batch],
    recipe: Recipe,
    *,
    advance: Callable[[], None],
    asked: Callable[[], bool],
) -> str | None:
    """Let the centroids start from k-means of projected training views: global views 1 and 2 in turn by batch.

    Args:
        trainer: holds the model.
        batches: this process's part of the batches whose views are taken.
        recipe: the run's recipe.
        advance: told after every batch.
        asked: whether the run is asked to stop, the same in all processes.

    Returns:
        What was done, in one line; None if the run was asked to stop: then nothing has changed.
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
    # Sums on a GPU differ from process to process: one computes, and the others take its result.
    run_on_rank0(lambda: model.start_centroids(samples, seed=recipe.run.seed))
    broadcast([model.student.centroids.weight, model.teacher.centroids.weight])
    return f"centroids start from k-means of {len(samples)} views"


def state_tensors(model: nn.Module) -> dict[str, Any]:
    """The model's state on the CPU, contiguous, ready to be saved."""
    return {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
