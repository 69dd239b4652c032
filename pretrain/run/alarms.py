"""Alarms of unhealthy runs, each with advice: loss at chance, empty clusters, overconfidence, collapse.

The thresholds lie between the figures of healthy and of broken runs; docs/is-my-run-normal.md shows both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from excb.console import plural
from excb.method import pair_weights
from excb.neighbours.nearest import nearest

from ..distil.distillation import loss_by_chance
from ..recipe import Recipe

AT_CHANCE = 0.01  # a loss this close to ln K, relatively, is at chance
ABOVE_CHANCE = 0.02  # a loss this far above ln K, relatively, and above its lowest (an untrained one may be above too)
EMPTY_SHARE = 0.5  # clusters without an image, beyond those that are empty by chance
LARGEST_SHARE = 0.25  # of all assignments, in one cluster
COINCIDENT = 0.95  # cosine above which two centroids attract the same images
COINCIDENT_SHARE = 0.1  # of the centroids have another one that close
ROTATION = 4.0  # times that different images of a batch share a cluster, relative to images of the whole epoch
ROTATION_EPOCHS = 3  # in a row above that; most runs that recover fall below it sooner
ROTATION_FALL = 0.9  # of the first of these epochs: the last one is below it where a run recovers
HELD_SHARE = 0.25  # of the clusters are empty although s calls them too large
CERTAIN = 0.9  # mean confidence c_avg (the paper's runs end below 0.3)
LOW_AGREEMENT = 0.1  # a_avg, as a share of the range from chance, 1/K, to 1
RISE = 1.1  # factor by which a low a_avg must grow from the first half of a window to the second
WINDOW = 6  # least epochs of that window; in long runs, which rise slowly, a tenth of the schedule
RANK = 2.0  # effective rank of the features


@dataclass(frozen=True)
class Alarm:
    """A problem of a run, with advice."""

    name: str
    message: str


def coincident(centroids: Tensor) -> float:
    """Share of the centroids [K, D] whose nearest other one has a cosine above `COINCIDENT`; exact.

    All ranks call it; each searches a part, and all get the same result. NaN if a centroid is not finite.
    """
    if len(centroids) < 2:
        return 0.0
    if not centroids.isfinite().all():
        return math.nan
    nearest_other = nearest(centroids, centroids, 1, exclude_self=True, share=True)
    return float((nearest_other.similarities > COINCIDENT).double().mean())


@dataclass
class AlarmState:
    """The state that judging an epoch needs from earlier ones; checkpoints hold it."""

    active: list[str] = field(default_factory=list)  # alarms of the last epoch; only new ones are reported
    agreement: list[float] = field(default_factory=list)  # a_avg of the newest epochs after warm-up
    lowest_loss: float = math.inf  # of all epochs
    rotation: list[float] = field(default_factory=list)  # of the newest epochs after warm-up; see `ROTATION`

    def to_dict(self) -> dict[str, Any]:
        """The state in a checkpoint's words."""
        return {
            "ringing": self.active,
            "agreement": self.agreement,
            "lowest_loss": self.lowest_loss,
            "rotation": self.rotation,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "AlarmState":
        """The inverse of `to_dict`; fields that are missing have their defaults."""
        return cls(**{"active" if name == "ringing" else name: value for name, value in stored.items()})


class Health:
    """Judges every epoch's figures.

    Args:
        assignments: of one epoch: images times global views.
        state: of the epochs before; updated by `judge`.
    """

    def __init__(self, recipe: Recipe, *, assignments: int, state: AlarmState | None = None) -> None:
        self.state = state or AlarmState()
        self._window = max(WINDOW, math.ceil(recipe.optim.epochs / 10))
        self._recipe, self._clusters, self._assignments = recipe, recipe.method.clusters, assignments
        views, method = recipe.views, recipe.method
        halves = pair_weights(
            views.global_views,
            views.local_views,
            reduction=method.loss_reduction,
            predictor=method.predictor,
            projector_on_local=method.projector_on_local,
        )
        # The loss of a student that distinguishes neither clusters nor, by the other terms, images.
        self.chance = float(sum(half.sum() for half in halves)) * math.log(max(2, method.clusters)) * method.clustering
        self.chance += method.contrast * math.log1p(views.global_views * (recipe.optim.batch - 1))
        self.chance += method.regression * 2 + loss_by_chance(recipe.distil, recipe.optim.batch)
        self._at_chance = f"{self.chance:.3f}" + (": clusters are indistinguishable" if method.clustering else "")
        tries = ["fewer method.clusters, a higher method.teacher_momentum, or"] if method.clustering else []
        self._tries = " ".join([*tries, "another optim.base_lr"])

    def judge(self, figures: Mapping[str, float]) -> list[Alarm]:
        """The alarms that are new in this epoch.

        Args:
            figures: of `EpochStatistics.summary` and, where it was measured, of `Monitor.measure`; with `epoch` and
                `coincident_centroids`.
        """
        checks = [self._loss, self._collapse]
        if self._recipe.method.clustering:
            checks += [self._clusters_of, self._centroids, self._certainty, self._agreement, self._rotation, self._held]
        alarms = [alarm for check in checks if (alarm := check(figures))]
        new = [alarm for alarm in alarms if alarm.name not in self.state.active]
        self.state.active = [alarm.name for alarm in alarms]
        self.state.lowest_loss = min(self.state.lowest_loss, figures["loss"])
        return new

    def _loss(self, figures: Mapping[str, float]) -> Alarm | None:
        loss, optim = figures["loss"], self._recipe.optim
        if loss > (1 + ABOVE_CHANCE) * max(self.chance, self.state.lowest_loss):
            return Alarm(
                "diverging",
                f"the loss of {loss:.3f} has risen from {self.state.lowest_loss:.3f} to above chance ("
                f"{self._at_chance}): lower optim.base_lr (now {optim.base_lr:g})",
            )
        if loss > self.chance * (1 - AT_CHANCE) and not self._early(figures):
            return Alarm(
                "chance",
                f"the loss of {loss:.3f} is no better than chance ({self._at_chance}): check the images and views, "
                f"then try {self._tries} (now {optim.base_lr:g}: higher if the loss never moved, else lower)",
            )
        return None

    def _early(self, figures: Mapping[str, float]) -> bool:
        """The first epoch and warm-up, also after a restart, in which healthy runs have not learned much either."""
        optim, epoch = self._recipe.optim, figures["epoch"]
        began = max((mark for mark in optim.restarts if mark < epoch), default=0)
        return epoch - began <= max(1.0, optim.warmup_epochs)

    def _clusters_of(self, figures: Mapping[str, float]) -> Alarm | None:
        clusters = self._clusters
        by_chance = math.exp(-self._assignments / clusters)  # of clusters, empty if assignments were drawn evenly
        empty = figures["empty_clusters_balanced"] / clusters
        largest = figures["largest_cluster"] / clusters
        balancing = self._recipe.method.balancing
        advice = (
            f"method.balancing={balancing} does not keep them balanced: use linear"
            if balancing != "linear"
            else "assignments change faster than s follows: lower optim.base_lr, raise method.teacher_momentum, or "
            "lower method.sizes_momentum or method.clusters"
        )
        if clusters > 1 / LARGEST_SHARE and largest > LARGEST_SHARE:
            return Alarm("clusters", f"one cluster takes {100 * largest:.0f} % of all images: {advice}")
        if empty > by_chance + EMPTY_SHARE * (1 - by_chance):
            return Alarm("clusters", f"{100 * empty:.0f} % of the clusters are empty: {advice}")
        return None

    def _rotation(self, figures: Mapping[str, float]) -> Alarm | None:
        """Whole batches move from cluster to cluster, which the sizes of an epoch hide.

        Batches of an early network do so for some epochs, and less in each. It is an alarm only if it lasts.
        """
        if self._early(figures):
            return None
        same = figures.get("same_winner", 0.0) / max(1.0, figures.get("same_winner_by_sizes", 1.0))
        self.state.rotation = [*self.state.rotation, same][-ROTATION_EPOCHS:]
        lasts = len(self.state.rotation) == ROTATION_EPOCHS and min(self.state.rotation) >= ROTATION
        starts = lasts and same >= ROTATION_FALL * self.state.rotation[0]
        if same < ROTATION or not (starts or "rotating" in self.state.active):
            return None
        advice = (
            "raise method.sizes_momentum, or lower optim.base_lr"
            if self._recipe.method.projector_output_norm
            else "set method.projector_output_norm=true"
        )
        return Alarm(
            "rotating",
            f"different images of a batch share a cluster {same:.1f} times as often as over the epoch: whole batches "
            f"move from cluster to cluster; {advice}",
        )

    def _held(self, figures: Mapping[str, float]) -> Alarm | None:
        """Clusters stay empty because their s is still large (wind-up)."""
        held = figures.get("held_empty_clusters", 0) / self._clusters
        if held < HELD_SHARE or self._early(figures):
            return None
        return Alarm(
            "wound up",
            f"{100 * held:.0f} % of the clusters took no image of the epoch while their size s says that they are too "
            "large: s follows too slowly for a run this short; lower method.sizes_momentum "
            f"(now {self._recipe.method.sizes_momentum:g})",
        )

    def _certainty(self, figures: Mapping[str, float]) -> Alarm | None:
        if figures["confidence"] < CERTAIN or self._clusters == 1:
            return None
        return Alarm(
            "certain",
            f"the teacher's mean confidence is {figures['confidence']:.3f}: the assignments are one-hot; check "
            "the cluster sizes, and raise method.teacher_temperature "
            f"(now {self._recipe.method.teacher_temperature:g}) or method.clusters",
        )

    def _centroids(self, figures: Mapping[str, float]) -> Alarm | None:
        share = figures["coincident_centroids"]
        if not share > COINCIDENT_SHARE or self._early(figures):
            return None
        return Alarm(
            "coincide",
            f"{100 * share:.0f} % of the centroids coincide with another one (cosine above {COINCIDENT}): they attract "
            "the same images; lower optim.base_lr or method.clusters",
        )

    def _agreement(self, figures: Mapping[str, float]) -> Alarm | None:
        """Agreement starts low; it is an alarm only if it also stops rising."""
        if self._early(figures):
            return None
        self.state.agreement = [*self.state.agreement, figures["agreement"]][-self._window :]
        chance = 1 / self._clusters
        if len(self.state.agreement) < self._window or figures["agreement"] > chance + LOW_AGREEMENT * (1 - chance):
            return None
        half = self._window // 2
        if sum(self.state.agreement[-half:]) > RISE * sum(self.state.agreement[:half]):
            return None
        return Alarm(
            "stalled",
            f"two views of an image share a cluster in {100 * figures['agreement']:.1f} % of cases (chance "
            f"{100 * chance:.2g} %), as {plural(self._window, 'epoch')} ago: check that views of an image show the "
            "same things (views.global_scale, views.jitter), then try a higher optim.base_lr or a lower "
            "method.teacher_momentum",
        )

    def _collapse(self, figures: Mapping[str, float]) -> Alarm | None:
        if "effective_rank" not in figures:  # an active alarm stays active until it is measured again
            return Alarm("collapse", "") if "collapse" in self.state.active else None
        if figures["effective_rank"] >= RANK:
            return None
        return Alarm(
            "collapse",
            f"the features' effective rank is {figures['effective_rank']:.2f}: they have collapsed; restart "
            "with a lower optim.base_lr or a higher method.teacher_momentum",
        )
