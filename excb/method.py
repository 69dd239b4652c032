"""ExCB, the whole method: sizes, balancing, assignment, both halves of the loss, teacher, k-means initialisation.

Equation numbers are those of "Efficient Unsupervised Visual Representation Learning with Explicit Cluster Balancing"
(Maniadis Metaxas, Tzimiropoulos, Patras; ECCV 2024). Where its text, its pseudo-code and the authors' code differ, the
choice is an option in `excb.settings`.

Read beside it `excb.objective.plain`, the loss as printed. Other balancers, for comparison, are in `excb.balancing`.

Letters: B images; G global, L local and V = G + L views; R rows; D width of the bottleneck; K clusters.

The balancing operator is affine per cluster, so balanced logits are one linear layer. `excb.objective.streamed` uses
that, and an identity of the cross-entropy, to compute the loss without a matrix of size R x K.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import register_pytree_node

from excb import seeding
from excb.balancing.interface import Balancer, TeacherBatch
from excb.balancing.table import BALANCERS
from excb.console import plural
from excb.distributed.collectives import mean_over_ranks
from excb.distributed.machine import to_device
from excb.errors import UserError
from excb.exact import similarities
from excb.heads import MLP
from excb.networks.backbone import feature_width, has_batchnorm
from excb.networks.blocks import Blocks
from excb.networks.drop_path import drop_path_keys
from excb.networks.lora import folded
from excb.objective.contrast import nt_xent
from excb.objective.loss import assign, loss_function
from excb.objective.plain import assignment_of
from excb.objective.regression import byol
from excb.objective.scores import Assignment
from excb.objective.table import AUTO, LOSSES
from excb.settings import MethodSettings

EMPTY = 2.0**-24  # a cluster with s K below this is empty: from s K = 1 that takes 16,600 steps at m_s = 0.999
KMEANS_TILE = 2**26  # similarities in one tile of k-means: 256 MiB
EMPTY_WEIGHT = 0.001  # an empty cluster's weight in B is drawn from [0, this) (authors' code), so that ties break

Form = Literal["linear", "squared", "pseudocode"]


def batch_sizes(winners: Tensor, clusters: int, dtype: torch.dtype) -> Tensor:
    """Relative cluster sizes s_B of one batch (Eq. 8), all processes together: winners [any shape] -> [K]."""
    winners = winners.flatten()
    # Counted in integers; bincount would make the CPU wait for a GPU.
    counts = winners.new_zeros(clusters).index_add_(0, winners, torch.ones_like(winners))
    return mean_over_ranks(counts.to(dtype) / winners.numel())


def balancing(sizes: Tensor, form: Form = "linear", *, empty_weight: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """The operator B (Eq. 10) as one affine map per cluster: z^B = scale * z + offset.

    Args:
        sizes: relative cluster sizes s, [K], summing to 1.
        form: B below 1/K: `linear` 1 - (1 - z) s K, `squared` 1 - (1 - z) (s K)^2 (the appendix's ablation),
            `pseudocode` for the appendix's algorithm as printed, with its slip 1 + (1 - z) s K.
        empty_weight: the weight of empty clusters, instead of s K or its square, [K] or a number.

    Returns:
        scale [K] and offset [K].
    """
    relative = sizes * sizes.numel()
    weight = relative.square() if form == "squared" else relative
    # z -> 1 - (1 - z) w pulls small clusters up to 1 and keeps the others (w = 1) ...
    weight = torch.where(relative < EMPTY, empty_weight, weight.clamp(max=1))
    sign = -1 if form == "pseudocode" else 1
    scale, offset = sign * weight, 1 - sign * weight
    # ... then z -> (1 + z) w - 1 pushes large ones down to -1 and keeps the others.
    weight = 1 / relative.clamp(min=1)
    return scale * weight, (1 + offset) * weight - 1


class ExplicitBalancing(Balancer):
    """ExCB's B for the sizes s, as a `Balancer`.

    Args:
        form: of `balancing`.
        noise: draw the weights of empty clusters from the step's key, so that ties break; else they are 0.
    """

    def __init__(self, form: Form, *, noise: bool) -> None:
        super().__init__()
        self._form, self._noise = form, noise

    def affine(self, batch: TeacherBatch) -> tuple[Tensor, Tensor]:
        """Return B's scale and offset for the sizes s."""
        empty_weight: Tensor | float = 0.0
        if self._noise:
            clusters = torch.arange(len(batch.sizes), device=batch.sizes.device)
            key = seeding.fold(seeding.Purpose.EMPTY_CLUSTER, batch.step_key)
            empty_weight = EMPTY_WEIGHT * seeding.uniform(key, clusters).to(batch.sizes.dtype)
        return balancing(batch.sizes, self._form, empty_weight=empty_weight)


def balancer(settings: MethodSettings) -> Balancer:
    """The balancer that `method.balancing` names."""
    entry = BALANCERS[settings.balancing]
    if entry.module is None:
        return ExplicitBalancing(cast("Form", settings.balancing), noise=settings.empty_clusters == "noise")
    other: Balancer = entry.build(settings)
    return other


def pair_weights(
    globals_: int,
    locals_: int,
    *,
    reduction: Literal["halves", "sum", "pairs", "pseudocode"] = "halves",
    predictor: bool = True,
    projector_on_local: bool = True,
) -> tuple[Tensor, Tensor]:
    """Weights of the view pairs in the two halves of the loss (Eq. 7): projector [G, V] and predictor [G, V].

    The projector skips a view's pair with itself; the predictor does not. A half without pairs is zero, and without a
    predictor the first half has the whole weight.
    """
    projector = 1 - torch.eye(globals_, globals_ + locals_, dtype=torch.float64)
    if not projector_on_local:
        projector[:, globals_:] = 0
    second = torch.full_like(projector, float(predictor))
    pairs_h, pairs_g = projector.sum().clamp(min=1), second.sum().clamp(min=1)
    share = 0.5 if predictor else 1.0
    if reduction == "sum":
        return share * projector, share * second
    if reduction == "halves":
        return share * projector / pairs_h, share * second / pairs_g
    if reduction == "pseudocode":  # a mean over the student's views, but a sum over the teacher's
        return share * projector * globals_ / pairs_h, share * second * globals_ / pairs_g
    pairs = (projector.sum() + second.sum()).clamp(min=1)
    return projector / pairs, second / pairs


class CentroidLayer(nn.Module):
    """The centroids C of q (Eq. 1), kept as unnormalised rows [K, D]. Similarities use their directions only."""

    def __init__(self, clusters: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(clusters, width))
        bound = width**-0.5  # torch's default for a Linear layer
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self) -> Tensor:
        """Return the unit centroids [K, D], at least in float32."""
        return unit(self.weight)


def unit(rows: Tensor) -> Tensor:
    """Normalise the last dimension; half precision becomes float32, since rounded similarities tie (3 % of rows)."""
    return F.normalize(rows if rows.dtype == torch.float64 else rows.float(), dim=-1)


class Network(nn.Module):
    """Backbone f, projector h, centroids C and, in the student, predictor g and what learns from frozen teachers."""

    predictor: nn.Module | None
    distillation: nn.Module | None

    def __init__(self, backbone: nn.Module, settings: MethodSettings, *, predictor: bool) -> None:
        super().__init__()
        style = settings.head
        if style == "auto":
            style = "batchnorm" if has_batchnorm(backbone) else "gelu"
        hidden, width, norm = settings.hidden, settings.width, settings.predictor_input_norm
        self.backbone = backbone
        self.projector = MLP(
            feature_width(backbone),
            hidden,
            width,
            layers=settings.projector_layers,
            style=style,
            output_norm=settings.projector_output_norm,
        )
        self.predictor = self.distillation = None
        if predictor:
            layers = settings.predictor_layers
            self.predictor = MLP(width, hidden, width, layers=layers, style=style, input_norm=norm)
        self.centroids = CentroidLayer(settings.clusters, width)


@dataclass(frozen=True)
class Clustered:
    """The teacher's clusters in a forward pass."""

    loss: Tensor  # [] Eq. 7
    winners: Tensor  # [G, B] the teacher's hard assignments (after B)
    counted: Tensor  # [G, B] the assignments that `update` counts into s
    confidence: Tensor  # [] c_avg (Eq. 11)
    agreement: Tensor  # [] a_avg (Eq. 12), over G (G - 1) ordered pairs of global views
    raw_winners: Tensor  # [G, B] the same before B
    balance: Tensor | None = None  # the balancer's statistic of the batch for `update`, a mean over its rows


@dataclass(frozen=True)
class Distilled:
    """The result of comparing the student with frozen teachers."""

    loss: Tensor  # [] the weighted sum of its terms
    terms: dict[str, Tensor]  # [] of each, without its weight
    pending: dict[str, Tensor]  # what its `update` needs after the optimizer's step; images come first


@dataclass(frozen=True)
class Step:
    """The output of one forward pass of the method."""

    loss: Tensor  # [] what is differentiated: Eq. 7, and NT-Xent, BYOL's and the teachers' loss times their weights
    clusters: Clustered | None  # None with `method.clustering=false`
    contrast: Tensor | None  # [] NT-Xent; None where its weight is 0
    regression: Tensor | None  # [] BYOL's loss; None where its weight is 0
    features: Tensor | None = None  # [V * B, D] of the student's backbone, view by view, for terms besides the method's
    anchor: Tensor | None = None  # [] such a term: the distance from the features of a run's start
    distilled: Distilled | None = None  # of a student that learns from frozen teachers as well


def _fields(values: Any) -> tuple[list[Any], None]:
    return [getattr(values, part.name) for part in fields(values)], None


# DistributedDataParallel looks for tensors in what a pass returns: without this, a static graph would not average the
# first step's gradients, and say nothing.
register_pytree_node(Clustered, _fields, lambda values, _: Clustered(*values))
register_pytree_node(Distilled, _fields, lambda values, _: Distilled(*values))
register_pytree_node(Step, _fields, lambda values, _: Step(*values))


class ExCB(nn.Module):
    """Student, teacher and relative cluster sizes s.

    `forward` returns the loss of a batch. After the optimizer's step, `update` moves the sizes and the teacher.

    Args:
        student: the backbone to train.
        teacher: a second backbone of the same architecture, without drop path; it takes the student's weights here.
        settings: the method's options.
        backend: how the loss is computed, see `excb.objective.loss.resolve_backend`; not part of its definition.
    """

    sizes: Tensor

    def __init__(
        self, student: nn.Module, teacher: nn.Module, settings: MethodSettings, *, backend: str = AUTO
    ) -> None:
        super().__init__()
        self.settings = settings
        self._loss = loss_function(settings.loss)
        self._backend = "plain" if LOSSES[settings.loss].probabilities else backend
        self._weights: dict[Any, tuple[Tensor, Tensor]] = {}
        self.student = Network(student, settings, predictor=settings.predictor)
        self.teacher = Network(teacher, settings, predictor=False).requires_grad_(False)
        self.teacher.load_state_dict(
            {name: value for name, value in self.student.state_dict().items() if not name.startswith("predictor.")}
        )
        # DistributedDataParallel would wait for gradients that never come.
        if not settings.clustering:
            self.student.centroids.requires_grad_(False)
        if not settings.active:
            self.student.projector.requires_grad_(False)
        if settings.teacher_centroids == "unit":
            with torch.no_grad():
                self.teacher.centroids.weight.copy_(self.teacher.centroids())
        if settings.teacher_statistics == "averaged":
            for module in self.teacher.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.momentum = 0.0  # its own passes leave the statistics alone; only `update` moves them
        self.register_buffer("sizes", torch.full((settings.clusters,), 1 / settings.clusters))
        self.balancer = balancer(settings)
        self._blocks: list[Blocks] = []  # in a list, so that the state dict does not hold the backbone twice

    def learn_from(self, distillation: nn.Module) -> None:
        """Compare the student with frozen teachers as well.

        Args:
            distillation: called with features [V, B, D], maps and targets, it returns `Distilled`. It trains with the
                student, and its `update` follows the optimizer's step. Its `needs_maps` says whether it wants the maps
                of the student's last layer, [v, B, D, h, w] for each resolution.
        """
        self.student.distillation = distillation
        self._blocks = [Blocks(self.student.backbone)] if distillation.needs_maps else []

    def forward(
        self,
        global_views: Tensor,
        local_views: Tensor | None = None,
        *,
        step_key: int,
        sample_keys: Tensor | None = None,
        targets: Sequence[Any] = (),
    ) -> Step:
        """Compute the loss of one batch.

        Args:
            global_views: [G, B, 3, H, W].
            local_views: [L, B, 3, h, w] or None.
            step_key: `seeding.fold(seed, step)`, equal on all processes: the RNG key of the noise of empty clusters.
            sample_keys: `seeding.fold(Purpose.DROP_PATH, seed, epoch, sample)` of every image, [B] int64. Needed
                only where the backbone has drop path.
            targets: what the frozen teachers make of the batch, for `distillation`.
        """
        settings = self.settings
        globals_, images = global_views.shape[:2]

        features, maps = self._student_features(global_views, local_views, sample_keys)
        losses, distilled = list[Tensor](), None
        if self.student.distillation is not None:
            distilled = self.student.distillation(features.unflatten(0, (-1, images)), maps, targets)
            losses.append(distilled.loss)
        if not settings.active:
            return Step(losses[0], None, None, None, features, distilled=distilled)
        projected, predicted = self._student_heads(features, globals_ * images)
        # Similarities decide assignments, so they never pass through autocast's half precision.
        with torch.autocast(global_views.device.type, enabled=False):
            h = unit(projected).unflatten(0, (-1, images))
            g = None if predicted is None else unit(predicted).unflatten(0, (-1, images))
            contrast = clusters = regression = None
            if settings.contrast:
                contrast = nt_xent(h, globals_, temperature=settings.contrast_temperature)
                losses.append(settings.contrast * contrast)
        if settings.needs_teacher:
            with torch.no_grad():
                teacher_rows = self.teacher.projector(self.teacher.backbone(global_views.flatten(0, 1)))
        if settings.regression:
            assert g is not None
            with torch.autocast(global_views.device.type, enabled=False):
                regression = byol(g, unit(teacher_rows).unflatten(0, (-1, images)))
                losses.append(settings.regression * regression)
        if settings.clustering:
            clusters = self._cluster(teacher_rows, h, g, step_key)
            losses.append(clusters.loss)
        return Step(torch.stack(losses).sum(), clusters, contrast, regression, features, distilled=distilled)

    def _cluster(self, teacher_rows: Tensor, h: Tensor, g: Tensor | None, step_key: int) -> Clustered:
        """Eq. 7 of the student's unit rows h and g, [V, B, D] each, against the teacher's projections [G * B, D]."""
        settings = self.settings
        views, images = h.shape[:2]
        globals_ = len(teacher_rows) // images
        rounded = _rounded_type(h.device)
        with torch.autocast(h.device.type, enabled=False):
            centroids = self.student.centroids().to(rounded)
            fixed = centroids.detach()
            queries = unit(teacher_rows).to(rounded)
            batch = TeacherBatch(queries, self.teacher.centroids().to(queries.dtype), self.sizes, step_key)
            assignment = self._assign(batch, fixed)
            weights_h, weights_g = self._pair_weights(globals_, views - globals_)
            # Eq. 2: only the projector moves the centroids, and unless ablated only through global views.
            moving = views if settings.centroid_gradient_from_local else globals_
            h = h.to(rounded)
            terms = [(h[:moving], centroids, weights_h[:, :moving])]
            if settings.projector_on_local:
                terms.append((h[moving:], fixed, weights_h[:, moving:]))
            if g is not None:
                terms.append((g.to(rounded), fixed, weights_g))
            losses = [
                self._loss(rows, keys, assignment, weights, temperature=settings.student_temperature)
                for rows, keys, weights in terms
                if len(rows)
            ]
            loss = torch.stack(losses).sum()

        winners, raw_winners = (
            each.unflatten(0, (globals_, images)) for each in (assignment.winners, assignment.raw_winners)
        )
        counted = winners if settings.sizes_counted == "balanced" else raw_winners
        confidence, agreement = assignment.confidence.mean(), _agreement(winners)
        return Clustered(loss, winners, counted, confidence, agreement, raw_winners, self.balancer.statistic(batch))

    def _pair_weights(self, globals_: int, locals_: int) -> tuple[Tensor, Tensor]:
        """`pair_weights` on the loss's device, cached: even a copy of a few numbers makes the CPU wait for a GPU."""
        key = globals_, locals_, self.sizes.device, self.sizes.dtype
        if key not in self._weights:
            settings = self.settings
            options = {"predictor": settings.predictor, "projector_on_local": settings.projector_on_local}
            halves = pair_weights(globals_, locals_, reduction=settings.loss_reduction, **options)
            projector, predictor = (to_device(half.to(self.sizes.dtype), self.sizes.device) for half in halves)
            self._weights[key] = projector, predictor
        return self._weights[key]

    def _student_features(
        self, global_views: Tensor, local_views: Tensor | None, sample_keys: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Backbone once per resolution: -> [V * B, features], view by view, and the maps of each, if wanted."""
        backbone = self.student.backbone
        features, maps, first_view = list[Tensor](), list[Tensor](), 0
        for views in (global_views, local_views):
            if views is not None:
                with drop_path_keys(backbone, sample_keys, range(first_view, first_view + views.shape[0])):
                    if self._blocks:
                        outputs, pooled = self._blocks[0](views.flatten(0, 1))
                        maps.append(outputs[-1].map.unflatten(0, views.shape[:2]))
                    else:
                        pooled = backbone(views.flatten(0, 1))
                    features.append(pooled)
                first_view += views.shape[0]
        return torch.cat(features), maps

    def _student_heads(self, features: Tensor, global_rows: int) -> tuple[Tensor, Tensor | None]:
        """Projector and predictor over all views at once, or per resolution (the pseudo-code): [V * B, D] each."""
        at_once = self.settings.head_batches == "all_views" or global_rows == len(features)
        groups = [features] if at_once else [features[:global_rows], features[global_rows:]]
        projected = [self.student.projector(group) for group in groups]
        if self.student.predictor is None:
            return torch.cat(projected), None
        return torch.cat(projected), torch.cat([self.student.predictor(group) for group in projected])

    @torch.no_grad()
    def _assign(self, batch: TeacherBatch, values: Tensor) -> Assignment:
        """Balance the teacher's similarities and assign. In the pseudo-code s takes in the batch first."""
        settings = self.settings
        assignment = self._balance_and_assign(batch, values)
        if settings.sizes_updated == "before_balancing" and self.training:
            counted = assignment.winners if settings.sizes_counted == "balanced" else assignment.raw_winners
            self._update_sizes(counted)
            assignment = self._balance_and_assign(batch, values)
        return assignment

    def _balance_and_assign(self, batch: TeacherBatch, values: Tensor) -> Assignment:
        settings = self.settings
        probabilities = self.balancer.probabilities(batch)
        if probabilities is not None:
            return assignment_of(probabilities, batch.similarities())
        return assign(
            batch.queries,
            batch.centroids,
            *self.balancer.affine(batch),
            values,
            temperature=settings.teacher_temperature,
            winner_gain=settings.winner_gain,
            clamp=settings.clamp,
            backend=self._backend,
        )

    @torch.no_grad()
    def _update_sizes(self, counted: Tensor) -> None:
        """Eq. 9: s = m_s s + (1 - m_s) s_B."""
        share = batch_sizes(counted, self.settings.clusters, self.sizes.dtype)
        self.sizes.lerp_(share, 1 - self.settings.sizes_momentum)

    @torch.no_grad()
    def update(self, clusters: Clustered | None, momentum: float | Tensor, distilled: Distilled | None = None) -> None:
        """After the optimizer's step: count the batch into s (Eq. 9), move the teacher by EMA (Sec. 3.1).

        Args:
            clusters: `Step.clusters` of the batch.
            momentum: m of theta_t = m theta_t + (1 - m) theta_s; a tensor [] does not make the CPU wait for a GPU.
            distilled: `Step.distilled` of the batch.
        """
        if distilled is not None:
            cast("Any", self.student.distillation).update(distilled.pending)
        if clusters is not None:
            self.balancer.update(clusters.balance)
            if self.settings.sizes_updated == "after_loss":
                self._update_sizes(clusters.counted)
        student = folded(dict(self.student.named_parameters()))  # the teacher averages the whole network, LoRA included
        if self.settings.teacher_centroids == "unit":
            student["centroids.weight"] = nn.Parameter(self.student.centroids().to(self.student.centroids.weight.dtype))
        teacher = dict(self.teacher.named_parameters())
        _average(list(teacher.values()), [student[name] for name in teacher], momentum)
        if self.settings.teacher_statistics == "averaged":
            source = dict(self.student.named_buffers())
            buffers = {n: b for n, b in self.teacher.named_buffers() if b.is_floating_point()}
            if buffers:
                _average(list(buffers.values()), [source[name] for name in buffers], momentum)

    @torch.no_grad()
    def project(self, views: Tensor) -> Tensor:
        """The teacher's unit projections n(h_t(f_t(x))): [B, 3, H, W] -> [B, D]; k-means starts from these."""
        return unit(self.teacher.projector(self.teacher.backbone(views)))

    @torch.no_grad()
    def start_centroids(self, samples: Tensor, *, seed: int) -> None:
        """Start the centroids from spherical k-means of projected views (authors' code).

        The teacher takes the unit centroids, the student the unnormalised means of the final assignment.

        Args:
            samples: unit rows [N, D].
            seed: of the random starts.

        Raises:
            UserError: fewer samples than clusters.
        """
        settings = self.settings
        means = spherical_kmeans(samples, settings.clusters, iterations=settings.kmeans_iterations, seed=seed)
        self.teacher.centroids.weight.copy_(unit(means))
        self.student.centroids.weight.copy_(means)


def _average(averages: list[Tensor], values: list[Tensor], momentum: float | Tensor) -> None:
    """Move averages by EMA towards values."""
    change = torch._foreach_sub(values, averages)
    weight = 1 - momentum
    torch._foreach_mul_(change, weight.to(change[0].dtype) if isinstance(weight, Tensor) else weight)
    torch._foreach_add_(averages, change)


def _rounded_type(device: torch.device) -> torch.dtype | None:
    """The type that rows and centroids are rounded to before they are multiplied; None: their own.

    It is bfloat16 where the forward pass uses it on a GPU, which accumulates the products in float32.
    """
    low = device.type == "cuda" and torch.is_autocast_enabled("cuda")
    return torch.bfloat16 if low and torch.get_autocast_dtype("cuda") is torch.bfloat16 else None


def _agreement(winners: Tensor) -> Tensor:
    """a_avg (Eq. 12): share of ordered pairs of different global views with the same winner; 0 with one view."""
    views, images = winners.shape
    equal = (winners[:, None] == winners[None]).sum() - views * images  # every view agrees with itself
    return equal.double() / max(1, views * (views - 1) * images)


@torch.no_grad()
def spherical_kmeans(samples: Tensor, clusters: int, *, iterations: int, seed: int, attempts: int = 5) -> Tensor:
    """Spherical k-means: unit rows [N, D] -> the unnormalised means [K, D] of the final assignment.

    It starts from K distinct samples, and again from others while a cluster is empty (authors' code). In the last
    attempt an empty cluster takes a random sample instead, so it always ends. It is deterministic in `seed` on the CPU.
    On a GPU it is not, so one process must broadcast its result.

    Raises:
        UserError: fewer samples than clusters.
    """
    if len(samples) < clusters:
        raise UserError(
            "k-means needs at least as many samples as clusters, but there are "
            f"{plural(len(samples), 'training view')} for {plural(clusters, 'cluster')}: lower method.clusters to at "
            f"most {len(samples)} or set method.centroid_init=random"
        )
    for attempt in range(attempts):
        random = seeding.generator(seeding.Purpose.KMEANS, seed, attempt)
        starts = torch.from_numpy(random.choice(len(samples), clusters, replace=False)).to(samples.device)
        means = samples[starts]
        empty = 0
        for _ in range(iterations):
            centroids = unit(means)
            parts = samples.split(KMEANS_TILE // clusters + 1)
            winners = torch.cat([similarities(rows, centroids).argmax(1) for rows in parts])
            counts = torch.bincount(winners, minlength=clusters)
            means = torch.zeros_like(means).index_add_(0, winners, samples) / counts.clamp(min=1)[:, None]
            empty = int((counts == 0).sum())
            if empty and attempt == attempts - 1:
                others = torch.from_numpy(random.choice(len(samples), empty, replace=False)).to(samples.device)
                means[counts == 0] = samples[others]
            elif empty:
                break
        if not empty:
            break
    return means
