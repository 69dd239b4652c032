"""Cases of coverage whose images are each other's neighbours: leave-one-out k-NN, retrieval, and candidates of copies.

Two networks see the same images, of which hard ones are hard for both: features are the class's centre, noise that the
networks share, and noise of their own. Both are equally good.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excb.inference.estimate import Estimate
from excb.inference.halves import enough, halved_lead, halved_mean
from excb.inference.tiers import LEVEL
from excb.neighbours.halves import enough_neighbours, retrieval_on_halves, vote_on_halves
from excb.neighbours.knn import vote
from excb.neighbours.nearest import nearest
from excb.transfer.instances.scores import Candidates
from excb.transfer.reporting.predictions import ImageScores
from excb.transfer.retrieval.effects import GalleryEffects, score_of
from excb.transfer.retrieval.halves import HalfScores
from excb.transfer.retrieval.protocol import KS, MEASURES, SMOOTH, STEPPED
from excb.transfer.retrieval.ranking import relevant_ranks

from .cases import ERRS, Case, Trial, drawn_once, inside

CLASSES, WIDTH, K, TEMPERATURE = 8, 16, 20, 0.07
CENTRES = np.random.default_rng(1).standard_normal((CLASSES, WIDTH))
EXPECTED = 500  # evaluations that a figure's expectation is the mean of

Pair = tuple[list[Tensor], np.ndarray]  # features of two networks, classes
Reading = tuple[np.ndarray, np.ndarray]  # hits, and hits on halves


def images(random: np.random.Generator, number: int) -> Pair:
    """Features of images by two networks, and their classes."""
    labels = random.integers(0, CLASSES, number)
    shared = CENTRES[labels] + 0.9 * random.standard_normal((number, WIDTH))
    return [torch.from_numpy(shared + 0.8 * random.standard_normal(shared.shape)) for _ in range(2)], labels


@drawn_once
def left_one_out(random: np.random.Generator, number: int, *, halves: bool = True) -> list[Reading]:
    """Leave-one-out k-NN of two networks."""
    (first, second), classes = images(random, number)
    labels, readings = torch.from_numpy(classes), []
    for rows in (first, second):
        neighbours = nearest(rows, rows, enough_neighbours(K, number) if halves else K, exclude_self=True)
        votes = vote(neighbours, labels, ks=[K], temperatures=[TEMPERATURE], classes=CLASSES)
        on_halves = (
            vote_on_halves(neighbours, labels, k=K, temperature=TEMPERATURE, classes=CLASSES) if halves else np.empty(0)
        )
        readings.append(((votes[K, TEMPERATURE].top1 == labels).double().numpy(), on_halves))
    return readings


@drawn_once
def views_found(random: np.random.Generator, number: int, *, halves: bool = True) -> list[Reading]:
    """Instance retrieval of two networks: whether the image nearest to a view is its own."""
    (first, second), _ = images(random, number)
    readings = []
    for rows in (first, second):
        views = rows + 1.1 * torch.from_numpy(random.standard_normal(rows.shape))
        found = nearest(rows, views, enough(1)).indices
        hits = (found[:, 0] == torch.arange(number)).double().numpy()
        readings.append((hits, retrieval_on_halves(found) if halves else np.empty(0)))
    return readings


Draw = Callable[..., list[Reading]]


@cache
def expected(draw: Draw, number: int) -> float:
    """The figure on so many images, in percent, on average."""
    random = np.random.default_rng(9)
    readings = [reading for _ in range(EXPECTED // 2) for reading in draw(random, number, halves=False)]
    return 100 * float(np.mean([hits.mean() for hits, _ in readings]))


def covers(draw: Draw, number: int) -> Trial:
    """The interval of a figure."""

    def trial(random: np.random.Generator) -> bool:
        return inside(halved_mean(*draw(random, number)[0]).interval(), expected(draw, number))

    return trial


def lead(draw: Draw, number: int, random: np.random.Generator) -> Estimate:
    """The difference of two equally good networks."""
    (one, first), (other, second) = draw(random, number)
    return halved_lead(other - one, second.astype(float) - first)


def lead_covers(draw: Draw, number: int) -> Trial:
    """The interval of the difference."""
    return lambda random: inside(lead(draw, number, random).interval(lowest=-1.0), 0.0)


def lead_differs(draw: Draw, number: int) -> Trial:
    """Whether two equally good networks are called different."""
    return lambda random: lead(draw, number, random).p_value() < LEVEL


@drawn_once
def ranked(random: np.random.Generator, number: int, *, shared: bool) -> list[ImageScores]:
    """Scores of the rankings of two networks: of each other, or of a gallery as large."""
    queries, targets = images(random, number)
    galleries, labels = (queries, targets) if shared else images(random, number)
    scores = []
    for rows, bank in zip(queries, galleries, strict=True):
        effects = GalleryEffects(number, number, list(SMOOTH.values()))
        halves = HalfScores(labels, targets, KS, shared=shared)
        values = _values(bank, rows, labels, targets, shared=shared, effects=effects, halves=halves)
        on_mean = effects.of_mean(values[: len(SMOOTH)].nanmean(1).numpy())
        scores.append(
            ImageScores(
                torch.from_numpy(targets),
                [str(image) for image in range(number)],
                tuple(map(str, range(CLASSES))),
                dict(zip(MEASURES, values, strict=True)),
                gallery=dict(zip(SMOOTH, torch.from_numpy(on_mean), strict=True)),
                halves=dict(zip(STEPPED, torch.from_numpy(halves.packed()), strict=True)),
                shared_gallery=shared,
            )
        )
    return scores


def _values(
    bank: Tensor, rows: Tensor, labels: np.ndarray, targets: np.ndarray, *, shared: bool, **counted: Any
) -> Tensor:
    """The score of every query by figure, [F, Q]."""
    own = range(len(rows)) if shared else None
    ranks = relevant_ranks(bank, rows, labels, targets, own, device=torch.device("cpu"), **counted)
    return torch.tensor([[score_of(terms, each) for each in ranks] for terms in MEASURES.values()]).double()


@cache
def expected_ranking(number: int, *, shared: bool) -> dict[str, float]:
    """The figures of rankings, in percent, on average."""
    random, means = np.random.default_rng(9), list[Tensor]()
    for _ in range(EXPECTED):
        (rows, _), targets = images(random, number)
        (bank, _), labels = ((rows, rows), targets) if shared else images(random, number)
        means.append(_values(bank, rows, labels, targets, shared=shared).nanmean(1))
    return dict(zip(MEASURES, (100 * torch.stack(means).mean(0)).tolist(), strict=True))


def rank_covers(figure: str, number: int, *, shared: bool) -> Trial:
    """The interval of a figure of rankings."""

    def trial(random: np.random.Generator) -> bool:
        scores = ranked(random, number, shared=shared)[0]
        return inside(scores.intervals().get(figure), expected_ranking(number, shared=shared)[figure])

    return trial


def rank_differs(figure: str, number: int, *, shared: bool) -> Trial:
    """Whether two equally good networks are called different."""

    def trial(random: np.random.Generator) -> bool:
        first, second = ranked(random, number, shared=shared)
        return bool(first.compared(figure, second, figure).p_value < LEVEL)

    return trial


def candidates(random: np.random.Generator, queries: int) -> Candidates:
    """Candidates of copies, four in five of the queries having one."""
    own = random.random(queries) < 0.8
    similarities = np.sort(random.normal(0, 1, (queries, 10)), 1)[:, ::-1] + random.normal(0, 0.5, (queries, 1))
    right, copies = np.zeros((queries, 10), bool), random.normal(3, 1.2, queries)
    right[:, 0], similarities[own, 0] = own, copies[own]
    return Candidates(np.zeros((queries, 10), np.int64), similarities, right, own.astype(np.int64))


@cache
def expected_candidates(queries: int) -> float:
    """muAP in percent, on average."""
    random = np.random.default_rng(9)
    return 100 * float(np.mean([candidates(random, queries).micro_average_precision() for _ in range(2 * EXPECTED)]))


def copies_covered(queries: int) -> Trial:
    """The interval of muAP."""
    return lambda random: inside(candidates(random, queries).spread().interval(), expected_candidates(queries))


def cases() -> Iterator[Case]:
    """All cases."""
    for words, draw in (("leave-one-out k-NN", left_one_out), ("instance retrieval of views", views_found)):
        for number in (60, 100, 400):
            name, quick = f"{words}, {number:,} images", 60 if number == 100 and draw is left_one_out else 0
            yield Case(name, covers(draw, number), quick=quick)
            yield Case(f"difference of {name}", lead_covers(draw, number), quick=quick)
            yield Case(f"test: {name}", lead_differs(draw, number), *ERRS, quick)
    for shared, words in ((True, "gallery test"), (False, "gallery train")):
        for number in (100, 400):
            for figure in ("retrieval_mAP", "retrieval_R_precision", "retrieval_recall_at_1", "retrieval_recall_at_5"):
                name = f"{figure.removeprefix('retrieval_').replace('_', ' ')}, {words}, {number:,} images"
                quick = 60 if number == 100 and shared else 0
                yield Case(name, rank_covers(figure, number, shared=shared), quick=quick)
                yield Case(f"test: {name}", rank_differs(figure, number, shared=shared), *ERRS, quick)
    for queries in (100, 400):
        yield Case(f"muAP, {queries:,} queries", copies_covered(queries))
