"""The atlas: one self-contained HTML page with all clusters and their pictures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from excb.images.image_set import Images
from excb.pages.frame import render_page

from .assignment import CentroidNeighbours, ClusterAssignment
from .files import path_names
from .statistics import LabelCounts

LISTED = 100_000  # larger sets list only the images with a picture


@dataclass(frozen=True)
class Exemplars:
    """The images that represent clusters."""

    nearest: Sequence[Sequence[int]]  # indices of images by cluster, the most similar to its centroid first
    border: Sequence[Sequence[int]]  # indices of images by cluster, the smallest margin first
    pictures: Mapping[int, str]  # JPEGs in base64 by index; some exemplars may have none


def contents(
    assignment: ClusterAssignment,
    images: Images,
    near: CentroidNeighbours,
    exemplars: Exemplars,
    *,
    figures: Mapping[str, float],
    heading: Mapping[str, str],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The page's data, as its script reads them.

    Args:
        assignment: of the images.
        images: the set.
        near: neighbours of the centroids.
        exemplars: of every cluster, and last of noise where there is any.
        figures: of all clusters together.
        heading: "checkpoint" and "data" in words.
        notes: for the reader, such as what was left out.
    """
    count, noise = len(assignment.first), assignment.clusters if assignment.noise else None
    clusters, assignment = assignment.clusters, assignment.with_noise_as_cluster()
    beyond = assignment.clusters - clusters  # noise has a card, and no centroid
    listed = list(range(count)) if count <= LISTED else sorted(exemplars.pictures)
    position = {index: number for number, index in enumerate(listed)}
    names = path_names(images)
    labels = images.labels
    return {
        **heading,
        "figures": dict(figures),
        "notes": list(notes),
        "images": count,
        "noise": noise,
        "labels": list(images.classes) if labels is not None and images.classes else None,
        "sizes": assignment.sizes.tolist(),
        "similarity": assignment.mean(assignment.similarity).round(3).tolist(),
        "margin": assignment.mean(assignment.margin).round(3).tolist(),
        "top": LabelCounts.of(assignment.first, labels).top(assignment.clusters) if labels is not None else None,
        "near": near.nearest.tolist() + [[]] * beyond,
        "cosines": near.cosines.astype(float).round(3).tolist() + [[]] * beyond,
        "twins": near.twins.nonzero()[0].tolist(),
        "nearest": [[position[i] for i in part if i in position] for part in exemplars.nearest],
        "border": [[position[i] for i in part if i in position] for part in exemplars.border],
        "names": [names[i] for i in listed],
        "cluster": assignment.first[listed].tolist(),
        "second": assignment.second[listed].tolist(),
        "label": labels[listed].tolist() if labels is not None else None,
        "z": assignment.similarity[listed].astype(float).round(3).tolist(),
        "gap": assignment.margin[listed].astype(float).round(4).tolist(),
        "pictures": {position[index]: picture for index, picture in exemplars.pictures.items()},
    }


def render_atlas(shown: Mapping[str, Any]) -> str:
    """The page around its contents. Names and labels are data in it, never markup or script, whatever they contain."""
    # "</script" would end the data, so that every "<" is escaped; json escapes what is not ASCII.
    data = json.dumps(shown, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return render_page("atlas", title="Cluster atlas", style="base atlas", script="atlas", data=Markup(data))  # noqa: S704
