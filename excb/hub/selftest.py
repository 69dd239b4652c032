"""The self-test of loading: does a backbone give the features that it gave when exported, and was it ever trained?

D is the features' width. Everything is computed in float32 on the CPU, from photographs that come with pip.
"""

import copy
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn

from excb import seeding
from excb.checkpoint import exported
from excb.errors import UserError
from excb.files.atomic import write_bytes
from excb.hub.backbone import Backbone
from excb.images import photographs
from excb.images.photographs import PHOTOGRAPHS, SPLITS, PhotographError, photograph
from excb.networks.architecture import RGB
from excb.networks.backbone import check_resolution, evaluating

PICTURES = ("astronaut", "cat", "coffee", "motorcycle")  # PNG files, which every decoder reads alike

# How far from what is stored each part may be. The network alone is judged strictly: between threads, memory layouts,
# with and without oneDNN, and against float64, features of ResNets, ViTs, MobileNetV2, EfficientNet and ConvNeXt were
# at most 1.3e-6 apart where the network was trained and 9e-6 where it was not.
NETWORK = 1e-4  # relative L2 distance of an image's features
# Pillow resizes in integers, so that other machines should give the same pixels; yet a grey level may be lost to
# rounding. Were one pixel in ten one level off, means of 4 x 4 areas would move by 3e-4 at 224 pixels, by 1e-3 at 48.
# A standard deviation of .228 for .229 moves them by 7e-3 or more.
COLOUR = 2e-3  # absolute, in units of the network's input
# One pixel in a hundred one level off moves features by 7e-4 to 1e-2. Bicubic for bilinear moves those of trained
# networks by 6e-2 to 2e-1, of random ones by 1e-2 to 3e-1; one pixel in the size of the resize by 6e-2 to 3e-1.
FEATURES = 1e-2  # relative L2 distance of an image's features
AREAS = 4

BANK, QUERIES = 8, 16  # patches per photograph
PATCH = 88  # side in pixels, of a photograph
SIDES = (64, 56)  # at which patches are judged where a checkpoint's own images are larger: multiples of 16 and of 14
SEEDS = 3  # of random networks to compare with
MARGIN = 10.0  # in points of accuracy; measured: see `check_trained`


def expected(backbone: Backbone) -> dict[str, Tensor]:
    """Features that `check_self_test` compares: of four photographs, with and without the checkpoint's preprocessing.

    Args:
        backbone: on the CPU; its pooled features are taken, whatever else it is set to return.

    Returns:
        "photographs": SHA-256 of each one's pixels, uint8 [4, 32]. "network": features of inputs that no preprocessing
        made, [4, D]. "colours": mean inputs of 4 x 4 areas of each preprocessed photograph, [4, C, 4, 4]. "features":
        of the preprocessed photographs, [4, D].

    Raises:
        PhotographError: a photograph is not installed.
    """
    pictures = [photograph(name) for name in PICTURES]
    channels = backbone.transform.channels
    inputs = torch.stack([backbone.transform(_shown(picture, channels)) for picture in pictures])
    digests = [bytearray(hashlib.sha256(picture.tobytes()).digest()) for picture in pictures]
    return {
        "photographs": torch.stack([torch.frombuffer(digest, dtype=torch.uint8) for digest in digests]),
        "network": _features(backbone.network, _plain_inputs(pictures, backbone.transform.crop, channels)),
        "colours": F.adaptive_avg_pool2d(inputs, AREAS),
        "features": _features(backbone.network, inputs),
    }


def write_self_test(folder: Path, backbone: Backbone) -> None:
    """Write `expected` as the self-test of a folder that is being exported: see `complete` of `exported.write`.

    Raises:
        UserError: the file cannot be written, or a photograph is not installed.
    """
    write_bytes(exported.serialised(expected(backbone)), folder / exported.SELFTEST)


def check_self_test(backbone: Backbone, stored: Mapping[str, Tensor]) -> None:
    """Refuse a backbone whose features are not those that were stored.

    Args:
        backbone: as `excb.load` gives it.
        stored: what `expected` returned at export, as `exported.read_part` reads it.

    Raises:
        PhotographError: the installed photographs are not the same ones, so nothing can be compared.
        UserError: the network or its preprocessing is a different one.
    """
    computed = expected(backbone)
    kinds = {name: (value.shape, value.dtype) for name, value in stored.items()}
    if any(kinds.get(name) != (value.shape, value.dtype) for name, value in computed.items()):
        raise UserError("the self-test belongs to a network of another width or to another version: export again")
    if not torch.equal(computed["photographs"], stored["photographs"]):
        raise PhotographError(
            "photographs changed: cannot tell; scikit-image here has other pixels than at export: install another "
            "version of it"
        )
    for name, distance, allowed, meaning in (
        ("network", _relative, NETWORK, "the network computes something else: its weights or its architecture changed"),
        ("colours", _largest, COLOUR, "images are prepared differently: mean, std, size or crop changed"),
        ("features", _relative, FEATURES, "images are prepared differently: size, crop or interpolation changed"),
    ):
        apart = distance(computed[name].double(), stored[name].double())
        if not apart <= allowed:  # nor NaN
            raise UserError(f"{meaning} ({name}: {apart:.1e} from what was stored, {allowed:.0e} allowed)")


def _relative(computed: Tensor, stored: Tensor) -> float:
    return float(((computed - stored).norm(dim=1) / stored.norm(dim=1).clamp_min(1e-30)).max())


def _largest(computed: Tensor, stored: Tensor) -> float:
    return float((computed - stored).abs().max())


def _shown(picture: Image.Image, channels: int) -> Image.Image | np.ndarray:
    """A photograph for a network of so many channels: red, green and blue in turn."""
    return picture if channels == RGB else np.asarray(picture)[..., np.arange(channels) % RGB]


def _plain_inputs(pictures: list[Image.Image], side: int, channels: int) -> Tensor:
    """Inputs [N, C, side, side] of about unit size, made by integers alone: each pixel is one of the photograph."""
    inputs = []
    for picture in pictures:
        pixels = torch.from_numpy(np.array(_shown(picture, channels))).permute(2, 0, 1)
        rows, columns = (torch.arange(side) * size // side for size in pixels.shape[1:])
        inputs.append(pixels[:, rows][:, :, columns])
    return (torch.stack(inputs).float() - 128) / 64  # exact


@torch.no_grad()
def _features(network: nn.Module, inputs: Tensor) -> Tensor:
    """Features [N, D] of any number of inputs, in eval mode."""
    with evaluating(network):
        return torch.cat([network(batch).float() for batch in inputs.split(32)])


def check_trained(backbone: Backbone) -> None:
    """Refuse a backbone that is as first initialised, or not clearly better than random at telling photographs apart.

    Patches of photographs must have their nearest neighbours among other patches of the same photograph more often, by
    `MARGIN` points, than they have for any of six random networks: three with new weights, and three with the
    backbone's own in another order, each with the BatchNorm statistics of these patches. Mirrored patches with other
    colours are tried first, and then patches as they are, which suffice: a network that was trained without changes of
    colour knows photographs by theirs.

    Raises:
        PhotographError: a photograph is not installed.
        UserError: it was not trained, or not enough to show.
    """
    network = backbone.network
    if _as_initialised(network):
        raise UserError("the network is as first initialised: its normalisation layers have never been trained")
    sets = [_patches(backbone, altered=altered) for altered in (True, False)]
    reached = [_accuracy(network, bank, queries) for bank, queries in sets]
    random = [0.0, 0.0]
    for other in _random_networks(backbone):
        _recompute_statistics(other, sets[0][0])
        random = [max(best, _accuracy(other, *each)) for best, each in zip(random, sets, strict=True)]
    if not any(ours >= best + MARGIN for ours, best in zip(reached, random, strict=True)):
        raise UserError(
            "the network is hardly better than random ones at telling photographs apart: "
            f"{reached[1]:.1f} % of patches, a random network {random[1]:.1f} %; with other colours {reached[0]:.1f} "
            f"and {random[0]:.1f} %; a trained one should lead by {MARGIN:.0f} points: train it longer"
        )


def _as_initialised(network: nn.Module) -> bool:
    """Whether every normalisation layer has the weights, or every BatchNorm the statistics, that it was made with."""
    layers = [layer for layer in network.modules() if "Norm" in type(layer).__name__]

    def of(name: str) -> list[Tensor]:
        values = (getattr(layer, name, None) for layer in layers)
        return [tensor for tensor in values if isinstance(tensor, Tensor)]

    weights, biases, means, variances = map(of, ("weight", "bias", "running_mean", "running_var"))
    untrained = all(bool(((w == 0) | (w == 1)).all()) for w in weights) and not any(bool(b.any()) for b in biases)
    unseen = not any(bool(m.any()) for m in means) and all(bool((v == 1).all()) for v in variances)
    return (bool(weights) and untrained) or (bool(means) and unseen)


def _patches(backbone: Backbone, *, altered: bool) -> tuple[Tensor, Tensor]:
    """Inputs of the bank and of the queries, [photographs * count, C, side, side] each, photograph by photograph."""
    crop = backbone.transform.crop
    side = next((side for side in SIDES if side < crop and _takes(backbone.network, side)), crop)
    transform = replace(backbone.transform, resize=side, crop=side)
    bank: list[Tensor] = []
    queries: list[Tensor] = []
    for number, name in enumerate(PHOTOGRAPHS):
        black, white = (photographs.patches(name, *cut, PATCH) for cut in zip(SPLITS, (BANK, QUERIES), strict=True))
        bank += [transform(_shown(patch, transform.channels)) for patch in black]
        cut = (_altered(patch, number, index) if altered else patch for index, patch in enumerate(white))
        queries += [transform(_shown(patch, transform.channels)) for patch in cut]
    return torch.stack(bank), torch.stack(queries)


def _takes(network: nn.Module, side: int) -> bool:
    try:
        check_resolution(network, [side])
    except UserError:
        return False
    return True


def _altered(patch: Image.Image, *name: int) -> Image.Image:
    """A patch mirrored and with other colours: else raw pixels, and so random networks, would do too well."""
    random = seeding.generator(seeding.Purpose.PHOTOGRAPHS, *name, 0)
    patch = ImageOps.mirror(patch)
    for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        patch = enhancer(patch).enhance(float(np.exp(random.uniform(np.log(0.7), np.log(1.2)))))
    return patch


def _accuracy(network: nn.Module, bank: Tensor, queries: Tensor) -> float:
    """Percent of queries whose nearest neighbour, by cosine, is of the same photograph."""
    rows, wanted = (F.normalize(_features(network, inputs), dim=1) for inputs in (bank, queries))
    nearest = (wanted @ rows.T).argmax(dim=1)
    return 100 * float((nearest // BANK == torch.arange(len(wanted)) // QUERIES).float().mean())


def _random_networks(backbone: Backbone) -> Iterator[nn.Module]:
    """By turns a new network, and the backbone with its weights shuffled; torch's generator stays as it is."""
    for seed in range(SEEDS):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            pair = backbone.entry.architecture.build(), _shuffled(backbone.network)
        yield from pair


def _shuffled(network: nn.Module) -> nn.Module:
    """A copy with the numbers of every matrix and kernel in another order: as large, and with nothing learnt."""
    other = copy.deepcopy(network)
    for weight in other.parameters():
        if weight.ndim > 1:
            weight.data = weight.data.flatten()[torch.randperm(weight.numel())].view_as(weight)
    return other


@torch.no_grad()
def _recompute_statistics(network: nn.Module, inputs: Tensor) -> None:
    """Give BatchNorms the statistics of these inputs [N, C, H, W]: with others, a random network would do too badly."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    with evaluating(network):
        for layer in layers:
            layer.train()
            layer.momentum = 1.0  # of the last batch alone, and there is but one
        if layers:
            network(inputs)
