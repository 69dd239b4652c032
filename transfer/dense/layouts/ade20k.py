"""ADE20k as in the scene parsing challenge of 2016: 150 classes."""

from pathlib import Path, PurePosixPath

from excb.console import plural
from excb.errors import UserError, require
from excb.files.csv_text import read_listing

from .masks import IGNORED, MaskFiles, MaskLayout, Split, in_folders

CLASSES = 150
_NAMES = "objectInfo150.txt"
_FOLDERS = {"train": "training", "test": "validation"}


def _open(root: Path, split: Split) -> MaskFiles:
    folders = f"images/{_FOLDERS[split]}", f"annotations/{_FOLDERS[split]}"
    paths, masks, ledger = in_folders(root, *folders, lambda path: str(PurePosixPath(path).with_suffix(".png")))
    meaning = {0: IGNORED} | {number + 1: number for number in range(CLASSES)}
    return MaskFiles(root, paths, masks, _names(root / _NAMES), meaning, folders, ledger=ledger)


def _names(file: Path) -> tuple[str, ...]:
    """The names in the file that the archive holds: tab-separated, the name in the last column, the first of several.

    Raises:
        UserError: it cannot be read, or does not have 150 names.
    """
    try:
        lines = read_listing(file, "utf-8").splitlines()[1:]
    except OSError as error:
        raise UserError(f"cannot read {file} ({error}): it comes with the images and names the classes") from None
    names = tuple(line.split("\t")[-1].split(",")[0].strip() for line in lines if line.strip())
    require(
        len(names) == CLASSES,
        f"{file} names {plural(len(names), 'class', 'classes')}, not {CLASSES}: take it from the archive",
    )
    return names


LAYOUT = MaskLayout(
    name="ade20k",
    title="ADE20k (ADEChallengeData2016): 150 classes",
    ignored="value 0",
    matches=lambda root: (root / "annotations" / "training").is_dir(),
    open=_open,
)
