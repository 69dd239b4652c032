"""The appendix's t-SNE figure: projected features h_t(f_t(x)) of a few classes in the plane."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from excb.charts.style import distinct_styles, new_figure
from excb.console import Reporter, plural
from excb.errors import UserError
from excb.hub import loading
from excb.hub.backbone import Backbone
from excb.images.image_set import ImageSet, clipped_ledger
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.images.scanning import refuse_among, scan_folder
from excb.images.survey import surveyed, with_pixels
from excb.method import unit
from excb.networks.features import Inputs, extract

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# ImageNet-10 (Chang et al., 2017), the paper's ten classes, by ImageNet's folder names.
IMAGENET_10 = {
    "n02056570": "king penguin",
    "n02085936": "Maltese dog",
    "n02128757": "snow leopard",
    "n02690373": "airliner",
    "n02692877": "airship",
    "n03095699": "container ship",
    "n04254680": "soccer ball",
    "n04285008": "sports car",
    "n04467665": "trailer truck",
    "n07747607": "orange",
}
PERPLEXITY = 30.0  # scikit-learn's default; fewer images take a third of their number


@dataclass(frozen=True)
class Plane:
    """Images laid out in the plane."""

    points: np.ndarray  # [N, 2]
    labels: np.ndarray  # [N], the class index of every image
    classes: Sequence[str]


def images_of_classes(images: ImageSet, classes: Sequence[str], *, each: int | None = None) -> list[int]:
    """Indices of the images of some classes, in order: the first `each` of every class, or all.

    Raises:
        UserError: there are no class folders, or none of that name.
    """
    if images.labels is None or images.classes is None:
        raise UserError(f"{images.root} has no class folders: t-SNE colours images by their folder")
    if missing := [name for name in classes if name not in images.classes]:
        some = ", ".join(images.classes[:4])
        raise UserError(
            f"{images.root} has no class folder {', '.join(missing)}: choose with --classes from its "
            f"{len(images.classes)} ({some}{' ...' if len(images.classes) > 4 else ''})"
        )
    per_class = [np.flatnonzero(images.labels == images.classes.index(name))[:each] for name in classes]
    return [int(index) for indices in per_class for index in indices]


def compute_plane(
    name: str,
    data: Path,
    reporter: Reporter,
    *,
    classes: Sequence[str] | None = None,
    each: int | None = None,
    seed: int = 0,
    pixel_range: str | None = None,
    device: torch.device | str = "cpu",
    out: Sequence[Path] = (),
) -> Plane:
    """Pass images through f_t and h_t and lay them out by t-SNE (van der Maaten and Hinton, 2008).

    Features are normalised first, since training uses only their direction.

    Args:
        name: what `excb.load` takes, with heads: a run folder or a full checkpoint.
        data: a folder of class folders, or a folder with such a train/ in it.
        reporter: shows progress.
        classes: names of class folders; ImageNet-10 by default.
        each: images of every class at most; all by default.
        seed: of t-SNE.
        pixel_range: LOW..HIGH of images of more than 8 bits; by default the checkpoint's, else that of the images.
        device: where the network computes.
        out: files that the figure will be written to.

    Raises:
        UserError: the checkpoint has no heads, a class is missing, there are too few images, or `out` is among them.
    """
    from sklearn.manifold import TSNE

    scanned = scan_folder(data / "train" if (data / "train").is_dir() else data)
    scanned.ledger.tell(reporter)
    for file in out:
        refuse_among(scanned, file.parent)
    wanted = list(IMAGENET_10) if classes is None else list(dict.fromkeys(classes))
    indices = images_of_classes(scanned, wanted, each=each)
    backbone, projected = _load(name)
    own = backbone.transform.pixels
    known = own if own != EIGHT_BIT else None
    if pixel_range is not None:
        known = replace(Pixels.declared(pixel_range, own.channels), colours=own.colours)
    survey = surveyed(scanned, known)
    if line := survey.line():
        reporter.note(line)
    images: ImageSet = with_pixels(scanned, survey.pixels)
    network = projected.to(device)
    with reporter.progress("projected features", len(indices)) as bar:
        features = extract(
            network, Inputs(images, backbone.transform, indices=indices), device=device, progress=bar.advance
        )
    for path, reason in features.broken.items():
        reporter.warn(f"{path} cannot be read ({reason}) and is skipped")
    if len(features.rows) < 4:
        raise UserError(
            f"{plural(len(features.rows), 'image is', 'images are')} too few for t-SNE: choose more or larger classes"
        )
    assert images.labels is not None
    assert images.classes is not None
    index = {images.classes.index(name): number for number, name in enumerate(wanted)}
    reporter.note(f"t-SNE of {plural(len(features.rows), 'image')}")
    clipped_ledger(images).tell(reporter)
    layout = TSNE(perplexity=min(PERPLEXITY, (len(features.rows) - 1) / 3), init="pca", random_state=seed)
    points = layout.fit_transform(unit(features.rows).numpy())
    labels = np.array([index[int(label)] for label in images.labels[features.samples.numpy()]])
    return Plane(points, labels, [IMAGENET_10.get(name, name) for name in wanted])


def _load(name: str) -> tuple[Backbone, nn.Module]:
    """The backbone f_t, and h_t(f_t(x)) as one network."""
    backbone = loading.load(name, heads=True)
    assert backbone.heads is not None
    if backbone.heads.teacher is None:
        raise UserError(f"{name} has no teacher heads: name a run folder or a full checkpoint")
    return backbone, nn.Sequential(backbone, backbone.heads.teacher.projector).eval()


def tsne(plane: Plane) -> "Figure":
    """Draw the images, classes by colour and marker, each labelled at its densest point."""
    from matplotlib.patheffects import withStroke

    figure = new_figure(6.4, 5.6)
    axes = figure.subplots()
    size = float(np.clip(20_000 / len(plane.points), 3, 30))
    for number, (name, (colour, marker)) in enumerate(
        zip(plane.classes, distinct_styles(len(plane.classes)), strict=True)
    ):
        points = plane.points[plane.labels == number]
        axes.scatter(
            points[:, 0], points[:, 1], s=size, color=colour, marker=marker, alpha=0.6, linewidths=0, label=name
        )
        if len(plane.classes) <= 12 and len(points):
            outline = [withStroke(linewidth=3, foreground="white")]
            x, y = _densest(points)
            axes.text(x, y, name, color="black", fontsize=9, ha="center", path_effects=outline)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8, markerscale=1.5)
    axes.set_aspect("equal", adjustable="datalim")
    axes.axis("off")
    return figure


def _densest(points: np.ndarray) -> np.ndarray:
    """The point [2] whose nearest fifth of the class is closest: a class may have several parts."""
    from sklearn.neighbors import NearestNeighbors

    count = max(1, len(points) // 5)
    distances, _ = NearestNeighbors(n_neighbors=count).fit(points).kneighbors(points)
    densest: np.ndarray = points[distances[:, -1].argmin()]
    return densest
