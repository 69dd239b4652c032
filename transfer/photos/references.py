"""References of a comparison: pixels, colours, whitened patches, and a network with random weights."""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from excb.console import Reporter
from excb.images.image_set import Images
from excb.references.baselines import REFERENCES as TITLES

from ..options import REFERENCES
from ..task import Task


def references(task: Task, images: Images, reporter: Reporter) -> Iterator[tuple[str, Tensor]]:
    """The title and the rows [N, D] of each reference; rows come from the feature cache where it has them.

    Args:
        task: of the network that gives architecture, preprocessing, device and cache.
        images: those to make rows of; all can be read. Patches are fitted on them.
        reporter: for notes and progress.
    """
    on_these = replace(task, train=images, test=images)
    for option, name in REFERENCES.items():
        if option != "untrained" or not task.is_untrained:
            title, made = on_these.reference(option)
            yield TITLES[name], made().stored(images, title, reporter).all()
