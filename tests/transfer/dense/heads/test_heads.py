"""Tests of heads on patches of a known kind: against loops, scikit-learn, and what can be learned."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from excb.features.cache import CachedFeatures
from excb.transfer.dense.heads import linear, logistic, neighbours
from excb.transfer.dense.heads.memory import Memory
from excb.transfer.dense.heads.recipes import (
    LINEAR,
    LOGISTIC,
    LinearRecipe,
    LogisticRecipe,
)
from excb.transfer.dense.layouts import folders
from excb.transfer.dense.patches.features import Grid, Patches
from excb.transfer.dense.patches.geometry import Geometry
from excb.transfer.dense.patches.labels import PatchLabels
from excb.transfer.dense.patches.views import Views
from excb.transfer.probes.penalty import fits_of
from tests.transfer.dense.masked_images import write_set

pytestmark = pytest.mark.usefixtures("one_thread")
GRID, CPU = Grid(6, 6, 8, 5), torch.device("cpu")


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Views:
    root = write_set(tmp_path_factory.mktemp("heads") / "set", train=10)
    return Views(folders.LAYOUT.open(root, "train"), Geometry("resize", 30, 30, 15), "bilinear")


@pytest.fixture(scope="module")
def memory(views: Views) -> Memory:
    """Every labelled patch; three of its features are the shares of the classes, the others noise."""
    labels = PatchLabels(views, GRID)
    random = np.random.default_rng(0)
    rows = random.normal(0, 0.3, (len(views) * 36, 8))
    numbers = labels.labelled()
    rows[numbers, :3] += 2 * labels.shares(numbers).numpy() - 1
    stored = CachedFeatures([rows.astype(np.float32).reshape(len(views), -1)])
    return Memory(Patches(stored, GRID, numbers), labels)


def test_chosen_rows_are_read_in_order(memory: Memory) -> None:
    patches = memory.patches
    whole = torch.cat([patches.view(view) for view in range(10)])
    assert torch.equal(patches.whole, whole[torch.from_numpy(patches.chosen)])
    assert torch.equal(patches.rows(30, 41), patches.whole[30:41])
    assert patches.rows(5, 5).shape == (0, 8)


@pytest.mark.parametrize("block", [1, 2**24])
def test_neighbours_vote_as_in_a_loop(memory: Memory, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_AT_ONCE", block)
    queries = torch.randn(7, 8, generator=torch.Generator().manual_seed(1))
    notes: list[str] = []
    classify = neighbours.classifier(
        memory, k=5, temperature=0.1, queries=7, backend="torch", device=CPU, note=notes.append
    )
    bank = memory.patches.whole.double().numpy()
    shares = memory.labels.shares(memory.patches.chosen).double().numpy()
    bank /= np.linalg.norm(bank, axis=1, keepdims=True)
    for query, scores in zip(queries.double().numpy(), classify(queries), strict=True):
        cosines = bank @ query / np.linalg.norm(query)
        best = np.argsort(-cosines)[:5]
        weights = np.exp(cosines[best] / 0.1)
        assert scores.numpy() == pytest.approx(weights @ shares[best] / weights.sum(), abs=1e-5)
    assert notes[0].startswith("k-NN: bank ")


def test_neighbours_of_a_streamed_memory_are_the_same(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = torch.randn(9, 8, generator=torch.Generator().manual_seed(2))
    options: dict[str, Any] = {"k": 4, "temperature": 0.1, "queries": 9, "backend": "torch", "device": CPU}
    whole = neighbours.classifier(memory, **options)(queries)
    monkeypatch.setattr(neighbours, "available_memory", lambda: 0)
    assert torch.equal(neighbours.classifier(memory, **options)(queries), whole)


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_head_learns_what_features_hold(memory: Memory, views: Views, name: str) -> None:
    recipe = LINEAR[name]
    values = vars(recipe) | {"steps": 150, "epochs": 0, "warmup": min(recipe.warmup, 10), "lr": 3e-2}
    short = LinearRecipe(**(values | {"batch": 64 if recipe.loss == "patches" else 4}))
    steps: list[int] = []
    head = linear.train_dense_head(memory, views, GRID, short, seed=0, device=CPU, progress=steps.append)
    assert sum(steps) == 150
    scores = linear.scorer_of(head)(memory.patches.whole)
    right = scores.argmax(1).numpy() == memory.labels.majority(memory.patches.chosen)
    assert right.mean() > 0.85
    again = linear.train_dense_head(memory, views, GRID, short, seed=0, device=CPU)
    assert all(torch.equal(one, other) for one, other in zip(head.parameters(), again.parameters(), strict=True))


def test_losses_are_those_of_single_pixels(memory: Memory, views: Views) -> None:
    head = linear.LinearHead(torch.nn.Identity(), torch.nn.Linear(8, 3))
    chosen = np.array([1, 4])
    with torch.no_grad():
        loss = linear._pixel_loss(head, memory.patches, views, GRID, chosen, dropout=0.0, device=CPU)
        patches = linear._patch_loss(head, memory, np.arange(20), CPU)
    head.requires_grad_(False)
    total, pixels = 0.0, 0
    for view in chosen.tolist():
        maps = head(memory.patches.view(view)).T.view(1, 3, 6, 6)
        logits = torch.nn.functional.interpolate(maps, (30, 30), mode="bilinear", align_corners=False)[0]
        mask = torch.from_numpy(views.mask(view)).long()
        for row in range(30):
            for column in range(30):
                if mask[row, column] >= 0:
                    total -= float(logits[:, row, column].log_softmax(0)[mask[row, column]])
                    pixels += 1
    assert float(loss) == pytest.approx(total / pixels, rel=1e-4)
    shares = memory.labels.shares(memory.patches.chosen[:20])
    expected = -(shares * head(memory.patches.whole[:20]).log_softmax(1)).sum(1).mean()
    assert float(patches) == pytest.approx(float(expected), rel=1e-5)


def test_rates_rise_and_fall() -> None:
    recipe = LINEAR["dinov2"]
    steps = recipe.steps
    assert linear.rate(recipe, 0, steps) == pytest.approx(1e-6)
    assert linear.rate(recipe, 750, steps) == pytest.approx(0.5 * (1 - 750 / steps))
    assert linear.rate(recipe, 20_000, steps) == pytest.approx(0.5)
    assert linear.rate(LINEAR["dinov3"], 20_000, steps) == pytest.approx(0.5)
    assert linear.rate(LINEAR["fast"], 0, 10) == 1


def test_standardised_features() -> None:
    rows = np.random.default_rng(0).normal(5, 3, (50, 8)).astype(np.float32)
    rows[:, 3] = 7.0  # constant
    patches = Patches(CachedFeatures([rows.reshape(25, -1)]), Grid(1, 2, 8, 1), np.arange(50))
    made = linear.Standardised(patches)(torch.from_numpy(rows))
    assert made.mean(0).numpy() == pytest.approx(np.zeros(8), abs=1e-5)
    assert made.std(0, correction=0).numpy() == pytest.approx([1, 1, 1, 0, 1, 1, 1, 1], abs=1e-5)


def test_logistic_regression_is_scikit_learns(memory: Memory) -> None:
    head, strength, notes = logistic.fit_to_patches(memory, GRID, LogisticRecipe((0.1,)), seed=0)
    rows = memory.patches.whole.numpy()
    rows = (rows - rows.mean(0)) / rows.std(0)
    model = LogisticRegression(C=0.1, max_iter=1000).fit(rows, memory.labels.majority(memory.patches.chosen))
    assert head.linear.weight.detach().numpy() == pytest.approx(model.coef_, abs=2e-2)
    assert (strength, notes) == (0.1, [])
    predicted = linear.scorer_of(head)(memory.patches.whole).argmax(1).numpy()
    assert (predicted == model.predict(rows)).mean() > 0.99


def test_the_best_strength_is_chosen_on_views_that_are_held_out(memory: Memory) -> None:
    fits: list[int] = []
    recipe = LogisticRecipe((1e-6, 1.0), most=300)
    _, strength, _ = logistic.fit_to_patches(memory, GRID, recipe, seed=0, progress=fits.append)
    assert strength == 1.0  # the other one cannot learn anything
    assert sum(fits) == fits_of(recipe.strengths) == 3


def test_recipes_are_those_of_the_papers_code() -> None:
    assert LOGISTIC["capi"].strengths == pytest.approx(10 ** np.linspace(-6, 5, 8))  # as its code has it
