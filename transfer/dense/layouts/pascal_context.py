"""Pascal context on VOC 2010: 59 classes, with background or without, as MMSegmentation prepares them."""

from pathlib import Path

from .masks import IGNORED, MaskFiles, MaskLayout, Split, listed
from .voc import devkit, has_folder

CLASSES = (
    "aeroplane", "bag", "bed", "bedclothes", "bench", "bicycle", "bird", "boat", "book", "bottle", "building", "bus",
    "cabinet", "car", "cat", "ceiling", "chair", "cloth", "computer", "cow", "cup", "curtain", "dog", "door", "fence",
    "floor", "flower", "food", "grass", "ground", "horse", "keyboard", "light", "motorbike", "mountain", "mouse",
    "person", "plate", "platform", "pottedplant", "road", "rock", "sheep", "shelves", "sidewalk", "sign", "sky",
    "snow", "sofa", "table", "track", "train", "tree", "truck", "tvmonitor", "wall", "water", "window", "wood",
)  # fmt: skip
_MASKS = "SegmentationClassContext"  # values: 0 is background, 1 to 59 are the classes


def _open(root: Path, split: Split, *, background: bool) -> MaskFiles:
    place = devkit(root, "VOC2010")
    names = place / "ImageSets" / "SegmentationContext" / f"{'train' if split == 'train' else 'val'}.txt"
    first = 1 if background else 0
    meaning = {255: IGNORED, 0: 0 if background else IGNORED}
    meaning |= {number + 1: number + first for number in range(len(CLASSES))}
    classes = ("background", *CLASSES) if background else CLASSES
    return MaskFiles(place, *listed(place, names, "JPEGImages/{}.jpg", f"{_MASKS}/{{}}.png"), classes, meaning)


LAYOUT = MaskLayout(
    name="pascal-context",
    title="Pascal context: 59 classes",
    ignored="background and value 255",
    matches=lambda root: has_folder(root, "VOC2010", _MASKS),
    open=lambda root, split: _open(root, split, background=False),
)
WITH_BACKGROUND = MaskLayout(
    name="pascal-context-60",
    title="the same with background as a class",
    ignored="value 255",
    matches=lambda _root: False,  # without background is the default
    open=lambda root, split: _open(root, split, background=True),
)
