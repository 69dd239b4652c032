"""Memory of a step by part, before it runs: from a trace of its operations on fake tensors, which have no values.

The loss head is counted by formulas, from its letters: V views, G of them global, B images, K clusters, D width.
"""

from dataclasses import dataclass, field, fields

from excb.objective.table import LOSSES

from ..recipe import Recipe
from .fakes import FEW, value_bytes
from .flops import meta_balancer
from .trace import Trace, trace_step

NOT_COUNTED = "cuDNN's and cuBLAS's workspaces, the allocator's fragmentation, what torch.compile changes, libraries"
TILE = 64 * 2**20  # bytes of scores that the streaming loss head holds at once on a GPU, at most
# Matrices K x D that it holds at its highest: unit centroids of both networks, the gradient of the student's, and what
# differentiating their normalisation takes.
HEAD_MATRICES = 5
PLAIN = 2  # times the least that whole matrices take: what the plain loss head holds at its highest


@dataclass(frozen=True)
class StepMemory:
    """Bytes of one process, by part. Not all parts are full at the same moment, so the total is an upper bound."""

    weights: int = field(metadata={"doc": "of the student"})
    gradients: int = field(metadata={"doc": "of the student's weights"})
    optimizer: int = field(metadata={"doc": "its state"})
    teacher: int = field(metadata={"doc": "its weights"})
    frozen_teachers: int = field(metadata={"doc": "their weights"})
    buffers: int = field(metadata={"doc": "BatchNorm's statistics and cluster sizes, with a step's copy of them"})
    views: int = field(metadata={"doc": "of a micro-batch, augmented"})
    activations: int = field(metadata={"doc": "of the student, saved for the backward pass"})
    passing: int = field(metadata={"doc": "beside them at most: in a teacher's pass, or in the backward pass"})
    loss_head: int = field(metadata={"doc": "centroids and a tile of scores; if plain, rows x clusters"})

    @property
    def total(self) -> int:
        """All parts."""
        return sum(getattr(self, part.name) for part in fields(self))


def step_memory(recipe: Recipe, images: int, trace: Trace | None = None) -> StepMemory:
    """Memory of a step with micro-batches of `images` images, from a `trace` of the recipe if there is one already.

    Raises:
        UserError: as `trace_step`.
    """
    width, method = value_bytes(recipe), recipe.method
    balancer = meta_balancer(method)
    trace = trace or trace_step(recipe)
    more = (method.clusters - FEW) * method.width
    student, teacher = (width * (more + parameters) for parameters in (trace.student, trace.teacher))
    trained = width * (trace.trained + method.clusters * method.width * method.clustering)
    learned = method.clusters + sum(buffer.numel() for buffer in balancer.buffers())  # s, and the balancer's state
    buffers = trace.buffers + width * (learned - FEW)
    activations = trace.saved.at(images)
    count = recipe.views.global_views + recipe.views.local_views
    scores = min(TILE, width * count * images * method.clusters)
    if recipe.efficiency.objective == "plain" or LOSSES[method.loss].probabilities or not balancer.is_affine:
        scores = PLAIN * plain_loss_head(recipe, images)
    # AdamW has a state for what has gradients, SGD for all (`build_optimizer`).
    states = 2 * trained if recipe.optim.optimizer == "adamw" else student * (recipe.optim.momentum > 0)
    return StepMemory(
        weights=student,
        gradients=trained,
        optimizer=states,
        teacher=teacher,
        frozen_teachers=trace.frozen_teachers,
        buffers=2 * buffers,
        views=trace.views.at(images),
        activations=activations,
        passing=max(0, trace.highest(images) - activations),
        loss_head=(HEAD_MATRICES * width * method.clusters * method.width + scores) * method.clustering,
    )


def plain_loss_head(recipe: Recipe, images: int) -> int:
    """Bytes that the loss as printed holds at least, for `images` images.

    These are p_t [G, B, K], log p_s [V, B, K] of projector and predictor, and the gradient of one of the latter.
    None without clusters.
    """
    views, method = recipe.views, recipe.method
    if not method.clustering:
        return 0
    count = views.global_views + views.local_views
    matrices = views.global_views + (3 if method.predictor else 2) * count
    return value_bytes(recipe) * matrices * images * method.clusters
