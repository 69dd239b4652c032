"""NT-Xent, SimCLR's contrastive loss between the views of an image, for multi-crop, many ranks and large batches.

It is an option of ours, not ExCB's: `method.contrast` adds it to Eq. 7, `method.clustering=false` trains by it alone.
The loss is that of "A Simple Framework for Contrastive Learning of Visual Representations" (Chen et al., ICML 2020,
Eq. 1) where there are two global views and no local ones.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from excb.distributed.collectives import gather_rows_with_gradient, rank
from excb.exact import similarities

TILE = 2**26  # similarities held at once: 256 MiB in float32; more are computed again in the backward pass


def nt_xent(rows: Tensor, globals_: int, *, temperature: float) -> Tensor:
    """The mean of -log(exp(a.p / tau) / (exp(a.p / tau) + sum over negatives of exp(a.n / tau))).

    Every view of an image is an anchor a. Its positives p are the image's other global views, one term each. Its
    negatives n are the global views of all other images of the batch, of all ranks together.

    Args:
        rows: unit projections of this rank, [V, B, D], the global views first; B is equal on all ranks.
        globals_: number G of global views; there is a term only where V > 1.
        temperature: tau.

    Returns:
        The mean over this rank's terms, []. Averaged over ranks (as DistributedDataParallel averages gradients) it is
        the loss of the whole batch.
    """
    views, images, _ = rows.shape
    keys = gather_rows_with_gradient(rows[:globals_].transpose(0, 1).contiguous())  # [N, G, D], N images of all ranks
    first = rank() * images
    own = torch.arange(first, first + images, device=rows.device)
    anchors = rows.transpose(0, 1)  # [B, V, D]
    at_once = max(1, TILE // max(1, views * globals_ * len(keys)))  # images of a tile
    tiles = range(0, images, at_once)

    def tile(start: int) -> Tensor:
        part = slice(start, start + at_once)
        inputs = anchors[part], keys, own[part], temperature
        if len(tiles) == 1 or not torch.is_grad_enabled():
            return _terms(*inputs)
        terms: Tensor = checkpoint(_terms, *inputs, use_reentrant=False)
        return terms

    total = torch.stack([tile(start) for start in tiles]).sum()
    return total / max(1, globals_ * (views - 1) * images)


def _terms(anchors: Tensor, keys: Tensor, own: Tensor, temperature: float) -> Tensor:
    """The sum of all terms of some images: anchors [B, V, D], keys [N, G, D], the anchors' places among them [B]."""
    images, views, width = anchors.shape
    count, globals_, _ = keys.shape
    cosines = similarities(anchors.reshape(-1, width), keys.reshape(-1, width))
    logits = (cosines / temperature).view(images, views, count, globals_)
    same = torch.arange(count, device=own.device) == own[:, None]  # [B, N]
    negatives = logits.masked_fill(same[:, None, :, None], -torch.inf).flatten(2).logsumexp(2, keepdim=True)
    positives = logits.gather(2, own[:, None, None, None].expand(images, views, 1, globals_)).squeeze(2)  # [B, V, G]
    terms = torch.logaddexp(positives, negatives) - positives
    itself = torch.eye(views, globals_, dtype=torch.bool, device=own.device)  # a view is not its own positive
    return terms.masked_fill(itself, 0).sum()
