"""Parts of every block of a frozen backbone: pooled or patch by patch, in one pass, side by side in a row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from excb.features.cache import CachedFeatures
from excb.features.extraction import Extraction
from excb.networks.backbone import evaluating, image_channels
from excb.networks.blocks import BlockOutput, Blocks

Pooling = Literal["own", "cls", "mean", "gem", "patches"]
GEM_POWER, GEM_LEAST = 3.0, 1e-6  # of generalised mean pooling (Radenovic et al., 2018), before it learns its power


@dataclass(frozen=True)
class Part:
    """One pooling of one block.

    Args:
        pooling: "own" is what the network itself returns, "cls" the class token, "mean" the mean of the patches, "gem"
            their generalised mean, "patches" all of them.
        block: counted from 0; -1 of "own".
    """

    pooling: Pooling
    block: int = -1

    def of(self, blocks: Sequence[BlockOutput], own: Tensor) -> Tensor:
        """This part [B, W] of what a network returns."""
        if self.pooling == "own":
            return own
        patches, class_token = blocks[self.block]
        if self.pooling == "cls":
            assert class_token is not None
            return class_token
        if self.pooling == "mean":
            return patches.mean((2, 3))
        if self.pooling == "gem":
            return patches.clamp(min=GEM_LEAST).pow(GEM_POWER).mean((2, 3)).pow(1 / GEM_POWER)
        return patches.permute(0, 2, 3, 1).flatten(1)


class PartReader(nn.Module):
    """A network's parts side by side: [B, 3, S, S] -> [B, W], W the sum of their widths.

    Raises:
        UserError: the network gives no maps.
    """

    def __init__(self, network: nn.Module, parts: Sequence[Part]) -> None:
        super().__init__()
        self.blocks, self._parts = Blocks(network), parts

    def forward(self, images: Tensor) -> Tensor:
        """Rows of normalised images."""
        outputs, own = self.blocks(images)
        return torch.cat([part.of(outputs, own) for part in self._parts], 1)


@dataclass(frozen=True)
class Shapes:
    """How large the parts of a network are, for square images of one size."""

    maps: tuple[tuple[int, int, int], ...]  # channels, height and width of every block's map
    own: int  # width of what the network itself returns
    has_class_token: bool

    @classmethod
    @torch.no_grad()
    def of(cls, network: nn.Module, side: int, device: torch.device) -> "Shapes":
        """Measure them on an image of `side` pixels.

        Raises:
            UserError: the network gives no maps.
        """
        blocks = Blocks(network)
        parameter = next(network.parameters(), torch.empty(0))
        with evaluating(blocks):
            size = 1, image_channels(network), side, side
            outputs, own = blocks(torch.zeros(size, device=device, dtype=parameter.dtype))
        channels, heights, widths = zip(*(output.map.shape[1:] for output in outputs), strict=True)
        return cls(tuple(zip(channels, heights, widths, strict=True)), own.shape[1], blocks.has_class_token)

    def width(self, part: Part) -> int:
        """Numbers of one image in a part."""
        if part.pooling == "own":
            return self.own
        channels, height, width = self.maps[part.block]
        return channels * (height * width if part.pooling == "patches" else 1)


@dataclass(frozen=True, kw_only=True)
class PartExtraction(Extraction):
    """The computation of some parts of a set in one pass."""

    parts: tuple[Part, ...]
    shapes: Shapes

    @classmethod
    def like(cls, other: Extraction, parts: Sequence[Part], shapes: Shapes) -> "PartExtraction":
        """These parts of the images of another extraction."""
        values = {name: getattr(other, name) for name in other.__dataclass_fields__}
        return cls(**values, parts=tuple(parts), shapes=shapes)

    @property
    def reader(self) -> nn.Module:
        """See `Extraction.reader`."""
        return PartReader(self.backbone.network, self.parts)

    @property
    def width(self) -> int:
        """See `Extraction.width`."""
        return sum(map(self.shapes.width, self.parts))

    def description(self) -> dict[str, Any]:
        """See `Extraction.description`."""
        parts = [[part.pooling, part.block] for part in self.parts]
        return super().description() | {"parts": parts, "gem": [GEM_POWER, GEM_LEAST]}


class PartRows:
    """Rows [N, W] of some parts, read from the features of all parts when they are needed.

    Args:
        stored: of all parts.
        spans: columns of the parts that are wanted, in their order.
        scale: rows are divided by it.
    """

    def __init__(self, stored: CachedFeatures, spans: Sequence[slice], scale: float = 1.0) -> None:
        self._stored, self._spans, self._scale = stored, spans, scale
        self.width: int = sum(span.stop - span.start for span in spans)

    @classmethod
    def of(cls, stored: CachedFeatures, extraction: PartExtraction, wanted: Sequence[Part]) -> "PartRows":
        """The rows of wanted parts among those of an extraction."""
        spans, start = dict[Part, slice](), 0
        for part in extraction.parts:
            spans[part] = slice(start, start + extraction.shapes.width(part))
            start = spans[part].stop
        return cls(stored, [spans[part] for part in wanted])

    def __len__(self) -> int:
        """N."""
        return len(self._stored)

    def __getitem__(self, numbers: Tensor) -> Tensor:
        """The rows of images with these numbers [n] int64."""
        rows = [self._wanted(self._stored.rows(number, number + 1)) for number in numbers.tolist()]
        return torch.cat([torch.empty(0, self.width), *rows])

    def all(self) -> Tensor:
        """All rows, in N x W x 4 bytes of memory."""
        rows, start = torch.empty(len(self), self.width), 0
        for piece in self._pieces():
            rows[start : start + len(piece)] = piece
            start += len(piece)
        return rows

    def mean_square(self) -> float:
        """The mean of all squares, which takes one reading."""
        total = sum((float(piece.double().square().sum()) for piece in self._pieces()), 0.0)
        return total / max(1, len(self) * self.width)

    def divided(self, scale: float) -> "PartRows":
        """The same rows, divided by a number."""
        return PartRows(self._stored, self._spans, self._scale * scale)

    def _pieces(self) -> Iterator[Tensor]:
        for start in range(0, len(self), 1024):
            yield self._wanted(self._stored.rows(start, start + 1024))

    def _wanted(self, rows: Tensor) -> Tensor:
        return torch.cat([rows[:, span] for span in self._spans], 1) / self._scale
