"""The start of a run: refuse what cannot train, then build a new run or restore an unfinished one."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from excb.console import Reporter
from excb.distributed.collectives import all_succeed, broadcast, rank, run_on_rank0, world_size
from excb.distributed.machine import choose_device
from excb.errors import UserError
from excb.hub import loading
from excb.hub.backbone import Backbone
from excb.images import jpeg
from excb.images.image_set import CodedImages
from excb.images.pixels import pixels_of
from excb.method import ExCB
from excb.networks.backbone import weights_hash

from ..channels import fit_channels
from ..data.feed import BatchFeed
from ..data.gpu_decoding import require_decoder
from ..data.stream_images import StreamImages
from ..data.stream_order import reader_count
from ..initialise import adopted, begun_values, build_model, check_backbone, start_from
from ..recipe import Recipe
from ..run.journal import EpochStatistics
from ..run.progress import Progress
from ..run.run_folder import RunFolder
from ..run.watch_process import check_protocol
from ..step import trainer_for
from . import judging, teaching
from .pixels import in_colours, with_their_pixels
from .state import RunState
from .statistics import measured

SetOrStream = TypeVar("SetOrStream", bound=CodedImages | StreamImages)


def resolve_run(
    recipe: Recipe,
    images: SetOrStream,
    reporter: Reporter,
    *,
    begun: Path,
    device: torch.device | None = None,
    against: Sequence[str] = (),
    given: Collection[str] = (),
) -> tuple[Recipe, SetOrStream, torch.device]:
    """The recipe for these images, the images with their pixels, and the device; all ranks call this.

    A run and its dry run take this step before they look into the folder, and then `complete_recipe`.

    Args:
        recipe: as the command line makes it.
        images: to train on.
        reporter: for messages.
        begun: the `recipe.json` of the same run, if it was started before.
        device: where this rank trains; by default the recipe's.
        against: checkpoints that the verdict compares the run with.
        given: teachers that are in memory.

    Raises:
        UserError: as `check_run`; or a checkpoint of `against` cannot be loaded, no one record of pixels fits the
            images, there is no such device here, or it cannot decode; or `excb-eval watch` cannot measure
            `monitor.protocol`.
    """
    judging.check_references(against)
    images = with_their_pixels(images, recipe.data, reporter, begun=begun)
    if not recipe.adopts:  # else the checkpoint that it starts from says which network takes them
        recipe = all_succeed(lambda: fit_channels(recipe, pixels_of(images).channels, reporter.note))
    all_succeed(lambda: check_run(recipe, images, begun=begun, given=given))
    device = device or choose_device(recipe.efficiency.device)
    all_succeed(lambda: require_decoder(recipe, device))
    monitor = recipe.monitor
    if (protocol := monitor.protocol) is not None and (data := monitor.data) is not None:
        run_on_rank0(lambda: check_protocol(begun.parent, data, protocol, recipe.efficiency.device))
    return recipe, images, device


def check_run(
    recipe: Recipe, images: CodedImages | StreamImages, *, begun: Path | None = None, given: Collection[str] = ()
) -> None:
    """Refuse what cannot make a run; names that lead to nothing come first.

    Args:
        recipe: as the command line makes it.
        images: to train on.
        begun: the `recipe.json` of the same run, if it was started before: it needs the checkpoint of `init` no more.
        given: teachers that are in memory.

    Raises:
        UserError: a network's name leads to nothing; or there are too few images, or batch, processes and micro-batches
            do not fit each other, or k-means would have too few views or images, or there is no backbone to adapt or
            teacher to learn from, or it does not exist or cannot take the views' sizes, or the decoder is not
            installed.
    """
    _require_known_names(recipe, begun, given)
    if recipe.efficiency.decoder != "nvjpeg":  # which depends on the device
        jpeg.require_installed(recipe.efficiency.decoder)
    if recipe.adapt.active and recipe.init is None:
        raise UserError(
            "this recipe continues from a trained backbone: name one, as in `excb-pretrain adapt NAME` or init=NAME "
            "(`excb-zoo list` shows names; tiny_grocery comes with the package)"
        )
    teaching.require_named(recipe)
    if recipe.distil.active and recipe.distil.teacher_sees == "image" and isinstance(images, StreamImages):
        raise UserError(
            "a stream has no images to keep a teacher's features of: set distil.teacher_sees=view, where the teacher "
            "sees every view"
        )
    if len(images) < 2:
        raise UserError(f"{images.root} holds one image: pretraining needs many, at least a few thousand")
    recipe.steps_per_epoch(len(images))
    recipe.micro_batch(world_size())
    if recipe.starts_centroids:
        recipe.kmeans_steps(len(images))
    if not isinstance(images, StreamImages):
        teaching.require_samples(recipe.distil, len(images))
    if not recipe.adopts:  # else the checkpoint that it starts from says which backbone it is
        check_backbone(recipe)
    if isinstance(images, StreamImages):
        reader_count(images, recipe.optim.batch, world_size())


def _require_known_names(recipe: Recipe, begun: Path | None, given: Collection[str]) -> None:
    names = list(recipe.distil.teachers)
    # Rank 0 alone loads what a run starts from: on another machine's disk it need not be.
    if recipe.init is not None and rank() == 0 and begun_values(begun, recipe.init) is None:
        names.append(recipe.init)
    for name in names:
        if name not in given:
            loading.require_known(name)


def complete_recipe(
    recipe: Recipe, images: CodedImages | StreamImages, note: Callable[[str], None], *, begun: Path | None = None
) -> Recipe:
    """The recipe with all values that a run takes from the checkpoint that it starts from, or from its images.

    Args:
        recipe: as the command line makes it.
        images: with the record of their pixels (`with_their_pixels`).
        note: called with a message for each kind of them.
        begun: the `recipe.json` of the same run, if it was started before.

    Raises:
        UserError: the checkpoint or the images cannot be read, or do not fit each other or the recipe.
    """
    recipe = adopted(recipe, note, begun=begun)
    images = in_colours(images, recipe.data.colours)  # which the checkpoint may decide
    recipe = fit_channels(recipe, pixels_of(images).channels, note)
    return measured(recipe, images.kept if isinstance(images, StreamImages) else images, note)


def start(
    recipe: Recipe,
    images: CodedImages | StreamImages,
    folder: RunFolder | None,
    reporter: Reporter,
    device: torch.device,
    *,
    given: Mapping[str, Backbone] | None = None,
) -> RunState:
    """Build the state of a run: that of the folder's newest checkpoint, or a new one. Only rank 0 has a folder.

    Args:
        recipe: of the run.
        images: to train on.
        folder: of the run, on rank 0.
        reporter: for messages and progress.
        device: of this rank.
        given: frozen teachers that are in memory, by name.

    Raises:
        UserError: recipe, images and folder do not fit each other, or `init` cannot be loaded.
    """

    def resume() -> dict[str, Any] | None:
        assert folder is not None
        folder.begin(recipe, images)
        return folder.resume(reporter.warn)

    feed = BatchFeed(images, recipe, pin_memory=device.type == "cuda")
    taught = teaching.load_teaching(recipe, device, given)
    model = all_succeed(lambda: build_or_refuse(recipe, taught))
    contents = run_on_rank0(resume)
    started_from: str | None = None
    if contents is None and recipe.init is not None:
        reporter.note(run_on_rank0(lambda: start_from(model, recipe, images)))
        started_from = run_on_rank0(lambda: weights_hash(model.teacher.backbone))
    if contents is not None:
        teaching.refuse_other_teachers(taught, contents.get("teachers", []))
    teaching.prepare_teaching(taught, recipe, feed, reporter, device)
    steps = recipe.steps_per_epoch(len(images))
    trainer = trainer_for(model, recipe, device, steps_per_epoch=steps, targets=taught.targets)
    if contents is None:
        teaching.begin(taught, trainer.model, recipe, feed, device)
    if contents is not None:
        refuse_lost_feedback(recipe, contents, steps=trainer.schedules.steps, processes=world_size())
    samples = trainer.schedules.steps_per_epoch * recipe.optim.batch // world_size()
    statistics = EpochStatistics(images, recipe, samples=samples, device=device)
    progress = Progress(started_from=started_from)
    state = RunState(recipe, images, trainer, statistics, feed, progress, teaching=taught)
    if contents is not None:
        state.restore(contents, reporter)
    broadcast(trainer.model.state_dict().values())
    if trainer.anchor is not None:
        broadcast(trainer.anchor.state_dict().values())
    return state


def refuse_lost_feedback(recipe: Recipe, contents: Mapping[str, Any], *, steps: int, processes: int) -> None:
    """Refuse to continue with PowerSGD: what it left out so far is another one in each process, and not saved."""
    if recipe.efficiency.compression == "powersgd" and processes > 1 and contents.get("step") != steps:
        raise UserError.on_all_ranks(
            "a run with efficiency.compression=powersgd cannot resume as it was: its error feedback is in no "
            "checkpoint; continue with efficiency.compression=none or bf16"
        )


def build_or_refuse(recipe: Recipe, taught: teaching.Teaching) -> ExCB:
    """The model of a recipe.

    Raises:
        UserError: as `build_model`; or its micro-batches are too small for BatchNorm.
    """
    model, accumulate = build_model(recipe, taught.teachers), recipe.efficiency.accumulate
    if recipe.optim.batch // accumulate < 2 and any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise UserError(
            f"BatchNorm needs two images at once: raise optim.batch to {2 * accumulate}, or lower efficiency.accumulate"
        )
    return model
