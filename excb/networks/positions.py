"""Position embeddings of ViTs for images of another size: interpolated as timm does, antialiased, or as DINO does."""

from typing import cast

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from excb.errors import UserError

# DINO enlarges the new grid by this share of a cell, so that rounding never loses one. Where cells lie moves with it.
_DINO_MARGIN = 0.1


class DinoPositions(VisionTransformer):
    """timm's ViT with DINO's interpolation of position embeddings, for images of any size; its tensors are the same."""

    def _pos_embed(self, x: Tensor) -> Tensor:
        """Add position embeddings to patches [B, H, W, D], after the class and register tokens: -> [B, N, D]."""
        embeddings: Tensor | None = self.pos_embed
        if not self.dynamic_img_size or embeddings is None:
            return super()._pos_embed(x)
        prefix = [token.expand(x.shape[0], -1, -1) for token in (self.cls_token, self.reg_token) if token is not None]
        patches, grid = x.flatten(1, 2), (x.shape[1], x.shape[2])
        first = 0 if self.no_embed_class else self.num_prefix_tokens  # tokens with an embedding that are not patches
        own = embeddings[:, first:].unflatten(1, self.patch_embed.grid_size)
        moved = interpolate(own, grid, dino=True).flatten(1, 2)
        if first:
            tokens = torch.cat([*prefix, patches], 1) + torch.cat([embeddings[:, :first], moved], 1)
        else:
            tokens = torch.cat([*prefix, patches + moved], 1)
        return cast("Tensor", self.pos_drop(tokens))


def as_dino(network: nn.Module) -> nn.Module:
    """Let one of timm's ViTs interpolate its position embeddings as DINO does.

    Raises:
        UserError: the network is not a plain ViT with position embeddings.
    """
    if type(network) is not VisionTransformer or network.pos_embed is None:
        raise UserError(
            f"only timm's plain ViTs have position embeddings that are interpolated as in DINO, and this "
            f"{type(network).__name__} is none: set model.position_interpolation=antialiased"
        )
    network.__class__ = DinoPositions  # a new object would draw its weights again
    return network


def interpolate(embeddings: Tensor, grid: tuple[int, int], *, dino: bool) -> Tensor:
    """Position embeddings of patches for another grid: bicubic, [1, H, W, D] -> [1, h, w, D]. The own grid keeps them.

    Args:
        embeddings: of the network's own grid.
        grid: (h, w), in patches.
        dino: as DINO, without antialiasing and by the scale (h + 0.1) / H; else as timm, antialiased and by h / H.
    """
    old = embeddings.shape[1:3]
    if old == grid:
        return embeddings
    channels_first = embeddings.permute(0, 3, 1, 2)
    wide = channels_first if embeddings.dtype is torch.float64 else channels_first.float()
    if dino:
        scale = [(new + _DINO_MARGIN) / was for new, was in zip(grid, old, strict=True)]
        moved = F.interpolate(wide, scale_factor=scale, mode="bicubic")
    else:
        moved = F.interpolate(wide, size=grid, mode="bicubic", antialias=True)
    return moved.permute(0, 2, 3, 1).to(embeddings.dtype)
