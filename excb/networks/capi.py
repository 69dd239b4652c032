"""CAPI's ViT (Darcet et al., 2025): rotary positions, registers on the edges of the image, and one block that pools."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from excb.errors import require

_HIGHEST, _LOWEST = 7.0, 7e-4  # frequencies of rotary positions, in turns a side of the image
_EPS = 1e-5  # of every RMSNorm
_SIDES = 4  # of an image


class Rotary(nn.Module):
    """Rotary positions of points in the unit square: half of a head's channels turn by rows, half by columns.

    The frequencies are in the files, but are not learnt.

    Args:
        width: channels of a head, a multiple of 4.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        steps = torch.linspace(0, -1, width // 4)
        each = 2 * math.pi * _HIGHEST * (_HIGHEST / _LOWEST) ** steps
        nothing = torch.zeros(width // 2)
        rows, columns = torch.cat([each, each, nothing]), torch.cat([nothing, each, each])
        self.freqs = nn.Parameter(torch.stack([rows, columns]), requires_grad=False)

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        """Turn [B, heads, N, width] by the positions of its tokens, [N, 2] in [0, 1]."""
        angles = points @ self.freqs
        first, second = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


class Attention(nn.Module):
    """Attention without biases, from tokens to themselves or to others."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.rope = Rotary(width // heads)

    def forward(self, x: Tensor, points: Tensor, others: Tensor, others_points: Tensor) -> Tensor:
        """Tokens [B, N, D] at `points` [N, 2] see `others` [B, M, D] at theirs."""
        q, k, v = (
            layer(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, tokens in ((self.q, x), (self.k, others), (self.v, others))
        )
        seen = F.scaled_dot_product_attention(self.rope(q, points), self.rope(k, others_points), v)
        projected: Tensor = self.proj(seen.transpose(1, 2).flatten(2))
        return projected


class Mlp(nn.Module):
    """Two layers without biases, four times as wide between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Each token by itself."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class Block(nn.Module):
    """Attention and MLP, each after an RMSNorm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.RMSNorm(width, eps=_EPS), Attention(width, heads)
        self.norm2, self.mlp = nn.RMSNorm(width, eps=_EPS), Mlp(width)

    def forward(
        self, x: Tensor, points: Tensor, others: Tensor | None = None, others_points: Tensor | None = None
    ) -> Tensor:
        """Tokens [B, N, D] see themselves, or `others`, which have a norm of their own already."""
        normed = self.norm1(x)
        if others is None or others_points is None:
            others, others_points = normed, points
        x = x + self.attn(normed, points, others, others_points)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Capi(nn.Module):
    """CAPI's encoder and the first block of its predictor: [B, 3, H, W] -> [B, width].

    The network has no class token. Its authors take the mean of what the predictor's first block predicts for all
    patches as the features of an image. Dense tasks and attentive probes take the encoder's patches, which
    `forward_intermediates` gives. Images may be of any size: positions are shares of their sides.

    Args:
        width: D, of all tokens.
        depth: blocks of the encoder.
        heads: of each block.
        patch: side of a patch in pixels.
        registers: tokens beside the patches, a multiple of 4.

    Raises:
        UserError: sizes that do not fit each other.
    """

    def __init__(
        self, width: int = 1024, depth: int = 24, heads: int = 16, patch: int = 14, registers: int = 16
    ) -> None:
        super().__init__()
        numbers = (width, depth, heads, patch, registers)
        fit = all(type(number) is int and 0 < number <= 8192 for number in numbers)
        fit = fit and depth <= 200 and width % (4 * heads) == 0 and registers % _SIDES == 0
        require(fit, f"capi takes a width that is a multiple of 4 x heads, and registers by fours, not {numbers}")
        self.num_features, self.patch = width, patch
        self.registers = nn.Parameter(torch.randn(1, registers, width) * 0.02)
        self.mask_token = nn.Parameter(torch.randn(1, width) * 0.02)
        self.patch_embed = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.pool = Block(width, heads)
        self.norm = nn.RMSNorm(width, eps=_EPS, elementwise_affine=False)
        self.feature_info = [{"num_chs": width, "reduction": patch} for _ in range(depth)]

    def forward(self, images: Tensor) -> Tensor:
        """Features of normalised images."""
        tokens, points, patches = self._tokens(images)
        for block in self.blocks:
            tokens = block(tokens, points)
        asked = self.mask_token.expand(images.shape[0], len(patches), -1)
        features: Tensor = self.norm(self.pool(asked, patches, self.norm(tokens), points)).mean(1)
        return features

    def forward_intermediates(
        self,
        images: Tensor,
        *,
        indices: Sequence[int],
        norm: bool = True,
        output_fmt: str = "NCHW",
        intermediates_only: bool = True,
    ) -> list[Tensor]:
        """The patches after blocks of the encoder as maps [B, D, H / patch, W / patch], as timm's ViTs give them.

        Args:
            images: normalised.
            indices: of the blocks, from 0, in ascending order.
            norm: whether the maps go through the final norm.
            output_fmt: "NCHW", the only format.
            intermediates_only: True, the only way.

        Raises:
            UserError: another format is asked for.
        """
        require(output_fmt == "NCHW" and intermediates_only, "capi gives its maps as NCHW, and nothing beside them")
        tokens, points, patches = self._tokens(images)
        grid, maps = [side // self.patch for side in images.shape[-2:]], []
        for index, block in enumerate(self.blocks[: max(indices) + 1]):
            tokens = block(tokens, points)
            if index in indices:
                out = (self.norm(tokens) if norm else tokens)[:, -len(patches) :]
                maps.append(out.transpose(1, 2).unflatten(2, grid).contiguous())
        return maps

    def _tokens(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Registers and patches [B, N, D], where they are [N, 2], and where the patches alone are."""
        patches: Any = self.patch_embed(images)
        rows, columns = (torch.linspace(0, 1, side, device=images.device) for side in patches.shape[-2:])
        grid = torch.cartesian_prod(rows, columns).to(self.registers.dtype)
        registers = self.registers.expand(images.shape[0], -1, -1)
        edges = _edges(registers.shape[1]).to(grid) * grid.amax(0)  # an image of one patch has no other point
        points = torch.cat([edges, grid])
        return torch.cat([registers, patches.flatten(2).transpose(1, 2)], dim=1), points, grid


def _edges(number: int) -> Tensor:
    """Points on the four edges of the unit square, one edge after another: [number, 2]."""
    along = torch.arange(number // _SIDES) / (number // _SIDES)
    none, all_ = torch.zeros_like(along), torch.ones_like(along)
    sides = ((along, none), (all_, along), (1 - along, all_), (none, 1 - along))
    return torch.cat([torch.stack(side, dim=1) for side in sides])
