"""Clusters of features: planted directions are found, and cosines are those of plain NumPy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import excb
from excb.errors import UserError
from excb.results.result import ResultRecord
from excb.transfer.clusters.files import read_sizes
from excb.transfer.clusters.partition import partition
from excb.transfer.embeddings.embeddings import Embeddings
from excb.transfer.embeddings.table.vectors import ArrayRows

pytestmark = pytest.mark.usefixtures("one_thread")


def blobs(each: int = 20, groups: int = 4, *, outliers: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Vectors around orthogonal directions at many lengths, and the direction of each; outliers are -1."""
    random = np.random.default_rng(0)
    truth = np.repeat(np.arange(groups), each)
    vectors = np.eye(16)[truth] + 0.04 * random.standard_normal((len(truth), 16))
    vectors = np.concatenate([vectors, random.standard_normal((outliers, 16))])
    lengths = random.uniform(0.5, 9, (len(vectors), 1))
    order = random.permutation(len(vectors))
    truth = np.concatenate([truth, np.full(outliers, -1)])
    return (vectors * lengths).astype(np.float32)[order], truth[order]


def same_groups(first: np.ndarray, second: np.ndarray) -> bool:
    return bool(((first[:, None] == first) == (second[:, None] == second)).all())


def test_k_means_finds_directions_and_its_cosines_are_numpys() -> None:
    vectors, truth = blobs()
    made = partition(ArrayRows(vectors), k=4)
    assert same_groups(made.assignment.first, truth)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    means = np.stack([unit[made.assignment.first == number].mean(0) for number in range(4)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(made.centroids.numpy(), means, atol=1e-5)
    cosines = -np.sort(-(unit @ means.T), axis=1)
    np.testing.assert_allclose(made.assignment.similarity, cosines[:, 0], atol=1e-5)
    np.testing.assert_allclose(made.assignment.margin, cosines[:, 0] - cosines[:, 1], atol=1e-5)
    assert np.array_equal(made.assignment.second, np.argsort(-(unit @ means.T), axis=1)[:, 1])
    assert made.note is None


def test_k_is_the_square_root_of_the_images_by_default() -> None:
    vectors, _ = blobs(each=16)
    made = partition(ArrayRows(vectors))
    assert made.assignment.clusters == 8
    assert made.settings["k_by"] == "the square root of the number of images"
    again = partition(ArrayRows(vectors))
    assert np.array_equal(made.assignment.first, again.assignment.first)


def test_hdbscan_finds_directions_and_leaves_outliers() -> None:
    vectors, truth = blobs(outliers=6)
    made = partition(ArrayRows(vectors), method="hdbscan")
    assignment, first, kept = made.assignment, made.assignment.first, truth >= 0
    assert assignment.clusters == len(made.centroids) == 4
    inside = kept & (first >= 0)
    assert inside.sum() > 70
    assert same_groups(first[inside], truth[inside])
    noise = first == -1
    assert noise[~kept].sum() >= 5
    assert assignment.noise == noise.sum()
    assert assignment.sizes.tolist() == [int((first == number).sum()) for number in range(4)]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ made.centroids.numpy().T
    assert np.array_equal(assignment.second[noise], cosines[noise].argmax(1))
    np.testing.assert_allclose(assignment.similarity[noise], cosines[noise].max(1), atol=1e-5)
    assert (assignment.margin[noise] == 0).all()
    assert made.note is not None
    assert made.note.startswith(f"{noise.sum()} images are noise ({100 * noise.sum() / 86:.1f} % of 86)")


def test_figures_are_of_the_images_in_clusters_and_name_the_noise(tmp_path: Path) -> None:
    vectors, truth = blobs(outliers=30)
    paths, labels = [f"{number:03}.png" for number in range(len(vectors))], ["x" if n < 0 else f"{n}" for n in truth]
    made = Embeddings(ArrayRows(vectors), paths, str(tmp_path), {"name": "some", "preprocessing": {}}, labels=labels)
    found = made.clusters(method="hdbscan")
    found.save(tmp_path / "out", quiet=True)
    result, sizes = read_sizes(tmp_path / "out")
    noise = int((found.numbers < 0).sum())
    assert noise > 20
    figures = result.figures
    assert (figures["noise_images"], figures["noise_percent"]) == (noise, round(100 * noise / 110, 4))
    assert result.settings["clusters"] == len(found) == len(sizes) == 4
    assert sizes.tolist() == found.sizes.tolist()
    assert figures["largest_images"] == sizes.max() < noise
    counts = [np.unique(np.array(labels)[found.numbers == number], return_counts=True)[1].max() for number in range(4)]
    assert figures["purity_percent"] == pytest.approx(100 * sum(counts) / sizes.sum(), abs=1e-3)
    table = (tmp_path / "out" / "assignments.csv").read_text().splitlines()
    assert sum(row.split(",")[1] == "-1" for row in table) == noise


def test_sizes_of_an_earlier_version_with_noise_as_a_cluster_are_refused(tmp_path: Path) -> None:
    vectors, _ = blobs(outliers=6)
    names = [f"{number:03}.png" for number in range(len(vectors))]
    made = Embeddings(ArrayRows(vectors), names, str(tmp_path), {"name": "some", "preprocessing": {}})
    for method in ("hdbscan", "kmeans"):
        made.clusters(method=method, k=None if method == "hdbscan" else 4).save(tmp_path / method, quiet=True)
        file = tmp_path / method / "clusters.json"
        result = ResultRecord.read(file)
        figures = {name: value for name, value in result.figures.items() if "noise" not in name}
        replace(result, figures=figures).write(file)
    read_sizes(tmp_path / "kmeans")
    with pytest.raises(UserError, match=r"is of an earlier version, which counted noise as a cluster: evaluate again"):
        read_sizes(tmp_path / "hdbscan")


@pytest.mark.parametrize(
    ("vectors", "options", "said"),
    [
        (np.ones((1, 3)), {}, "1 image cannot be clustered"),
        (np.ones((9, 3)), {"k": 10}, "k is 10: clusters of 9 images are 2 to 9"),
        (np.ones((9, 3)), {"k": 1}, "k is 1: clusters of 9 images are 2 to 9"),
        (np.ones((9, 3)), {"k": 2, "method": "hdbscan"}, "HDBSCAN finds the number of clusters itself: leave k out"),
        (np.eye(9), {"method": "hdbscan"}, "HDBSCAN finds no cluster among these images: use kmeans"),
        (np.ones((9, 3)), {"method": "ward"}, "the method is kmeans or hdbscan, not 'ward'"),
    ],
)
def test_what_cannot_be_clustered_is_one_line(vectors: np.ndarray, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        partition(ArrayRows(vectors.astype(np.float32)), **options)


def test_embeddings_in_clusters(tmp_path: Path) -> None:
    vectors, truth = blobs(outliers=6)
    paths = [f"{number:03}.png" for number in range(len(vectors))]
    labels = ["ant" if number == 0 else "bee" if number > 0 else None for number in truth.tolist()]
    made = Embeddings(ArrayRows(vectors), paths, str(tmp_path), {"name": "some", "preprocessing": {}}, labels=labels)
    found = made.clusters(method="hdbscan")
    assert len(found) == 4
    assert found.sizes.sum() + len(found.outliers) == len(made)
    assert np.array_equal(
        np.flatnonzero(found.numbers < 0), sorted(made.numbers[path] for path in found.outliers.paths)
    )
    first = found[0]
    assert {truth[made.numbers[path]] for path in first.paths} == {truth[made.numbers[first.paths[0]]]}
    centre = found.partition.centroids[0].numpy()
    cosines = first.vectors @ centre / np.linalg.norm(first.vectors, axis=1)
    assert (np.diff(cosines) <= 1e-6).all()
    assert len(found[1:3]) == 2
    files = [file.name for file in found.save(tmp_path / "out", quiet=True)]
    assert {"atlas.html", "assignments.csv", "clusters.json"} <= set(files)
    result = ResultRecord.from_json((tmp_path / "out" / "clusters.json").read_text())
    assert result.settings["method"] == "hdbscan"
    assert result.notes[-1] == "6 images have no label and count as of the class (no label) in purity and NMI"
    assert "(no label)" in (tmp_path / "out" / "atlas.html").read_text()
    assert repr(excb.Embeddings.clusters(made, 4)) == "4 clusters of 86 images"
    assert torch.equal(found.partition.centroids, made.clusters(method="hdbscan").partition.centroids)
