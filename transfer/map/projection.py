"""Vectors in the plane, by UMAP where it is installed and by t-SNE elsewhere; images that are alike lie close."""

import importlib.util
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from excb.errors import UserError, require

ProjectionMethod = Literal["auto", "umap", "tsne"]
NAMES = {"umap": "UMAP", "tsne": "t-SNE"}
NEIGHBOURS = 15  # UMAP's default
PERPLEXITY = 30.0  # scikit-learn's default; fewer images take a third of their number
COMPONENTS = 50  # principal components that t-SNE starts from, as its authors do
FEWEST, FEWEST_TSNE = 20, 6  # images that UMAP needs for a graph of neighbours, and t-SNE for a layout


@dataclass(frozen=True)
class Projection:
    """Images laid out in the plane."""

    points: np.ndarray  # float32 [N, 2]
    method: str  # in words
    seconds: float


def project(vectors: np.ndarray, method: ProjectionMethod = "auto", *, seed: int = 0) -> Projection:
    """Lay out vectors by their cosines; the same vectors and seed give the same points on one machine.

    Args:
        vectors: [N, D]; their lengths do not count.
        method: "auto" is UMAP where it is installed and there are at least `FEWEST` images, else t-SNE.
        seed: of the layout.

    Raises:
        UserError: there is no image, the method is unknown, or UMAP is asked for and not installed.
    """
    require(len(vectors) > 0, "there is no image to lay out")
    chosen = _method(method, len(vectors))
    started = time.perf_counter()
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit = (vectors / np.maximum(norms, 1e-12)).astype(np.float32)
    if len(unit) < FEWEST_TSNE:  # in a circle
        turns = 2 * np.pi * np.arange(len(unit)) / len(unit)
        points = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    else:
        points = _umap(unit, seed) if chosen == "umap" else _tsne(unit, seed)
    return Projection(points.astype(np.float32), NAMES[chosen], time.perf_counter() - started)


def require_method(method: str) -> bool:
    """Whether UMAP is installed. Raises UserError where there is no such method, or UMAP is asked for and missing."""
    require(method in ("auto", *NAMES), f"a map is made by auto, {' or '.join(NAMES)}, not by {method}")
    installed = importlib.util.find_spec("umap") is not None
    if method == "umap" and not installed:
        raise UserError("UMAP is not installed: run `pip install 'excb[map]'`, or use t-SNE (tsne)")
    return installed


def _method(method: str, images: int) -> Literal["umap", "tsne"]:
    installed = require_method(method)
    if method == "umap":
        require(images >= FEWEST, f"UMAP needs {FEWEST} images, and there are {images}: use t-SNE (tsne)")
    if method == "tsne" or not installed or images < FEWEST:
        return "tsne"
    return "umap"


def _umap(unit: np.ndarray, seed: int) -> np.ndarray:
    from umap import UMAP

    neighbours = min(NEIGHBOURS, len(unit) - 1)
    points: np.ndarray = UMAP(n_neighbors=neighbours, random_state=seed, n_jobs=1).fit_transform(unit)
    return points


def _tsne(unit: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if min(unit.shape) > COMPONENTS:
        unit = PCA(COMPONENTS, svd_solver="randomized", random_state=seed).fit_transform(unit)
    perplexity = min(PERPLEXITY, (len(unit) - 1) / 3)
    points: np.ndarray = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(unit)
    return points
