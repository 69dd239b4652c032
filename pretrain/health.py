"""Signs of illness in a run's epochs, each with advice: a loss at chance, emptying clusters, certainty, collapse."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from excb.method import pair_weights

from .recipes import Recipe

AT_CHANCE = 0.01  # a loss this close to ln K, relatively, rests there
ABOVE_CHANCE = 0.02  # a loss this far above ln K, relatively, is worse than no training
EMPTY_SHARE = 0.5  # clusters without an image, beyond those that chance leaves empty
LARGEST_SHARE = 0.25  # of all assignments, in one cluster
CERTAIN = 0.98  # mean confidence c_avg (the paper's runs end below 0.3)
RANK = 2.0  # effective rank of the features


@dataclass(frozen=True)
class Alarm:
    """Something is wrong with a run."""

    name: str
    message: str


class Health:
    """Judges every epoch's figures.

    Args:
        recipe: the run's recipe.
        assignments: of one epoch: images times global views.
        ringing: names of the alarms that the last epoch raised; only those that begin are told.
    """

    def __init__(self, recipe: Recipe, *, assignments: int, ringing: Sequence[str] = ()) -> None:
        self.ringing = list(ringing)
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
            figures: of `EpochStatistics.summary` and, where it was measured, of `Monitor.measure`; with `epoch`.
        """
        alarms = [
            alarm for alarm in (self._loss(figures), self._clusters_of(figures), self._certainty(figures)) if alarm
        ]
        if "effective_rank" in figures:
            alarms += self._rank(figures)
        elif "collapse" in self.ringing:
            alarms.append(Alarm("collapse", ""))  # not measured again yet
        new = [alarm for alarm in alarms if alarm.name not in self.ringing]
        self.ringing = [alarm.name for alarm in alarms]
        return new

    def _loss(self, figures: Mapping[str, float]) -> Alarm | None:
        loss, optim = figures["loss"], self._recipe.optim
        if loss > self.chance * (1 + ABOVE_CHANCE):
            return Alarm(
                "diverging",
                f"the loss of {loss:.3f} is above chance ({self.chance:.3f}: no cluster told from another): the "
                f"learning rate is too high, lower optim.base_lr (now {optim.base_lr:g})",
            )
        if loss > self.chance * (1 - AT_CHANCE) and figures["epoch"] > max(1.0, optim.warmup_epochs):
            return Alarm(
                "chance",
                f"the loss of {loss:.3f} rests at chance ({self.chance:.3f}: no cluster told from another): check the "
                "images and views, then try a lower optim.base_lr or fewer method.clusters",
            )
        return None

    def _clusters_of(self, figures: Mapping[str, float]) -> Alarm | None:
        clusters = self._clusters
        by_chance = math.exp(-self._assignments / clusters)  # of clusters, empty if assignments were drawn evenly
        empty = figures["empty_clusters"] / clusters
        largest = figures["largest_cluster"] / clusters
        balancing = self._recipe.method.balancing
        advice = (
            f"method.balancing={balancing} does not hold them: use linear"
            if balancing != "linear"
            else "lower method.sizes_momentum, so that s follows faster, or method.clusters"
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
            f"the teacher's mean confidence is {figures['confidence']:.3f}: assignments carry no doubt any more and "
            "teach little; raise method.teacher_temperature "
            f"(now {self._recipe.method.teacher_temperature:g}) or method.clusters",
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
