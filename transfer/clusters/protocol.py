"""Clusters of a full checkpoint: every image assigned to one, and figures of their sizes, duplicates and labels."""

import math
import time
from collections.abc import Mapping
from functools import partial

from excb.console import Reporter, plural
from excb.results.result import ResultRecord

from ..protocol import Measurement
from .assignment import assign_clusters, neighbours
from .folder import ClusterFiles
from .options import ClusterOptions
from .statistics import balanced_figures, label_figures, many_empty, sizes_figures
from .task import ClusterTask

NEIGHBOURS = 8  # of every centroid, in the atlas


def measure(task: ClusterTask, options: ClusterOptions, reporter: Reporter) -> Measurement:
    """Assign images to clusters and measure the clusters. All ranks call this together.

    Args:
        task: checkpoint and images.
        options: what duplicates are, and what is written.
        reporter: for messages and progress.

    Returns:
        Figures of the clusters' sizes, of duplicate centroids and, of images with labels, of purity; the cluster of
        every image; and what writes the folder.

    Raises:
        UserError: the checkpoint has one cluster only, or an image cannot be read.
    """
    heads, images, checkpoint = task.heads, task.images, task.describe_checkpoint()
    features = task.stored(images, "images", reporter)
    start = time.monotonic()
    with reporter.progress("assignments", len(features)) as bar:
        assignment = assign_clusters(
            heads, features, balancing=task.balancing, device=task.device, progress=bar.advance
        )
    centroids = heads.centroids()
    with reporter.progress("neighbours of centroids", len(centroids)) as bar:
        near = neighbours(centroids, most=NEIGHBOURS, threshold=options.duplicates, progress=bar.advance)
    figures = sizes_figures(assignment.sizes)
    if assignment.balanced is not None:
        figures |= balanced_figures(assignment.balanced, assignment.clusters)
    figures |= {"duplicate_pairs": near.pairs, "duplicate_clusters": int(near.twins.sum())}
    if images.labels is not None:
        figures |= label_figures(assignment, images.labels)
    settings = {
        "clusters": assignment.clusters,
        "assignment": "argmax of z, without balancing",
        "duplicates_above": options.duplicates,
        "preprocessing": checkpoint["preprocessing"],
    }
    result = ResultRecord(
        protocol="clusters",
        figures=figures,
        settings=settings | task.settings,
        checkpoint=checkpoint,
        data=task.describe()["data"],
        ledger=task.ledger,
        seconds=round(time.monotonic() - start, 1),
        notes=_notes(len(images), assignment.clusters, figures, labelled=images.labels is not None),
    )
    if many_empty(figures):
        reporter.warn(_empty(figures, assignment.clusters))
    files = ClusterFiles(images, options, assignment, near, reporter)
    return Measurement(result, files.scored, partial(_show, result), files)


def _show(result: ResultRecord, reporter: Reporter) -> None:
    rows = [[name, f"{value:,.2f}".removesuffix(".00")] for name, value in result.figures.items()]
    clusters, images = result.settings["clusters"], result.data["images"]["images"]
    reporter.table(f"{plural(clusters, 'cluster')}, {plural(images, 'image')}", ["figure", "value"], rows)
    for note in result.notes:
        reporter.answer(note)


def _notes(images: int, clusters: int, figures: Mapping[str, float], *, labelled: bool) -> list[str]:
    ratio = images / clusters
    notes = [
        f"{ratio:.3g} images a cluster: assigned at random they would leave {100 * math.exp(-ratio):.1f} % of the "
        "clusters empty (exp(-N/K))"
    ]
    if ratio < 1:
        notes.append(f"fewer images than clusters: at least {100 * (1 - ratio):.1f} % of the clusters must be empty")
    if many_empty(figures):
        notes.append(_empty(figures, clusters))
    if labelled:
        notes.append("purity and NMI grow with the number of clusters: compare them with those by chance")
    return notes


def _empty(figures: Mapping[str, float], clusters: int) -> str:
    return (
        f"{figures['empty_clusters_unbalanced']} of {plural(clusters, 'cluster')} are empty before balancing, far "
        "more than by chance: the sizes that training balances are those after it"
    )
