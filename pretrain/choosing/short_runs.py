"""Short runs: the recipe of each, and as many epochs of it as fit into some seconds."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from excb.hub.backbone import Backbone
from excb.images.subset import Subset
from excb.networks.architecture import RGB
from excb.networks.outputs import resized_preprocessing
from excb.networks.preprocessing import Preprocessing

from .. import overrides
from ..distil.teachers import Teacher
from ..plan.speed import measure_step
from ..recipe import Recipe
from ..recipes import WEAK_JITTER
from ..run.rules import clusters_for

TIMED = 1.5  # seconds of steps from which a run's speed is known
FEWEST = 100  # images that a run learns from
PATCHES_OF_CLUSTERS = 4  # times fewer clusters in the run that tries that
SMALLEST, GRID = 96, 32  # pixels that a large network needs to see, and the stride of most
UNMEASURED = {"every_epochs": 10**6, "images": 64}
MEASURED_TWICE = {"every_epochs": 10**6, "images": 300}  # of a run that adapts: at its start and at its end

# Changes of colour that are tried, of images in colour; weak ones are what `choose` proposes by itself.
COLOURS: dict[str, tuple[str, ...]] = {
    "weak changes of colour": tuple(f"views.{name}={value}" for name, value in WEAK_JITTER.items()),
    "strong changes of colour": ("views.jitter=0.8", "views.hue=0.1", "views.grey=0.2"),
}


@dataclass(frozen=True)
class ShortRun:
    """A run to try.

    Attributes:
        name: for people.
        recipe: with its epochs.
        images: that it learns from.
        steps_alone: images per second of its steps, without reading and start.
        keep: overrides that a full run shares.
    """

    name: str
    recipe: Recipe
    images: Subset
    steps_alone: float
    keep: tuple[str, ...] = ()


def colours_of(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """The changes of colour to try for a recipe; none for other channels than three."""
    return COLOURS if recipe.channels == RGB else {"its own views": ()}


def from_scratch(base: Recipe, learned: int, values: Sequence[str]) -> Recipe:
    """The proposed recipe with other values, and clusters for as many images as the run learns from."""
    return overrides.apply(base, values).change(method={"clusters": clusters_for(learned)})


def fewer_clusters(base: Recipe, learned: int) -> Recipe:
    """The same with a quarter of the clusters."""
    return base.change(method={"clusters": max(2, clusters_for(learned) // PATCHES_OF_CLUSTERS)})


def distilled(base: Recipe, teacher: str, side: int) -> Recipe:
    """The recipe `distil` with the proposed sizes."""
    views = base.views
    return overrides.find_recipe("distil").change(
        distil={"teachers": (teacher,), "teacher_size": side},
        views={name: getattr(views, name) for name in ("global_size", "eval_resize", "eval_crop")},
        efficiency={"device": base.efficiency.device},
    )


def sizes_of(own: Preprocessing, side: int) -> int:
    """Pixels at which a trained network sees images of which the median shorter side is `side`: its own, or fewer."""
    fitting = max(SMALLEST, -(-side * 5 // 4 // GRID) * GRID)
    return min(own.crop, fitting)


def adapting_values(own: Preprocessing, side: int) -> tuple[str, ...]:
    """Overrides of `adapt` for a network that sees `side` pixels; none at its own size."""
    if side == own.crop:
        return ()
    prepared = resized_preprocessing(own, side)
    view = max(64, side * 3 // 4 // 16 * 16)
    return (f"views.global_size={view}", f"views.eval_resize={prepared.resize}", f"views.eval_crop={prepared.crop}")


def fit_run(
    name: str,
    recipe: Recipe,
    images: Subset,
    seconds: float,
    device: torch.device,
    *,
    slowdown: float,
    teachers: Sequence[Teacher] = (),
    keep: tuple[str, ...] = (),
) -> ShortRun | str:
    """A run with the epochs that fit into some seconds, of fewer images where not even one does; or why there is none.

    Args:
        name: for people.
        recipe: without its epochs.
        images: to learn from.
        seconds: that it may take.
        device: where it trains.
        slowdown: times that runs take longer than their steps alone.
        teachers: frozen ones, loaded.
        keep: see `ShortRun`.
    """
    step = min(recipe.optim.batch, len(images))
    alone = measure_step(recipe, step, device, seconds=TIMED, teachers=teachers).images_per_second
    speed = alone / slowdown
    affordable = int(seconds * speed)
    if affordable < min(len(images), FEWEST):
        return f"{seconds:.0f} s are not enough: it learns from {speed:.2g} images a second here"
    epochs = max(1, affordable // len(images))
    if affordable < len(images):
        images = Subset(images.images, images.indices[:: -(-len(images) // affordable)])
    batch = min(recipe.optim.batch, max(8, len(images) // 4))
    adapt = recipe.adapt
    changed = recipe.change(
        optim={"epochs": epochs, "batch": batch, "warmup_epochs": min(recipe.optim.warmup_epochs, epochs / 10)},
        run={"save_epochs": 10**6},
    )
    if adapt.active:
        changed = changed.change(
            adapt={
                "warmup_epochs": min(adapt.warmup_epochs, epochs / 5),
                "release_epochs": min(adapt.release_epochs, epochs / 3),
                "patience": None,
            },
            monitor=MEASURED_TWICE,
        )
    else:
        changed = changed.change(monitor=UNMEASURED)
    return ShortRun(name, changed, images, alone, keep)


def is_cheaper(student: Recipe, teacher: Backbone) -> bool:
    """Whether a student has far fewer weights than a network, so that it may be worth teaching."""
    network = student.model.architecture.build()
    return sum(p.numel() for p in network.parameters()) < 0.8 * sum(p.numel() for p in teacher.network.parameters())
