"""The two sets of an audit: any images, with the classes of the train images where both have the same ones."""

from dataclasses import replace
from pathlib import Path

from excb.console import Reporter
from excb.images.image_set import Images, ImageSet, ledger_of
from excb.images.shards import ShardImages
from excb.sources.source import Split

from ..data.classes import OtherClassesError, with_classes_of
from ..data.sources import is_named, open_source
from ..embeddings.sources import any_images


def both_sets(train: str, test: str, data_root: Path | None, reporter: Reporter) -> tuple[Images, Images]:
    """The train and the test images; labels of the test images are those of the train set's classes, or None.

    Args:
        train: a folder of any depth, shards, torchvision:NAME or hf:ID.
        test: the same; of a named set the test images.
        data_root: folder of torchvision's data sets.
        reporter: prints notes.

    Raises:
        UserError: a set is missing or unusable.
    """
    first, second = _opened(train, "train", data_root, reporter), _opened(test, "test", data_root, reporter)
    if first.labels is None or second.labels is None or first.classes == second.classes:
        return first, second
    if isinstance(second, ImageSet | ShardImages):
        try:
            return first, with_classes_of(second, first)
        except OtherClassesError:
            reporter.note(f"{test} has other classes than {train}: no k-NN figure")
            return first, replace(second, labels=None, classes=None)
    return first, second


def _opened(text: str, split: Split, data_root: Path | None, reporter: Reporter) -> Images:
    if is_named(text):
        images = open_source(text, split, data_root=data_root, note=reporter.note)
    else:
        images = any_images(text, data_root=data_root, note=reporter.note)
    ledger_of(images).of(split).tell(reporter)
    return images
