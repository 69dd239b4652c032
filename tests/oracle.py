"""ExCB as the paper prints it: an oracle in plain loops over views, images, pairs and clusters, slow and literal.

Written from "Efficient Unsupervised Visual Representation Learning with Explicit Cluster Balancing" (ECCV 2024) and the
table of its differences with its pseudo-code and the authors' code, not from `excb.method`: every formula stands as
printed, one number at a time, and autograd differentiates it. Only backbone and heads are the tested model's modules.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from excb.method import ExCB
from excb.settings import MethodSettings

EMPTY = 2.0**-24  # a cluster with s K below this is empty
Rows = list[list[Tensor]]  # [view][image] -> a row [D], or a number for each cluster [K]


def cosine(v: Tensor, c: Tensor) -> Tensor:
    """Eq. 1: q(v, c) = v . c / (|v| |c|)."""
    return v.dot(c) / (v.norm() * c.norm())


def similarities(v: Tensor, centroids: list[Tensor]) -> Tensor:
    """Eq. 2 and 3: z, one number for each cluster."""
    return torch.stack([cosine(v, c) for c in centroids])


def softmax(z: Tensor, temperature: float) -> Tensor:
    """Eq. 5 and 6: p_k = exp(z_k / tau) / sum_i exp(z_i / tau)."""
    exponentials = (z / temperature).exp()
    return exponentials / exponentials.sum()


def cross_entropy(a: Tensor, b: Tensor) -> Tensor:
    """H(a, b) = -a^T log b (below Eq. 7)."""
    return -(a * b.log()).sum()


def argmax(values: Sequence[float]) -> int:
    """The first index of the largest value."""
    return max(range(len(values)), key=lambda k: values[k])


def mean(values: Sequence[Tensor]) -> Tensor:
    """The mean, and 0 of nothing."""
    return torch.stack(list(values)).sum() / len(values) if values else torch.zeros((), dtype=torch.float64)


def balance(z: float, s: float, clusters: int, form: str, empty_weight: float = 0.0) -> float:
    """Eq. 10: z^B = B(z; s) of one cluster; where it is empty, `empty_weight` stands for the factor of 1 - z."""
    relative = s * clusters
    empty = relative < EMPTY
    if form == "none":
        return z
    if form == "pseudocode":  # the appendix's two lines, with the sign as printed
        relative = empty_weight if empty else relative
        inverse = 1 / relative if relative else math.inf
        z_b = 1 + (1 - z) * (1 - max(0.0, 1 - relative))
        return (1 + z_b) * (1 - max(0.0, 1 - inverse)) - 1
    if empty:
        return 1 - (1 - z) * empty_weight
    if s < 1 / clusters:
        return 1 - (1 - z) * relative ** {"linear": 1, "squared": 2}[form]  # squared: the appendix's ablation
    if s > 1 / clusters:
        return (1 + z) / relative - 1
    return z


def sinkhorn(z: Tensor, epsilon: float, iterations: int) -> Tensor:
    """SwAV's algorithm (NeurIPS 2020, appendix A.1) on the whole matrix: similarities [R, K] -> assignment [R, K]."""
    (rows, clusters), q = z.shape, (z / epsilon).exp()
    q = q / q.sum()
    for _ in range(iterations):
        q = q / q.sum(0) / clusters
        q = q / q.sum(1, keepdim=True) / rows
    return q * rows


def mira(z: Tensor, temperature: float, beta: float, iterations: int) -> Tensor:
    """MIRA's fixed-point iteration (NeurIPS 2022) on the whole matrix: similarities [R, K] -> assignment [R, K]."""
    power = torch.softmax(z / temperature, 1) ** (1 / (1 - beta))
    u = torch.ones(z.shape[1], dtype=z.dtype)
    for _ in range(1 + iterations):
        u = (power / (power * u ** (-beta / (1 - beta))).sum(1, keepdim=True)).mean(0) ** (1 - beta)
    w = power * u ** (-beta / (1 - beta))
    return w / w.sum(1, keepdim=True)


def balance_together(z: Tensor, settings: MethodSettings, center: Tensor) -> Tensor | None:
    """p_t of the balancers that are not ExCB's, [R, K]; None for those that take clusters one by one."""
    temperature = settings.teacher_temperature
    if settings.balancing == "centering":  # DINO, Eq. 1 with the centre taken off
        return torch.stack([softmax(row - center, temperature) for row in z])
    if settings.balancing == "sinkhorn":
        return sinkhorn(z, temperature, settings.sinkhorn_iterations)
    if settings.balancing == "mira":
        return mira(z, temperature, settings.mira_beta, settings.mira_iterations)
    return None


@dataclass(frozen=True)
class Teacher:
    """The teacher's side of a batch, each [view][image]."""

    p: Rows  # [K] for every image of every view
    winners: list[list[int]]  # argmax of p_t (Eq. 8)
    raw_winners: list[list[int]]  # argmax of z_t: what the pseudo-code counts
    mean: Tensor  # [K] of z_t: what DINO's centre averages


def assign(
    rows: Rows,
    centroids: list[Tensor],
    sizes: list[float],
    settings: MethodSettings,
    empty_weights: list[float],
    *,
    center: Tensor | None = None,
) -> Teacher:
    """Eq. 3, 4 and 6, with the authors' factor on the winner and their clamp between Eq. 4 and 6."""
    z_t = [[similarities(row, centroids).tolist() for row in view] for view in rows]

    def p_t(z: list[float]) -> Tensor:
        """The probabilities of one image."""
        z_b = [
            balance(z[k], sizes[k], len(sizes), settings.balancing, empty_weights[k])  # Eq. 4
            for k in range(len(sizes))
        ]
        best = argmax(z_b)
        z_b[best] *= settings.winner_gain
        if settings.clamp:
            z_b = [min(1.0, max(-1.0, value)) for value in z_b]
        return softmax(torch.tensor(z_b, dtype=torch.float64), settings.teacher_temperature)

    every = torch.tensor([z for view in z_t for z in view], dtype=torch.float64)
    together = balance_together(every, settings, torch.zeros(len(sizes)) if center is None else center)
    p = [[p_t(z) for z in view] for view in z_t] if together is None else by_view(together, len(rows[0]))
    return Teacher(
        p,
        [[argmax(image.tolist()) for image in view] for view in p],
        [[argmax(z) for z in view] for view in z_t],
        every.mean(0),
    )


def objective(h: Rows, g: Rows | None, centroids: list[Tensor], p_t: Rows, settings: MethodSettings) -> Tensor:
    """Eq. 7, pair by pair: teacher's view x' with student's view x'', over the projector's and the predictor's rows."""
    globals_, views, images = range(len(p_t)), range(len(h)), range(len(h[0]))
    fixed = [c.detach() for c in centroids]  # sg(C)

    def p_s(rows: list[Tensor], matched: list[Tensor]) -> list[Tensor]:
        """Eq. 5 for all images of one view."""
        return [softmax(similarities(row, matched), settings.student_temperature) for row in rows]

    # "we ... only update cluster centroids through global views" (Sec. 4.1), and the predictor never does (Eq. 2).
    moving = views if settings.centroid_gradient_from_local else globals_
    p_h = [p_s(h[view], centroids if view in moving else fixed) for view in views]
    p_g = [p_s(g[view], fixed) for view in views] if g is not None else []

    loss_h, loss_g = [], []  # one number for each pair of views
    for x1 in globals_:
        for x2 in views:
            if x2 != x1 and (x2 in globals_ or settings.projector_on_local):
                loss_h.append(mean([cross_entropy(p_t[x1][n], p_h[x2][n]) for n in images]))
            if g is not None:
                loss_g.append(mean([cross_entropy(p_t[x1][n], p_g[x2][n]) for n in images]))

    share = 1.0 if g is None else 0.5
    zero = mean([])
    if settings.loss_reduction == "halves":
        return share * mean(loss_h) + share * mean(loss_g)
    if settings.loss_reduction == "sum":  # Eq. 7 as printed
        return share * sum(loss_h, zero) + share * sum(loss_g, zero)
    if settings.loss_reduction == "pairs":  # authors' code: total / number of pairs
        return mean(loss_h + loss_g)
    matched = len(views) if settings.projector_on_local else len(globals_)  # pseudo-code: G + L - 1 and G + L
    return share * sum(loss_h, zero) / max(1, matched - 1) + share * sum(loss_g, zero) / len(views)


def nt_xent(rows: Rows, globals_: int, temperature: float) -> Tensor:
    """SimCLR, Eq. 1, for every view as anchor, every other global view as its positive, and other images' as negatives.

    With two global views alone this is SimCLR's loss: 2 (B - 1) negatives, the mean over 2 B anchors.
    """
    images = range(len(rows[0]))

    def weight(a: Tensor, b: Tensor) -> Tensor:
        return (cosine(a, b) / temperature).exp()

    terms = []
    for v, view in enumerate(rows):
        for n in images:
            negatives = [weight(view[n], rows[g][m]) for g in range(globals_) for m in images if m != n]
            for g in range(globals_):
                if g != v:
                    positive = weight(view[n], rows[g][n])
                    terms.append(-(positive / sum(negatives, positive)).log())
    return mean(terms)


def byol(predictions: Rows, targets: Rows) -> Tensor:
    """BYOL, Eq. 2: squared distance of unit vectors, for every view's prediction and every other view's target."""
    pairs = [(v, t) for v in range(len(predictions)) for t in range(len(targets)) if v != t]
    images = range(len(targets[0]))
    distances = [
        predictions[v][n] / predictions[v][n].norm() - targets[t][n] / targets[t][n].norm()
        for v, t in pairs
        for n in images
    ]
    return mean([distance.square().sum() for distance in distances])


@dataclass(frozen=True)
class OracleStep:
    """The output of one forward pass of the method."""

    loss: Tensor
    winners: list[list[int]]
    raw_winners: list[list[int]]
    confidence: float
    agreement: float


class Oracle:
    """A second ExCB, started as a copy of the tested one and moved by its own formulas."""

    def __init__(self, model: ExCB) -> None:
        self.settings = model.settings
        self.student = copy.deepcopy(model.student)
        self.teacher = copy.deepcopy(model.teacher)
        self.sizes = [float(s) for s in model.sizes]
        self.center = torch.zeros(len(self.sizes), dtype=torch.float64)
        self.training = model.training
        self._counted: list[int] = []

    def forward(self, global_views: Tensor, local_views: Tensor | None, empty_weights: list[float]) -> OracleStep:
        """Loss, winners and statistics of a batch [V, B, 3, H, W], given the weights of empty clusters."""
        settings, images = self.settings, global_views.shape[1]
        h, g = self._student_rows(global_views, local_views)
        with torch.no_grad():
            statistics = {name: buffer.clone() for name, buffer in self.teacher.named_buffers()}
            rows = by_view(self.teacher.projector(self.teacher.backbone(torch.cat(list(global_views)))), images)
            if settings.teacher_statistics == "averaged":  # then its own forward passes do not count
                for name, buffer in self.teacher.named_buffers():
                    if buffer.is_floating_point():
                        buffer.copy_(statistics[name])
            centroids = list(self.teacher.centroids.weight)
            teacher = assign(rows, centroids, self.sizes, settings, empty_weights, center=self.center)
            self._counted, self._mean = self._to_count(teacher), teacher.mean
            if settings.sizes_updated == "before_balancing" and self.training:
                self._count()
                teacher = assign(rows, centroids, self.sizes, settings, empty_weights, center=self.center)
        loss = objective(h, g, list(self.student.centroids.weight), teacher.p, settings)
        if g is not None:
            loss = loss + settings.regression * byol(g, rows)
        loss = loss + settings.contrast * nt_xent(h, len(global_views), settings.contrast_temperature)
        confidence, agreement = _statistics(teacher)
        return OracleStep(loss, teacher.winners, teacher.raw_winners, confidence, agreement)

    def _student_rows(self, global_views: Tensor, local_views: Tensor | None) -> tuple[Rows, Rows | None]:
        """h(f(x)) and g(h(f(x))): what passes together shares BatchNorm statistics."""
        images = global_views.shape[1]
        features = [self.student.backbone(torch.cat(list(global_views)))]
        if local_views is not None:
            features.append(self.student.backbone(torch.cat(list(local_views))))
        if self.settings.head_batches == "all_views":
            features = [torch.cat(features)]
        projected = [self.student.projector(group) for group in features]
        h = by_view(torch.cat(projected), images)
        if self.student.predictor is None:
            return h, None
        return h, by_view(torch.cat([self.student.predictor(group) for group in projected]), images)

    def _to_count(self, teacher: Teacher) -> list[int]:
        counted = teacher.winners if self.settings.sizes_counted == "balanced" else teacher.raw_winners
        return [winner for view in counted for winner in view]

    def _count(self) -> None:
        momentum = self.settings.sizes_momentum
        for k, s in enumerate(self.sizes):
            s_b = sum(1 for winner in self._counted if winner == k) / len(self._counted)  # Eq. 8
            self.sizes[k] = s * momentum + s_b * (1 - momentum)  # Eq. 9

    @torch.no_grad()
    def update(self, momentum: float) -> None:
        """After the optimizer's step: the sizes, and theta_t = m theta_t + (1 - m) theta_s (Sec. 3.1)."""
        momentum_c = self.settings.center_momentum
        self.center = momentum_c * self.center + (1 - momentum_c) * self._mean  # DINO, Eq. 4
        if self.settings.sizes_updated == "after_loss":
            self._count()
        student = dict(self.student.named_parameters())
        for name, theta_t in self.teacher.named_parameters():
            theta_s: Tensor = student[name]
            if name == "centroids.weight" and self.settings.teacher_centroids == "unit":
                theta_s = torch.stack([c / c.norm() for c in theta_s])
            theta_t.copy_(momentum * theta_t + (1 - momentum) * theta_s)
        if self.settings.teacher_statistics == "averaged":
            source = dict(self.student.named_buffers())
            for name, buffer in self.teacher.named_buffers():
                if buffer.is_floating_point():
                    buffer.copy_(momentum * buffer + (1 - momentum) * source[name])


def by_view(rows: Tensor, images: int) -> Rows:
    """[V * B, D], view by view -> [view][image]."""
    return [list(rows[first : first + images]) for first in range(0, len(rows), images)]


def _statistics(teacher: Teacher) -> tuple[float, float]:
    """c_avg (Eq. 11) and a_avg (Eq. 12, over the G (G - 1) ordered pairs of every image, 0 without one)."""
    views, images = range(len(teacher.p)), range(len(teacher.p[0]))
    confidences = [max(teacher.p[x][n].tolist()) for n in images for x in views]
    agreements = [
        float(teacher.winners[x1][n] == teacher.winners[x2][n])
        for n in images
        for x1 in views
        for x2 in views
        if x2 != x1
    ]
    return sum(confidences) / len(confidences), sum(agreements) / max(1, len(agreements))
