"""Features of a set of images, every image exactly once, in order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from numbers import Integral
from typing import Any, Literal, cast

import torch
from PIL.Image import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from excb.console import plural
from excb.distributed.machine import start_copy, to_device
from excb.distributed.workers import follow_parent, watch_workers
from excb.errors import in_short, require
from excb.images.decoding import BrokenImageError
from excb.images.image_set import Images
from excb.images.picture import Picture, is_picture
from excb.images.pixels import EIGHT_BIT, pixels_of
from excb.networks.backbone import evaluating
from excb.networks.frozen.parts import TOGETHER, InParts
from excb.networks.preprocessing import Preprocessing

Kind = Literal["pooled", "last4_cls"]  # the backbone's own features, or `excb.networks.outputs.LastClassTokens`


@dataclass(frozen=True)
class Features:
    """Features of the readable images of a set: rows [N, D] float32 and each row's sample index [N]."""

    rows: Tensor
    samples: Tensor
    broken: dict[str, str]  # path -> why it could not be read


class Inputs(Dataset[tuple[int, Tensor | str]]):
    """A network's inputs for the images of a set, or the reasons why images are unreadable.

    Args:
        images: the set.
        transform: opened image -> input [C, H, W].
        indices: of the images to read, by default all.

    Raises:
        UserError: the images have other channels than the transform is for.
    """

    def __init__(
        self, images: Images, transform: Callable[[Image], Tensor], *, indices: Sequence[int] | None = None
    ) -> None:
        if isinstance(transform, Preprocessing):
            require_channels(images, transform)
        self.images, self._transform = images, transform
        self._indices = range(len(images)) if indices is None else indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, item: int) -> tuple[int, Tensor | str]:
        """Read one image: its index in the set, and its input or why there is none."""
        index = self._indices[item]
        try:
            return index, self.prepare(self.images.open(index), index)
        except BrokenImageError as error:
            return index, str(error)

    def prepare(self, image: Image, index: int) -> Tensor:
        """Turn an image into an input. A subclass may use the image's index as RNG key."""
        del index
        return self._transform(image)


def require_channels(images: Images, preprocessing: Preprocessing) -> None:
    """Raise UserError unless a set has the channels of the images that a network takes, and its colours."""
    pixels = pixels_of(images)
    require(
        pixels.channels == preprocessing.channels,
        f"the images of {images.root} have {plural(pixels.channels, 'channel')}, and the network takes "
        f"{preprocessing.channels}: adapt a network to them with `excb-pretrain adapt NAME --data DIR`, or choose one "
        "that takes them",
    )
    wanted = preprocessing.pixels.colours
    require(
        wanted in (EIGHT_BIT.colours, pixels.colours),
        f"the images of {images.root} are opened with colours={pixels.colours}, and the network takes them "
        f"{wanted}: in pretraining set data.colours={wanted}",
    )


def _collate(batch: list[tuple[int, Tensor | str]]) -> tuple[Tensor, Tensor | None, list[tuple[int, str]]]:
    good = [(index, item) for index, item in batch if isinstance(item, Tensor)]
    bad = [(index, item) for index, item in batch if isinstance(item, str)]
    stacked = torch.stack([item for _, item in good]) if good else None
    return torch.tensor([index for index, _ in good], dtype=torch.int64), stacked, bad


@torch.no_grad()
def stream(
    backbone: nn.Module,
    inputs: Inputs,
    batches: Sequence[Sequence[int]],
    *,
    device: torch.device | str = "cpu",
    workers: int = 0,
) -> Iterator[Features]:
    """Pass batches of images through a backbone in eval mode, and yield the features of each batch.

    Args:
        backbone: [B, C, H, W] -> [B, D]; its mode is restored afterwards.
        inputs: the backbone's inputs.
        batches: items of `inputs` in each batch.
        device: of the backbone. From a GPU a batch is yielded once the next one runs.
        workers: worker processes of the data loader.
    """
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    loader = DataLoader(
        inputs,
        batch_sampler=batches,  # type: ignore[arg-type]  # any sequence of indices will do, such as a range
        num_workers=workers,
        collate_fn=_collate,
        worker_init_fn=follow_parent,
        pin_memory=on_gpu,
    )
    dtype = next((parameter.dtype for parameter in backbone.parameters()), torch.float32)
    # Of their own, so that neither copy waits for the network; two, so that the next batch's does not wait for rows.
    uploads, downloads = (torch.cuda.Stream(device), torch.cuda.Stream(device)) if on_gpu else (None, None)
    passed = InParts(backbone, many=len(inputs.images) > TOGETHER)
    with evaluating(backbone):
        before: Callable[[], Features] | None = None
        for indices, stacked, bad in watch_workers(loader):
            broken = {inputs.images.paths[index]: reason for index, reason in bad}
            rows = torch.empty(0, 0)
            if stacked is not None:
                rows = passed(_upload(stacked, device, dtype, uploads)).float()
            following = partial(_finish, start_copy(rows, downloads), indices, broken, pinned=rows.is_cuda)
            if not on_gpu:
                yield following()
                continue
            if before is not None:
                yield before()
            before = following
        if before is not None:
            yield before()


def _finish(copied: Callable[[], Tensor], indices: Tensor, broken: dict[str, str], *, pinned: bool) -> Features:
    """The features of a batch, once its rows are copied."""
    rows = copied()
    return Features(rows.clone() if pinned else rows, indices, broken)  # page-locked memory is scarce


def _upload(batch: Tensor, device: torch.device, dtype: torch.dtype, stream: torch.cuda.Stream | None) -> Tensor:
    """Copy a batch to the device on a stream, for which the network's waits; the batch before it runs meanwhile."""
    if stream is None:
        return batch.to(device, dtype)
    with torch.cuda.stream(stream):
        copied = batch.to(device, non_blocking=True)
        done = stream.record_event()
    networks = torch.cuda.current_stream(device)
    networks.wait_event(done)
    copied.record_stream(networks)
    return copied.to(dtype)


def extract(
    backbone: nn.Module,
    inputs: Inputs,
    *,
    device: torch.device | str = "cpu",
    batch: int = 64,
    workers: int = 0,
    progress: Callable[[int], None] = lambda _done: None,
) -> Features:
    """Pass every image once through a backbone, in batches of `batch` images, as `stream` does.

    `progress` is called with the number of images of every batch.
    """
    parts: list[Features] = []
    for part in stream(backbone, inputs, in_batches(range(len(inputs)), batch), device=device, workers=workers):
        parts.append(part)
        progress(len(part.samples) + len(part.broken))
    broken = {path: reason for part in parts for path, reason in part.broken.items()}
    empty = Features(torch.empty(0, 0), torch.empty(0, dtype=torch.int64), {})
    readable = [part for part in parts if len(part.samples)] or [empty]
    return Features(torch.cat([part.rows for part in readable]), torch.cat([part.samples for part in readable]), broken)


@torch.no_grad()
def vectors(backbone: nn.Module, inputs: Sequence[Tensor], passed: InParts | None = None) -> Tensor:
    """Features [B, D] float32 on the CPU of inputs [C, H, W] of one size, in eval mode, on the backbone's device.

    Args:
        backbone: [B, C, H, W] -> [B, D].
        inputs: of the batch.
        passed: calls the backbone, and is kept from batch to batch.
    """
    one = next(backbone.parameters(), torch.empty(0))
    with evaluating(backbone):
        rows = (passed or InParts(backbone))(to_device(torch.stack(list(inputs)), one.device).to(one.dtype))
    return rows.float().cpu()


def embed_images(
    backbone: nn.Module,
    transform: Callable[[Any], Tensor],
    images: Iterable[Picture] | Picture,
    *,
    batch: int = 64,
    progress: Callable[[int], None] = lambda _done: None,
) -> Tensor:
    """Pass images of any sizes through a backbone in eval mode, on its own device; its mode is restored afterwards.

    Args:
        backbone: [B, C, H, W] -> [B, D].
        transform: one image -> input [C, H, W].
        images: PIL images, arrays or files; one counts as a list of one.
        batch: images at once.
        progress: called with the number of images of every batch.

    Returns:
        Features [N, D] float32 on the CPU, in the order of the images.

    Raises:
        UserError: there is no image, or one that cannot be read.
    """
    require(
        is_picture(images) or isinstance(images, Iterable) or hasattr(images, "__getitem__"),  # as data sets of torch
        f"images are PIL images, arrays or files, not {in_short(images)}",
    )
    require(isinstance(batch, Integral) and batch >= 1, f"batch is a number of images, not {in_short(batch)}")
    several = iter([images] if is_picture(images) else cast("Iterable[Picture]", images))
    rows, passed = list[Tensor](), None
    while part := list(islice(several, batch)):
        passed = passed or InParts(backbone, many=len(part) > TOGETHER)
        rows.append(vectors(backbone, [transform(image) for image in part], passed))
        progress(len(part))
    require(bool(rows), "there is no image to embed: pass one, or several")
    return torch.cat(rows)


def in_batches(items: range, batch: int) -> list[range]:
    """Cut a range into batches; the last one may be smaller."""
    return [items[start : start + batch] for start in range(0, len(items), batch)]
