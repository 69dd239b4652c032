"""Tests of rankings and their scores: hand-computed examples, a loop in NumPy, ties, and the query left out."""

import numpy as np
import pytest
import torch

from excb.inference.galleries import weights
from excb.transfer.retrieval import ranking
from excb.transfer.retrieval.effects import (
    GalleryEffects,
    precision_terms,
    r_precision_terms,
    recall_terms,
    score_of,
)
from excb.transfer.retrieval.ranking import relevant_ranks

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("ranks", "precision", "r", "recalls"),
    [
        ([1], 1.0, 1.0, (1, 1, 1)),
        ([2], 1 / 2, 0.0, (0, 1, 1)),
        ([1, 3, 6], (1 / 1 + 2 / 3 + 3 / 6) / 3, 2 / 3, (1, 1, 1)),
        ([4, 5], (1 / 4 + 2 / 5) / 2, 0.0, (0, 1, 1)),
        ([11, 12], (1 / 11 + 2 / 12) / 2, 0.0, (0, 0, 0)),
        ([1, 2, 3, 4], 1.0, 1.0, (1, 1, 1)),
    ],
)
def test_scores_by_hand(ranks: list[int], precision: float, r: float, recalls: tuple[int, int, int]) -> None:
    found = np.array(ranks)
    assert score_of(precision_terms, found) == pytest.approx(precision)
    assert score_of(r_precision_terms, found) == pytest.approx(r)
    assert tuple(score_of(recall_terms(k), found) for k in (1, 5, 10)) == recalls


def test_a_ranking_by_hand() -> None:
    """Angles to the query: 10, 20, 30, 60, 90 and 170 degrees; lengths do not matter."""
    angles = torch.deg2rad(torch.tensor([90.0, 10, 170, 30, 20, 60]))
    gallery = torch.stack([angles.cos(), angles.sin()], dim=1) * torch.tensor([[1.0], [9], [1], [0.1], [5], [2]])
    labels = np.array([0, 1, 0, 0, 1, 2])
    queries = torch.tensor([[3.0, 0.0]]).expand(4, 2)
    ranks = relevant_ranks(gallery, queries, labels, np.array([0, 1, 2, 3]), device=CPU)
    assert [each.tolist() for each in ranks] == [[3, 5, 6], [1, 2], [4], []]


def by_loop(
    gallery: np.ndarray, queries: np.ndarray, labels: np.ndarray, targets: np.ndarray, *, leave_out: bool
) -> list[list[int]]:
    """Ranks of relevant images, one query and one pair at a time."""
    found = []
    for q, query in enumerate(queries):
        similarities = []
        for index, row in enumerate(gallery):
            if not (leave_out and index == q):
                cosine = float(row @ query) / float(np.linalg.norm(row) * np.linalg.norm(query))
                similarities.append((-round(cosine, 9), index))
        order = [index for _, index in sorted(similarities)]
        found.append([rank for rank, index in enumerate(order, 1) if labels[index] == targets[q]])
    return found


@pytest.mark.parametrize("leave_out", [False, True])
@pytest.mark.parametrize("block", [1, 100, 2**23])
def test_ranks_are_those_of_the_loop(leave_out: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "_BLOCK", block)
    monkeypatch.setattr(ranking, "_TILE", 64)
    random = np.random.default_rng(0)
    gallery = random.normal(size=(41, 6)).astype(np.float32)
    gallery[20:26] = gallery[3] * np.arange(1, 7, dtype=np.float32)[:, None]  # ties, which the index breaks
    labels = random.integers(5, size=41)
    queries, targets = (gallery, labels) if leave_out else (random.normal(size=(13, 6)).astype(np.float32), labels[:13])
    found = relevant_ranks(
        torch.from_numpy(gallery),
        torch.from_numpy(queries),
        labels,
        targets,
        range(len(queries)) if leave_out else None,
        device=CPU,
    )
    assert [each.tolist() for each in found] == by_loop(
        gallery.astype(np.float64), queries.astype(np.float64), labels, targets, leave_out=leave_out
    )


def test_equal_images_are_ranked_by_their_index() -> None:
    gallery = torch.ones(5, 3)
    (ranks,) = relevant_ranks(gallery, torch.ones(1, 3), np.array([0, 1, 0, 1, 1]), np.array([1]), device=CPU)
    assert ranks.tolist() == [2, 4, 5]


@pytest.mark.parametrize("shared", [False, True])
def test_effects_of_the_gallery_are_those_of_leaving_images_out(shared: bool) -> None:
    measures = [precision_terms, r_precision_terms, recall_terms(1), recall_terms(5)]
    random = np.random.default_rng(4)
    queries, targets = random.standard_normal((20, 3)), random.integers(0, 7, 20)
    gallery, labels = (queries, targets) if shared else (random.standard_normal((25, 3)), random.integers(0, 7, 25))

    def scores(kept: np.ndarray, effects: GalleryEffects | None = None) -> np.ndarray:
        """[F, Q] without the gallery images that are not kept."""
        if shared and not kept.all():  # by the loop, which leaves out two images
            ranks = [
                np.array([rank for rank in range(1, len(order) + 1) if labels[order[rank - 1]] == targets[query]])
                for query, row in enumerate(queries)
                for order in [
                    sorted(
                        (index for index in np.flatnonzero(kept) if index != query),
                        key=lambda index, row=row: -gallery[index] @ row / np.linalg.norm(gallery[index]),  # type: ignore[misc]
                    )
                ]
            ]
        else:
            rows, asked = torch.from_numpy(gallery[kept]), torch.from_numpy(queries)
            own = range(20) if shared else None
            ranks = relevant_ranks(rows, asked, labels[kept], targets, own, device=CPU, effects=effects)
        return np.array([[score_of(terms, each) for each in ranks] for terms in measures])

    effects = GalleryEffects(len(gallery), len(queries), measures)
    whole = scores(np.ones(len(gallery), bool), effects)
    on_mean = effects.of_mean(np.nanmean(whole, axis=1))
    for image in range(len(gallery)):
        without = scores(np.arange(len(gallery)) != image)
        lost = np.isnan(without) & ~np.isnan(whole)
        change = np.where(lost, whole - np.nanmean(whole, axis=1, keepdims=True), whole - without)
        assert on_mean[..., image] == pytest.approx(np.nan_to_num(change) @ weights(len(queries)).T, abs=1e-9)
