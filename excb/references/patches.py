"""Whitened patches with k-means: one layer of features that is fitted to images in seconds and needs no labels.

Sources: Coates, Lee and Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning", AISTATS 2011, and
their code; Coates and Ng, "The Importance of Encoding Versus Training with Sparse Coding and Vector Quantization", ICML
2011, for the soft threshold. Patches of 6 x 6 pixels are normalised in contrast, whitened (ZCA) and compared with the
centroids of spherical k-means. A soft threshold keeps similarities of both signs. Their means over the four quarters of
an image are its features, standardised by those of training images.

Two things differ from the papers. There are 200 centroids, not thousands. And the stride between patches grows with the
image, from 2 pixels at 32 x 32, so that there are about 16 x 16 patches and an image takes about as long at any size.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from excb.errors import require
from excb.exact import exact_products
from excb.images.image_set import Images
from excb.images.subset import Subset
from excb.networks.features import Inputs, extract
from excb.networks.preprocessing import Preprocessing

NAME, TITLE = "patches", "whitened patches with k-means"
SIDE = 6  # of a patch, in pixels
CENTROIDS = 200
GRID = 16  # patches along a side of a large image, about
NARROWEST = 2  # pixels between patches of a small one
IMAGES, MEMORY = 1000, 2**26  # that it is fitted on, at most: images, and numbers in their inputs
SAMPLE, EACH = 40_000, 1000  # patches that it is fitted on, about; and of one image, at most
ROUNDS = 15  # of k-means
CONTRAST = 10 / 255**2  # added to the variance of a patch, of pixels in [0, 1]; theirs
WHITENING = 0.1  # added to the eigenvalues of the covariance; theirs
THRESHOLD = 0.25  # of similarities; theirs
FLOOR = 0.01  # added to the standard deviations of features, so that a centroid that is rarely near counts for little
PIECE = 2**22  # similarities that are in memory at once


class PatchRows(nn.Module):
    """Features of a network's inputs, [B, C, H, W] -> [B, 8 x CENTROIDS]: quarters x signs x centroids.

    All rows are 0 before `fit_patches`. Sides below `SIDE` pixels are enlarged to it.

    Args:
        mean: of the channels, which the inputs were normalised with.
        std: standard deviations, likewise.
    """

    mean: Tensor
    std: Tensor
    projection: Tensor  # [C x SIDE^2, CENTROIDS]: whitens, and compares with the centroids
    offset: Tensor  # [CENTROIDS]: the projection of the mean patch
    row_mean: Tensor  # [8 x CENTROIDS], of the rows of training images before they are standardised
    row_std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))
        self.register_buffer("projection", torch.zeros(len(mean) * SIDE * SIDE, CENTROIDS))
        self.register_buffer("offset", torch.zeros(CENTROIDS))
        self.register_buffer("row_mean", torch.zeros(8 * CENTROIDS))
        self.register_buffer("row_std", torch.ones(8 * CENTROIDS))

    def forward(self, inputs: Tensor) -> Tensor:
        """Rows, standardised."""
        return (self.encoded(inputs) - self.row_mean) / self.row_std

    def encoded(self, inputs: Tensor) -> Tensor:
        """Rows before they are standardised."""
        pixels = self.pixels(inputs)
        height, width = pixels.shape[2:]
        stride = _stride(height), _stride(width)
        grid = (height - SIDE) // stride[0] + 1, (width - SIDE) // stride[1] + 1
        at_once = max(1, PIECE // (CENTROIDS * math.prod(grid)))
        with exact_products(inputs.device):
            return torch.cat([self._encode(piece, stride, grid) for piece in pixels.split(at_once)])

    def pixels(self, inputs: Tensor) -> Tensor:
        """Inputs as pixels in [0, 1], large enough for a patch."""
        pixels, size = inputs.float() * self.std + self.mean, [max(SIDE, side) for side in inputs.shape[2:]]
        enlarge = size != [*inputs.shape[2:]]
        return F.interpolate(pixels, size, mode="bilinear", align_corners=False) if enlarge else pixels

    def _encode(self, pixels: Tensor, stride: tuple[int, int], grid: tuple[int, int]) -> Tensor:
        patches = normalised(F.unfold(pixels, SIDE, stride=stride).transpose(1, 2))
        similar = (patches @ self.projection - self.offset).transpose(1, 2).unflatten(2, grid)
        return F.adaptive_avg_pool2d(torch.cat([similar - THRESHOLD, -similar - THRESHOLD], 1).relu_(), 2).flatten(1)


def _stride(side: int) -> int:
    """Pixels between patches along a side."""
    return max(NARROWEST, round(side / GRID))


def normalised(patches: Tensor) -> Tensor:
    """Patches [..., C x SIDE^2] less their means, divided by their standard deviations."""
    centred = patches - patches.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + CONTRAST).rsqrt_()


def fitted(images: Images, preprocessing: Preprocessing, *, seed: int = 0, workers: int = 0) -> PatchRows:
    """`PatchRows` for inputs of this preprocessing, fitted on a sample of a set, on the CPU.

    Args:
        images: which its rows will be compared among, or else the train images; test images have no place here.
        preprocessing: of the network that it stands beside.
        seed: everything drawn depends on it alone.
        workers: processes that read images.

    Raises:
        UserError: none of the images can be read.
    """
    rows = PatchRows(preprocessing.mean, preprocessing.std)
    fit_patches(rows, read_sample(images, preprocessing, seed=seed, workers=workers), seed=seed)
    return rows


def read_sample(images: Images, preprocessing: Preprocessing, *, seed: int = 0, workers: int = 0) -> Tensor:
    """Inputs [N, C, H, W] of images that are evenly spread over a set: one is drawn from each of N equal stretches.

    N is at most `IMAGES`, and less where inputs are large: they hold at most `MEMORY` numbers.

    Raises:
        UserError: none of the images can be read.
    """
    number = min(len(images), IMAGES, max(1, MEMORY // (preprocessing.channels * preprocessing.crop**2)))
    edges = np.arange(number + 1) * len(images) // max(1, number)
    drawn = np.random.default_rng(seed).integers(edges[:-1], edges[1:])
    inputs = extract(nn.Identity(), Inputs(Subset(images, drawn), preprocessing), workers=workers).rows
    require(
        len(inputs) > 0, f"no image of {number:,} in {images.root} can be read, so there are no patches to learn from"
    )
    return inputs


@torch.no_grad()
def fit_patches(rows: PatchRows, inputs: Tensor, *, seed: int = 0) -> None:
    """Learn whitening, centroids and standardisation, in place.

    Args:
        rows: on the CPU.
        inputs: [N, C, H, W] of training images.
        seed: of the choice of patches, and of the first centroids.
    """
    random = torch.Generator().manual_seed(seed)
    patches = _random_patches(rows.pixels(inputs), min(EACH, -(-SAMPLE // len(inputs))), random)
    whitening, mean = whiten(patches)
    projection = whitening @ signed_kmeans((patches - mean) @ whitening, CENTROIDS, random).T
    rows.projection.copy_(projection)
    rows.offset.copy_(mean @ projection)
    std, mean = torch.std_mean(rows.encoded(inputs), 0, correction=0)
    rows.row_mean.copy_(mean)
    rows.row_std.copy_(std + FLOOR)


def _random_patches(pixels: Tensor, each: int, random: torch.Generator) -> Tensor:
    """`each` patches of every image [N, C, H, W] at random places, normalised: [N x each, C x SIDE^2]."""
    places = torch.rand(2, len(pixels), each, 1, 1, generator=random)
    top, left = ((place * (side - SIDE + 1)).long() for place, side in zip(places, pixels.shape[2:], strict=True))
    inside, image = torch.arange(SIDE), torch.arange(len(pixels)).view(-1, 1, 1, 1)
    patches = pixels.permute(0, 2, 3, 1)[image, top + inside[:, None], left + inside]  # [N, each, SIDE, SIDE, C]
    return normalised(patches.permute(0, 1, 4, 2, 3).flatten(2).flatten(0, 1))


def whiten(patches: Tensor) -> tuple[Tensor, Tensor]:
    """ZCA of patches [N, D]: the matrix [D, D] that makes their covariance about the identity, and their mean [D]."""
    values, vectors = torch.linalg.eigh(patches.T.cov(correction=0).double())
    return (vectors * (values.clamp(min=0) + WHITENING).rsqrt()).matmul(vectors.T).float(), patches.mean(0)


def signed_kmeans(patches: Tensor, number: int, random: torch.Generator) -> Tensor:
    """Unit centroids [number, D] of patches [N, D], N >= number; a patch is near a centroid or its negative alike.

    A centroid is the direction of the sum of its patches, each times its similarity. One without patches stays.
    """
    centroids = F.normalize(patches[torch.randperm(len(patches), generator=random)[:number]], dim=1)
    for _ in range(ROUNDS):
        similarities = patches @ centroids.T
        nearest = similarities.abs().argmax(1)
        own = similarities.gather(1, nearest[:, None])
        sums = torch.zeros_like(centroids).index_add_(0, nearest, own * patches)
        centroids = torch.where(sums.norm(dim=1, keepdim=True) > 0, F.normalize(sums, dim=1), centroids)
    return centroids
