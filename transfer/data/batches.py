"""Augmented training batches; order, crop and flip depend only on seed, epoch and sample."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from excb import seeding
from excb.distributed.collectives import rank, world_size
from excb.distributed.workers import follow_parent, watch_workers
from excb.errors import UserError
from excb.hub.adopted import OwnTransform
from excb.images.decoding import BrokenImageError
from excb.images.image_set import Images
from excb.images.picture import each_channel
from excb.images.random_crops import draw_crop_box
from excb.networks.preprocessing import Preprocessing


@dataclass(frozen=True)
class Augmentation:
    """RandomResizedCrop and flip, the usual augmentation of linear probing and fine-tuning."""

    size: int  # side of the crop in pixels
    scale: tuple[float, float] = (0.08, 1.0)  # range of the crop's share of the image's area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # range of its aspect ratio
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # channel means
    std: tuple[float, ...] = (0.229, 0.224, 0.225)  # channel standard deviations
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"  # of the resize, antialiased

    @classmethod
    def like(cls, preprocessing: Preprocessing) -> "Augmentation":
        """Crops of the size that evaluation uses, normalised alike. Raises UserError where nobody says how."""
        if isinstance(preprocessing, OwnTransform) and not preprocessing.normalisation_known:
            raise UserError(
                "random crops must be normalised as the network's transform does, which does not say how: give it the "
                "attributes mean and std"
            )
        return cls(preprocessing.crop, mean=preprocessing.mean, std=preprocessing.std)

    def __call__(self, image: Image.Image | np.ndarray, random: np.random.Generator) -> Tensor:
        """An opened image to [C, size, size]; the distribution is torchvision's RandomResizedCrop's."""
        size = image.size if isinstance(image, Image.Image) else (image.shape[1], image.shape[0])
        box = draw_crop_box(size, self.scale, self.ratio, random)
        flip = random.random() < 0.5
        resample = Image.Resampling.BICUBIC if self.interpolation == "bicubic" else Image.Resampling.BILINEAR

        def cut(whole: Image.Image) -> Image.Image:
            # Crop first: the resize must not read pixels beyond the crop's edge.
            crop = whole.crop(box).resize((self.size, self.size), resample)
            return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else crop

        pixels = torch.from_numpy(np.array(each_channel(image, cut))).permute(2, 0, 1).float() / 255
        return (pixels - torch.tensor(self.mean).view(-1, 1, 1)) / torch.tensor(self.std).view(-1, 1, 1)


@dataclass(frozen=True)
class LabelledBatch:
    """This rank's share of a training batch."""

    images: Tensor  # [b, C, S, S]
    labels: Tensor  # [b] int64
    samples: Tensor  # [b] int64
    whole: int  # images of the global batch; divide sums by this


class TrainingBatches:
    """The batches of a training run; every epoch has every image once, the last batch may be smaller.

    Batches are strided by rank, so that shares may differ by one image or be empty. Divide sums of losses by
    `LabelledBatch.whole`, and all-reduce gradients as sums.

    Args:
        images: labelled images.
        augmentation: of every image.
        batch: global batch size.
        seed: fixes order, crops and flips.
        workers: number of data loading processes.
        chosen: indices of the images to use; all by default.
        pin_memory: put images and labels into page-locked memory, for copies to a GPU that the CPU does not wait for.
    """

    def __init__(
        self,
        images: Images,
        augmentation: Augmentation,
        *,
        batch: int,
        seed: int,
        workers: int,
        chosen: np.ndarray | None = None,
        pin_memory: bool = False,
    ) -> None:
        self._images, self._augmentation = images, augmentation
        self._batch, self._seed, self._workers = batch, seed, workers
        self._chosen = np.arange(len(images)) if chosen is None else chosen
        self._pin_memory = pin_memory

    @property
    def steps(self) -> int:
        """Steps of one epoch."""
        return -(-len(self._chosen) // self._batch)

    def run(self, *, first: int, last: int) -> Iterator[LabelledBatch]:
        """The batches from epoch `first` up to, not including, epoch `last`.

        Raises:
            UserError: an image cannot be read.
        """
        loader = DataLoader(
            _Views(self._images, self._augmentation, self._seed),
            batch_sampler=_Order(self._chosen, self._batch, self._seed, first, last),
            collate_fn=_collate,
            num_workers=self._workers,
            worker_init_fn=follow_parent,
            prefetch_factor=4 if self._workers else None,
            pin_memory=self._pin_memory,
        )
        for number, (views, samples, reasons) in enumerate(watch_workers(loader)):
            if reasons:
                path, reason = reasons[0]
                raise UserError(f"{path} cannot be read ({reason}): fix or remove it")
            step = number % self.steps
            size = min(self._batch, len(self._chosen) - step * self._batch)
            assert self._images.labels is not None
            labels = torch.from_numpy(self._images.labels[samples.numpy()])
            yield LabelledBatch(views, labels.pin_memory() if self._pin_memory else labels, samples, size)


class _Order(Sampler[list[tuple[int, int]]]):
    """(epoch, sample) of this rank's share of every batch."""

    def __init__(self, chosen: np.ndarray, batch: int, seed: int, first: int, last: int) -> None:
        self._chosen, self._batch, self._seed, self._epochs = chosen, batch, seed, range(first, last)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for epoch in self._epochs:
            order = seeding.generator(seeding.Purpose.TRANSFER_ORDER, self._seed, epoch).permutation(self._chosen)
            for start in range(0, len(order), self._batch):
                yield [(epoch, int(sample)) for sample in order[start : start + self._batch][rank() :: world_size()]]


class _Views(Dataset["tuple[Tensor | str, int]"]):
    def __init__(self, images: Images, augmentation: Augmentation, seed: int) -> None:
        self._images, self._augmentation, self._seed = images, augmentation, seed

    def __getitem__(self, item: tuple[int, int]) -> tuple[Tensor | str, int]:
        epoch, sample = item
        try:
            image = self._images.open(sample)
        except BrokenImageError as error:
            return f"{self._images.paths[sample]}\n{error}", sample
        random = seeding.generator(seeding.Purpose.TRANSFER_VIEW, self._seed, epoch, sample)
        return self._augmentation(image, random), sample


def _collate(items: list[tuple[Tensor | str, int]]) -> tuple[Tensor, Tensor, list[tuple[str, str]]]:
    views = [view for view, _ in items if isinstance(view, Tensor)]
    reasons = [tuple(view.split("\n", 1)) for view, _ in items if isinstance(view, str)]
    samples = torch.tensor([sample for _, sample in items], dtype=torch.int64)
    stacked = torch.stack(views) if views else torch.empty(0, 3, 1, 1)
    return stacked, samples, reasons  # type: ignore[return-value]
