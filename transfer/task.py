"""The task of a protocol: a loaded backbone and labelled train and test images of the same classes."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from excb.checkpoint.run_checkpoint import FOLDER
from excb.console import Reporter, plural
from excb.distributed.collectives import broadcast, rank, run_on_rank0
from excb.distributed.machine import choose_device
from excb.distributed.workers import worker_count
from excb.errors import UserError, require
from excb.features.cache import CachedFeatures
from excb.features.extraction import Extraction, features_of
from excb.features.precision import Precision, check_precision
from excb.hub.adopted import Adopted, OwnTransform, adopt
from excb.hub.backbone import Backbone, Entry
from excb.hub.loading import load
from excb.hub.resolve import UNTRAINED
from excb.images.image_set import Images, ledger_of
from excb.images.pixels import EIGHT_BIT
from excb.ledger import NAMED, NOTHING, Ledger, doubt
from excb.networks.architecture import RGB
from excb.networks.backbone import check_resolution, image_channels, weights_hash
from excb.networks.features import Kind
from excb.networks.preprocessing import Preprocessing
from excb.references import patches, untrained
from excb.references.baselines import rows_of_inputs
from excb.sources.label_files import scan_labelled

from .data.classes import labelled_folder, unknown_classes, with_classes_of
from .data.mapping import declared_pixels, on_one_mapping
from .options import BASELINES, REFERENCES
from .published.subjects import Subject

CPU_BATCH, FIRST_BATCH, MOST_BATCH = 64, 32, 1024  # of `--batch-size auto`
UNKNOWN = "no train image is of class"  # how a note on a class of test images begins that the train set lacks
FULL_PRECISION = "use --feature-precision fp32"  # where half precision is refused


@dataclass(frozen=True)
class Task:
    """A backbone and the images to judge it on."""

    backbone: Backbone  # in eval mode, on `device`
    preprocessing: Preprocessing  # the checkpoint's, or what the user chose
    train: Images  # labelled images
    # labelled images of the same classes; class indices are train's, and classes that train lacks come last
    test: Images
    device: torch.device  # where to compute
    batch: int  # images at once
    workers: int  # processes that read images
    cache: Path | None = None  # where features are kept; None keeps none
    precision: Precision = "fp32"  # of passes through the frozen backbone
    doubts: dict[str, Ledger] = field(default_factory=dict, compare=False)  # about features, by set

    @classmethod
    def prepare(
        cls,
        checkpoint: str | os.PathLike[str] | nn.Module,
        train: Path | Images,
        test: Path | Images,
        *,
        network: Literal["teacher", "student"] = "teacher",
        resize: int | None = None,
        crop: int | None = None,
        device: str | torch.device = "auto",
        batch: int | Literal["auto"] = 64,
        workers: int | None = None,
        rename: Mapping[str, str] | None = None,
        cache: Path | None = None,
        heads: bool = False,
        precision: Precision = "fp32",
        pixel_range: str | None = None,
        channels: int | None = None,
        reporter: Reporter | None = None,
    ) -> Self:
        """Load and check everything before any work starts.

        Args:
            checkpoint: what `excb.load` takes, or a network (`excb.hub.adopted.adopt`), which is evaluated as it is.
            train: labelled images, as `sources.train_and_test` opens them, or a folder with one sub-folder per class.
            test: the same for other images.
            network: of a run's checkpoint.
            resize: shorter side in pixels; the checkpoint's by default.
            crop: central square in pixels; the checkpoint's by default.
            device: see `on`.
            batch: likewise.
            workers: likewise.
            rename: see `with_classes_of`.
            cache: see `on`.
            heads: load projector and centroids as well, as `backbone.heads`.
            precision: see `on`.
            pixel_range: LOW..HIGH of images of more than 8 bits; else the checkpoint's, or that of the train images.
            channels: of the images; else the checkpoint's, or what they have.
            reporter: for what the images' pixels are.

        Raises:
            UserError: checkpoint or images cannot be used; or as `on`.
        """
        train_set = labelled_folder(train) if isinstance(train, Path) else train
        test_set = (
            with_classes_of(scan_labelled(test, "test"), train_set, rename=rename) if isinstance(test, Path) else test
        )
        backbone = backbone_of(checkpoint, network=network, heads=heads)
        preprocessing = backbone.transform
        if resize is not None or crop is not None:
            require(not isinstance(preprocessing, OwnTransform), "the network's own transform says the size of images")
            preprocessing = _resized(preprocessing, resize, crop)
            check_resolution(backbone, [preprocessing.crop])
        say = reporter or Reporter(quiet=True)
        train_set, test_set, preprocessing = on_one_mapping(
            train_set,
            test_set,
            preprocessing,
            declared_pixels(pixel_range, channels, preprocessing.pixels),
            note=say.note,
            warn=say.warn,
        )
        return cls.on(
            backbone,
            preprocessing,
            train_set,
            test_set,
            device=device,
            batch=batch,
            workers=workers,
            cache=cache,
            precision=precision,
        )

    @classmethod
    def on(
        cls,
        backbone: Backbone,
        preprocessing: Preprocessing,
        train: Images,
        test: Images,
        *,
        device: str | torch.device,
        batch: int | Literal["auto"],
        workers: int | None,
        cache: Path | None,
        precision: Precision,
        **own: Any,
    ) -> Self:
        """Move a backbone to its device, and check that features can be computed there as they are asked for.

        Args:
            backbone: of the checkpoint.
            preprocessing: of every image.
            train: images to learn from.
            test: images to judge on.
            device: cpu, cuda or auto.
            batch: images at once; "auto" is half of what the GPU can hold, and 64 on the CPU.
            workers: processes that read images; None chooses.
            cache: where features are kept, such as `excb.remote.home.cache_root()`; None keeps none.
            precision: of passes through the frozen backbone; "bf16" is autocast.
            own: further fields of a subclass.

        Raises:
            UserError: device, batch or workers cannot be used; or features would leave the bound of
                `excb.features.precision.check_precision`.
        """
        if (batch != "auto" and batch < 1) or (workers is not None and workers < 0):
            raise UserError("--batch-size must be at least 1 and --workers at least 0")
        where, count = choose_device(str(device)), worker_count(-1 if workers is None else workers)
        backbone.to(where)
        if where.type == "cpu":  # convolutions of this layout take two thirds of the time there
            backbone.to(memory_format=torch.channels_last)
        size = automatic_batch(backbone, preprocessing.crop, where) if batch == "auto" else batch
        # Code may differ where weights and settings agree, and nothing but a checkpoint says what was run.
        cache = None if isinstance(backbone, Adopted) else cache
        task = cls(
            backbone=backbone,
            preprocessing=preprocessing,
            train=train,
            test=test,
            device=where,
            batch=size,
            workers=count,
            cache=cache,
            precision=precision,
            **own,
        )
        reader = task.extraction(train).reader
        check_precision(reader, precision, train, preprocessing, batch=size, advice=FULL_PRECISION)
        return task

    def untrained(self) -> Self:
        """The same evaluation of the same architecture with random weights; all ranks call this.

        BatchNorm statistics are those of the train images.
        """
        architecture, ours = self.backbone.entry.architecture, self.backbone
        network = untrained.build_untrained(architecture)
        entry = Entry(f"{UNTRAINED}{architecture.name}", architecture, untrained.NETWORK)
        backbone = Backbone(network, ours.transform, entry).eval().to(self.device)
        if self.device.type == "cpu":
            backbone.to(memory_format=torch.channels_last)
        return replace(self, backbone=backbone, doubts={}).calibrated()

    def baseline(self, name: str) -> Self:
        """The same evaluation of features that no network makes, from the same inputs; all ranks call this.

        Patches are fitted on the train images.

        Args:
            name: of `excb.references.baselines.REFERENCES`: "pixels", "colour_histogram" or "patches".

        Raises:
            UserError: colours cannot be counted, as the normalisation of the network's own transform is not known.
        """
        prepared = self.preprocessing
        known = not isinstance(prepared, OwnTransform) or prepared.normalisation_known
        require(known or name == "pixels", "the network's own transform does not say how it normalises colours")
        network = (
            run_on_rank0(lambda: patches.fitted(self.train, prepared, workers=self.workers))
            if name == patches.NAME
            else rows_of_inputs(name, prepared)
        )
        network.transform = prepared  # type: ignore[assignment]
        return replace(self, backbone=adopt(network).eval().to(self.device), doubts={})

    def beside(self, checkpoint: str) -> Self:
        """The same evaluation of another checkpoint, on images as that one prepares them; all ranks call this.

        Raises:
            UserError: it cannot be loaded, or as `on`.
        """
        backbone = backbone_of(checkpoint)
        prepared = replace(backbone.transform, pixels=self.preprocessing.pixels)
        where, batch, workers = self.device, self.batch, self.workers
        return self.on(
            backbone,
            prepared,
            self.train,
            self.test,
            device=where,
            batch=batch,
            workers=workers,
            cache=self.cache,
            precision=self.precision,
        )

    def reference(self, option: str) -> tuple[str, Callable[[], Self]]:
        """A reference of the evaluation, by the option that asks for it: its words, and what makes its task."""
        if option == "untrained":
            return "the same network untrained", self.untrained
        return BASELINES[option], partial(self.baseline, REFERENCES[option])

    @property
    def sets(self) -> dict[str, Images]:
        """Every set whose images are read, by its name in messages."""
        return {"train": self.train, "test": self.test}

    def calibrated(self) -> Self:
        """The task as it is; all ranks call this.

        An untrained network gets the BatchNorm statistics of train images: without, it would score too low.
        """
        if self.is_untrained:
            images = untrained.evenly_spread(self.train)
            run_on_rank0(lambda: untrained.estimate_batchnorm(self.backbone.network, images, self._square))
            broadcast(self.backbone.state_dict().values())
        return self

    @property
    def _square(self) -> Preprocessing:
        """A preprocessing that gives images of one size, which BatchNorm statistics are estimated on."""
        return self.preprocessing

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that figures depend on beside a protocol's own, where they are not the defaults."""
        return self._precision

    @property
    def _precision(self) -> dict[str, Any]:
        return {} if self.precision == "fp32" else {"feature_precision": self.precision}

    @property
    def is_untrained(self) -> bool:
        """Whether the backbone has random weights."""
        return self.backbone.entry.network == untrained.NETWORK

    def extraction(self, images: Images, kind: Kind = "pooled") -> Extraction:
        """The computation of the features of a set."""
        return Extraction(
            self.backbone,
            self.preprocessing,
            images,
            kind,
            self.device,
            self.batch,
            self.workers,
            precision=self.precision,
            advice="use a smaller --batch-size",
        )

    def stored(self, images: Images, name: str, reporter: Reporter, *, kind: Kind = "pooled") -> CachedFeatures:
        """Features of a set that are read as they are needed, for banks larger than memory; all ranks call this.

        Raises:
            UserError: an image cannot be read, so that figures would not be comparable; the backbone has no such
                features; or the cache cannot be written.
        """
        own_reporter = reporter if rank() == 0 else Reporter(quiet=True)
        return features_of(self.extraction(images, kind), self.cache, own_reporter, name=name)

    def features(
        self, images: Images, name: str, reporter: Reporter, *, kind: Kind = "pooled"
    ) -> tuple[Tensor, Tensor]:
        """Features [N, D] float32 and labels [N] int64 of a set, every image once, on the CPU: N x D x 4 bytes.

        They come from the cache where it has them, else they go there. All ranks call this together, and all get
        all rows: bit-exactly those of one process, where each process has as many threads. They may lie in the cache's
        file: do not change them in place.

        Args:
            images: the set.
            name: its name in messages.
            reporter: prints notes, progress and tables.
            kind: "pooled" is what the backbone returns; "last4_cls" are the class tokens of a ViT's last four blocks,
                each through the final norm, side by side: DINO's input of linear heads.

        Raises:
            UserError: as `stored`.
        """
        rows = self.stored(images, name, reporter, kind=kind).all()
        odd = (~rows.sum(1).isfinite()).nonzero()[:, 0].tolist()  # any inf or NaN in a row makes its sum one
        if odd:
            names = [images.paths[index] for index in odd[:NAMED]]
            advice = "no figure is right: try --feature-precision fp32, or other weights"
            self.doubts[name] = doubt("rows of features that are not finite", names, advice, of=name, count=len(odd))
            self.doubts[name].tell(reporter)
        assert images.labels is not None
        return rows, torch.from_numpy(images.labels)

    @property
    def unknown(self) -> dict[str, int]:
        """Test images of every class that the train set lacks."""
        return unknown_classes(self.train, self.test)

    def unknown_notes(self, what: str = "counted as wrong") -> list[str]:
        """A sentence for each class that the train set lacks; `what` happens to its test images."""
        return [f"{UNKNOWN} {name}: {plural(images, 'test image')} {what}" for name, images in self.unknown.items()]

    @property
    def ledger(self) -> Ledger:
        """All that was left out of the sets, or is doubted in them."""
        unique = {id(images): (images, name) for name, images in self.sets.items()}  # one set may have two names
        return sum((ledger_of(images).of(name) for images, name in unique.values()), sum(self.doubts.values(), NOTHING))

    def describe_checkpoint(self) -> dict[str, Any]:
        """The checkpoint, for the result. Its weights are hashed as they are now."""
        entry = self.backbone.entry
        subject = Subject.of_entry(entry.source, entry)
        return {
            "name": _name(entry),
            "source": entry.source,
            "architecture": entry.architecture.name,
            "network": entry.network,
            "step": entry.step,
            "epoch": entry.epoch,
            "recipe": entry.recipe.get("name"),
            "pretraining": {name: getattr(subject, name) for name in ("method", "epochs", "batch", "crops")},
            "preprocessing": self.preprocessing.to_dict(),
            **({"training_ledger": entry.training["ledger"]} if entry.training.get("ledger") else {}),
            **self._precision,
            "weights_sha256": weights_hash(self.backbone.network),
        }

    def describe_data(self) -> dict[str, Any]:
        """The images, for the result."""
        return {
            "train": describe_images(self.train),
            "test": describe_images(self.test),
            "classes": len(self.train.classes or ()),
            "unknown_classes": self.unknown,
        }

    def describe(self) -> dict[str, Any]:
        """Checkpoint, data and ledger, for the result."""
        return {"checkpoint": self.describe_checkpoint(), "data": self.describe_data(), "ledger": self.ledger}


def describe_images(images: Images) -> dict[str, Any]:
    """A set, for the result."""
    return {"root": str(images.root), "images": len(images), "fingerprint": images.fingerprint}


def backbone_of(
    checkpoint: str | os.PathLike[str] | nn.Module,
    *,
    network: Literal["teacher", "student"] = "teacher",
    heads: bool = False,
    img_size: int | None = None,
    loaded: str = "",
) -> Backbone:
    """The backbone of a checkpoint, or a network as one.

    Args:
        checkpoint: what `excb.load` takes, or a network (`excb.hub.adopted.adopt`), which is evaluated as it is.
        network: of a run's checkpoint.
        heads: load projector and centroids as well, as `backbone.heads`.
        img_size: as `excb.load` takes it.
        loaded: why a network must be one that `excb.load` gave, as the beginning of a sentence; empty where it need
            not.

    Raises:
        UserError: the checkpoint or the network cannot be used.
    """
    if not isinstance(checkpoint, nn.Module):
        return load(checkpoint, network=network, heads=heads, img_size=img_size)
    own = not isinstance(checkpoint, Backbone) or isinstance(checkpoint, Adopted)
    if loaded and own:
        raise UserError(f"{loaded} a backbone that excb.load gave: save the network, and name its file")
    backbone = checkpoint if loaded and isinstance(checkpoint, Backbone) else adopt(checkpoint)
    require(not heads or backbone.heads is not None, "this network has no heads: excb.load(..., heads=True)")
    return backbone


def require_colours(backbone: nn.Module, protocol: str) -> None:
    """Raise UserError for a network of other than RGB images in sRGB, where a protocol knows nothing else."""
    channels, prepared = image_channels(backbone), getattr(backbone, "transform", None)
    require(
        channels == RGB,
        f"{protocol} takes networks of {RGB} channels, and this one takes images of {channels}: choose knn, linear, "
        "finetune, retrieval or layers",
    )
    colours = prepared.pixels.colours if isinstance(prepared, Preprocessing) else EIGHT_BIT.colours
    require(
        colours == EIGHT_BIT.colours,
        f"{protocol} converts colours to sRGB by their profiles, and this network takes them as {colours}: choose knn, "
        "linear, finetune, retrieval or layers",
    )


def _name(entry: Entry) -> str:
    """The name of a checkpoint: the catalogue's name, or its run with the step, or its file."""
    if entry.checkpoint is not None:
        return entry.checkpoint.name
    file = Path(entry.source)
    if file.parent.name == FOLDER and entry.step is not None:
        return f"{file.parent.parent.name} step {entry.step}"
    return file.name


def _resized(preprocessing: Preprocessing, resize: int | None, crop: int | None) -> Preprocessing:
    """The checkpoint's preprocessing with the sizes that the user chose; the other one follows where it must."""
    if any(side is not None and side < 8 for side in (resize, crop)):
        raise UserError("--resize and --crop must be at least 8 pixels")
    crop = crop or min(preprocessing.crop, resize or preprocessing.crop)
    resize = resize or max(preprocessing.resize, crop)
    if crop > resize:
        raise UserError(f"--crop {crop} is larger than --resize {resize}: it is cut out of the resized image")
    return replace(preprocessing, resize=resize, crop=crop)


def automatic_batch(backbone: nn.Module, crop: int, device: torch.device) -> int:
    """Images at once: 64 on the CPU, on a GPU half of the largest power of two, from 32 to 1024, that fits."""
    return CPU_BATCH if device.type == "cpu" else largest_batch(backbone, crop, device) // 2


@torch.no_grad()
def largest_batch(backbone: nn.Module, crop: int, device: torch.device) -> int:
    """The largest batch of square images that fits into memory, by doubling; all sizes that are tried are powers of 2.

    Raises:
        UserError: not even the smallest one fits.
    """
    size, fits = FIRST_BATCH, 0
    try:
        while size <= MOST_BATCH:
            backbone(torch.zeros(size, image_channels(backbone), crop, crop, device=device))
            size, fits = 2 * size, size
    except torch.OutOfMemoryError:
        pass
    if device.type == "cuda":
        torch.cuda.empty_cache()
    require(fits > 0, f"{FIRST_BATCH} images do not fit into the memory of {device}: name a smaller --batch-size")
    return fits
