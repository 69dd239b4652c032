"""The monitor's figures on frozen features: effective rank, agreement of neighbours, leave-one-out k-NN."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from excb.images.scanning import scan_folder
from excb.neighbours.nearest import nearest
from excb.networks.preprocessing import Preprocessing
from excb.pretrain.overrides import find_recipe
from excb.pretrain.recipe import MonitorSettings, Recipe, ViewSettings
from excb.pretrain.run.monitor import (
    KNN_TEMPERATURE,
    AugmentedInputs,
    Monitor,
    effective_rank,
    groups_and_voters,
    images_measured,
    random_groups,
    retrieved,
    shared,
)
from tests.pretrain.small_runs import write_images

VIEWS = ViewSettings(global_size=16, local_views=0, eval_resize=16, eval_crop=16)


def test_effective_rank_of_known_spectra() -> None:
    assert effective_rank(torch.eye(7)) == pytest.approx(7)
    assert effective_rank(torch.ones(9, 4)) == pytest.approx(1)
    values = np.array([4.0, 2.0, 1.0, 1.0])
    shares = values / values.sum()
    expected = math.exp(-(shares * np.log(shares)).sum())
    orthogonal = torch.linalg.qr(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)))[0]
    assert effective_rank(orthogonal * torch.from_numpy(values)) == pytest.approx(expected)
    assert effective_rank(torch.zeros(5, 3)) == pytest.approx(1)


def test_shared_neighbours_against_sets() -> None:
    random = np.random.default_rng(1)
    first, second = (np.stack([random.permutation(30)[:5] for _ in range(40)]) for _ in range(2))
    expected = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(first.tolist(), second.tolist(), strict=True)])
    assert shared(torch.from_numpy(first), torch.from_numpy(second)) == pytest.approx(expected)


class Means(nn.Module):
    """Mean colours as features."""

    num_features = 3

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3))


def monitor_of(folder: Path, **settings: Any) -> Monitor:
    recipe = Recipe(name="", monitor=MonitorSettings(**settings), views=VIEWS)
    return Monitor(scan_folder(folder), recipe, device=torch.device("cpu"), workers=0)


def measured(folder: Path, **settings: Any) -> dict[str, float]:
    return monitor_of(folder, **settings).measure(Means())


@pytest.mark.parametrize("group", [None, 10, 13])
def test_leave_one_out_vote_against_loops(tmp_path: Path, group: int | None) -> None:
    images = scan_folder(write_images(tmp_path))
    assert images.labels is not None
    from excb.images.decoding import open_image

    rows = np.stack(
        [VIEWS.preprocessing(open_image(images.file(i))).mean((1, 2)).double().numpy() for i in range(len(images))]
    )
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    number = 1 if group is None else round(len(rows) / group)
    groups = [set(each.tolist()) for each in random_groups(len(rows), number, seed=0)]
    right = 0
    for i, row in enumerate(rows):
        near = next(each for each in groups if i in each) - {i}
        others = sorted(sorted(near), key=lambda j: -float(rows[j] @ row))[:4]
        votes = np.zeros(3)
        for j in others:
            votes[images.labels[j]] += math.exp(float(rows[j] @ row) / KNN_TEMPERATURE)
        right += int(votes.argmax() == images.labels[i])
    figures = measured(tmp_path, k=4, group=group)
    assert figures["knn_top1"] == pytest.approx(100 * right / len(rows))
    assert figures["score"] == figures["knn_top1"]
    alone = measured(tmp_path, k=4)
    assert figures["neighbour_agreement"] == alone["neighbour_agreement"]  # of all images, in groups or not


@pytest.mark.parametrize(
    ("images", "group", "number", "k"),
    [(2640, 250, 11, 5), (406, 250, 2, 10), (300, 250, 1, 20), (30, 250, 1, 20), (18, None, 1, 17), (21, 10, 2, 9)],
)
def test_fewer_vote_in_smaller_groups(images: int, group: int | None, number: int, k: int) -> None:
    settings = MonitorSettings(k=20, group=group)
    assert groups_and_voters(images, settings) == (number, k)


@pytest.mark.parametrize(("images", "number"), [(2640, 11), (406, 2), (30, 1), (11, 10)])
def test_groups_are_all_images_once_of_nearly_one_size(images: int, number: int) -> None:
    groups = random_groups(images, number, seed=3)
    assert sorted(torch.cat(groups).tolist()) == list(range(images))
    assert {len(each) for each in groups} <= {images // number, images // number + 1}
    again, other = random_groups(images, number, seed=3), random_groups(images, number, seed=4)
    assert all(map(torch.equal, groups, again))
    assert number == 1 or not all(map(torch.equal, groups, other))


def test_twins_do_not_hide_in_groups_what_a_network_does_not_know(tmp_path: Path) -> None:
    """Pairs of equal images of random colours: any network finds the twin, and none knows the class."""
    random = np.random.default_rng(0)
    for pair in range(150):
        colour = random.integers(0, 256, 3)
        for twin in "ab":
            path = tmp_path / f"{pair % 3}" / f"{pair}{twin}.png"
            path.parent.mkdir(exist_ok=True)
            Image.new("RGB", (16, 16), tuple(map(int, colour))).save(path)
    monitor = monitor_of(tmp_path, k=1, group=30)
    assert measured(tmp_path, k=1)["knn_top1"] > 95
    figures = monitor.read(Means(), halves=True)
    assert figures.value < 50
    assert figures.halves is not None
    assert 100 * figures.halves.double().mean() == pytest.approx(figures.value, abs=10)


def test_k_is_cut_to_a_small_set_and_images_to_the_limit(tmp_path: Path) -> None:
    write_images(tmp_path)
    assert measured(tmp_path, k=500)["neighbour_agreement"] == 100  # every other image is a neighbour in both
    assert monitor_of(tmp_path, images=5).passes == 10


def test_a_collapsed_network_scores_low(tmp_path: Path) -> None:
    class Constant(Means):
        def forward(self, images: Tensor) -> Tensor:
            return torch.ones(len(images), 3)

    write_images(tmp_path)
    assert monitor_of(tmp_path, k=4).measure(Constant())["effective_rank"] == pytest.approx(1)


def test_augmented_inputs_are_the_same_at_every_call_and_differ_by_image(tmp_path: Path) -> None:
    images = scan_folder(write_images(tmp_path))
    first, again, other = (AugmentedInputs(images, VIEWS, seed=seed) for seed in (0, 0, 1))
    for index in range(3):
        one, two, three = (inputs[index][1] for inputs in (first, again, other))
        assert isinstance(one, Tensor)
        assert isinstance(two, Tensor)
        assert isinstance(three, Tensor)
        assert torch.equal(one, two)
        assert not torch.equal(one, three)
        assert one.shape == (3, 16, 16)


def test_networks_beside_each_other_have_the_figures_of_each_alone(tmp_path: Path) -> None:
    """Also one in double precision, and one whose inputs are prepared its own way."""

    class Scaled(Means):
        def __init__(self, factors: list[float], dtype: torch.dtype) -> None:
            super().__init__()
            self.factors = nn.Parameter(torch.tensor(factors, dtype=dtype))

        def forward(self, images: Tensor) -> Tensor:
            assert images.dtype == self.factors.dtype
            return super().forward(images) * self.factors

    write_images(tmp_path)
    monitor = monitor_of(tmp_path, k=4)
    networks = {"one": Scaled([1.0, 5.0, 0.2], torch.float64), "two": Scaled([3.0, 1.0, 1.0], torch.float32)}
    together = monitor.compare(networks)
    for name, network in networks.items():
        alone = monitor.measure(network)
        figures = together[name].figures
        assert figures == {each: alone[each] for each in figures}
        assert figures.keys() == {"neighbour_agreement", "instance_retrieval", "knn_top1"}
    assert together["one"].figures != together["two"].figures
    larger = monitor.compare({"two": networks["two"]}, transform=VIEWS.preprocessing)["two"]
    assert larger.figures == together["two"].figures
    other = monitor.compare({"two": networks["two"]}, transform=Preprocessing(24, 12, (0.1, 0.1, 0.1)))["two"]
    assert other.figures != together["two"].figures


def test_a_view_finds_its_image_where_no_other_is_nearer() -> None:
    random = torch.Generator().manual_seed(0)
    images = torch.randn(20, 4, generator=random)
    views = images + 0.8 * torch.randn(20, 4, generator=random)
    cosines = torch.nn.functional.cosine_similarity(views[:, None], images[None], dim=2)
    expected = [cosines[view].tolist().index(max(cosines[view].tolist())) == view for view in range(20)]
    assert retrieved(nearest(images, views, 1).indices).tolist() == expected
    assert 0 < sum(expected) < 20


@pytest.mark.parametrize(
    ("images", "epochs", "measured"),
    [(20_000, 1, 1000), (20_000, 10, 6666), (2_640, 100, 2200), (20_000, 100, 10_000), (500, 1, 1000)],
)
def test_short_runs_measure_a_share_of_what_they_train_on(images: int, epochs: int, measured: int) -> None:
    recipe = find_recipe("photos_small").change(optim={"epochs": epochs})
    assert images_measured(recipe, images) == measured
    assert images_measured(recipe.change(monitor={"share": None}), images) == 10_000
    passes = measured * (epochs // 10 + 2)
    assert passes <= max(0.1 * images * epochs, 1000 * (epochs // 10 + 2))
