"""What the operations of a step launch and move, from a trace on fake tensors: for a model of its time."""

from dataclasses import dataclass

from ..recipe import Recipe
from .assumptions import HEAD_PASSES, UPDATE, VIEW_LAUNCHES, VIEW_PASSES
from .fakes import value_bytes
from .trace import Operations, Trace


@dataclass(frozen=True)
class Passes:
    """Of one part of a step: operations with kernels, and the bytes that they read and write."""

    launches: int
    product_bytes: float  # of convolutions and matrix products
    other_bytes: float


@dataclass(frozen=True)
class Work:
    """Of a micro-batch: passes forward (of all networks) and backward; and what a step does once."""

    forward: Passes
    backward: Passes
    views: Passes
    update: Passes


def step_work(recipe: Recipe, trace: Trace, images: int, *, weights: int) -> Work:
    """The work of a micro-batch.

    Args:
        recipe: the recipe.
        trace: of the recipe.
        images: of the micro-batch of one process.
        weights: number of the student's weights, centroids with it.
    """
    views, method, width = recipe.views, recipe.method, value_bytes(recipe)
    head = HEAD_PASSES / 2 * width * method.clusters * method.width * method.clustering

    def passes(operations: Operations) -> Passes:
        product, other = operations.product_bytes.at(images), operations.other_bytes.at(images)
        return Passes(operations.launches, product, other + head)

    blurred = max(views.blur) > 0
    pixels = views.global_views * views.global_size**2 + views.local_views * views.local_size**2
    # An update reads weight, gradient and state, and writes weight and state; the teacher's average takes three more.
    states = 2 if recipe.optim.optimizer == "adamw" else int(recipe.optim.momentum > 0)
    return Work(
        passes(trace.forward),
        passes(trace.backward),
        Passes(VIEW_LAUNCHES[blurred], 0.0, 4.0 * VIEW_PASSES[blurred] * 3 * pixels * images),
        Passes(UPDATE, 0.0, float((3 + 2 * states + 3) * width * weights)),
    )
