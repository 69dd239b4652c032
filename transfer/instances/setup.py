"""The task of instance retrieval: a backbone, a set with ground truth, distractors, and how images are read."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor, nn

from excb.console import Reporter
from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError, first_line
from excb.hub.backbone import Backbone
from excb.images import copies
from excb.images.image_set import Images, with_doubts
from excb.ledger import NOTHING, Ledger, LedgerEntry, doubt
from excb.neighbours.unit_rows import Rows
from excb.networks.backbone import REFUSALS, evaluating
from excb.networks.features import Kind
from excb.networks.outputs import resized_preprocessing
from excb.networks.preprocessing import Preprocessing
from excb.option_parser import require_use
from excb.sources.opening import open_images

from ..data.mapping import all_on_one_mapping, declared_pixels
from ..options import OwnSetOptions
from ..task import Task, backbone_of, describe_images, require_colours
from .descriptors import DescriptorExtraction, DescriptorOptions, Descriptors, WholeImage, patch_side
from .layouts.instance_set import InstanceLayout, InstanceSet
from .layouts.table import layout_of
from .options import InstanceOptions, Mode
from .ranking import StackedRows
from .whitening import DescriptorWhitening, WhitenedRows


@dataclass(frozen=True, kw_only=True)
class InstanceTask(Task):
    """A backbone and the set to judge it on: `train` is the gallery, and `test` are the queries."""

    layout: InstanceLayout
    instances: InstanceSet
    descriptor: DescriptorOptions
    mode: Mode
    distractors: Images | None = None  # more gallery images, none of which answers a query
    whitened_on: Images | None = None  # images that whitening is learned on
    whitened_width: int | None = None  # dimensions that whitening keeps; None is all

    def extraction(self, images: Images, kind: Kind = "pooled") -> DescriptorExtraction:
        """The computation of the descriptors of a set."""
        return DescriptorExtraction(**vars(super().extraction(images, kind)), descriptor=self.descriptor)

    @property
    def sets(self) -> dict[str, Images]:
        """All sets whose descriptors are needed, by their names in messages."""
        others = {"distractors": self.distractors, "whitening": self.whitened_on}
        return {"gallery": self.train, "queries": self.test} | {
            name: images for name, images in others.items() if images is not None
        }

    @property
    def unknown(self) -> dict[str, int]:
        """None: images have no classes."""
        return {}

    def descriptors(self, reporter: Reporter) -> tuple[Rows, Tensor]:
        """The rows of the gallery with its distractors, and those of the queries [Q, D]; all ranks call this.

        They come from the cache or go there.

        Raises:
            UserError: an image cannot be read, the cache cannot be written, or there are too few images to whiten.
        """
        stored = {name: self.stored(images, name, reporter) for name, images in self.sets.items()}
        gallery: Rows = StackedRows([stored[name] for name in ("gallery", "distractors") if name in stored])
        queries = stored["queries"].all()
        if "whitening" not in stored:
            return gallery, queries
        whitening = run_on_rank0(lambda: DescriptorWhitening.learned(stored["whitening"].all(), self.whitened_width))
        return WhitenedRows(gallery, whitening), WhitenedRows(queries, whitening).rows(0, len(queries))

    @property
    def _square(self) -> Preprocessing:
        """The checkpoint's own: that of this task may keep the proportions of images."""
        return self.backbone.transform

    def baseline(self, _name: str) -> Self:
        """The same images as raw pixels, at one scale and not whitened. They are quicker to read than to keep."""
        return replace(self, descriptor=DescriptorOptions("pixels"), whitened_on=None, cache=None)

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that descriptors depend on, beside the checkpoint's."""
        settings = {"layout": self.layout.name, "mode": self.mode, "size": self.preprocessing.crop}
        settings |= {"interpolation": self.preprocessing.interpolation} | self.descriptor.to_dict()
        whitening = None
        if self.whitened_on is not None:
            whitening = {"images": self.whitened_on.fingerprint, "width": self.whitened_width}
        return settings | {"similarity": "cosine", "whitening": whitening} | super().settings

    def describe_data(self) -> dict[str, Any]:
        """The images, for the result. Their fingerprints are also those of the distractors and of the ground truth."""
        train, test, more = describe_images(self.train), describe_images(self.test), self.distractors
        if more is not None:
            train |= {
                "images": len(self.train) + len(more),
                "fingerprint": _hash_of(self.train.fingerprint, more.fingerprint),
            }
        test["fingerprint"] = _hash_of(self.test.fingerprint, self.instances.fingerprint)
        classes = len(set(self.instances.groups))
        return {"train": train, "test": test, "classes": classes, "distractors": len(more or ())}


def _hash_of(*fingerprints: str) -> str:
    return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()


def open_task(shared: OwnSetOptions, own: InstanceOptions, device: torch.device, reporter: Reporter) -> InstanceTask:
    """Load and check everything before any work starts.

    Args:
        shared: checkpoint and machine. In mode "longer" images have different sizes and pass one at a time.
        own: the set, and how its images become descriptors.
        device: where to compute.
        reporter: for notes.

    Raises:
        UserError: checkpoint, images, device or options cannot be used; or descriptors would leave the bound of
            `excb.features.precision.check_precision`.
    """
    layout = layout_of(own.data, own.layout)
    instances = layout.open(own.data, own.ground_truth)
    require_use(own, "candidates", used=instances.family == "copies", why="is of muAP, which only copies have")
    distractors, whitened_on = (
        None if place is None else open_images(place, reporter.note) for place in (own.distractors, own.whiten)
    )
    if distractors is not None:
        own_images = {"queries": instances.queries, "gallery images": instances.gallery}
        more = distractors
        distractors = with_doubts(more, run_on_rank0(lambda: _also_distractors(own_images, more)))
    longer = own.mode == "longer"
    backbone = backbone_of(
        shared.ckpt,
        network=shared.network,
        img_size=None if longer else own.size,
        loaded="instance retrieval resizes images by itself, for",
    )
    require_colours(backbone, "instances")
    preprocessing = _preprocessing(backbone, own)
    named = {"gallery": instances.gallery, "queries": instances.queries, "more": distractors, "white": whitened_on}
    given = {name: images for name, images in named.items() if images is not None}
    mapped, preprocessing = all_on_one_mapping(
        [*given.values()],
        preprocessing,
        declared_pixels(shared.range, None, preprocessing.pixels),
        note=reporter.note,
        warn=reporter.warn,
        colours_of="instances",
    )
    opened = dict(zip(given, mapped, strict=True))
    instances = replace(instances, gallery=opened["gallery"], queries=opened["queries"])
    descriptor = DescriptorOptions(own.pooling, own.gem_power, own.scales)
    _check_sizes(_reader(backbone, descriptor), preprocessing, own.mode)
    task = InstanceTask.on(
        backbone,
        preprocessing,
        instances.gallery,
        instances.queries,
        device=device,
        batch=1 if longer else shared.batch_size,
        workers=shared.workers,
        cache=shared.features_folder,
        precision=shared.feature_precision,
        layout=layout,
        instances=instances,
        descriptor=descriptor,
        mode=own.mode,
        distractors=opened.get("more"),
        whitened_on=opened.get("white"),
        whitened_width=own.whiten_width,
    )
    task.ledger.tell(reporter)
    return task


def _also_distractors(named: Mapping[str, Images], distractors: Images) -> Ledger:
    """The images of a set whose very files are distractors, too, under any name: these would be counted as wrong."""
    sets: list[Any] = [*named.values(), distractors]
    images = sum(map(len, sets))
    if not all(hasattr(each, "source") for each in sets):
        return NOTHING
    if images > copies.MOST:
        most = f"images, more than the {copies.MOST:,} whose files are compared with those of the distractors"
        return Ledger((LedgerEntry(most, images, (), "none may be a distractor", left_out=False),))
    groups, found = copies.equal_images(sets), NOTHING
    for number, (name, own) in enumerate(named.items()):
        same = [
            f"{own.paths[index]} = {distractors.paths[group[-1][1]]}"
            for group in groups
            if group[-1][0] == len(named)  # the last image of a group is one of the distractors
            for place, index in group
            if place == number
        ]
        reason = f"of the {name} are among the distractors too"
        found += doubt(reason, sorted(same), "these are counted as wrong, use other distractors")
    return found


def _preprocessing(backbone: Backbone, options: InstanceOptions) -> Preprocessing:
    own, multiple = backbone.transform, patch_side(backbone.network)
    side = options.size or own.crop
    if options.mode == "crop":
        return resized_preprocessing(own, side)
    return WholeImage(
        side, side, own.mean, own.std, own.interpolation, pixels=own.pixels, mode=options.mode, multiple=multiple
    )


def _reader(backbone: Backbone, descriptor: DescriptorOptions) -> Descriptors:
    try:
        return Descriptors(backbone, descriptor)
    except UserError as error:
        raise UserError(f"--pooling {descriptor.pooling} pools a map: choose --pooling own ({error})") from None


def _check_sizes(reader: nn.Module, preprocessing: Preprocessing, mode: Mode) -> None:
    """Raise UserError unless the network takes images of the sizes that there will be, at all scales."""
    side, parameter = preprocessing.crop, next(reader.parameters(), torch.empty(0))
    image = preprocessing(Image.new("RGB", (side, max(1, side * 3 // 4)))) if mode == "longer" else None
    inputs = (torch.zeros(1, 3, side, side) if image is None else image[None]).to(parameter.device, parameter.dtype)
    try:
        with evaluating(reader), torch.no_grad():
            reader(inputs)
    except REFUSALS as error:
        height, width = inputs.shape[-2:]
        raise UserError(
            f"the backbone cannot take images of {width} x {height} pixels at these scales ({first_line(error)}): "
            "choose --mode resize, --scales 1, or another --size"
        ) from None


def gallery_names(images: Images, distractors: Images | None) -> Sequence[str]:
    """The paths of the gallery's images, with the distractors behind them."""
    return list(images.paths) + ([] if distractors is None else list(distractors.paths))
