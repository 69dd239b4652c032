"""Cityscapes with its fine annotations: the 19 classes that are evaluated."""

from pathlib import Path

from .masks import IGNORED, MaskFiles, MaskLayout, Split, in_folders

# Name and value in *_labelIds.png of each class that its benchmark evaluates.
CLASSES = {
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19,
    "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26, "truck": 27,
    "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33,
}  # fmt: skip
_VALUES = 34  # of all labels, 0 to 33
_IMAGE, _MASK = "_leftImg8bit.png", "_gtFine_labelIds.png"
_FOLDERS = {"train": "train", "test": "val"}


def _open(root: Path, split: Split) -> MaskFiles:
    folders = f"leftImg8bit/{_FOLDERS[split]}", f"gtFine/{_FOLDERS[split]}"
    paths, masks, ledger = in_folders(root, *folders, lambda path: path.removesuffix(_IMAGE) + _MASK)
    meaning = dict.fromkeys(range(_VALUES), IGNORED) | {value: n for n, value in enumerate(CLASSES.values())}
    return MaskFiles(root, paths, masks, tuple(CLASSES), meaning, folders, ledger=ledger)


LAYOUT = MaskLayout(
    name="cityscapes",
    title="Cityscapes: 19 classes of gtFine",
    ignored="the labels that its benchmark does not evaluate",
    matches=lambda root: (root / "gtFine" / "train").is_dir(),
    open=_open,
)
