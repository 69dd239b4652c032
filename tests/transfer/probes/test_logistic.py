"""Tests of the one logistic regression against scikit-learn's, and that every command gives its figure."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor

from excb.console import Reporter
from excb.features.cache import CachedFeatures
from excb.transfer.dense.heads import logistic as patch_logistic
from excb.transfer.dense.heads.memory import Memory
from excb.transfer.dense.heads.recipes import LogisticRecipe
from excb.transfer.dense.patches.features import Grid, Patches
from excb.transfer.finetuning import logistic as few_labels
from excb.transfer.linear.logreg import logistic_regression
from excb.transfer.probes import logistic
from excb.transfer.probes.logistic import NEVER, Regression, Standard, fit_regression
from excb.transfer.robustness import head as clean_head
from excb.transfer.sets import heads as sets
from excb.transfer.sets.metrics import TOP1

pytestmark = pytest.mark.usefixtures("one_thread")
RANDOM, CPU = np.random.default_rng(0), torch.device("cpu")
LABELS = torch.from_numpy(RANDOM.integers(4, size=90))
ROWS = torch.from_numpy(RANDOM.normal(size=(90, 6)) + 1.5 * np.eye(4, 6)[LABELS])
QUERIES = torch.from_numpy(RANDOM.normal(size=(20, 6)))


def scikit(labels: Any, C: float, weights: Any = None, rows: Tensor = ROWS) -> np.ndarray:
    model = LogisticRegression(C=C, max_iter=5000, tol=1e-10).fit(rows.numpy(), labels, weights)
    return np.asarray(model.decision_function(QUERIES.numpy()))


def scores(model: Regression) -> np.ndarray:
    found = model.scores(QUERIES).numpy()
    return np.asarray(found - found.mean(1, keepdims=True))


@pytest.fixture
def without_scikit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path that GPUs take, and here in several parts."""
    monkeypatch.setattr(logistic, "SCORES", 128)
    monkeypatch.setattr(logistic, "_scikit", lambda features, labels, C, steps: logistic._minimise(
        features, labels if labels.max() > 1 else labels[:, None], C, int(labels.max()) + (labels.max() > 1), steps,
        tolerance=logistic.TOLERANCE, place=CPU,
    ))  # fmt: skip


@pytest.mark.parametrize("C", [0.01, 1.0])
def test_classes_are_those_of_scikit_learn(C: float) -> None:
    assert scores(fit_regression(ROWS, LABELS, C, classes=4)) == pytest.approx(scikit(LABELS, C), abs=5e-3)


@pytest.mark.usefixtures("without_scikit")
@pytest.mark.parametrize("C", [0.01, 1.0])
def test_the_own_solver_is_scikit_learns_to_rounding_errors(C: float) -> None:
    own = fit_regression(ROWS, LABELS, C, classes=4)
    theirs = LogisticRegression(C=C, max_iter=1000).fit(ROWS.numpy(), LABELS)
    assert own.weight.numpy() == pytest.approx(theirs.coef_, abs=1e-8)
    two = fit_regression(ROWS, LABELS.clamp(max=1), C, classes=2)
    theirs = LogisticRegression(C=C, max_iter=1000).fit(ROWS.numpy(), LABELS.clamp(max=1))
    assert (two.weight[1] - two.weight[0]).numpy() == pytest.approx(theirs.coef_[0], abs=1e-8)


def test_shares_are_images_with_weights() -> None:
    shares = torch.from_numpy(RANDOM.dirichlet([0.5, 0.5, 0.5], 90))
    found = scores(fit_regression(ROWS, shares, 0.5, classes=3))
    expected = scikit(np.tile(np.arange(3), 90), 0.5, shares.numpy().ravel(), ROWS.repeat_interleave(3, 0))
    assert found == pytest.approx(expected, abs=5e-3)
    assert scores(fit_regression(ROWS, torch.eye(5)[LABELS], 0.5, classes=5))[:, :4] == pytest.approx(
        scores(fit_regression(ROWS, LABELS, 0.5, classes=5))[:, :4], abs=1e-6
    )


def test_two_shares_have_one_weight_as_two_classes_have() -> None:
    labels = LABELS.clamp(max=1)
    assert scores(fit_regression(ROWS, torch.eye(2)[labels], 0.5, classes=2)) == pytest.approx(
        scores(fit_regression(ROWS, labels, 0.5, classes=2)), abs=1e-6
    )


def test_a_regression_for_each_label_without_its_ignored_images() -> None:
    targets = (torch.from_numpy(RANDOM.random((90, 2))) < 0.4).to(torch.int8)
    found = fit_regression(ROWS, targets, 0.5, classes=2).scores(QUERIES).numpy()
    for label in range(2):
        assert found[:, label] == pytest.approx(scikit(targets[:, label], 0.5), abs=1e-4)
    ignored = targets.clone()
    ignored[::3, 0] = -1
    other = fit_regression(ROWS, ignored, 0.5, classes=2).scores(QUERIES).numpy()
    known = ignored[:, 0] >= 0
    assert other[:, 0] == pytest.approx(scikit(targets[known, 0], 0.5, rows=ROWS[known]), abs=1e-4)
    assert other[:, 1] == pytest.approx(found[:, 1], abs=1e-4)


def test_classes_without_images_are_never_the_best() -> None:
    model = fit_regression(ROWS[:40], torch.tensor([1, 3]).repeat(20), 1.0, classes=5)
    assert set(model.scores(QUERIES).argmax(1).tolist()) <= {1, 3}
    assert model.bias[[0, 2, 4]].tolist() == [NEVER] * 3
    alone = fit_regression(ROWS[:40], torch.full((40,), 2), 1.0, classes=5)
    assert alone.converged
    assert set(alone.scores(QUERIES).argmax(1).tolist()) == {2}


def test_few_steps_do_not_converge() -> None:
    assert not fit_regression(ROWS, LABELS, 10.0, classes=4, steps=2).converged
    assert not fit_regression(ROWS, torch.eye(4)[LABELS], 10.0, classes=4, steps=2).converged
    assert fit_regression(ROWS, LABELS, 10.0, classes=4).converged


@pytest.mark.parametrize("labels", ["classes", "sets of labels"])
def test_the_steps_take_one_thread_and_the_threads_of_others_stay(monkeypatch: pytest.MonkeyPatch, labels: str) -> None:
    """Threads double the processor time of L-BFGS's vectors, and change their last digits."""
    inside = list[int]()

    def minimize(*args: Any, **named: Any) -> Any:
        inside.extend(threads_of_scipy())
        return original(*args, **named)

    original = optimize.minimize
    monkeypatch.setattr(optimize, "minimize", minimize)
    targets = LABELS if labels == "classes" else torch.eye(4, dtype=torch.int8)[LABELS]
    with threadpool_limits(2, user_api="blas"):
        before = threads_of_scipy()
        if 2 not in before:
            pytest.skip("SciPy has no linear algebra of its own here, or one thread")
        fit_regression(ROWS, targets, 1.0, classes=4)
        assert threads_of_scipy() == before
    assert set(inside) == {1}


def threads_of_scipy() -> list[int]:
    """Threads of the libraries that SciPy brings along."""
    return [each["num_threads"] for each in threadpool_info() if Path(each["filepath"]).parent.name == "scipy.libs"]


def test_constant_features_are_0_once_standardised() -> None:
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) * 3 + 5
    rows[:, 2] = 7.1
    made = Standard.of(rows)(rows)
    assert made.dtype == torch.float64
    assert made.mean(0).numpy() == pytest.approx(np.zeros(4), abs=1e-5)
    assert made.std(0, correction=0).numpy() == pytest.approx([1, 1, 0, 1], abs=1e-5)


def photographs(images: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features of 12 classes that overlap, so that another tolerance, scaling or penalty gives another figure."""
    random = np.random.default_rng(seed)
    labels = np.arange(images) % 12
    centres = np.random.default_rng(9).normal(size=(12, 48))
    rows = np.maximum(random.normal(size=(images, 48)) * 1.6 + 0.5 * centres[labels] + 0.3, 0) * 10.0
    return torch.from_numpy(rows).float(), torch.from_numpy(labels)


class Labelled:
    """The part of a set of images that commands read."""

    def __init__(self, labels: Tensor) -> None:
        self.labels, self.classes = labels.numpy(), [str(number) for number in range(12)]

    def __len__(self) -> int:
        return len(self.labels)


def by_linear(strengths: tuple[float, ...], train: Any, test: Any) -> float:
    sets = {"train": train, "test": test}
    task: Any = SimpleNamespace(
        train=Labelled(train[1]), test=Labelled(test[1]), device=CPU, features=lambda _images, name, _: sets[name]
    )
    outcome = logistic_regression(task, Reporter(quiet=True), strengths, few=False, select="holdout", seed=0)
    return float((outcome.top5[:, 0] == test[1]).double().mean())


def by_sets(strengths: tuple[float, ...], train: Any, test: Any) -> float:
    opened: Any = SimpleNamespace(entry=SimpleNamespace(metric=TOP1), train=Labelled(train[1]), test=Labelled(test[1]))
    options = sets.Options(shots=(), strengths=strengths)
    measured = sets.measure_set(opened, train[0], test[0], options=options, reporter=Reporter(quiet=True), device=CPU)
    return measured.figures["logreg"] / 100


def by_robustness(strengths: tuple[float, ...], train: Any, test: Any) -> float:
    penalties = [1 / (C * len(train[0])) for C in strengths]
    found = clean_head.fit_head(train[0], train[1], 12, penalties, seed=0, device=CPU)
    return float((found.logits(test[0]).argmax(1) == test[1]).double().mean())


def by_semisup(strengths: tuple[float, ...], train: Any, test: Any) -> float:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(few_labels, "GRID", strengths)
        found = few_labels.fit_to_share(*train, classes=12, seed=0, device=CPU)
    return float((found.top(test[0])[:, 0] == test[1]).double().mean())


def by_dense(strengths: tuple[float, ...], train: Any, test: Any) -> float:
    grid = Grid(1, 1, 48, 1)  # an image is one patch
    labels: Any = SimpleNamespace(classes=12, majority=lambda numbers: train[1].numpy()[numbers])
    memory = Memory(Patches(CachedFeatures([train[0].numpy()]), grid, np.arange(len(train[0]))), labels)
    found, _, _ = patch_logistic.fit_to_patches(memory, grid, LogisticRecipe(strengths), seed=0)
    return float((found(test[0]).argmax(1) == test[1]).double().mean())


def test_the_same_features_give_the_same_figure_under_every_command() -> None:
    train, test = photographs(336, 1), photographs(336, 2)
    for C in (0.001, 0.1, 1.0, 100.0):
        expected = by_linear((C,), train, test)
        assert 0.3 < expected < 0.9
        for command in (by_sets, by_robustness, by_semisup, by_dense):
            assert command((C,), train, test) == pytest.approx(expected, abs=1e-12), (command.__name__, C)
    several = (1e-5, 0.001, 1.0)
    assert by_sets(several, train, test) == pytest.approx(by_linear(several, train, test), abs=1e-12)


def test_no_other_file_fits_a_logistic_regression() -> None:
    """Another one would give another figure for the same features."""
    transfer = Path(logistic.__file__).parents[1]
    users = {file.relative_to(transfer).as_posix() for file in transfer.rglob("*.py")
             if "LogisticRegression" in file.read_text() or "LBFGS" in file.read_text()}  # fmt: skip
    assert users == {"probes/logistic.py"}


def test_a_draft_differs_from_the_model_by_rounding() -> None:
    draft = fit_regression(ROWS, LABELS, 0.5, classes=4, draft=True)
    assert draft.weight.dtype == draft.bias.dtype == torch.float64
    assert scores(draft) == pytest.approx(scores(fit_regression(ROWS, LABELS, 0.5, classes=4)), abs=5e-3)
    assert scores(draft) == pytest.approx(scikit(LABELS, 0.5), abs=5e-3)
