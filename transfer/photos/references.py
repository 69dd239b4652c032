"""References of a comparison: pixels, colours, whitened patches, and a network with random weights."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from excb.console import Reporter
from excb.images.image_set import Images
from excb.references.baselines import REFERENCES as TITLES

from ..options import REFERENCES
from ..task import Task


def references(task: Task, images: Images, reporter: Reporter) -> dict[str, Callable[[], Tensor]]:
    """The title of each reference, and what makes its rows [N, D], which come from the feature cache where it has them.

    Args:
        task: of the network that gives architecture, preprocessing, device and cache.
        images: those to make rows of; all can be read. Patches are fitted on them.
        reporter: for notes and progress.
    """
    asked = replace(task, train=images, test=images)
    return {
        TITLES[name]: partial(_rows, asked, option, reporter)
        for option, name in REFERENCES.items()
        if option != "untrained" or not task.is_untrained
    }


def _rows(task: Task, option: str, reporter: Reporter) -> Tensor:
    title, made = task.reference(option)
    return made().stored(task.train, title, reporter).all()
