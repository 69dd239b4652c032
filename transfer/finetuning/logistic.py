"""Logistic regression on frozen features: the frozen variant, and where fine-tuning on few labels starts."""

import torch
from torch import Tensor

from ..probes.logistic import NEVER
from ..probes.penalty import Chosen, Rule, choose_penalty, right_share
from .training import FrozenHead

GRID = (1e-3, 1e-2, 1e-1, 1.0)  # C, chosen on the images themselves
FOLDS = 3
ABSENT = 10.0  # how far below all others a class without an image starts


def fit_to_share(rows: Tensor, labels: Tensor, *, classes: int, seed: int, device: torch.device) -> Chosen:
    """Fit features [N, D] float32 and labels [N] of at least two classes; C is chosen by folds where classes allow."""
    few = int(torch.unique(labels, return_counts=True)[1].min()) < FOLDS
    rule = Rule(lambda labels: _folds(labels, seed), lambda scores, true: (right_share(scores, true),))
    return choose_penalty(rows, labels, (1.0,) if few else GRID, rule, classes=classes, device=device)


def how_chosen(chosen: Chosen) -> str:
    """Which C was used, and why."""
    few = f"not chosen: a class has fewer than {FOLDS} images in the share"
    return f"C = {chosen.C:g}, {f'chosen by {FOLDS} folds of the share' if chosen.sweep else few}"


def _folds(labels: Tensor, seed: int) -> list[Tensor]:
    """Masks [N] bool of the folds, which are stratified by class."""
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(labels, labels)
    return [torch.zeros(len(labels), dtype=torch.bool).index_fill(0, torch.from_numpy(fold), True) for _, fold in folds]


def head_of(chosen: Chosen, rows: Tensor) -> FrozenHead:
    """The same classifier as weights and biases on features as they are; it was fitted to `rows` [N, D]."""
    weight = chosen.model.weight / chosen.standard.deviation
    bias = chosen.model.bias - weight @ chosen.standard.mean.double()
    known = chosen.model.bias > NEVER
    bias = bias.where(known, bias[known].min() - ABSENT)
    size = max(float(rows.square().sum(1).mean()), torch.finfo(torch.float32).tiny)
    return FrozenHead(weight.float(), bias.float(), size)
