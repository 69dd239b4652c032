"""The table of layouts. A folder has the first one that matches, unless `--layout` names another."""

from pathlib import Path

from excb.errors import UserError, nearest_name, require

from . import ade20k, cityscapes, coco, folders, pascal_context, voc
from .masks import MaskedImages, MaskLayout

LAYOUTS: tuple[MaskLayout, ...] = (
    coco.LAYOUT,
    coco.SUPERCATEGORIES,
    voc.LAYOUT,
    voc.AUGMENTED,
    pascal_context.LAYOUT,
    pascal_context.WITH_BACKGROUND,
    ade20k.LAYOUT,
    cityscapes.LAYOUT,
    folders.LAYOUT,
)


def mask_layout_of(root: Path, name: str | None = None) -> MaskLayout:
    """The layout of that name, or the one that a folder has.

    Raises:
        UserError: there is no such layout, or the folder has none.
    """
    names = [layout.name for layout in LAYOUTS]
    if name is not None:
        require(name in names, f"--layout {name}: there are {', '.join(names)}{nearest_name(name, names)}")
        return LAYOUTS[names.index(name)]
    require(root.is_dir(), f"no folder {root}: --data names the folder of images and masks")
    found = next((layout for layout in LAYOUTS if layout.matches(root)), None)
    if found is None:
        raise UserError(f"{root} has none of the layouts {', '.join(names)}: docs/dense.md shows what each looks like")
    return found


def mask_splits(root: Path, layout: MaskLayout) -> tuple[MaskedImages, MaskedImages]:
    """Both splits of a folder.

    Raises:
        UserError: the folder is not usable, or the classes of its splits differ.
    """
    train, test = layout.open(root, "train"), layout.open(root, "test")
    require(train.classes == test.classes, f"train and test images of {root} have different classes")
    return train, test
