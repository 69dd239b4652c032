"""INRIA Copydays: photographs, and crops, JPEG copies and strong alterations of each, which look for the original."""

from pathlib import Path

import numpy as np

from excb.console import plural
from excb.errors import UserError
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.ledger import NOTHING

from .instance_set import InstanceLayout, InstanceSet, Truth

ORIGINALS = "original"
KINDS = {"strong": "strong", "crops": "crops", "jpeg": "jpeg", "jpegqual": "jpeg"}  # folder -> kind of copies
_PREFIX = 4  # first characters of a name that a photograph and its copies share, such as 2001 of 200100.jpg


class _Copies(ImageSet):
    """Copies of every kind, below the root of the whole set."""

    @property
    def scanned_folders(self) -> list[Path]:
        """See `excb.images.image_set.ScannedImages`."""
        return [self.root / folder for folder in KINDS]


def _open(root: Path, named: Path | None) -> InstanceSet:
    if named is not None:
        raise UserError(
            "--ground-truth is of the layouts revisited and pairs: Copydays has its truth in names of files"
        )
    gallery = scan_folder(root / ORIGINALS)
    scans = {folder: scan_folder(root / folder) for folder in KINDS if (root / folder).is_dir()}
    paths = [f"{folder}/{path}" for folder, scan in scans.items() for path in scan.paths]
    if not paths:
        raise UserError(f"{root} has no folder of copies: it needs {', '.join(KINDS)} beside {ORIGINALS}/")
    originals: dict[str, list[int]] = {}
    for index, path in enumerate(gallery.paths):
        originals.setdefault(_key(path), []).append(index)
    if alone := [path for path in paths if _key(path) not in originals]:
        raise UserError(
            f"{plural(len(alone), 'copy has', 'copies have')} no original in {root}, such as {alone[0]}: one in "
            f"{ORIGINALS}/ must share the first {_PREFIX} characters of its name"
        )
    kinds = [KINDS[path.partition("/")[0]] for path in paths]
    found = [Truth(np.array(originals[_key(path)], np.int64)) for path in paths]
    truth = {
        kind: [each if own == kind else Truth() for each, own in zip(found, kinds, strict=True)]
        for kind in dict.fromkeys(kinds)
    }
    groups = [path.rpartition("/")[0] for path in paths]  # "strong", "crops/10", "jpegqual/3"
    left_out = sum((scan.ledger.of(folder) for folder, scan in scans.items()), NOTHING)
    return InstanceSet("copies", _Copies(root, paths, ledger=left_out), gallery, truth, groups)


def _key(path: str) -> str:
    return path.rpartition("/")[2][:_PREFIX]


LAYOUT = InstanceLayout(
    name="copydays",
    title="Copydays: original/, and strong/, crops/*/ or jpegqual/*/",
    matches=lambda root: (root / ORIGINALS).is_dir() and any((root / folder).is_dir() for folder in KINDS),
    open=_open,
)
