"""Signs of illness in a run's epochs, each with advice: a loss at chance, emptying clusters, certainty, collapse.

The thresholds stand between what healthy and broken runs were seen to do: docs/is-my-run-normal.md shows both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from excb.method import pair_weights
from excb.neighbours.nearest import nearest

from ..recipe import Recipe

AT_CHANCE = 0.01  # a loss this close to ln K, relatively, rests there
ABOVE_CHANCE = 0.02  # a loss this far above ln K, relatively, and above what it was: an untrained one may be above too
EMPTY_SHARE = 0.5  # clusters without an image, beyond those that chance leaves empty
LARGEST_SHARE = 0.25  # of all assignments, in one cluster
COINCIDENT = 0.95  # cosine from which two centroids ask for the same images
COINCIDENT_SHARE = 0.1  # of the centroids, with another one that near
CERTAIN = 0.9  # mean confidence c_avg (the paper's runs end below 0.3)
LOW_AGREEMENT = 0.1  # a_avg, of the way from chance, 1/K, to 1
RISE = 1.1  # how much a_avg must grow from the first half of a window to the second, while it is low
WINDOW = 6  # epochs of that window at least; a tenth of the schedule in long runs, which rise as slowly
RANK = 2.0  # effective rank of the features


@dataclass(frozen=True)
class Alarm:
    """Something is wrong with a run."""

    name: str
    message: str


def coincident(centroids: Tensor) -> float:
    """Share of the centroids [K, D] whose nearest other one has a cosine above `COINCIDENT`; exact.

    All processes call it together, each searches a part, and all get the same answer. NaN where a centroid is.
    """
    if len(centroids) < 2:
        return 0.0
    if not centroids.isfinite().all():
        return math.nan
    found = nearest(centroids, centroids, 1, exclude_self=True, share=True)
    return float((found.similarities > COINCIDENT).double().mean())


@dataclass
class Memory:
    """What a judgement takes from earlier epochs; a checkpoint holds it.

    Attributes:
        ringing: names of the alarms that the last epoch raised; only those that begin are told.
        agreement: a_avg of the newest epochs after warm-up.
        lowest_loss: of all epochs.
    """

    ringing: list[str] = field(default_factory=list)
    agreement: list[float] = field(default_factory=list)
    lowest_loss: float = math.inf


class Health:
    """Judges every epoch's figures.

    Args:
        recipe: the run's recipe.
        assignments: of one epoch: images times global views.
        memory: of the epochs before; changed by every judgement.
    """

    def __init__(self, recipe: Recipe, *, assignments: int, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
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
        # What the loss is when the student cannot tell one cluster from another.
        self.chance = float(sum(half.sum() for half in halves)) * math.log(max(2, method.clusters))

    def judge(self, figures: Mapping[str, float]) -> list[Alarm]:
        """The alarms that begin with this epoch.

        Args:
            figures: of `EpochStatistics.summary` and, where it was measured, of `Monitor.measure`; with `epoch` and
                `coincident_centroids`.
        """
        judged = (
            self._loss(figures),
            self._clusters_of(figures),
            self._centroids(figures),
            self._certainty(figures),
            self._agreement(figures),
        )
        alarms = [alarm for alarm in judged if alarm]
        if "effective_rank" in figures:
            alarms += self._rank(figures)
        elif "collapse" in self.memory.ringing:
            alarms.append(Alarm("collapse", ""))  # not measured again yet
        new = [alarm for alarm in alarms if alarm.name not in self.memory.ringing]
        self.memory.ringing = [alarm.name for alarm in alarms]
        self.memory.lowest_loss = min(self.memory.lowest_loss, figures["loss"])
        return new

    def _loss(self, figures: Mapping[str, float]) -> Alarm | None:
        loss, optim = figures["loss"], self._recipe.optim
        if loss > (1 + ABOVE_CHANCE) * max(self.chance, self.memory.lowest_loss):
            return Alarm(
                "diverging",
                f"the loss of {loss:.3f} has risen from {self.memory.lowest_loss:.3f} to above chance ("
                f"{self.chance:.3f}: no cluster told from another): lower optim.base_lr (now {optim.base_lr:g})",
            )
        if loss > self.chance * (1 - AT_CHANCE) and not self._early(figures):
            return Alarm(
                "chance",
                f"the loss of {loss:.3f} is no better than chance ({self.chance:.3f}: no cluster told from another): "
                "check the images and views, then try fewer method.clusters, a higher method.teacher_momentum, or "
                f"another optim.base_lr (now {optim.base_lr:g}: higher if the loss never moved, else lower)",
            )
        return None

    def _early(self, figures: Mapping[str, float]) -> bool:
        """In the first epoch and in warm-up little has been learned yet, and that is no illness."""
        return figures["epoch"] <= max(1.0, self._recipe.optim.warmup_epochs)

    def _clusters_of(self, figures: Mapping[str, float]) -> Alarm | None:
        clusters = self._clusters
        by_chance = math.exp(-self._assignments / clusters)  # of clusters, empty if assignments were drawn evenly
        empty = figures["empty_clusters"] / clusters
        largest = figures["largest_cluster"] / clusters
        balancing = self._recipe.method.balancing
        advice = (
            f"method.balancing={balancing} does not hold them: use linear"
            if balancing != "linear"
            else "assignments move faster than s follows: lower optim.base_lr, raise method.teacher_momentum, or "
            "lower method.sizes_momentum or method.clusters"
        )
        if clusters > 1 / LARGEST_SHARE and largest > LARGEST_SHARE:
            return Alarm("clusters", f"one cluster takes {100 * largest:.0f} % of all images: {advice}")
        if empty > by_chance + EMPTY_SHARE * (1 - by_chance):
            return Alarm("clusters", f"{100 * empty:.0f} % of the clusters are empty: {advice}")
        return None

    def _certainty(self, figures: Mapping[str, float]) -> Alarm | None:
        if figures["confidence"] < CERTAIN or self._clusters == 1:
            return None
        return Alarm(
            "certain",
            f"the teacher's mean confidence is {figures['confidence']:.3f}: assignments carry no doubt any more; look "
            "at the cluster sizes, and raise method.teacher_temperature "
            f"(now {self._recipe.method.teacher_temperature:g}) or method.clusters",
        )

    def _centroids(self, figures: Mapping[str, float]) -> Alarm | None:
        share = figures["coincident_centroids"]
        if not share > COINCIDENT_SHARE or self._early(figures):
            return None
        return Alarm(
            "coincide",
            f"{100 * share:.0f} % of the centroids coincide with another one (cosine above {COINCIDENT}): they ask for "
            "the same images; lower optim.base_lr or method.clusters",
        )

    def _agreement(self, figures: Mapping[str, float]) -> Alarm | None:
        """Low is not wrong while it rises: it starts low."""
        if self._early(figures):
            return None
        self.memory.agreement = [*self.memory.agreement, figures["agreement"]][-self._window :]
        chance = 1 / self._clusters
        if len(self.memory.agreement) < self._window or figures["agreement"] > chance + LOW_AGREEMENT * (1 - chance):
            return None
        half = self._window // 2
        if sum(self.memory.agreement[-half:]) > RISE * sum(self.memory.agreement[:half]):
            return None
        return Alarm(
            "stalled",
            f"two views of an image share a cluster in {100 * figures['agreement']:.1f} % of cases (chance "
            f"{100 * chance:.2g} %), as {self._window} epochs ago: check that views of an image show the same "
            "things (views.global_scale, views.jitter), then try a higher optim.base_lr or a lower "
            "method.teacher_momentum",
        )

    def _rank(self, figures: Mapping[str, float]) -> list[Alarm]:
        if figures["effective_rank"] >= RANK:
            return []
        return [
            Alarm(
                "collapse",
                f"the features' effective rank is {figures['effective_rank']:.2f}: they have collapsed; start anew "
                "with a lower optim.base_lr or a higher method.teacher_momentum",
            )
        ]
