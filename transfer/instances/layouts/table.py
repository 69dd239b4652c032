"""The table of layouts. A folder has the first one that matches, unless `--layout` names another."""

from pathlib import Path

from excb.errors import UserError, nearest_name, require

from . import copydays, pairs, revisited
from .instance_set import InstanceLayout

LAYOUTS: tuple[InstanceLayout, ...] = (revisited.LAYOUT, copydays.LAYOUT, pairs.LAYOUT)


def layout_of(root: Path, name: str | None = None) -> InstanceLayout:
    """The layout of that name, or the one that a folder has.

    Raises:
        UserError: there is no such layout, or the folder has none.
    """
    names = [layout.name for layout in LAYOUTS]
    require(root.is_dir(), f"no folder {root}: --data names the folder of queries, gallery and ground truth")
    if name is not None:
        require(name in names, f"--layout {name}: there are {', '.join(names)}{nearest_name(name, names)}")
        return LAYOUTS[names.index(name)]
    found = next((layout for layout in LAYOUTS if layout.matches(root)), None)
    if found is None:
        forms = "; ".join(f"{layout.name} ({layout.title})" for layout in LAYOUTS)
        raise UserError(f"{root} has none of the layouts {forms}")
    return found
