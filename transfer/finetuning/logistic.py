"""Logistic regression on frozen features: the frozen variant, and where fine-tuning on few labels starts."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .training import FrozenHead

GRID = (1e-3, 1e-2, 1e-1, 1.0)  # C, chosen on the images themselves
FOLDS = 3
ABSENT = 10.0  # how far below all others a class without an image starts


@dataclass(frozen=True)
class Logistic:
    """A fitted regression on standardised features."""

    model: Any  # scikit-learn's pipeline of a scaler and a regression
    strength: float  # C
    how: str  # how C was found

    def best(self, queries: Tensor) -> Tensor:
        """The best five classes of every query, best first: [Q, D] -> int64 [Q, 5 or fewer]."""
        scores = torch.from_numpy(self.model.predict_log_proba(queries.numpy()))
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :5]
        return torch.from_numpy(self.model.classes_)[order]

    def head(self, rows: Tensor, classes: int) -> FrozenHead:
        """The same classifier as weights and biases on features as they are, for any number of classes.

        Args:
            rows: [N, D] float32, the features that it was fitted to.
            classes: number of classes, also of those without an image.
        """
        scaler, regression = self.model[0], self.model[-1]
        weights, biases = regression.coef_, regression.intercept_
        if len(regression.classes_) == 2:  # scikit-learn keeps the difference of both scores only
            weights, biases = np.concatenate([-weights, weights]) / 2, np.concatenate([-biases, biases]) / 2
        weights = weights / scaler.scale_
        biases = biases - weights @ scaler.mean_
        weight, bias = torch.zeros(classes, rows.shape[1]), torch.full([classes], float(biases.min()) - ABSENT)
        weight[regression.classes_] = torch.from_numpy(weights).float()
        bias[regression.classes_] = torch.from_numpy(biases).float()
        return FrozenHead(weight, bias, max(float(rows.square().sum(1).mean()), torch.finfo(torch.float32).tiny))


def fit(rows: Tensor, labels: Tensor, seed: int) -> Logistic:
    """Fit features [N, D] float32 and labels [N] of at least two classes; C is chosen by folds where classes allow."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    strength, how = 1.0, f"not chosen: a class has fewer than {FOLDS} images in the share"
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # as good as converged after 500
        if int(torch.unique(labels, return_counts=True)[1].min()) >= FOLDS:
            folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
            search = GridSearchCV(model, {"logisticregression__C": GRID}, cv=folds, refit=False)
            search.fit(rows.numpy(), labels.numpy())
            strength, how = search.best_params_["logisticregression__C"], f"chosen by {FOLDS} folds of the share"
        model.set_params(logisticregression__C=strength).fit(rows.numpy(), labels.numpy())
    return Logistic(model, float(strength), how)
