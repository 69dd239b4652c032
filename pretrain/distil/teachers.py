"""Frozen teachers: loading them, and what they make of a batch of views."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from excb.distributed.collectives import all_succeed, run_on_rank0, world_size
from excb.errors import UserError, require
from excb.hub import loading
from excb.hub.adopted import OwnTransform
from excb.hub.backbone import Backbone
from excb.hub.lineage import lineage
from excb.networks.architecture import RGB
from excb.networks.backbone import check_resolution
from excb.networks.blocks import Blocks
from excb.networks.outputs import resized_preprocessing
from excb.networks.preprocessing import Preprocessing

from .chosen_channels import for_channels
from .interface import Targets
from .settings import DistilSettings


@dataclass(frozen=True)
class Teacher:
    """A frozen network to learn from."""

    name: str
    backbone: Backbone  # in eval mode, on the run's device
    transform: Preprocessing  # of whole images
    blocks: Blocks | None  # gives its maps, if they are compared
    facts: dict[str, Any] = field(default_factory=dict)  # of its weights as they were given: see `excb.hub.lineage`

    @property
    def width(self) -> int:
        """D of its vectors."""
        return int(self.backbone.width)

    @property
    def map_width(self) -> int | None:
        """D of its maps; None where none are compared."""
        return None if self.blocks is None else self.blocks.stages[-1].width

    @torch.no_grad()
    def look(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Its vectors [N, D] of inputs [N, C, H, W], normalised as it wants them, and its maps [N, D, h, w]."""
        if self.blocks is None:
            return self.backbone(inputs), None
        outputs, pooled = self.blocks(inputs)
        return pooled, outputs[-1].map


def load_teachers(
    settings: DistilSettings,
    device: torch.device,
    *,
    dtype: torch.dtype = torch.float32,
    given: Mapping[str, Backbone] | None = None,
    channels: int = RGB,
) -> list[Teacher]:
    """Load the teachers of a run, frozen and in eval mode; all ranks call this.

    Args:
        settings: of the run.
        device: where it trains.
        dtype: of the teachers' weights.
        given: those that are in memory, by name.
        channels: of the run's images; see `for_channels`.

    Raises:
        UserError: one cannot be loaded, gives no maps where they are compared, or cannot take inputs of this size or
            these channels.
    """
    return [_load(name, settings, device, dtype, given or {}, channels=channels) for name in settings.teachers]


def _load(
    name: str,
    settings: DistilSettings,
    device: torch.device,
    dtype: torch.dtype,
    given: Mapping[str, Backbone],
    *,
    channels: int,
) -> Teacher:
    size = settings.teacher_size
    if name in given:
        backbone = copy.deepcopy(given[name])  # its owner may still train it
        if size is not None:
            require(
                not isinstance(backbone.transform, OwnTransform),
                f"{name} has a transform of its own, which distil.teacher_size={size} cannot change: leave it out",
            )
            backbone.transform = resized_preprocessing(backbone.transform, size)
    else:
        if world_size() > 1:
            run_on_rank0(lambda: loading.load(name, img_size=size) and None)  # which fetches it once
        backbone = all_succeed(lambda: loading.load(name, img_size=size))
    _require_size(name, backbone, size)
    facts = lineage(backbone, name)  # whose hash is of the weights before another type rounds or widens them
    backbone = all_succeed(lambda: for_channels(name, backbone, channels, settings.teacher_channels))
    backbone = backbone.to(device, dtype).eval().requires_grad_(False)
    if not settings.needs_maps:
        return Teacher(name, backbone, backbone.transform, None, facts)
    try:
        blocks = Blocks(backbone.network)
        require(backbone.features == "pool", f"it was loaded with features={backbone.features!r}: load it without")
    except UserError as error:
        raise UserError.on_all_ranks(f"the teacher {name} cannot teach maps: {error}") from None
    return Teacher(name, backbone, backbone.transform, blocks, facts)


def _require_size(name: str, backbone: Backbone, size: int | None) -> None:
    """Raise UserError unless the network takes inputs of the size that is asked for."""
    if size is None:
        return
    try:
        check_resolution(backbone.network, [size])
    except UserError:
        raise UserError.on_all_ranks(
            f"the teacher {name} cannot take inputs of {size} x {size} pixels: choose another distil.teacher_size, or "
            "none for the size that it was trained for"
        ) from None


class ViewInputs:
    """The student's views as a teacher wants them: its size, interpolation and normalisation.

    Args:
        transform: of the teacher.
        mean: of the channels, which the student's views are normalised with.
        std: their standard deviations.
        device: of the views.

    Raises:
        UserError: the teacher's transform does not say how it normalises.
    """

    def __init__(
        self, transform: Preprocessing, mean: Sequence[float], std: Sequence[float], device: torch.device
    ) -> None:
        if isinstance(transform, OwnTransform) and not transform.normalisation_known:
            raise UserError(
                "the teacher's transform does not say how it normalises, so it cannot see the student's views: set "
                "distil.teacher_sees=image, or a transform of torchvision with Normalize"
            )

        require(
            transform.interpolation in ("bilinear", "bicubic"),
            f"the teacher's images are resized {transform.interpolation}, and views can be so bilinear or bicubic "
            "only: set distil.teacher_sees=image",
        )

        def channels(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, device=device).view(-1, 1, 1)

        self._size, self._mode = (transform.crop, transform.crop), transform.interpolation
        self._from, self._to = (channels(mean), channels(std)), (channels(transform.mean), channels(transform.std))

    def __call__(self, views: Tensor) -> Tensor:
        """Turn views [N, C, S, S] into inputs [N, C, crop, crop] of the same type."""
        mean, std = (part.to(views) for part in self._from)
        pixels = (views * std + mean).clamp(0, 1)
        if pixels.shape[-2:] != self._size:
            pixels = F.interpolate(pixels, self._size, mode=self._mode, align_corners=False, antialias=True)
            pixels = pixels.clamp(0, 1)  # bicubic weights overshoot
        mean, std = (part.to(views) for part in self._to)
        return (pixels - mean) / std


class ViewTargets:
    """The teachers' outputs for the student's views, computed in every step: the consistent mode.

    Args:
        teachers: on the device of the views.
        settings: of the run.
        mean: which the student's views are normalised with.
        std: their standard deviations.
        device: of the views.

    Raises:
        UserError: as `ViewInputs`.
    """

    def __init__(
        self,
        teachers: Sequence[Teacher],
        settings: DistilSettings,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
    ) -> None:
        self._teachers = [(teacher, ViewInputs(teacher.transform, mean, std, device)) for teacher in teachers]
        self._all_views = settings.teacher_sees == "view"

    @torch.no_grad()
    def __call__(self, used: Tensor, views: Sequence[Tensor]) -> list[Targets]:
        """The targets of every teacher; of images [B] and their views [v, B, C, S, S] for each resolution."""
        del used
        seen = views if self._all_views else views[:1]
        targets = []
        for teacher, inputs in self._teachers:
            rows, maps = list[Tensor](), list[Tensor]()
            for part in seen:
                vectors, cells = teacher.look(inputs(part.flatten(0, 1)))
                rows.append(vectors.unflatten(0, part.shape[:2]))
                if cells is not None:
                    maps.append(cells.unflatten(0, part.shape[:2]))
            targets.append(Targets(torch.cat(rows), tuple(maps) or None))
        return targets
