"""The frozen teachers of a run: loaded, their features computed or found in the cache, their statistics taken."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excb.console import Reporter, plural
from excb.distributed.collectives import all_succeed, run_on_rank0
from excb.errors import UserError
from excb.features.cache import CachedFeatures
from excb.files.atomic import check_writable_folder
from excb.hub.backbone import Backbone
from excb.images.image_set import Images
from excb.method import ExCB
from excb.references.untrained import evenly_spread
from excb.remote.home import cache_root

from ..data.feed import BatchFeed
from ..distil.chosen_channels import ChosenChannels
from ..distil.distillation import Distillation
from ..distil.kept import KeptTargets, cells_of_teacher, features_are_cached, features_of_teacher
from ..distil.settings import DistilSettings
from ..distil.teachers import Teacher, ViewTargets, load_teachers
from ..recipe import Recipe
from ..step import TargetSource


@dataclass
class Teaching:
    """The teachers of a run, and what they make of its batches."""

    teachers: list[Teacher] = field(default_factory=list)
    targets: TargetSource | None = None
    features: list[CachedFeatures] = field(default_factory=list)  # of every teacher, of all images or of a sample

    def by_name(self) -> dict[str, Backbone]:
        """The networks, each with the transform that it sees images by."""
        return {each.name: each.backbone for each in self.teachers}

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The facts about each for checkpoints: name, licence, whether labels trained it, hash of its weights."""
        return [each.facts for each in self.teachers]


def require_named(recipe: Recipe) -> None:
    """Raise UserError where a recipe learns from teachers and names none."""
    if recipe.distil.active and not recipe.distil.teachers:
        raise UserError(
            "this recipe learns from a teacher: name one, as in `excb-pretrain distil NAME` or distil.teachers=NAME "
            "(`excb-zoo list` shows names; mobilenetv2 is a small one)"
        )


def images_once(settings: DistilSettings, images: int) -> int:
    """How many images of a set teachers see before training: all, or what gives statistics and first clusters."""
    if settings.teacher_sees == "image":
        return images
    needed = settings.needs_rows and (settings.statistics != "none" or settings.assignments > 0)
    return len(range(0, images, -(-images // settings.samples))) if needed else 0  # as `evenly_spread` takes them


def samples_seen(settings: DistilSettings, images: int) -> int:
    """How many images of a set give statistics and first clusters."""
    return min(settings.samples, images_once(settings, images))


def require_samples(settings: DistilSettings, images: int) -> None:
    """Raise UserError where a set of so many images is too small to start the clusters of `distil.assignments`."""
    samples, clusters = samples_seen(settings, images), settings.clusters
    if settings.assignments > 0 and samples < clusters:
        more = ", or raise distil.samples" if images > samples else ""
        raise UserError(
            f"k-means starts distil.clusters={clusters} from a teacher's features, and these are of "
            f"{plural(samples, 'image')}: set distil.clusters to at most {samples}{more}"
        )


def load_teaching(recipe: Recipe, device: torch.device, given: Mapping[str, Backbone] | None = None) -> Teaching:
    """Load the teachers; all ranks call this. See `load_teachers`."""
    settings = recipe.distil
    double = recipe.efficiency.precision == "fp64" and settings.teacher_sees != "image"
    dtype = torch.float64 if double else torch.float32
    if not settings.active:
        return Teaching()
    return Teaching(load_teachers(settings, device, dtype=dtype, given=given, channels=recipe.channels))


def prepare_teaching(
    teaching: Teaching, recipe: Recipe, feed: BatchFeed, reporter: Reporter, device: torch.device
) -> None:
    """Compute the teachers' features of all images, or of a sample where they see every view; all ranks call this.

    Raises:
        UserError: the cache cannot be written, or a teacher cannot see the student's views.
    """
    if not teaching.teachers:
        return
    settings, views = recipe.distil, recipe.views
    if settings.teacher_channels and all(
        not isinstance(each.backbone.network, ChosenChannels) for each in teaching.teachers
    ):
        # Not refused: a run that began with it must resume.
        reporter.warn(
            "distil.teacher_channels has no use: every teacher takes "
            f"{plural(recipe.channels, 'channel')}, as the images have"
        )
    if (images := _seen_once(settings, feed.indexed)) is not None:
        teaching.features = [
            features_of_teacher(each, images, cache_root(), reporter, device=device, workers=feed.workers)
            for each in teaching.teachers
        ]
    dtype = torch.float64 if recipe.efficiency.precision == "fp64" else torch.float32
    if settings.teacher_sees == "image":
        teaching.targets = KeptTargets(teaching.features, device=device, dtype=dtype)
    else:
        teaching.targets = all_succeed(
            lambda: ViewTargets(teaching.teachers, settings, mean=views.mean, std=views.std, device=device)
        )


def check_cache(recipe: Recipe, images: Images, device: torch.device) -> None:
    """Refuse a cache that `prepare_teaching` could not keep features in; one that holds them all is only read.

    Raises:
        UserError: it cannot be written, or a teacher cannot be loaded.
    """
    if not recipe.distil.active or (seen := _seen_once(recipe.distil, images)) is None:
        return
    cache = cache_root()
    try:
        check_writable_folder(cache, advice="name a folder elsewhere in EXCB_CACHE")
    except UserError:
        teachers = load_teaching(recipe, device).teachers
        if not all(features_are_cached(each, seen, cache, device=device) for each in teachers):
            raise


def _seen_once(settings: DistilSettings, images: Images) -> Images | None:
    """The images that teachers see before training: all, or a sample; None where they see none."""
    if not images_once(settings, len(images)):
        return None
    return images if settings.teacher_sees == "image" else evenly_spread(images, settings.samples)


def begin(teaching: Teaching, model: ExCB, recipe: Recipe, feed: BatchFeed, device: torch.device) -> None:
    """Start the heads of a new run with statistics and clusters of the teachers' features; only rank 0 changes.

    Raises:
        UserError: there are fewer images than clusters; raised on all ranks.
    """
    distillation = model.student.distillation
    if distillation is None:
        return
    assert isinstance(distillation, Distillation)

    def start() -> None:
        for number, teacher in enumerate(teaching.teachers):
            rows = _sample(teaching.features[number], recipe.distil.samples) if teaching.features else torch.empty(0, 0)
            cells = None
            if teacher.blocks is not None and recipe.distil.statistics != "none":
                cells = cells_of_teacher(teacher, feed.indexed, device=device, workers=feed.workers)
            distillation.heads[number].start(rows.to(device), cells, seed=recipe.run.seed)  # type: ignore[operator]

    run_on_rank0(start)


def _sample(features: CachedFeatures, most: int) -> Tensor:
    """Rows of at most so many images, evenly spread over the set."""
    count = min(most, len(features))
    return features.take(torch.from_numpy(np.arange(count, dtype=np.int64) * len(features) // count))


def refuse_other_teachers(teaching: Teaching, stored: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError, on all ranks, where a teacher has other weights than in a run's checkpoint."""
    for fact, before in zip(teaching.facts, stored, strict=False):
        if fact["sha256"] != before.get("sha256"):
            raise UserError.on_all_ranks(
                f"the teacher {fact['name']} is another network than the one that this run learned from: restore its "
                "file, or choose another --out"
            )
