"""The plane: who was near stays near, the same each time, by the method that is installed."""

import importlib.util
from typing import Any, cast

import numpy as np
import pytest

from excb.errors import UserError
from excb.transfer.map.projection import project

pytestmark = pytest.mark.usefixtures("one_thread")


def three_bundles(each: int, width: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Vectors near three directions, of many lengths, and which direction each has."""
    random = np.random.default_rng(2)
    labels = np.repeat(np.arange(3), each)
    vectors = np.eye(width)[labels * 7] + 0.05 * random.normal(size=(3 * each, width))
    return (vectors * random.uniform(0.1, 50, (3 * each, 1))).astype(np.float32), labels


def test_tsne_keeps_bundles_together_and_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    vectors, labels = three_bundles(25)
    made = project(vectors)
    assert made.method == "t-SNE"
    assert made.points.shape == (75, 2)
    assert made.points.dtype == np.float32
    distances = np.linalg.norm(made.points[:, None] - made.points[None], axis=-1) + 1e9 * np.eye(75)
    assert (labels[distances.argmin(1)] == labels).all()
    assert np.array_equal(project(vectors).points, made.points)


def test_umap_keeps_bundles_together() -> None:
    pytest.importorskip("umap", reason="UMAP is not installed (the extra map)")
    vectors, labels = three_bundles(20)
    made = project(vectors, "umap")
    assert made.method == "UMAP"
    distances = np.linalg.norm(made.points[:, None] - made.points[None], axis=-1) + 1e9 * np.eye(60)
    assert (labels[distances.argmin(1)] == labels).all()


@pytest.mark.parametrize("images", [1, 2, 5, 6])
def test_few_images_have_places_of_their_own(images: int) -> None:
    points = project(np.eye(8, dtype=np.float32)[:images]).points
    assert np.isfinite(points).all()
    assert len(np.unique(points.round(6), axis=0)) == images


def test_mistakes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="there is no image to lay out"):
        project(np.empty((0, 4), np.float32))
    with pytest.raises(UserError, match="a map is made by auto, umap or tsne, not by pca"):
        project(np.ones((5, 4), np.float32), cast("Any", "pca"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UserError, match=r"UMAP is not installed: run `pip install 'excb\[map\]'`, or use t-SNE"):
        project(np.ones((50, 4), np.float32), "umap")
