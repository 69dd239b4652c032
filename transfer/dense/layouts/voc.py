"""Pascal VOC 2012: 20 classes and background; also with the masks of SBD, the larger train set that papers use."""

from pathlib import Path

from excb.errors import UserError

from .masks import IGNORED, MaskFiles, MaskLayout, Split, listed

CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
_MEANING = {255: IGNORED} | {number: number for number in range(len(CLASSES))}


def _open(root: Path, split: Split, *, train: str, masks: str) -> MaskFiles:
    place = devkit(root, "VOC2012")
    names = place / "ImageSets" / "Segmentation" / f"{train if split == 'train' else 'val'}.txt"
    folder = masks if split == "train" else "SegmentationClass"
    return MaskFiles(place, *listed(place, names, "JPEGImages/{}.jpg", f"{folder}/{{}}.png"), CLASSES, _MEANING)


def devkit(root: Path, year: str) -> Path:
    """The folder of one year: the named one, or the one inside VOCdevkit. Raises UserError if neither is there."""
    places = (root, root / year, root / "VOCdevkit" / year)
    place = next((place for place in places if (place / "JPEGImages").is_dir()), None)
    if place is None:
        raise UserError(f"{root} has no JPEGImages/: name the folder {year} of Pascal VOC")
    return place


def has_folder(root: Path, year: str, folder: str) -> bool:
    """Whether a year's folder is there and has this folder."""
    return any((place / folder).is_dir() for place in (root, root / year, root / "VOCdevkit" / year))


LAYOUT = MaskLayout(
    name="voc",
    title="Pascal VOC 2012: the 1,464 train images",
    ignored="value 255",
    matches=lambda root: has_folder(root, "VOC2012", "SegmentationClass"),
    open=lambda root, split: _open(root, split, train="train", masks="SegmentationClass"),
)
AUGMENTED = MaskLayout(
    name="voc-aug",
    title="Pascal VOC 2012: the 10,582 train images with SBD's masks (trainaug.txt, SegmentationClassAug)",
    ignored="value 255",
    matches=lambda _root: False,  # the original masks are the default
    open=lambda root, split: _open(root, split, train="trainaug", masks="SegmentationClassAug"),
)
