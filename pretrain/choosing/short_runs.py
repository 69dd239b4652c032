"""Short runs: what is trained of a sample, and as many epochs of it as fit into some seconds."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from excb.hub.backbone import Backbone
from excb.images.image_set import Images
from excb.images.survey import surveyed
from excb.networks.architecture import RGB
from excb.networks.outputs import resized_preprocessing
from excb.networks.preprocessing import Preprocessing
from excb.references.untrained import evenly_spread

from .. import overrides
from ..distil.teachers import Teacher
from ..initialise import adopted
from ..plan.speed import measure_step
from ..recipe import ModelSettings, Recipe
from ..recipes import WEAK_JITTER
from ..run.rules import clusters_for, followed_momentum
from ..run.taught import CHEAPER, NetworkCost
from .trials import Kind

TIMED = 1.5  # seconds of steps from which a run's speed is known
FEWEST = 100  # images that a run learns from
FEWER = 4  # times, in the run that tries fewer clusters
SMALLEST, GRID = 96, 32  # pixels that a large network needs to see, and the stride of most
UNMEASURED = {"every_epochs": 10**6, "images": 64}
MEASURED_TWICE = {"every_epochs": 10**6, "images": 300}  # of a run that adapts: at its start and at its end
SIZES = ("global_size", "eval_resize", "eval_crop")  # of views, that a student shares with the proposed recipe

# Changes of colour that are tried, of images in colour; weak ones are what `choose` proposes by itself.
COLOURS: dict[str, tuple[str, ...]] = {
    "weak changes of colour": tuple(f"views.{name}={value}" for name, value in WEAK_JITTER.items()),
    "strong changes of colour": ("views.jitter=0.8", "views.hue=0.1", "views.grey=0.2"),
}


@dataclass(frozen=True)
class FrozenNetwork:
    """A trained network as it was measured."""

    name: str
    backbone: Backbone  # at the size at which it sees these images
    own: Preprocessing  # at its own size
    cost: NetworkCost
    value: float  # its figure, in percent


@dataclass(frozen=True)
class PlannedRun:
    """A run to try, without its epochs.

    Attributes:
        kind: what it does.
        name: for people.
        recipe: the values of the run.
        keep: overrides that a full run shares.
        base: the network that it starts or learns from.
        once: seconds that a teacher takes for each image before training.
    """

    kind: Kind
    name: str
    recipe: Recipe
    keep: tuple[str, ...] = ()
    base: str = ""
    once: float = 0.0


@dataclass(frozen=True)
class ShortRun:
    """A run that fits."""

    recipe: Recipe  # with its epochs
    images: Images  # that it learns from
    steps_alone: float  # images per second of its steps, without reading and start


def planned_runs(base: Recipe, learned: int, best: FrozenNetwork | None) -> list[PlannedRun]:
    """The runs to try, in their order.

    Args:
        base: the recipe that is proposed for the images.
        learned: images that runs learn from.
        best: the best network at hand.
    """
    name, clusters = base.model.backbone, clusters_for(learned)
    runs = []
    if best is not None and _has_fewer_weights(base, best.backbone):
        values = (
            *_network_values(base.model),
            *(f"views.{size}={getattr(base.views, size)}" for size in SIZES),
            f"distil.teacher_size={best.backbone.transform.crop}",
        )
        recipe = overrides.apply(overrides.find_recipe("distil"), [f"distil.teachers={best.name}", *values])
        once = best.cost.milliseconds / 1000
        runs.append(PlannedRun("distilled", f"{name} taught by {best.name}", recipe, values, best.name, once))
    for title, values in (COLOURS if base.channels == RGB else {"its own views": ()}).items():
        recipe = overrides.apply(base, values).change(method={"clusters": clusters})
        runs.append(PlannedRun("pretrained", f"{name}, {title}", recipe, values))
    if best is not None:
        values = adapting_values(best.own, best.backbone.transform.crop)
        recipe = adopted(
            overrides.apply(overrides.find_recipe("adapt"), [f"init={best.name}", *values]), lambda _line: None
        )
        recipe = recipe.change(method={"clusters": min(recipe.method.clusters, clusters)})
        runs.append(PlannedRun("adapted", f"{best.name} adapted", recipe, values, best.name))
    recipe = base.change(method={"clusters": max(2, clusters // FEWER)})
    values = (f"method.clusters={max(2, base.method.clusters // FEWER)}",)
    runs.append(PlannedRun("pretrained", f"{name}, clusters of four times as many images", recipe, values))
    return runs


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
    planned: PlannedRun,
    base: Recipe,
    images: Images,
    seconds: float,
    device: torch.device,
    *,
    slowdown: float,
    teachers: Sequence[Teacher] = (),
) -> ShortRun | str:
    """A run with the epochs that fit into some seconds, of fewer images where not even one does; or why there is none.

    Args:
        planned: the run.
        base: the recipe whose device and range of stored values it shares.
        images: to learn from.
        seconds: that it may take, with a teacher's pass, which gets half of them at most.
        device: where it trains.
        slowdown: times that runs take longer than their steps alone.
        teachers: frozen ones, loaded.
    """
    recipe = planned.recipe.change(
        data={"range": base.data.range}, efficiency={"device": base.efficiency.device}, run={"save_epochs": 10**6}
    )
    if planned.once:
        images = evenly_spread(images, max(1, min(len(images), int(seconds / 2 / planned.once))))
        seconds -= planned.once * len(images)
    step = min(recipe.optim.batch, len(images))
    alone = measure_step(recipe, step, device, seconds=TIMED, teachers=teachers).images_per_second
    affordable = int(seconds * alone / slowdown)
    if affordable < min(len(images), FEWEST):
        return f"{seconds:.0f} s are not enough: it learns from {alone / slowdown:.2g} images a second here"
    epochs = max(1, affordable // len(images))
    images = evenly_spread(images, min(len(images), affordable))
    if recipe.data.range is not None and not surveyed(images, recipe.data.pixels).deep:
        recipe = recipe.change(
            data={"range": None}
        )  # the set has images of more than 8 bits, and these are none of them
    optim, adapt = recipe.optim, recipe.adapt
    recipe = recipe.change(
        optim={
            "epochs": epochs,
            "batch": min(optim.batch, max(8, len(images) // 4)),
            "warmup_epochs": min(optim.warmup_epochs, epochs / 10),
        },
        monitor=MEASURED_TWICE if adapt.active else UNMEASURED,
    )
    steps = recipe.steps_per_epoch(len(images)) * epochs
    if recipe.method.needs_teacher:
        # A teacher that is still what it was shows nothing of a short run.
        recipe = recipe.change(method={"teacher_momentum": followed_momentum(recipe, steps)})
    if adapt.active:
        recipe = recipe.change(
            adapt={
                "warmup_epochs": min(adapt.warmup_epochs, epochs / 5),
                "release_epochs": min(adapt.release_epochs, epochs / 3),
                "patience": None,
            }
        )
    return ShortRun(recipe, images, alone)


def _network_values(wanted: ModelSettings) -> Iterator[str]:
    """Overrides with which the student of `distil` is the network of the proposed recipe."""
    own = overrides.find_recipe("distil").model
    if wanted.backbone != own.backbone:
        yield f"model.backbone={wanted.backbone}"
    if (wanted.backbone, wanted.options) != (own.backbone, own.options):
        yield f"model.options={json.dumps(wanted.options)}"


def _has_fewer_weights(student: Recipe, teacher: Backbone) -> bool:
    """Whether a student has far fewer weights than a network, so that it may be worth teaching."""
    counts = [
        sum(parameter.numel() for parameter in network.parameters())
        for network in (student.model.architecture.build(), teacher.network)
    ]
    return counts[0] < CHEAPER * counts[1]
