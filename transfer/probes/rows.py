"""Rows of chosen parts of a task's images: computed in one pass, kept in the cache, read when they are needed."""

from collections.abc import Callable, Sequence

from torch import Tensor

from excb.console import Reporter
from excb.distributed.collectives import rank
from excb.features.extraction import features_of
from excb.images.image_set import Images

from ..features.parts import Part, PartExtraction, PartRows, Shapes
from ..task import Task

READ = 1024  # images whose patches are in memory at once
Rows = Tensor | PartRows  # features in memory, or read when they are needed


def shapes_of(task: Task) -> Shapes:
    """How large the parts of the task's backbone are.

    Raises:
        UserError: the network gives no maps.
    """
    return Shapes.of(task.backbone.network, task.preprocessing.crop, task.device)


def part_extraction(task: Task, images: Images, parts: Sequence[Part], shapes: Shapes) -> PartExtraction:
    """The computation of parts of a set."""
    return PartExtraction.like(task.extraction(images), parts, shapes)


def part_rows(
    task: Task, images: Images, parts: Sequence[Part], shapes: Shapes, reporter: Reporter, *, name: str
) -> Callable[[Sequence[Part]], PartRows]:
    """Compute parts of a set in one pass, or read them from the cache; all ranks call this.

    Args:
        task: backbone and cache.
        images: the set.
        parts: are computed.
        shapes: of the backbone.
        reporter: for messages and progress.
        name: of the set, for messages.

    Returns:
        What gives the rows of some of the parts.

    Raises:
        UserError: an image cannot be read, or the cache cannot be written.
    """
    extraction = part_extraction(task, images, parts, shapes)
    own_reporter = reporter if rank() == 0 else Reporter(quiet=True)
    stored = features_of(extraction, task.cache, own_reporter, name=name)
    return lambda wanted: PartRows.of(stored, extraction, wanted)
