"""Cross-validated predictions of few labels: every labelled image is predicted by models that saw none of its group.

Letters: n labelled images, Q others, D feature width, K classes. Labels are a class of each image, int64 [n], or
whether it has each label, int8 [n, K] of 0 and 1; `label_kinds.py` says what differs.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from excb.errors import require

from ..probes.logistic import STEPS, Standard, fit_regression
from ..probes.recipes import FEW_STRENGTHS, FOLDS
from .label_kinds import LabelKind, kind_of_labels

MOST_CHOOSING = 500  # labelled images that choose the penalty, at most: with more, the many fits would take minutes
TEMPERATURES = (1 / 16, 16.0)  # the least and the greatest that is tried


@dataclass(frozen=True)
class Classifier:
    """Logistic regression whose probabilities are calibrated by a temperature (Guo et al., ICML 2017).

    Attributes:
        kind: one label an image, or several.
        standard: of features.
        weight: [K, D].
        bias: [K].
        temperature: that logits are divided by.
        C: inverse strength of the penalty.
    """

    kind: LabelKind
    standard: Standard
    weight: Tensor
    bias: Tensor
    temperature: float
    C: float

    def probabilities(self, rows: Tensor) -> Tensor:
        """Of every class: features [Q, D] -> [Q, K] float64; 0 of classes without a label."""
        logits = torch.addmm(self.bias, self.standard(rows), self.weight.T)
        return self.kind.probabilities(logits / self.temperature)


@dataclass(frozen=True)
class Validated:
    """Predictions of labelled images by models that did not see them.

    Attributes:
        probabilities: [n, K] float64, calibrated by the other parts.
        labels: as they are.
        hits: whether the likeliest class is the label, bool [n]; of several labels, how well they are ranked, [n] of
            0 to 1 (`label_kinds.ranked`).
        temperature: that suits all parts together.
        C: that suits all parts together.
        converged: whether all models were found to the solver's tolerance.
    """

    probabilities: Tensor
    labels: Tensor
    hits: Tensor
    temperature: float
    C: float
    converged: bool

    @property
    def kind(self) -> LabelKind:
        """One label an image, or several."""
        return kind_of_labels(self.labels)


def validation_parts(labels: np.ndarray, groups: np.ndarray, seed: int) -> list[np.ndarray]:
    """Masks [n] bool of at most `FOLDS` parts that hold whole groups, and each class about equally.

    Raises:
        UserError: there is one group only, or one class.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    number = possible_parts(labels, groups)
    require(
        number > 0,
        "too few labels to compare anything: it needs two classes, two images of one, and no copies of each other",
    )
    splitter = StratifiedGroupKFold(number, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # classes of fewer images than parts: they are in fewer parts
        parts = [held for _, held in splitter.split(np.zeros(len(labels)), labels, groups)]
    masks = []
    for held in parts:
        mask = np.zeros(len(labels), bool)
        mask[held] = True
        if mask.any():
            masks.append(mask)
    return masks


def possible_parts(labels: np.ndarray, groups: np.ndarray) -> int:
    """How many parts labels [n] in groups [n] allow; 0 if nothing can be validated."""
    if len(np.unique(labels)) < 2:
        return 0
    number = min(FOLDS, len(np.unique(groups)), int(np.unique(labels, return_counts=True)[1].max()))
    return number if number > 1 else 0


def cross_validate(
    rows: Tensor,
    labels: Tensor,
    parts: Sequence[np.ndarray],
    *,
    classes: int,
    steps: int = STEPS,
    progress: Callable[[int], None] = lambda _fits: None,
) -> Validated:
    """Predict every part by models of the others.

    Penalty and temperature of a part are those that suit the other parts, so its own labels choose nothing.

    Args:
        rows: [n, D], features as they are.
        labels: [n] or [n, K].
        parts: masks of `validation_parts`.
        classes: K.
        steps: of the solver, at most.
        progress: called with numbers of fits, of which there are `validation_fits`.
    """
    masks = [torch.from_numpy(part) for part in parts]
    choosing = _choosing(len(labels))
    logits = {C: torch.full((len(labels), classes), math.nan, dtype=torch.float64) for C in FEW_STRENGTHS}
    converged = True

    def predict(train: Tensor, held: Tensor, strengths: Sequence[float]) -> bool:
        features, queries = _reduced(rows[train], rows[held])
        good = True
        for C in strengths:
            model = fit_regression(features, labels[train], C, classes=classes, steps=steps, draft=True)
            logits[C][held] = model.scores(queries)
            good &= model.converged
            progress(1)
        return good

    for held in masks:
        converged &= predict(~held & choosing, held & choosing, FEW_STRENGTHS)
    decided = [_suiting(logits, labels, ~held & choosing) for held in masks]
    if not bool(choosing.all()):
        for held, (C, _) in zip(masks, decided, strict=True):
            converged &= predict(~held, held, (C,))
    probabilities = torch.empty(len(labels), classes, dtype=torch.float64)
    for held, (C, temperature) in zip(masks, decided, strict=True):
        probabilities[held] = kind_of_labels(labels).probabilities(logits[C][held] / temperature)
    C, temperature = _suiting(logits, labels, choosing)
    return Validated(
        probabilities, labels, kind_of_labels(labels).hits(probabilities, labels), temperature, C, converged
    )


def validation_fits(labelled: int, parts: int) -> int:
    """How many models `cross_validate` fits."""
    return parts * (len(FEW_STRENGTHS) + (labelled > MOST_CHOOSING))


def fit_classifier(rows: Tensor, labels: Tensor, validated: Validated, *, classes: int) -> Classifier:
    """The model of all labelled images, with the penalty and the temperature that cross-validation chose."""
    standard = Standard.by_size(rows)
    model = fit_regression(standard(rows), labels, validated.C, classes=classes)
    return Classifier(kind_of_labels(labels), standard, model.weight, model.bias, validated.temperature, validated.C)


def _choosing(number: int) -> Tensor:
    """The labelled images that choose: all, or some evenly spread ones, bool [number]."""
    chosen = torch.zeros(number, dtype=torch.bool)
    chosen[torch.arange(0, number, -(-number // MOST_CHOOSING))] = True
    return chosen


def _reduced(train: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of train images and of others, standardised for a model of the former.

    Of far fewer images than dimensions the solution is in their span, so it is sought there: the same model, found
    faster.
    """
    standard = Standard.by_size(train)
    features, queries = standard(train), standard(held)
    if 2 * len(features) < features.shape[1]:
        basis = torch.linalg.qr(features.T).Q
        features, queries = features @ basis, queries @ basis
    return features, queries


def _suiting(logits: dict[float, Tensor], labels: Tensor, among: Tensor) -> tuple[float, float]:
    """The penalty whose predictions are right most often among some images, and their best temperature."""
    kind, some = kind_of_labels(labels), labels[among]

    def figures(C: float) -> tuple[float, float]:
        own = logits[C][among]
        return float(kind.hits(own, some).double().sum()), -kind.loss(own, some)

    C = max(FEW_STRENGTHS, key=figures)
    return C, _temperature(kind, logits[C][among], some)


def _temperature(kind: LabelKind, logits: Tensor, labels: Tensor) -> float:
    from scipy.optimize import minimize_scalar

    ends = [math.log(end) for end in TEMPERATURES]
    found = minimize_scalar(lambda log: kind.loss(logits, labels, math.exp(log)), bounds=ends, method="bounded")
    return math.exp(float(found.x))
