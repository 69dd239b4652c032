"""Whitened patches: encoding against plain loops, a fit that recovers a planted signal, and what it may depend on."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from excb.errors import UserError
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.networks.preprocessing import Preprocessing
from excb.references import patches
from excb.references.patches import CENTROIDS, PatchRows
from tests.pretrain.small_runs import write_images

pytestmark = pytest.mark.usefixtures("one_thread")

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def random_rows(seed: int) -> PatchRows:
    rows, random = PatchRows(MEAN, STD), torch.Generator().manual_seed(seed)
    for name in ("projection", "offset", "row_mean"):
        getattr(rows, name).normal_(std=0.2, generator=random)
    rows.row_std.uniform_(0.5, 2, generator=random)
    return rows


def encoded_by_loops(rows: PatchRows, image: np.ndarray, stride: int) -> np.ndarray:
    """One image [3, H, W], patch by patch: normalise, project, threshold, and average over the quarters."""
    pixels = image * np.array(STD)[:, None, None] + np.array(MEAN)[:, None, None]
    tops, lefts = (range(0, side - 5, stride) for side in pixels.shape[1:])
    grid = np.zeros((2 * CENTROIDS, len(tops), len(lefts)))
    for row, top in enumerate(tops):
        for column, left in enumerate(lefts):
            patch = pixels[:, top : top + 6, left : left + 6].ravel()
            patch = (patch - patch.mean()) / math.sqrt(patch.var() + 10 / 255**2)
            similar = patch @ rows.projection.double().numpy() - rows.offset.double().numpy()
            grid[:CENTROIDS, row, column] = np.maximum(similar - 0.25, 0)
            grid[CENTROIDS:, row, column] = np.maximum(-similar - 0.25, 0)
    halves = [(slice(0, (side + 1) // 2), slice(side // 2, side)) for side in grid.shape[1:]]  # a middle is in both
    features = np.stack([grid[:, down, across].mean((1, 2)) for down in halves[0] for across in halves[1]], 1)
    return (features.ravel() - rows.row_mean.double().numpy()) / rows.row_std.double().numpy()


@pytest.mark.parametrize(("height", "width", "stride"), [(32, 32, 2), (16, 21, 2), (48, 48, 3), (96, 96, 6)])
def test_rows_are_those_of_plain_loops(height: int, width: int, stride: int) -> None:
    rows, random = random_rows(height), np.random.default_rng(width)
    images = random.normal(0, 1, (2, 3, height, width))
    images[1, :, :, : width // 2] = 0.3  # flat patches have no contrast to divide by
    found = rows(torch.from_numpy(images))
    assert found.dtype == torch.float32
    expected = np.stack([encoded_by_loops(rows, image, stride) for image in images])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_large_images_have_about_as_many_patches_as_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    unfold = F.unfold

    def counting(*words: object, **values: object) -> torch.Tensor:
        cut: torch.Tensor = unfold(*words, **values)  # type: ignore[arg-type]
        counts.append(cut.shape[2])
        return cut

    monkeypatch.setattr(F, "unfold", counting)
    for side in (32, 48, 64, 96, 224, 448):
        random_rows(0)(torch.zeros(1, 3, side, side))
    assert all(14**2 <= count <= 16**2 for count in counts)


def test_pieces_of_a_batch_do_not_change_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, images = random_rows(1), torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    at_once = rows(images)
    monkeypatch.setattr(patches, "PIECE", 2 * CENTROIDS * 14 * 14)
    torch.testing.assert_close(rows(images), at_once)


def test_images_smaller_than_a_patch_are_enlarged_to_one() -> None:
    rows, small = random_rows(2), torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(2))
    large = F.interpolate(small, (6, 6), mode="bilinear", align_corners=False)
    torch.testing.assert_close(rows(small), rows(large))
    patches.fit_patches(rows, small)
    assert bool(rows(small).isfinite().all())


def test_autocast_does_not_round_rows() -> None:
    rows, images = random_rows(3), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = rows(images)
    torch.testing.assert_close(rounded, rows(images), rtol=0, atol=0)


def test_whitening_makes_the_covariance_the_identity_but_for_weak_directions() -> None:
    random = np.random.default_rng(4)
    mixing = random.normal(0, 3, (108, 108))
    samples = random.normal(0, 1, (5000, 108)) @ mixing + 1
    matrix, mean = patches.whiten(torch.from_numpy(samples).float())
    np.testing.assert_allclose(mean, samples.mean(0), rtol=1e-3)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-5)
    covariance = np.cov(samples.T, bias=True)
    values, vectors = np.linalg.eigh(covariance)
    expected = (vectors * (values / (values + 0.1))) @ vectors.T
    np.testing.assert_allclose(matrix.double().numpy() @ covariance @ matrix.double().numpy(), expected, atol=2e-3)


def test_kmeans_recovers_planted_directions_of_either_sign() -> None:
    random = torch.Generator().manual_seed(5)
    directions = F.normalize(torch.randn(8, 108, generator=random), dim=1)
    which = torch.randint(8, (4000,), generator=random)
    lengths = torch.rand(4000, 1, generator=random) * 4 + 1
    signs = torch.randint(2, (4000, 1), generator=random) * 2 - 1
    samples = signs * lengths * directions[which] + 0.05 * torch.randn(4000, 108, generator=random)
    centroids = patches.signed_kmeans(samples, 24, random)
    torch.testing.assert_close(centroids.norm(dim=1), torch.ones(24))
    assert float((directions @ centroids.T).abs().amax(1).min()) > 0.99


def stripes(number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images [N, 3, 32, 32] with stripes across or down, the class, of any phase, width and colour."""
    random = torch.Generator().manual_seed(seed)
    phase, width, colour = (torch.rand(number, *shape, generator=random) for shape in ((1, 1, 1), (1, 1, 1), (3, 1, 1)))
    pattern = torch.sin(torch.arange(32.0) * (1 + width) + 2 * math.pi * phase).expand(-1, -1, 32, -1)
    labels = torch.arange(number) % 2
    pattern = torch.where(labels.view(-1, 1, 1, 1) == 0, pattern, pattern.transpose(2, 3))
    return pattern / 2 + colour + torch.randn(number, 3, 32, 32, generator=random) / 2, labels


def test_a_fit_tells_planted_textures_apart_where_pixels_do_not() -> None:
    (train, labels), (test, targets) = stripes(60, 16), stripes(80, 17)
    rows = PatchRows(MEAN, STD)
    assert not rows(train).any()
    patches.fit_patches(rows, train)

    def accuracy(bank: torch.Tensor, queries: torch.Tensor) -> float:
        nearest = (F.normalize(queries, dim=1) @ F.normalize(bank, dim=1).T).argmax(1)
        return float((labels[nearest] == targets).float().mean())

    assert accuracy(rows(train), rows(test)) > 0.95
    assert accuracy(train.flatten(1), test.flatten(1)) < 0.9
    standardised = rows(train)
    torch.testing.assert_close(standardised.mean(0), torch.zeros(8 * CENTROIDS), atol=1e-4, rtol=0)
    deviations = standardised.std(0, correction=0)
    assert float(deviations.max()) <= 1  # less than one, as a constant is added to each
    assert float(deviations.median()) > 0.5


def test_a_fit_depends_on_images_and_seed_alone() -> None:
    train, _ = stripes(20, 8)
    states = []
    for seed in (0, 0, 1):
        torch.rand(3)  # torch's own generator plays no part
        rows = PatchRows(MEAN, STD)
        patches.fit_patches(rows, train, seed=seed)
        states.append(rows.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert not torch.equal(states[0]["projection"], states[2]["projection"])


def test_images_without_any_contrast_give_finite_rows() -> None:
    rows = PatchRows(MEAN, STD)
    patches.fit_patches(rows, torch.zeros(3, 3, 8, 8))
    assert bool(rows(torch.randn(2, 3, 8, 8)).isfinite().all())


class Levels(ImageSet):
    """Images that are on no disk: image i has the grey level i."""

    def open(self, index: int) -> Image.Image:
        return Image.new("RGB", (8, 8), (index, index, index))


def test_a_sample_is_spread_over_the_set_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Preprocessing(8, 8, mean=(0, 0, 0), std=(1, 1, 1))

    def drawn(number: int, **values: int) -> list[int]:
        inputs = patches.read_sample(Levels(Path("levels"), [str(image) for image in range(number)]), plain, **values)
        return [round(255 * float(one.mean())) for one in inputs]

    assert drawn(7) == list(range(7))  # a set that is smaller than the sample is read whole
    monkeypatch.setattr(patches, "IMAGES", 10)
    several = drawn(205)
    edges = [205 * stretch // 10 for stretch in range(11)]
    assert all(first <= image < last for first, image, last in zip(edges, several, edges[1:], strict=False))
    assert several == drawn(205)
    assert several != drawn(205, seed=1)
    monkeypatch.setattr(patches, "MEMORY", 3 * 8 * 8 * 4)
    assert len(drawn(205)) == 4


def test_a_layer_is_fitted_to_images_as_their_network_sees_them(tmp_path: Path) -> None:
    images = scan_folder(write_images(tmp_path / "set", classes=2, each=3))
    preprocessing = Preprocessing(20, 16, mean=MEAN, std=STD)
    layer = patches.fitted(images, preprocessing)
    inputs = torch.stack([preprocessing(images.open(index)) for index in range(6)])
    other = PatchRows(MEAN, STD)
    patches.fit_patches(other, inputs)
    torch.testing.assert_close(layer(inputs), other(inputs))
    assert float(layer(inputs).std()) > 0.3


def test_a_set_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"no image of 1 in .*can be read, so there are no patches"):
        patches.fitted(scan_folder(tmp_path), Preprocessing(16, 16))
