"""How far a run is, and its final report: `report.json`, a table and a message."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from excb.checkpoint import run_checkpoint
from excb.console import Reporter, duration, plural
from excb.distributed.collectives import world_size
from excb.distributed.machine import peak_memory
from excb.ledger import NOTHING, Ledger
from excb.results.pictures import CURVES
from excb.results.result import environment

from ..recipe import Recipe
from .alarms import EMPTY_SHARE

# Figures of an epoch, in words for people who see them for the first time.
MEANINGS = {
    "loss": "what is minimised",
    "contrast": "its contrastive term",
    "regression": "its regression (BYOL's term)",
    "cluster_loss": "its clustering term",
    "anchor": "distance from the start's features",
    "confidence": "of assignments to clusters, 0 to 1",
    "agreement": "views assigned as another view of their image, 0 to 1",
    "smallest_cluster": "views in it; 1 is balanced",
    "largest_cluster": "views in it; 1 is balanced",
    "empty_clusters_balanced": "without a view, as balanced",
    "empty_clusters_unbalanced": "that no view is nearest to, without balancing",
    "distinct_winners": "clusters that a batch fills; 1 if images are independent",
    "same_winner": "pairs of images in one cluster; 1 if independent",
    "same_winner_by_sizes": "the same, by the sizes of clusters alone",
    "purity": "images of the most frequent class of their cluster, 0 to 1",
    "coincident_centroids": "share that nearly equal another",
    "held_empty_clusters": "empty, though counted as too large",
    "effective_rank": "dimensions that features use",
    "neighbour_agreement": "% of nearest images that stay nearest when augmented",
    "instance_retrieval": "% of images nearest to their own augmented view",
    "knn_top1": "% right by the nearest other images",
    "score": "chooses the best epoch",
}

OF_TRAINING = ("processes", "peak_memory", "environment")  # facts of a report that are of the process that trained


@dataclass
class Progress:
    """How far a run is; checkpoints hold every field."""

    step: int = 0
    seconds: float = 0.0
    images: int = 0  # seen so far, for images per second
    peak_memory: int = 0  # in bytes, of the processes that trained so far (`peak_memory`)
    best: dict[str, Any] | None = None  # the epoch with the highest score
    last: dict[str, Any] | None = None  # the newest epoch's figures
    health: dict[str, Any] = field(default_factory=dict)  # `AlarmState` as a dict
    counts: Tensor | None = None  # the newest whole epoch's assignments to every cluster, [K]
    started_from: str | None = None  # hash of the backbone's weights that `init` named when the run began
    # Of runs that measure the network they start from:
    start: dict[str, Any] | None = None  # its figures, as epoch 0
    gauges: dict[str, str] = field(default_factory=dict)  # hashes of the probes' images, by probe
    # Right answers at the start and in the best epoch, [N] bool, and the same on random halves, [P, N] bool.
    hits: dict[str, Tensor] = field(default_factory=dict)
    measurements: int = 0  # after the start's
    losing: int = 0  # measurements since the last best one, not counting those of the frozen backbone
    ended: str | None = None  # why the run ended before its last epoch

    @property
    def images_per_second(self) -> float:
        """Of the whole run so far, with saving and measuring."""
        return self.images / max(self.seconds, 1e-9)


def run_report(
    progress: Progress,
    recipe: Recipe,
    *,
    images: int,
    broken: int,
    device: torch.device,
    ledger: Ledger = NOTHING,
    verdict: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The contents of `report.json`; a ledger and a verdict are left out where there is none."""
    best = progress.best and {**progress.best, "checkpoint": _checkpoint(progress.best["step"])}
    return {
        "recipe": recipe.name,
        "seed": recipe.run.seed,
        "images": images,
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "images_per_second": round(progress.images_per_second, 1),
        "processes": world_size(),
        "peak_memory": max(progress.peak_memory, peak_memory(device)),
        "broken_images": broken,
        "checkpoint": _checkpoint(progress.step),
        "last": progress.last,
        "best": best,
        **({} if progress.start is None else {"start": progress.start, "ended": progress.ended}),
        **({"ledger": ledger.to_dict()} if ledger else {}),
        **({} if verdict is None else {"verdict": verdict}),
        "environment": environment(),
    }


def kept_facts(new: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """A new report of a run that was finished before this process: the facts of the process that trained are kept."""
    return new | {name: before[name] for name in OF_TRAINING if type(before.get(name)) is type(new[name])}


def sum_up(
    progress: Progress,
    recipe: Recipe,
    reporter: Reporter,
    *,
    report: dict[str, Any],
    device: str | None,
    place: object,
    table: bool,
) -> None:
    """Print the last epoch's figures, the time taken, on which device if that is known, and where the run is."""
    if table:
        figures = (progress.last or {}).items()
        rows = [[name.replace("_", " "), f"{value:,.4g}", MEANINGS.get(name, "")] for name, value in figures]
        reporter.table(f"{recipe.name}, seed {recipe.run.seed}", ["last epoch", "", ""], rows)
    if warning := _empty_before_balancing(progress, recipe.method.clusters):
        reporter.warn(warning)
    processes = report["processes"]
    several = processes > 1
    where = "" if device is None else f" on {processes} x {device}" if several else f" on {device}"
    parts = [
        f"{plural(progress.step, 'step')} in {duration(progress.seconds)}",
        f"{progress.images_per_second:,.0f} images/s{where}",
        f"{report['peak_memory'] / 2**30:.1f} GiB{' a process' if several else ''} at most",
    ]
    if progress.best is not None:
        loaded = "" if progress.start is None else ", which is what loading the run gives"
        parts.append(f"best epoch {progress.best['epoch']} (score {progress.best['score']:.1f}){loaded}")
    reporter.note("; ".join(parts))
    reporter.note(f"run folder {place}: {_checkpoint(progress.step)}, {CURVES}, metrics.jsonl, report.json")


def _empty_before_balancing(progress: Progress, clusters: int) -> str | None:
    """A warning if half of the clusters that chance would fill had no view nearest to them in the last epoch."""
    empty = (progress.last or {}).get("empty_clusters_unbalanced")
    if empty is None or progress.counts is None:
        return None
    by_chance = math.exp(-int(progress.counts.sum()) / clusters)
    if empty / clusters <= by_chance + EMPTY_SHARE * (1 - by_chance):
        return None
    return (
        f"{empty:,} of {plural(clusters, 'cluster')} {'was' if empty == 1 else 'were'} empty before balancing in the "
        "last epoch: their sizes are even after balancing only, and `excb-eval clusters` assigns without it"
    )


def _checkpoint(step: int) -> str:
    return f"{run_checkpoint.FOLDER}/{run_checkpoint.name_of(step)}"
