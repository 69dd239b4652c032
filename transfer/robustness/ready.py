"""A task with every image set that a robustness evaluation takes."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from excb.console import plural
from excb.errors import require
from excb.features.extraction import Extraction
from excb.hub.adopted import OwnTransform
from excb.images.image_set import Images
from excb.images.subset import Subset
from excb.sources.source import Note

from ..data.mapping import like_the_others
from ..data.splits import stratified_split
from ..probes.logistic import SOLVER
from ..probes.penalty import FEW_SETTINGS
from ..probes.selection import has_few_labels, held_out
from ..task import Task, require_colours
from . import corruptions
from .corruptions import CorruptedImages
from .metrics import BINS
from .options import RobustnessOptions
from .sets import OtherSet, multiple_labels, open_set


@dataclass(frozen=True)
class Ready:
    """A task, with every set opened."""

    task: Task  # its test images are those that are measured
    options: RobustnessOptions
    others: tuple[OtherSet, ...]
    labels: Tensor | None  # [Q, C] bool, of `RobustnessOptions.labels`

    @classmethod
    def of(cls, task: Task, options: RobustnessOptions, note: Note = lambda _line: None) -> "Ready":
        """Check and open everything before any work starts.

        Raises:
            UserError: a set or an option cannot be used.
        """
        options.check(None)
        require_colours(task.backbone, "robustness")
        assert task.train.labels is not None
        classes = task.train.classes or ()
        if len(set(options.l2)) > 1:
            held_out(task.train.labels, options.seed)
        require(
            not options.corruption_names or not isinstance(task.preprocessing, OwnTransform),
            "corruptions apply to the square that the network sees, which its own transform does not name: load it by "
            "name, or name --corruptions none",
        )
        side = task.preprocessing.crop
        require(
            not options.corruption_names or side >= corruptions.SMALLEST,
            f"corruptions are defined from {corruptions.SMALLEST} pixels on: --crop {side} is smaller",
        )
        task = _with_fewer(task, options, note)
        convert = partial(like_the_others, others=task.test, note=note)
        others = tuple(
            open_set(text, classes, border=options.border, convert=convert, note=note) for text in options.also
        )
        names = [other.name for other in others]
        require(len(set(names)) == len(names), f"--also has two sets with one name ({', '.join(names)}): rename one")
        for text, name in zip(options.also, names, strict=True):
            require(name != "labels", f"--also {text}: `labels` is the name of the figures of --labels, rename it")
        labels = None if options.labels is None else multiple_labels(options.labels, task.test, classes)
        return cls(task, options, others, labels)

    @cached_property
    def corrupted(self) -> dict[str, CorruptedImages]:
        """The corrupted test images by corruption, each at all severities."""
        options, task = self.options, self.task
        return {
            name: CorruptedImages(
                task.test,
                task.preprocessing,
                name,
                options.ascending_severities,
                options.seed,
                options.stored == "jpeg",
            )
            for name in options.corruption_names
        }

    @cached_property
    def on_squares(self) -> Task:
        """The task for images that are squares of the network's size already."""
        return replace(self.task, preprocessing=replace(self.task.preprocessing, resize=self.task.preprocessing.crop))

    def extraction(self, images: Images) -> Extraction:
        """The computation of the features of any of its sets."""
        return (self.on_squares if isinstance(images, CorruptedImages) else self.task).extraction(images)

    @cached_property
    def right(self) -> Tensor:
        """Which class is right for every test image, [Q, C] bool; none where the train set lacks its class."""
        assert self.task.test.labels is not None
        shared, whole = len(self.task.train.classes or ()), len(self.task.test.classes or ())
        return torch.eye(max(whole, shared), shared, dtype=torch.bool)[torch.from_numpy(self.task.test.labels)]

    def beside(self, other: OtherSet) -> Tensor:
        """Which test images are of the classes of another set, [Q] bool."""
        return (self.right & other.candidates).any(1)

    def right_among(self, other: OtherSet) -> Tensor:
        """Which classes are right for each of these images, where that set does not distinguish some, bool."""
        return self.right[self.beside(other)].float() @ other.same.float() > 0

    def untrained(self) -> "Ready":
        """The same with random weights; see `Task.untrained`."""
        return replace(self, task=self.task.untrained())

    @property
    def few(self) -> bool:
        """Whether the head has the form for few labels: where the user names no penalties, which are of the other."""
        assert self.task.train.labels is not None
        return has_few_labels(self.task.train.labels) and not self.options.given("l2")

    def settings(self) -> dict[str, Any]:
        """Every setting, without outcomes."""
        options = self.options
        values: dict[str, Any] = {
            "corruptions": list(options.corruption_names),
            "severities": list(options.ascending_severities) if options.corruption_names else [],
            "library": corruptions.VERSION if options.corruption_names else None,
            "corrupted": "the square that the network sees",
            "stored": options.stored if options.corruption_names else None,
            "head": SOLVER | (FEW_SETTINGS if self.few else {"features": "standardised"}),
            "l2": sorted(set(options.l2)),
            "calibration_bins": BINS,
            "candidates": options.candidates,
            "border": options.border,
            "sets": {other.name: other.settings() for other in self.others},
            "test_images": options.images,
            "seed": options.seed,
        }
        return values


def _with_fewer(task: Task, options: RobustnessOptions, note: Note) -> Task:
    """The task with the share of the test images that is asked for; of every class at least one, which a note says."""
    if options.images is None or options.images >= len(task.test):
        return task
    assert task.test.labels is not None
    kept = stratified_split(task.test.labels, options.images / len(task.test), options.seed)
    if len(kept) != options.images:
        note(f"--images {options.images}: {plural(len(kept), 'test image')}, one of every class")
    return replace(task, test=Subset(task.test, kept))
