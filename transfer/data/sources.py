"""The table of sources of labelled images, one file each; names without a prefix of it are folders, URLs or shards."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from excb.errors import UserError, nearest_path, require
from excb.images.image_set import Images
from excb.images.tars.places import is_shards, names_tars
from excb.remote.byte_ranges import is_remote
from excb.sources import torchvision_sets
from excb.sources.label_files import is_table
from excb.sources.opening import open_images
from excb.sources.source import Note, SetSource, Split
from excb.sources.table import SOURCES as NAMED_SETS
from excb.sources.table import source_of

from . import multilabel
from .classes import OtherClassesError
from .folders import held_out_place, images_below, images_with_labels, open_folder, test_images

SOURCES: tuple[SetSource, ...] = (*NAMED_SETS, multilabel.SOURCE)


def train_and_test(
    data: str | None,
    train: Path | str | None = None,
    test: Path | str | None = None,
    *,
    rename: Mapping[str, str] | None = None,
    data_root: Path | None = None,
    note: Note = lambda _line: None,
) -> tuple[Images, Images]:
    """The train and the test set, both with the train set's class indices.

    Args:
        data: what `open_source` takes.
        train: a folder of training images, or shards (`excb.images.shards.open_shards`), instead of the source's.
        test: a folder of test images, or shards, instead of the source's. A folder without class folders needs a list
            beside it: FOLDER.txt or imagenet_FOLDER.txt, with a line "NAME INDEX" or "NAME CLASS" for every image.
            Each of the three may also be a CSV file, or a folder with one (`label_files`).
        rename: new names of test folders that are named differently in the train set.
        data_root: folder of torchvision's data sets.
        note: called with messages for the user.

    Raises:
        UserError: one of the sets is missing or unusable, or their classes do not match.
    """
    require(
        data is not None or (train is not None and test is not None),
        "name the images with --data DIR (train/ and test/ inside), or with --train DIR --test DIR",
    )
    require(
        data is None or train is None or test is None,
        f"--data {data} has no use beside both --train and --test: leave it out",
    )
    train_set = (
        images_with_labels(train, note) if train else open_source(data or "", "train", data_root=data_root, note=note)
    )
    if test is None and data is not None and _named(data) is None:
        test = held_out_place(_existing(data))
    if test is not None:
        return train_set, test_images(test, train_set, rename or {}, note)
    if rename:
        raise OtherClassesError("--rename is for folders of test images: name them with --test DIR")
    held_out = open_source(data or "", "test", data_root=data_root, note=note)
    require(
        held_out.classes == train_set.classes,
        f"{held_out.root} and {train_set.root} have different classes: name a test set with the same ones",
    )
    return train_set, held_out


def open_source(text: str, split: Split, *, data_root: Path | None = None, note: Note = lambda _line: None) -> Images:
    """One split of a source of labelled images.

    Args:
        text: a folder or a URL that holds train/ and test/ (or val/), with images or shards in them; a CSV file of
            paths, labels and splits; torchvision:NAME; hf:ID, with @CONFIG, ,label=COLUMN and ,image=COLUMN. If a data
            set of torchvision has train and validation images, both are for training, as in Kornblith et al. (2019).
        split: which images.
        data_root: folder of torchvision's data sets; else $EXCB_DATA, else ~/.cache/excb/datasets.
        note: called with messages for the user.

    Raises:
        UserError: there is no such source, or it cannot be loaded.
    """
    if (named := _named(text)) is not None:
        source, name = named
        return source.open(name, split, data_root, note)
    return open_folder(_existing(text), split, note)


def refuse_idle_root(data_root: Path | None, *texts: str | None) -> None:
    """Raise UserError where a folder of torchvision's data sets is named, and none of the sources is of torchvision."""
    prefix = torchvision_sets.SOURCE.prefix
    used = any(named is not None and named[0].prefix == prefix for named in map(_named, filter(None, texts)))
    require(data_root is None or used, f"--data-root is of {prefix}:NAME, which no image source here is: leave it out")


def images_of(text: str, *, data_root: Path | None = None, note: Note = lambda _line: None) -> Images:
    """The images of one source, with labels if it has classes.

    Args:
        text: a folder of images, shards, or a source as in `open_source`, whose training images are used.
        data_root: folder of torchvision's data sets.
        note: called with messages for the user.

    Raises:
        UserError: there is no such source, or it cannot be loaded.
    """
    if is_named(text):
        return training_source(text, data_root=data_root, note=note)
    return open_images(text, note) if is_shards(text) else images_below(Path(_existing(text)), note)


def training_source(text: str, *, data_root: Path | None = None, note: Note = lambda _line: None) -> Images:
    """The training images of a named set, with labels if it has some.

    Args:
        text: torchvision:NAME and others, as `is_named` knows them.
        data_root: folder of torchvision's data sets.
        note: called with messages for the user.

    Raises:
        UserError: the set cannot be loaded.
    """
    named = _named(text)
    assert named is not None
    source, name = named
    if source.training is not None:
        return source.training(name, data_root, note)
    return source.open(name, "train", data_root, note)


def is_named(text: str) -> bool:
    """Whether a text names a data set by the prefix of its source, such as torchvision:CIFAR10."""
    return _named(text) is not None


def _named(text: str) -> tuple[SetSource, str] | None:
    """The source that a text names by its prefix, and the data set's name; None for folders and shards."""
    return source_of(text, SOURCES)


def _existing(text: str) -> str:
    """The folder, or its URL; a missing one and shards of one split are refused."""
    if is_remote(text) and not names_tars(text):
        return text.rstrip("/")
    if is_shards(text):
        raise UserError(f"{text} names shards of one split: name both splits with --train SHARDS --test SHARDS")
    folder = Path(text)
    if not folder.is_dir() and not is_table(text):
        prefix, colon, rest = text.partition(":")
        near = get_close_matches(prefix, [source.prefix for source in SOURCES], n=1) if colon else []
        names = [f"{each}:{rest}" for each in near]
        names += [f"{source.prefix}:{text}" for source in SOURCES if source.find(text) is not None]
        meant = f" (or did you mean {' or '.join(names)}?)" if names else ""
        forms = " or ".join(source.form for source in SOURCES)
        raise UserError(
            f"no folder {folder}{meant}: --data names a folder that holds train/ and test/ (or val/), {forms}"
            f"{nearest_path(folder)}"
        )
    return text
