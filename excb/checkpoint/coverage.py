"""How far a file's tensors cover a network: what is missing, unexpected or misshapen, and the likeliest cause."""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor

from excb.console import few, plural
from excb.errors import UserError
from excb.networks.architecture import TIMM_NAMES, WIDER, Architecture, EndlessError
from excb.networks.backbone import shapes_only

# torchvision's ResNets by the lengths of their stages and whether blocks are bottlenecks.
_RESNETS: dict[tuple[tuple[int, ...], bool], str] = {
    ((2, 2, 2, 2), False): "resnet18",
    ((3, 4, 6, 3), False): "resnet34",
    ((3, 4, 6, 3), True): "resnet50",
    ((3, 4, 23, 3), True): "resnet101",
    ((3, 8, 36, 3), True): "resnet152",
}
# ViTs by width and number of blocks.
_VITS = {
    (192, 12): "vit_tiny",
    (384, 12): "vit_small",
    (768, 12): "vit_base",
    (1024, 24): "timm:vit_large_patch16_224",
    (1280, 32): "timm:vit_huge_patch14_224",
}
_PATCHES = (8, 14, 16, 32)  # sides in pixels
VARIANCE = "running_var"  # of BatchNorm
COUNTER = "num_batches_tracked"  # of BatchNorm: many converters leave it out, and evaluation does not use it


class Mismatch(NamedTuple):
    """One tensor that is not as the network needs it."""

    kind: str  # "missing", "unexpected" or "misshapen"
    name: str
    found: str  # type and shape in the file, or ""
    expected: str  # type and shape in the network, or ""


class CoverageError(UserError):
    """A file that does not cover a network wholly; `rows` has every tensor that is not as it should be."""

    def __init__(self, message: str, rows: Sequence[Mismatch]) -> None:
        super().__init__(message)
        self.rows = rows


def blueprint(architecture: Architecture) -> dict[str, Tensor]:
    """Names, shapes and types of an architecture's tensors; the tensors themselves may have no values.

    Raises:
        UserError: there is no such architecture.
    """
    with warnings.catch_warnings(action="ignore"):  # torch warns of tensors without elements, which fit nothing anyway
        try:
            with shapes_only():
                return dict(architecture.build().state_dict())
        except EndlessError:
            raise
        except (NotImplementedError, UserError):  # some networks look at values while they are built
            return dict(architecture.build().state_dict())


def recognise(tensors: Mapping[str, Tensor]) -> Architecture | None:
    """The architecture by names and shapes of tensors: a ResNet of torchvision, or a ViT of five sizes.

    What shapes do not show is as `Architecture` has it by default: see `excb.checkpoint.unseen`.
    """
    stages = tuple(_length(tensors, rf"layer{stage}\.(\d+)\.") for stage in range(1, 5))
    if resnet := _RESNETS.get((stages, any(name.endswith(".conv3.weight") for name in tensors))):
        return Architecture(_variant(resnet, tensors.get("conv1.weight")))
    patches, embeddings = tensors.get("patch_embed.proj.weight"), tensors.get("pos_embed")
    if (
        patches is None
        or patches.ndim != 4
        or any(re.fullmatch(r"blocks\.0\.(ls1\.gamma|gamma_1)", n) for n in tensors)
    ):
        return None
    name = _VITS.get((len(patches), _length(tensors, r"blocks\.(\d+)\.")))
    side = patches.shape[-1]
    if name is None or side not in _PATCHES or patches.shape[1:] != (3, side, side):
        return None
    options = {} if side == (14 if "patch14" in name else 16) else {"patch_size": side}
    if embeddings is not None and embeddings.ndim == 3:
        count = max(0, embeddings.shape[1] - 1)
        if (size := side * isqrt(count)) not in (0, 224) and isqrt(count) ** 2 == count:
            options["img_size"] = size
    return Architecture(name, options)


def is_usual_vit(architecture: Architecture) -> bool:
    """Whether it is one of the ViTs that `recognise` knows; all of them are plain ones with position embeddings."""
    return architecture.name in _VITS.values()


def _variant(name: str, stem: Tensor | None) -> str:
    """A ResNet's name by the shape of its first convolution."""
    if stem is None or stem.ndim != 4:
        return name
    channels, side = len(stem), stem.shape[-1]
    if (wider := f"{name}w{channels // 64}") in WIDER and side == 7:
        return wider
    return f"{name}_cifar" if (channels, side) == (64, 3) else name


def _length(names: Iterable[str], pattern: str) -> int:
    """One more than the largest number in names that begin with a pattern."""
    return max((1 + int(match[1]) for name in names if (match := re.match(pattern, name))), default=0)


def cover(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], spare: Sequence[str] = ()) -> list[Mismatch]:
    """Every tensor that is not as a network needs it; none where tensors cover it, and nothing else.

    Args:
        tensors: of the file.
        wanted: of the network, as `blueprint` gives them.
        spare: how names of tensors begin that the network may do without: classifiers, projection heads.
    """
    rows = [
        Mismatch("missing", name, "", _described(value))
        for name, value in wanted.items()
        if name not in tensors and not name.endswith(COUNTER)
    ]
    for name, value in tensors.items():
        if name in wanted:
            floats = wanted[name].is_floating_point()
            kind = value.is_floating_point() if floats else not value.is_complex()
            if value.shape != wanted[name].shape or not kind:
                rows.append(Mismatch("misshapen", name, _described(value), _described(wanted[name])))
        elif not name.startswith(tuple(spare)):
            rows.append(Mismatch("unexpected", name, _described(value), ""))
    return rows


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def own(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, source: str) -> dict[str, Tensor]:
    """Copies of the tensors that cover a network, in its order and types: they hold on to nothing of the file.

    Counters of BatchNorm that the file has not are zero.

    Raises:
        UserError: a value that no network has; see `check_values`.
    """
    copies = {
        name: tensors[name].detach().to(value.dtype, copy=True, memory_format=torch.contiguous_format)
        if name in tensors
        else torch.zeros(value.shape, dtype=value.dtype)
        for name, value in wanted.items()
    }
    check_values(copies, source=source)
    return copies


def check_values(tensors: Mapping[str, Tensor], *, source: str) -> None:
    """Refuse tensors with values that no trained network has: its features would be NaN, or no features at all.

    Raises:
        UserError: NaN or infinity in a tensor, or a negative variance of BatchNorm, whose square root is NaN.
    """
    floats = {name: value for name, value in tensors.items() if value.is_floating_point()}
    # One pass over each tensor: NaN anywhere makes both ends NaN.
    ends = {name: torch.stack(value.aminmax()) for name, value in floats.items() if value.numel()}
    broken = [name for name, pair in ends.items() if not pair.isfinite().all()]
    what = "NaN or infinity"
    if not broken:
        broken = [name for name, pair in ends.items() if name.endswith(VARIANCE) and bool(pair[0] < 0)]
        what = "negative variances"
    if broken:
        raise UserError(
            f"{source} holds {what} in {plural(len(broken), 'tensor')} ({few(broken)}): its training diverged or the "
            "file is damaged; nothing was loaded"
        )


def coverage_error(
    rows: Sequence[Mismatch], tensors: Mapping[str, Tensor], architecture: Architecture, *, expected: int, source: str
) -> CoverageError:
    """The refusal of a file that does not cover a network: one line with counts, first names and likeliest cause."""
    parts = []
    for kind in ("missing", "unexpected", "misshapen"):
        of_kind = [row for row in rows if row.kind == kind]
        names = [f"{r.name} {r.found} for {r.expected}" if kind == "misshapen" else r.name for r in of_kind]
        if names:
            parts.append(f"{len(names)} {kind} ({few(names)})")
    return CoverageError(
        f"{source} does not cover {architecture.name}'s {plural(expected, 'tensor')}, nothing was loaded: "
        f"{'; '.join(parts)}; likeliest cause: {_cause(rows, tensors, architecture)}",
        rows,
    )


def _cause(rows: Sequence[Mismatch], tensors: Mapping[str, Tensor], architecture: Architecture) -> str:
    kinds = {row.kind for row in rows}
    theirs = recognise(tensors) or architecture
    causes = (
        (
            any(row.kind == "misshapen" and _transposed(row) for row in rows),
            "transposed kernels, as TensorFlow and JAX store them: convert the file to PyTorch first",
        ),
        (_same_name(theirs) != _same_name(architecture), f"wrong --arch: these are tensors of {theirs.name}"),
        (
            [row.name for row in rows] == ["pos_embed"],
            "a ViT for images of another size: use excb-zoo import --arch with timm's name of that size",
        ),
        ("misshapen" in kinds, "another network with the same names, wider or narrower: use excb-zoo import --arch"),
        ("unexpected" not in kinds, "the file is incomplete, or --arch is a larger network"),
        (
            "missing" not in kinds,
            "the file holds another network, or more than one: use excb-zoo import --arch or --layout",
        ),
    )
    return next((cause for holds, cause in causes if holds), "wrong --arch, or an unknown layout")


def _transposed(row: Mismatch) -> bool:
    """Whether a tensor has the sides of the expected one in another order."""
    present, wanted = (re.findall(r"\d+", text.partition("[")[2]) for text in (row.found, row.expected))
    return present != wanted and sorted(present) == sorted(wanted)


def _same_name(architecture: Architecture) -> str:
    name = re.sub(r"^(timm|torchvision):", "", architecture.name)
    return TIMM_NAMES.get(name, name).partition(".")[0]
