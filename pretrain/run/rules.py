"""The table of rules: what a recipe's values must be to each other and to the images, with the evidence for each.

`choose`, `doctor`, `plan`, a dry run, the first lines of a run and the verdict take their thresholds from here. A new
rule is a function that returns a breach or None, and one line in `RULES`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from excb.console import plural
from excb.images.decoding import BrokenImageError, stored_and_upright_size
from excb.images.image_set import CodedImages

from ..data.stream_images import StreamImages
from ..recipe import Recipe

A_CLUSTER = 20  # images that it should hold
SHORT = 1_500  # steps; the recipes for small sets take about as many
ENLARGED = 2.0  # times that a view may enlarge an image
FOLLOWED = 3.0  # times that the steps of a run should be those that the teacher averages over
LOOKED_AT = 64  # images whose size is read


@dataclass(frozen=True)
class SetFacts:
    """The facts of a set that rules depend on."""

    images: int  # their number
    side: int | None = None  # the median of their shorter sides in pixels; None where it is not known

    @classmethod
    def of(cls, images: CodedImages) -> "SetFacts":
        """The facts of a set, from the sizes of some of its images."""
        return cls(len(images), median_side(images))


@dataclass(frozen=True)
class Breach:
    """A rule that a recipe breaks on a set."""

    rule: str  # its name
    severity: Literal["error", "warning"]  # error: something that the recipe asks for can never happen
    found: str  # what is wrong, as one line
    fix: str  # what to set

    @property
    def line(self) -> str:
        """The breach for people."""
        return f"{self.found}: {self.fix}"

    def to_dict(self) -> dict[str, str]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class RecipeRule:
    """One rule."""

    name: str
    evidence: str  # where its threshold is from
    judge: Callable[[Recipe, SetFacts], Breach | None]


def median_side(images: CodedImages) -> int | None:
    """The median of the shorter sides of some images, strided over the set; None if none of them can be read."""
    sides = []
    for index in range(0, len(images), max(1, len(images) // LOOKED_AT)):
        try:
            sides.append(min(stored_and_upright_size(images.source(index))[1]))  # which decodes nothing
        except BrokenImageError:
            continue
    return int(sorted(sides)[len(sides) // 2]) if sides else None


def clusters_for(images: int) -> int:
    """The number of clusters for a set, a power of two."""
    return int(2 ** max(2, round(math.log2(max(1, images) / A_CLUSTER))))


def in_each(images: int, clusters: int) -> str:
    """How many images a cluster holds if all are as large, in words."""
    return plural(max(1, round(images / clusters)), "image")


def too_many_clusters(recipe: Recipe, images: int) -> bool:
    """Whether a recipe has more than twice the clusters that suit the set."""
    return recipe.method.clustering and recipe.method.clusters > 2 * clusters_for(images)


def followed_epochs(recipe: Recipe, steps: int) -> int:
    """The epochs of so many steps each after which the teacher has followed the student."""
    return math.ceil(FOLLOWED * _averaged(recipe) / steps)


def followed_momentum(recipe: Recipe, steps: int) -> float:
    """The teacher's first momentum, or a smaller one with which it follows the student in a run of so many steps."""
    if FOLLOWED * _averaged(recipe) <= steps:
        return recipe.method.teacher_momentum
    return max(0.5, round(1 - 10 / max(steps, 20), 3))


def _averaged(recipe: Recipe) -> float:
    """Steps that the teacher averages over, at first."""
    return 1 / max(1 - recipe.method.teacher_momentum, 1e-9)


def _clusters(recipe: Recipe, facts: SetFacts) -> Breach | None:
    if not too_many_clusters(recipe, facts.images):
        return None
    clusters, images = recipe.method.clusters, facts.images
    never = clusters > images
    return Breach(
        "clusters",
        "error" if never else "warning",
        f"{plural(clusters, 'cluster')} for {plural(images, 'image')}"
        + (": most can never hold one" if never else f", {images / clusters:.2g} in each"),
        f"set method.clusters={clusters_for(images)}, about {in_each(images, clusters_for(images))} each",
    )


def _warmup(recipe: Recipe, _facts: SetFacts) -> Breach | None:
    optim = recipe.optim
    if optim.warmup_epochs <= optim.epochs / 2:
        return None
    never = optim.warmup_epochs >= optim.epochs
    return Breach(
        "warm-up",
        "error" if never else "warning",
        f"the learning rate warms up for {optim.warmup_epochs:g} of {plural(optim.epochs, 'epoch')}"
        + (" and never reaches its value" if never else ""),
        f"set optim.warmup_epochs={optim.epochs / 10:g}",
    )


def _frozen_centroids(recipe: Recipe, _facts: SetFacts) -> Breach | None:
    optim = recipe.optim
    if not recipe.method.clustering or optim.frozen_centroid_epochs < optim.epochs:
        return None
    found = f"centroids are fixed for {optim.frozen_centroid_epochs} of {plural(optim.epochs, 'epoch')} and never move"
    return Breach("fixed centroids", "error", found, "set optim.frozen_centroid_epochs=0")


def _release(recipe: Recipe, _facts: SetFacts) -> Breach | None:
    adapt, epochs = recipe.adapt, recipe.optim.epochs
    if adapt.warmup_epochs + adapt.release_epochs <= epochs:
        return None
    never = adapt.warmup_epochs >= epochs
    return Breach(
        "release",
        "error" if never else "warning",
        f"the backbone is frozen for {adapt.warmup_epochs:g} and released over {adapt.release_epochs:g} of "
        f"{plural(epochs, 'epoch')}" + (", so it never trains" if never else ", so its first layers hardly train"),
        f"raise optim.epochs to {math.ceil(2 * (adapt.warmup_epochs + adapt.release_epochs))} or more",
    )


def _teacher(recipe: Recipe, facts: SetFacts) -> Breach | None:
    method, optim = recipe.method, recipe.optim
    if not method.needs_teacher or optim.batch > facts.images:
        return None
    steps = recipe.steps_per_epoch(facts.images) * optim.epochs
    momentum = followed_momentum(recipe, steps)
    if momentum == method.teacher_momentum:
        return None
    return Breach(
        "teacher",
        "warning",
        f"the teacher averages over {_averaged(recipe):,.0f} steps, and the run has {steps:,}, so it hardly follows",
        f"set method.teacher_momentum={momentum:g}, or train longer",
    )


def _views(recipe: Recipe, facts: SetFacts) -> Breach | None:
    views = recipe.views
    largest = max(views.global_size, views.local_size if views.local_views else 0)
    if facts.side is None or largest <= ENLARGED * facts.side:
        return None
    fitting = max(32, facts.side // 16 * 16)
    return Breach(
        "views",
        "warning",
        f"views of {largest} pixels of images whose shorter side has {facts.side} (median): they are enlarged and show "
        "nothing more",
        f"set views.global_size={fitting} views.local_size={fitting // 2} views.eval_resize={fitting} "
        f"views.eval_crop={fitting}, with a network for such sizes",
    )


RULES = (
    RecipeRule(
        "clusters",
        "docs/claims.md: 10 to 83 images a cluster are level on groceries, 10 and 40 on CIFAR-10",
        _clusters,
    ),
    RecipeRule("warm-up", "arithmetic: the cosine begins after the warm-up", _warmup),
    RecipeRule("fixed centroids", "arithmetic", _frozen_centroids),
    RecipeRule("release", "arithmetic", _release),
    RecipeRule("teacher", "arithmetic: an average over m steps is of the start until some m are done", _teacher),
    RecipeRule("views", "arithmetic: an enlarged view costs the square of its side", _views),
)


def breaches(recipe: Recipe, facts: SetFacts) -> Iterator[Breach]:
    """Every rule that a recipe breaks on a set of images, in the table's order."""
    for rule in RULES:
        if (breach := rule.judge(recipe, facts)) is not None:
            yield breach


def breaches_on(recipe: Recipe, images: CodedImages | StreamImages) -> list[Breach]:
    """The same for images that are there; of a stream, whose images are not looked at, only the number counts."""
    facts = SetFacts(len(images)) if isinstance(images, StreamImages) else SetFacts.of(images)
    return [*breaches(recipe, facts)]
