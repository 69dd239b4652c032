"""Clusters of a checkpoint or of its features: every image in one, and figures of sizes, duplicates and labels."""

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from excb.console import Reporter, plural
from excb.distributed.collectives import run_on_rank0
from excb.images.image_set import Images
from excb.results.result import ResultRecord

from ..protocol import Measurement
from .assignment import assign_clusters, neighbours
from .folder import ClusterFiles
from .options import ClusterOptions
from .partition import Partition, partition
from .statistics import balanced_figures, label_figures, many_empty, noise_figures, sizes_figures
from .task import ClusterTask

NEIGHBOURS = 8  # of every centroid, in the atlas


def measure(task: ClusterTask, options: ClusterOptions, reporter: Reporter) -> Measurement:
    """Assign images to clusters and measure the clusters. All ranks call this together.

    Args:
        task: checkpoint and images.
        options: whose clusters, what duplicates are, and what is written.
        reporter: for messages and progress.

    Returns:
        Figures of the clusters' sizes, of duplicate centroids and, of images with labels, of purity; the cluster of
        every image; and what writes the folder.

    Raises:
        UserError: the checkpoint has one cluster only, features cannot be clustered, or an image cannot be read.
    """
    images, checkpoint = task.images, task.describe_checkpoint()
    features = task.stored(images, "images", reporter)
    start = time.monotonic()
    if (method := options.of_features) is not None:
        made = run_on_rank0(lambda: partition(features, method=method, k=options.k))
    else:
        with reporter.progress("assignments", len(features)) as bar:
            assigned = assign_clusters(
                task.heads, features, balancing=task.balancing, device=task.device, progress=bar.advance
            )
        centroids = task.heads.centroids()
        made = Partition(assigned, centroids, {"assignment": "argmax of z, without balancing"})
    facts = {"checkpoint": checkpoint, "data": task.describe()["data"], "ledger": task.ledger}
    settings = {"preprocessing": checkpoint["preprocessing"]} | task.settings
    return measure_clusters(made, images, options, reporter, facts=facts, settings=settings, since=start)


def measure_clusters(
    made: Partition,
    images: Images,
    options: ClusterOptions,
    reporter: Reporter,
    *,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    since: float,
    remarks: Sequence[str] = (),
) -> Measurement:
    """Measure clusters that are made, as `measure` does.

    Args:
        made: the clusters.
        images: that are in them.
        options: what duplicates are, and what is written.
        reporter: for messages and progress.
        facts: "checkpoint", "data" and "ledger" of the record.
        settings: of the record, beside those of the clusters.
        since: when it began, by `time.monotonic`.
        remarks: further notes for the reader.
    """
    assignment = made.assignment
    with reporter.progress("neighbours of centroids", len(made.centroids)) as bar:
        near = neighbours(made.centroids, most=NEIGHBOURS, threshold=options.duplicates, progress=bar.advance)
    figures = sizes_figures(assignment.sizes)
    if made.settings.get("method") == "hdbscan":
        figures |= noise_figures(assignment)
    if assignment.balanced is not None:
        figures |= balanced_figures(assignment.balanced, assignment.clusters)
    figures |= {"duplicate_pairs": near.pairs, "duplicate_clusters": int(near.twins.sum())}
    if images.labels is not None:
        figures |= label_figures(assignment, images.labels)
    trained = "method" not in made.settings
    notes = _sizes_notes(len(images), assignment.clusters, figures) if trained else []
    if images.labels is not None:
        notes.append("purity and NMI grow with the number of clusters: compare them with those by chance")
    result = ResultRecord(
        protocol="clusters",
        figures=figures,
        settings={"clusters": assignment.clusters, "duplicates_above": options.duplicates, **made.settings, **settings},
        seconds=round(time.monotonic() - since, 1),
        notes=[*notes, *([made.note] if made.note else []), *remarks],
        **facts,
    )
    if trained and many_empty(figures):
        reporter.warn(_empty(figures, assignment.clusters))
    files = ClusterFiles(images, options, assignment, near, reporter)
    return Measurement(result, files.scored, partial(_show, result), files)


def _show(result: ResultRecord, reporter: Reporter) -> None:
    rows = [[name, f"{value:,.2f}".removesuffix(".00")] for name, value in result.figures.items()]
    clusters, images = result.settings["clusters"], result.data["images"]["images"]
    noise = int(result.figures.get("noise_images", 0))
    beside = f", {noise:,} of them noise" if noise else ""
    reporter.table(f"{plural(clusters, 'cluster')}, {plural(images, 'image')}{beside}", ["figure", "value"], rows)
    for note in result.notes:
        reporter.answer(note)


def _sizes_notes(images: int, clusters: int, figures: Mapping[str, float]) -> list[str]:
    """Of trained clusters: how many images each has, and what chance alone would leave empty."""
    ratio = images / clusters
    notes = [
        f"{ratio:.3g} images a cluster: assigned at random they would leave {100 * math.exp(-ratio):.1f} % of the "
        "clusters empty (exp(-N/K))"
    ]
    if ratio < 1:
        notes.append(f"fewer images than clusters: at least {100 * (1 - ratio):.1f} % of the clusters must be empty")
    if many_empty(figures):
        notes.append(_empty(figures, clusters))
    return notes


def _empty(figures: Mapping[str, float], clusters: int) -> str:
    return (
        f"{figures['empty_clusters_unbalanced']} of {plural(clusters, 'cluster')} are empty before balancing, far "
        "more than by chance: the sizes that training balances are those after it"
    )
