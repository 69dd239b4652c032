"""Features of a set: every image once, in order, whatever the batch and the workers; broken ones named, modes kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import get_worker_info

from excb.errors import UserError
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.networks.features import Features, Inputs, embed_images, extract, in_batches, stream
from excb.networks.preprocessing import Preprocessing

PREPROCESSING = Preprocessing(resize=16, crop=16, mean=(0, 0, 0), std=(1, 1, 1))
IMAGES = 11


class ChannelMeans(nn.Module):
    """[B, 3, H, W] -> [B, 3], and a record of what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.modes: set[bool] = set()
        self.gradients: set[bool] = set()

    def forward(self, images: Tensor) -> Tensor:
        self.batches.append(len(images))
        self.modes.add(self.training)
        self.gradients.add(torch.is_grad_enabled())
        return images.mean((2, 3))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """Image i is of one colour: (i, 2 i, 255 - i)."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(IMAGES):
        Image.new("RGB", (20 + number, 30), colour(number)).save(folder / f"{number:02}.png")
    return scan_folder(folder)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """The same with images 0, 4, 5 and 10 unreadable."""
    folder = tmp_path_factory.mktemp("damaged")
    for number in range(IMAGES):
        if number in (0, 4, 5, 10):
            (folder / f"{number:02}.png").write_bytes(b"nothing" * (number % 2))
        else:
            Image.new("RGB", (20 + number, 30), colour(number)).save(folder / f"{number:02}.png")
    return scan_folder(folder)


def colour(number: int) -> tuple[int, int, int]:
    return number, 2 * number, 255 - number


def expected(*numbers: int) -> Tensor:
    return torch.tensor([colour(number) for number in numbers], dtype=torch.float64).float() / 255


def features(images: ImageSet, backbone: nn.Module | None = None, *, batch: int = 4, workers: int = 0) -> Features:
    return extract(backbone or ChannelMeans(), Inputs(images, PREPROCESSING), batch=batch, workers=workers)


@pytest.mark.parametrize("batch", [1, 4, 11, 64])
def test_every_image_once_in_order(images: ImageSet, batch: int) -> None:
    backbone = ChannelMeans()
    found = features(images, backbone, batch=batch)
    assert found.rows.dtype == torch.float32
    torch.testing.assert_close(found.rows, expected(*range(IMAGES)), rtol=0, atol=1e-6)
    assert found.samples.tolist() == list(range(IMAGES))
    assert found.samples.dtype == torch.int64
    assert found.broken == {}
    assert backbone.batches == [len(chunk) for chunk in np.split(np.arange(IMAGES), range(batch, IMAGES, batch))]


def test_workers_change_nothing(damaged: ImageSet) -> None:
    alone, helped = features(damaged, batch=2), features(damaged, batch=3, workers=2)
    assert torch.equal(alone.rows, helped.rows)
    assert torch.equal(alone.samples, helped.samples)
    assert alone.broken == helped.broken


def test_workers_are_other_processes(images: ImageSet) -> None:
    class Worker(Inputs):
        """Which worker reads: 0 where it is this process."""

        def prepare(self, image: Image.Image, index: int) -> Tensor:
            worker = get_worker_info()
            return torch.full((3, 2, 2), 0.0 if worker is None else 1.0 + worker.id)

    for workers, expected_ids in ((0, {0.0}), (2, {1.0, 2.0})):
        rows = extract(ChannelMeans(), Worker(images, PREPROCESSING), batch=2, workers=workers).rows
        assert set(rows.flatten().tolist()) == expected_ids


@pytest.mark.parametrize("batch", [1, 2, 3, 64])
def test_broken_images_are_named_and_left_out(damaged: ImageSet, batch: int) -> None:
    found = features(damaged, batch=batch)
    readable = [1, 2, 3, 6, 7, 8, 9]
    assert found.samples.tolist() == readable
    torch.testing.assert_close(found.rows, expected(*readable), rtol=0, atol=1e-6)
    assert list(found.broken) == ["00.png", "04.png", "05.png", "10.png"]
    assert all("UnidentifiedImageError" in reason for reason in found.broken.values())


def test_a_set_without_a_readable_image_has_no_rows(damaged: ImageSet) -> None:
    backbone = ChannelMeans()
    found = features(ImageSet(damaged.root, ["04.png", "nowhere.png", "05.png"]), backbone)
    assert len(found.rows) == len(found.samples) == 0
    assert list(found.broken) == ["04.png", "nowhere.png", "05.png"]
    assert backbone.batches == []


def test_batch_size_changes_no_row_of_a_network_with_batchnorm(images: ImageSet) -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU(), nn.Flatten())
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    rows = [features(images, backbone, batch=batch).rows for batch in (1, 4, 11)]
    for others in rows[1:]:
        torch.testing.assert_close(rows[0], others, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_eval_mode_without_gradients_then_every_mode_as_it_was(images: ImageSet) -> None:
    means = ChannelMeans()
    frozen = nn.BatchNorm2d(3).eval()  # as in fine-tuning with fixed statistics
    backbone = nn.Sequential(frozen, means)
    assert [module.training for module in (backbone, frozen, means)] == [True, False, True]
    found = features(images, backbone)
    assert means.modes == {False}
    assert means.gradients == {False}
    assert not found.rows.requires_grad
    assert [module.training for module in (backbone, frozen, means)] == [True, False, True]
    assert torch.is_grad_enabled()
    features(images, backbone.eval())
    assert not any(module.training for module in (backbone, frozen, means))


def test_modes_are_restored_after_an_error(images: ImageSet) -> None:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(5, 2))
    with pytest.raises(RuntimeError, match="shape"):
        features(images, backbone)
    assert all(module.training for module in backbone.modules())


@pytest.mark.parametrize(("batch", "expected_steps"), [(4, [4, 4, 3]), (64, [11])])
def test_progress_counts_broken_images_too(damaged: ImageSet, batch: int, expected_steps: list[int]) -> None:
    done: list[int] = []
    extract(ChannelMeans(), Inputs(damaged, PREPROCESSING), batch=batch, progress=done.append)
    assert done == expected_steps


def test_half_precision_comes_back_as_float32(images: ImageSet) -> None:
    class Half(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.mean((2, 3)).bfloat16()

    assert features(images, Half()).rows.dtype == torch.float32


def test_a_subclass_learns_the_images_index(images: ImageSet) -> None:
    class Numbered(Inputs):
        def prepare(self, image: Image.Image, index: int) -> Tensor:
            return super().prepare(image, index) * 0 + index

    inputs = Numbered(images, PREPROCESSING)
    assert len(inputs) == IMAGES
    rows = extract(ChannelMeans(), inputs, batch=3).rows
    assert torch.equal(rows, torch.arange(IMAGES).float()[:, None].expand(-1, 3))


def test_an_input_or_the_reason_why_there_is_none(damaged: ImageSet) -> None:
    inputs = Inputs(damaged, PREPROCESSING)
    index, item = inputs[3]
    assert index == 3
    assert isinstance(item, Tensor)
    assert item.shape == (3, 16, 16)
    index, item = inputs[4]
    assert index == 4
    assert isinstance(item, str)
    assert str(Path("04.png")) in item


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_pass_in_the_order_given(damaged: ImageSet, workers: int) -> None:
    backbone = ChannelMeans()
    batches = [range(8, 11), range(1, 4), range(4, 6)]
    parts = list(stream(backbone, Inputs(damaged, PREPROCESSING), batches, workers=workers))
    assert [part.samples.tolist() for part in parts] == [[8, 9], [1, 2, 3], []]
    torch.testing.assert_close(parts[1].rows, expected(1, 2, 3), rtol=0, atol=1e-6)
    assert [list(part.broken) for part in parts] == [["10.png"], [], ["04.png", "05.png"]]
    assert backbone.batches == [2, 3]
    assert backbone.training


def test_no_batches_give_nothing(images: ImageSet) -> None:
    assert list(stream(ChannelMeans(), Inputs(images, PREPROCESSING), [])) == []


@pytest.mark.parametrize("length", range(9))
def test_batches_are_the_range_cut_up(length: int) -> None:
    batches = in_batches(range(5, 5 + length), 3)
    assert [number for batch in batches for number in batch] == list(range(5, 5 + length))
    assert all(len(batch) == 3 for batch in batches[:-1])
    assert all(batches)


def test_embed_takes_images_of_any_kind_and_size(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    shapes = [(40, 30), (33, 50), (64, 64), (21, 90), (48, 48)]
    arrays = [random.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    Image.fromarray(arrays[1]).save(tmp_path / "1.png")
    images: list[Any] = [arrays[0], tmp_path / "1.png", Image.fromarray(arrays[2]), arrays[3], arrays[4]]
    transform, network = Preprocessing(32, 24), nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    network.train()
    counts: list[int] = []
    rows = embed_images(network, transform, images, batch=2, progress=counts.append)
    network.eval()
    with torch.no_grad():
        expected = torch.cat([network(transform(Image.fromarray(array))[None]) for array in arrays])
    torch.testing.assert_close(rows, expected)
    assert (counts, rows.dtype) == ([2, 2, 1], torch.float32)
    torch.testing.assert_close(embed_images(network, transform, images[0]), expected[:1])
    torch.testing.assert_close(embed_images(network.double(), transform, iter(images)), expected)


def test_embed_gives_the_network_its_mode_back_and_needs_an_image() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Dropout())
    embed_images(network.train(), Preprocessing(8, 8), np.zeros((8, 8), np.uint8))
    assert network[1].training
    with pytest.raises(UserError, match="there is no image to embed"):
        embed_images(network, Preprocessing(8, 8), [])
