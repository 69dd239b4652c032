"""Evaluate clusters: from features to a folder of assignments, figures, picture and atlas."""

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor

from excb.console import Reporter
from excb.distributed.collectives import rank
from excb.errors import UserError, require
from excb.features.cache import CachedFeatures
from excb.files.atomic import write_bytes, write_text
from excb.hub.backbone import Backbone
from excb.hub.trained_heads import NetworkHeads
from excb.images.image_set import Images
from excb.method import EMPTY_WEIGHT, Form, balancing
from excb.results.result import Result

from . import atlas, drawing, exemplars, files
from .assignment import Assignment, Neighbours, assign, neighbours
from .statistics import balanced_figures, label_figures, many_empty, sizes_figures

NEIGHBOURS = 8  # of every centroid, in the atlas


@dataclass(frozen=True)
class Options:
    """Options of the evaluation."""

    duplicates: float = 0.99  # cosine above which two centroids count as duplicates
    exemplars: int = 9  # images per cluster in the atlas, nearest to the centroid; a third as many at the border
    megabytes: float = 48  # size of the atlas's pictures
    compare: Sequence[Path] = ()  # folders of other results to draw in the same picture

    def __post_init__(self) -> None:
        require(-1 < self.duplicates < 1, "--duplicates is a cosine below 1, such as 0.99")
        require(self.exemplars >= 1, "--exemplars must be at least 1")
        require(0 <= self.megabytes < math.inf, "--atlas-mb must be at least 0")


@dataclass(frozen=True)
class Clusters:
    """The result of an evaluation, before it is written."""

    result: Result
    assignment: Assignment
    near: Neighbours


def heads_of(backbone: Backbone, *, source: str) -> NetworkHeads:
    """Projector and centroids of the loaded network.

    Raises:
        UserError: the checkpoint has those of the other network only, or was trained without clusters.
    """
    assert backbone.heads is not None, "load with heads=True"
    recipe = backbone.entry.recipe
    method = recipe.get("method") if isinstance(recipe, Mapping) else None
    if isinstance(method, Mapping) and method.get("clustering") is False:
        raise UserError(f"{source} was trained without clusters (method.clustering=false): its centroids are random")
    network = backbone.entry.network
    heads = backbone.heads.student if network == "student" else backbone.heads.teacher
    if heads is None:
        raise UserError(f"{source} has no projector and centroids of the {network}: choose the other --network")
    return heads


def balancing_of(backbone: Backbone) -> tuple[Tensor, Tensor] | None:
    """B's scale and offset for the cluster sizes s in a checkpoint; None where it has no s, or was balanced otherwise.

    An empty cluster has the mean weight that training draws for one, so that ties break by similarity here as well.
    """
    sizes = backbone.heads.sizes if backbone.heads is not None else None
    recipe = backbone.entry.recipe
    method = recipe.get("method") if isinstance(recipe, Mapping) else None
    form = method.get("balancing", "linear") if isinstance(method, Mapping) else "linear"
    if sizes is None or form not in get_args(Form):
        return None
    return balancing(sizes, cast("Form", form), empty_weight=EMPTY_WEIGHT / 2)


def describe(images: Images) -> dict[str, Any]:
    """The images, as in `Result.data`."""
    facts = {"root": str(images.root), "images": len(images), "fingerprint": images.fingerprint}
    return {"images": facts, "classes": len(images.classes or ())}


def evaluate(
    heads: NetworkHeads,
    features: CachedFeatures,
    images: Images,
    *,
    checkpoint: Mapping[str, Any],
    device: torch.device,
    reporter: Reporter,
    options: Options,
    balancing: tuple[Tensor, Tensor] | None = None,
    table: bool = True,
) -> Clusters:
    """Assign images to clusters and measure the clusters. All ranks call this together.

    Args:
        heads: of the network whose features these are.
        features: of the images, in their order.
        images: the set, with or without labels.
        checkpoint: what is evaluated, for the result.
        device: where the heads are.
        reporter: for messages and progress.
        options: of the evaluation.
        balancing: what `balancing_of` returned, to count clusters that are empty after balancing too.
        table: print the figures.

    Raises:
        UserError: the checkpoint has one cluster only.
    """
    start = time.monotonic()
    with reporter.progress("assignments", len(features)) as bar:
        assignment = assign(heads, features, balancing=balancing, device=device, progress=bar.advance)
    centroids = heads.centroids()
    with reporter.progress("neighbours of centroids", len(centroids)) as bar:
        near = neighbours(centroids, most=NEIGHBOURS, threshold=options.duplicates, progress=bar.advance)
    figures = sizes_figures(assignment.sizes)
    if assignment.balanced is not None:
        figures |= balanced_figures(assignment.balanced, assignment.clusters)
    figures |= {"duplicate_pairs": near.pairs, "duplicate_clusters": int(near.twins.sum())}
    if images.labels is not None:
        figures |= label_figures(assignment, images.labels)
    result = Result(
        protocol="clusters",
        figures=figures,
        settings={
            "clusters": assignment.clusters,
            "assignment": "argmax of z, without balancing",
            "duplicates_above": options.duplicates,
            "preprocessing": checkpoint.get("preprocessing"),
        }
        | {name: checkpoint[name] for name in ("feature_precision",) if name in checkpoint},
        checkpoint=dict(checkpoint),
        data=describe(images),
        seconds=round(time.monotonic() - start, 1),
        notes=_notes(len(images), assignment.clusters, figures, labelled=images.labels is not None),
    )
    if many_empty(figures):
        reporter.warn(_empty(figures, assignment.clusters))
    if table and rank() == 0:
        rows = [[name, f"{value:,.2f}".removesuffix(".00")] for name, value in figures.items()]
        reporter.table(f"{assignment.clusters:,} clusters, {len(images):,} images", ["figure", "value"], rows)
        for note in result.notes:
            reporter.answer(note)
    return Clusters(result, assignment, near)


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
        f"{figures['empty_clusters_unbalanced']} of {clusters} clusters are empty before balancing, far more than by "
        "chance: the sizes that training balances are those after it"
    )


def write(
    clusters: Clusters, images: Images, folder: Path, reporter: Reporter, *, name: str, options: Options
) -> tuple[Result, list[Path]]:
    """Write clusters.json, assignments as CSV and Parquet, the picture, and atlas.html. Only rank 0 calls this.

    Args:
        clusters: what `evaluate` returned.
        images: the set.
        folder: to write to; files of these names in it are replaced.
        reporter: for messages and progress.
        name: of the checkpoint, for the reader.
        options: of the evaluation.

    Returns:
        The result, which names its file of assignments, and all files.

    Raises:
        UserError: a file cannot be written, or a folder to compare with is not one of this command.
    """
    assignment = clusters.assignment
    others = [drawing.Curve(_folder_name(path), files.read_sizes(path)[1]) for path in options.compare]
    table = files.to_csv(assignment, images)
    written = {files.TABLE: table}
    if files.has_parquet():
        written[files.PARQUET] = files.to_parquet(assignment, images)
    else:
        reporter.note("no assignments.parquet: it needs pyarrow (pip install 'excb[parquet]')")
    curves = [drawing.Curve(name, assignment.sizes), *others]
    drawn = drawing.draw(curves, title=f"Clusters of {_set_name(images)}, sorted by size")
    written |= {f"sizes.{suffix}": packed for suffix, packed in drawn.items()}
    written["atlas.html"] = _atlas(clusters, images, reporter, name, options).encode()
    result = replace(clusters.result, predictions={"file": files.TABLE, "sha256": hashlib.sha256(table).hexdigest()})
    for file, packed in written.items():
        write_bytes(packed, folder / file)
    write_text(result.to_json() + "\n", folder / files.RESULT)  # last: the files that it names exist
    return result, [folder / file for file in (files.RESULT, *written)]


def _folder_name(path: Path) -> str:
    return (path if path.is_dir() else path.parent).resolve().name


def _set_name(images: Images) -> str:
    """A set's name for the reader: its folder's, with the parent's where that is only "train"."""
    root = Path(images.root)
    return "/".join(root.parts[-2:]) if root.name in ("train", "val", "test") else (root.name or str(root))


def _atlas(clusters: Clusters, images: Images, reporter: Reporter, name: str, options: Options) -> str:
    assignment = clusters.assignment
    nearest, border = exemplars.choose(assignment, options.exemplars)
    wanted = list(exemplars.in_turn(nearest, border, assignment.sizes))
    with reporter.progress("pictures of the atlas", len(wanted)) as bar:
        pictures = exemplars.pictures(images, wanted, budget=round(1e6 * options.megabytes), progress=bar.advance)
    notes = list(clusters.result.notes)
    if missing := len(wanted) - len(pictures):
        note = (
            f"{missing:,} of {len(wanted):,} exemplars have no picture: {options.megabytes:g} MB are full "
            "(--atlas-mb takes more, --exemplars fewer)"
        )
        reporter.note(f"atlas: {note}")
        notes.append(note)
    shown = atlas.contents(
        assignment,
        images,
        clusters.near,
        atlas.Exemplars(nearest, border, pictures),
        figures=clusters.result.figures,
        heading={"checkpoint": name, "data": _set_name(images)},
        notes=notes,
    )
    shown["threshold"] = options.duplicates
    return atlas.render_atlas(shown)
