"""Logistic regression on frozen features: one solver and one standardisation for all protocols.

The solver is L-BFGS from zero with scikit-learn's tolerance, which is loose: on a few thousand images, rounding inputs
otherwise moves figures by a few tenths of a point. So every protocol fits by this module, and the same features give
the same figure under all of them.

Letters: N train images, Q queries, D feature width, K classes. C is the inverse strength of the penalty, as usual.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

STEPS = 1000  # of L-BFGS, at most
SOLVER = {"solver": "scikit-learn, lbfgs", "steps": STEPS}  # for results
NEVER = -1e4  # score of a class without train images
# Largest derivative of the mean loss. Sets of labels are judged by mAP, which ranks images by all digits of a score.
TOLERANCE, TOLERANCE_OF_SETS = 1e-4, 1e-7
SCORES = 2**24  # scores at once: those of all train images of ImageNet would take 10 GB


@dataclass(frozen=True)
class Standard:
    """Features with the mean 0 and standard deviation 1 that those of the train images have."""

    mean: Tensor  # [D]
    deviation: Tensor  # [D]; 1 of constant features, which are 0 once the mean is gone

    @classmethod
    def of(cls, rows: Tensor) -> "Standard":
        """By the features [N, D] of the train images."""
        mean, deviation = rows.mean(0), rows.std(0, correction=0)
        return cls(mean, torch.where(deviation > 1e-6 * mean.abs() + 1e-12, deviation, 1.0))

    @classmethod
    def by_size(cls, rows: Tensor) -> "Standard":
        """The mean is 0 and the mean square 1, but dimensions keep their proportions.

        On few labels that is better than to standardise each: `conv4_photos` with 300 groceries reaches 39.4 % so, and
        35.3 % with dimensions of one deviation, by C = 1.
        """
        mean = rows.mean(0)
        size = (rows - mean).square().mean().sqrt().clamp(min=torch.finfo(rows.dtype).tiny)
        return cls(mean, size.expand_as(mean))

    def __call__(self, rows: Tensor) -> Tensor:
        """Standardise features [Q, D]; they become float64 last, so that figures are those published before."""
        return ((rows - self.mean) / self.deviation).double()


@dataclass(frozen=True)
class Regression:
    """A fitted model, on the CPU."""

    weight: Tensor  # [K, D] float64, on standardised features
    bias: Tensor  # [K] float64, `NEVER` of classes without train images
    converged: bool

    def scores(self, features: Tensor) -> Tensor:
        """Logits, or log-odds of every label: standardised [Q, D] -> [Q, K] float64."""
        return torch.addmm(self.bias, features, self.weight.T)


def fit_regression(
    features: Tensor,
    targets: Tensor,
    C: float,
    *,
    classes: int,
    steps: int = STEPS,
    device: torch.device | str = "cpu",
    draft: bool = False,
) -> Regression:
    """Minimise the summed loss + |weight|^2 / (2 C) in float64; biases have no penalty.

    Args:
        features: [N, D] float64, standardised.
        targets: class indices [N] int64; or shares of the classes [N, K] of a floating type; or sets of labels [N, K]
            int8 of 1, 0 and -1, which is ignored, with a regression for each label.
        C: see above. It is scikit-learn's, so two classes have one weight: the difference of both.
        classes: K.
        steps: of L-BFGS, at most.
        device: where to compute; MPS has no float64 and is replaced by the CPU.
        draft: the model only chooses a penalty or validates one: scikit-learn fits it in float32, in 0.6 of the time.
    """
    place = torch.device("cpu" if torch.device(device).type == "mps" else device)
    if targets.ndim == 2 and not targets.is_floating_point():
        return Regression(*_minimise(features, targets, C, classes, steps, tolerance=TOLERANCE_OF_SETS, place=place))
    if targets.ndim == 2:
        present = targets.sum(0).nonzero()[:, 0]
        among = targets[:, present].double()
    else:
        present, among = targets.unique(return_inverse=True)
    if len(present) == 1:  # all images are alike
        solution = torch.zeros(1, features.shape[1], dtype=torch.float64), torch.zeros(1, dtype=torch.float64), True
    elif targets.ndim == 1 and place.type == "cpu":
        solution = _scikit(features.float() if draft else features, among, C, steps)
    else:
        outputs = len(present) if len(present) > 2 else 1
        columns = among if outputs > 1 else among.view(len(among), -1)[:, -1:]
        solution = _minimise(features, columns, C, outputs, steps, tolerance=TOLERANCE, place=place)
    weight, bias, converged = solution
    if len(present) == 2:  # half of the difference up and half of it down is the same model
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    every_weight = torch.zeros(classes, features.shape[1], dtype=torch.float64)
    every_bias = torch.full([classes], NEVER, dtype=torch.float64)
    every_weight[present], every_bias[present] = weight, bias
    return Regression(every_weight, every_bias, converged)


@contextmanager
def _steps_on_one_thread() -> Iterator[None]:
    """L-BFGS's own steps take one thread, whatever the loss takes.

    They add up vectors of a few thousand numbers: threads cost more there than they save, most of all on a busy
    machine, and last digits depend on their number. The loss is multiplied by NumPy's or torch's library, not SciPy's.
    """
    with _of_scipy().limit(limits=1):
        yield


@cache
def _of_scipy() -> "ThreadpoolController":
    """The linear algebra that SciPy's wheels bring along; none where it shares NumPy's."""
    import scipy.optimize  # noqa: F401 - loads it
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController()
    ours = [each["filepath"] for each in libraries.info() if "scipy.libs" in each["filepath"]]
    return libraries.select(filepath=ours)


def _scikit(features: Tensor, labels: Tensor, C: float, steps: int) -> tuple[Tensor, Tensor, bool]:
    """Minimise by scikit-learn as `_minimise` does: the same to a rounding error; figures published before are its."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings(record=True) as caught, _steps_on_one_thread():
        warnings.simplefilter("always", ConvergenceWarning)
        model = LogisticRegression(C=C, max_iter=steps, tol=TOLERANCE).fit(features.numpy(), labels.numpy())
    converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    return torch.from_numpy(model.coef_).double(), torch.from_numpy(model.intercept_).double(), converged


def _minimise(
    features: Tensor, targets: Tensor, C: float, outputs: int, steps: int, *, tolerance: float, place: torch.device
) -> tuple[Tensor, Tensor, bool]:
    """Weights [outputs, D] and biases [outputs] on the CPU, and whether they converged; targets as of `_loss`."""
    from scipy.optimize import minimize

    features, targets, size = features.to(place), targets.to(place), max(1, SCORES // outputs)

    def objective(vector: np.ndarray) -> tuple[float, np.ndarray]:
        solution = torch.from_numpy(vector).to(place).view(outputs, -1).requires_grad_()
        total = solution[:, :-1].square().sum() / (2 * C * len(features))
        total.backward()
        for part, true in zip(features.split(size), targets.split(size), strict=True):
            each = _loss(F.linear(part, solution[:, :-1], solution[:, -1]), true) / len(features)
            each.backward()
            total = total + each.detach()
        assert solution.grad is not None
        return total.item(), solution.grad.cpu().numpy().ravel()

    limits = {"maxiter": steps, "maxls": 50, "gtol": tolerance, "ftol": 64 * np.finfo(float).eps}
    start = np.zeros(outputs * (features.shape[1] + 1))
    with torch.enable_grad(), _steps_on_one_thread():
        found = minimize(objective, start, method="L-BFGS-B", jac=True, options=limits)
    solution = torch.from_numpy(found.x).view(outputs, -1)
    return solution[:, :-1], solution[:, -1], bool(found.success)


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum over images: softmax of class indices [n] or shares [n, P]; binary of one column, or of label sets."""
    if targets.ndim == 1 or (targets.is_floating_point() and targets.shape[1] > 1):
        return F.cross_entropy(logits, targets, reduction="sum")
    known, positive = (targets >= 0).double(), targets.clamp(min=0).double()
    return F.binary_cross_entropy_with_logits(logits, positive, known, reduction="sum")
