"""`excb-eval clusters`: from features to assignments, figures, picture and atlas, all in one folder."""

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from excb.console import Reporter
from excb.distributed.collectives import rank, run_on_rank0
from excb.errors import UserError, require
from excb.files.atomic import write_bytes, write_text
from excb.hub.backbone import Backbone
from excb.hub.trained_heads import NetworkHeads
from excb.images.image_set import Images
from excb.results.result import Result

from . import atlas, drawing, exemplars, files
from .assignment import Assignment, Neighbours, Rows, assign, neighbours
from .statistics import label_figures, sizes_figures

NEIGHBOURS = 8  # of every centroid, in the atlas
DUPLICATES = 0.99
EXEMPLARS, MEGABYTES = 9, 48


@dataclass(frozen=True)
class Options:
    """What a user may choose.

    Args:
        duplicates: cosine above which two centroids count as duplicates.
        exemplars: images of every cluster in the atlas, nearest to the centroid; a third as many of the border.
        megabytes: of pictures in the atlas.
        compare: folders of other results, drawn in the same picture.
    """

    duplicates: float = DUPLICATES
    exemplars: int = EXEMPLARS
    megabytes: float = MEGABYTES
    compare: Sequence[Path] = ()

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
    """Projector and centroids of the network that was loaded.

    Raises:
        UserError: the checkpoint has them of the other network only.
    """
    assert backbone.heads is not None, "load with heads=True"
    network = backbone.entry.network
    found = backbone.heads.student if network == "student" else backbone.heads.teacher
    if found is None:
        raise UserError(f"{source} has no projector and centroids of the {network}: choose the other --network")
    return found


def evaluate(
    heads: NetworkHeads,
    features: Rows,
    images: Images,
    *,
    checkpoint: Mapping[str, Any],
    device: torch.device,
    reporter: Reporter,
    options: Options | None = None,
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
        options: what the user chose.
        table: print the figures.

    Raises:
        UserError: the checkpoint has one cluster only.
    """
    start, options = time.monotonic(), options or Options()
    with reporter.progress("assignments", len(features)) as bar:
        assignment = assign(heads, features, device=device, progress=bar.advance)
    centroids = heads.centroids()
    with reporter.progress("neighbours of centroids", len(centroids)) as bar:
        near = neighbours(centroids, most=NEIGHBOURS, threshold=options.duplicates, progress=bar.advance)
    figures = sizes_figures(assignment.sizes)
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
        },
        checkpoint=dict(checkpoint),
        data={
            "images": {"root": str(images.root), "images": len(images), "fingerprint": images.fingerprint},
            "classes": len(images.classes or ()),
        },
        seconds=round(time.monotonic() - start, 1),
        notes=_notes(len(images), assignment.clusters, labelled=images.labels is not None),
    )
    if table and rank() == 0:
        rows = [[name, f"{value:,.2f}".removesuffix(".00")] for name, value in figures.items()]
        reporter.table(f"{assignment.clusters:,} clusters, {len(images):,} images", ["figure", "value"], rows)
        for note in result.notes:
            reporter.answer(note)
    return Clusters(result, assignment, near)


def _notes(images: int, clusters: int, *, labelled: bool) -> list[str]:
    """Notes that a reader of the figures needs."""
    ratio = images / clusters
    notes = [
        f"{ratio:.3g} images a cluster: dealt evenly at random they would leave {100 * math.exp(-ratio):.1f} % of the "
        "clusters empty (exp(-N/K))"
    ]
    if ratio < 1:
        notes.append(f"fewer images than clusters: at least {100 * (1 - ratio):.1f} % of the clusters must be empty")
    if labelled:
        notes.append("purity and NMI grow with the number of clusters: read them beside those by chance")
    return notes


def write(
    found: Clusters, images: Images, folder: Path, reporter: Reporter, *, name: str, options: Options | None = None
) -> tuple[Result, list[Path]]:
    """Write a folder: clusters.json, assignments as CSV and Parquet, the picture, and atlas.html; process 0 does.

    Args:
        found: what `evaluate` returned.
        images: the set.
        folder: where to; files of these names in it are replaced.
        reporter: for messages and progress.
        name: of the checkpoint, for people.
        options: what the user chose.

    Returns:
        The result with its file of assignments named, and the files.

    Raises:
        UserError: a file cannot be written, or a folder to compare with is none of this command.
    """
    return run_on_rank0(lambda: _write(found, images, folder, reporter, name=name, options=options or Options()))


def _write(
    found: Clusters, images: Images, folder: Path, reporter: Reporter, *, name: str, options: Options
) -> tuple[Result, list[Path]]:
    assignment = found.assignment
    others = [_other(place) for place in options.compare]  # before anything is written
    table = files.to_csv(assignment, images)
    written = {files.TABLE: table}
    if files.has_parquet():
        written[files.PARQUET] = files.to_parquet(assignment, images)
    else:
        reporter.note("no assignments.parquet: it needs pyarrow (pip install 'excb[parquet]')")
    curves = [drawing.Curve(name, assignment.sizes), *others]
    drawn = drawing.draw(curves, title=f"Clusters of {_place(images)}, sorted by size")
    written |= {f"sizes.{suffix}": packed for suffix, packed in drawn.items()}
    written["atlas.html"] = _atlas(found, images, reporter, name, options).encode()
    digest = hashlib.sha256(table).hexdigest()
    result = replace(found.result, predictions={"file": files.TABLE, "sha256": digest})
    for file, packed in written.items():
        write_bytes(packed, folder / file)
    write_text(result.to_json() + "\n", folder / files.RESULT)  # last: what it names is there
    return result, [folder / file for file in (files.RESULT, *written)]


def _other(place: Path) -> drawing.Curve:
    """The curve of an earlier result, called as its folder."""
    _, sizes = files.read_sizes(place)
    return drawing.Curve((place if place.is_dir() else place.parent).resolve().name, sizes)


def _place(images: Images) -> str:
    """A set's name for people: its folder's, and the one above where that is only "train"."""
    root = Path(images.root)
    return "/".join(root.parts[-2:]) if root.name in ("train", "val", "test") else (root.name or str(root))


def _atlas(found: Clusters, images: Images, reporter: Reporter, name: str, options: Options) -> str:
    assignment = found.assignment
    nearest, border = exemplars.choose(assignment, options.exemplars)
    wanted = list(exemplars.in_turn(nearest, border, assignment.sizes))
    with reporter.progress("pictures of the atlas", len(wanted)) as bar:
        pictures = exemplars.pictures(images, wanted, budget=round(1e6 * options.megabytes), progress=bar.advance)
    notes = list(found.result.notes)
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
        found.near,
        atlas.Exemplars(nearest, border, pictures),
        figures=found.result.figures,
        heading={"checkpoint": name, "data": _place(images)},
        notes=notes,
    )
    shown["threshold"] = options.duplicates
    return atlas.page(shown)
