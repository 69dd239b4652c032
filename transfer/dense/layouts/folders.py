"""Folders of images and masks: SPLIT/images/NAME.jpg, SPLIT/masks/NAME.png, and the names of the classes."""

from pathlib import Path, PurePosixPath

from excb.console import plural
from excb.errors import UserError, require
from excb.files.csv_text import read_listing

from .masks import IGNORED, MaskFiles, MaskLayout, Split, in_folders

NAMES = "classes.txt"
VOID = 255  # the value of pixels that do not count, unless there are as many classes
_FOLDERS = {"train": ("train",), "test": ("test", "val")}


def _open(root: Path, split: Split) -> MaskFiles:
    place = next((root / name for name in _FOLDERS[split] if (root / name).is_dir()), None)
    require(place is not None, f"{root} has no {' or '.join(_FOLDERS[split])}/ with images/ and masks/ inside")
    assert place is not None
    names = _names(root / NAMES)
    folders = "images", "masks"
    paths, masks, ledger = in_folders(place, *folders, lambda path: str(PurePosixPath(path).with_suffix(".png")))
    meaning = {VOID: IGNORED} | {number: number for number in range(len(names))}
    return MaskFiles(place, paths, masks, names, meaning, folders, ledger=ledger)


def _names(file: Path) -> tuple[str, ...]:
    try:
        names = tuple(line.strip() for line in read_listing(file, "utf-8").splitlines() if line.strip())
    except OSError as error:
        raise UserError(
            f"cannot read {file} ({error}): it holds the names of the classes, a line each; the first is value 0"
        ) from None
    require(
        len(names) > 1, f"{file} names {plural(len(names), 'class', 'classes')}: it takes two at least, a line each"
    )
    return names


LAYOUT = MaskLayout(
    name="folders",
    title=f"{{train,test}}/images, {{train,test}}/masks (PNG of the same names) and {NAMES}",
    ignored=f"value {VOID}",
    matches=lambda root: (root / "train" / "masks").is_dir(),
    open=_open,
)
