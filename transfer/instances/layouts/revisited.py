"""ROxford5k and RParis6k (Radenovic et al., CVPR 2018): their ground truth, with easy, hard and junk images."""

from pathlib import Path
from typing import Any

import numpy as np

from excb.errors import UserError, require

from . import plain_pickle
from .instance_set import Box, CroppedImages, InstanceLayout, InstanceSet, Truth, existing_images

# For every protocol: which of the ground truth's lists are relevant, and which are left out. All else is wrong.
PROTOCOLS = {
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("easy", "junk")),
    "easy": (("easy",), ("hard", "junk")),
}
_LISTS = ("easy", "hard", "junk")


def _file(root: Path) -> Path | None:
    return next(iter(sorted(root.glob("gnd_*.pkl"))), None)


def _open(root: Path, named: Path | None) -> InstanceSet:
    file = named or _file(root)
    if file is None:
        raise UserError(f"{root} has no gnd_*.pkl, such as gnd_roxford5k.pkl: fetch the ground truth of the set")
    contents = plain_pickle.read_pickle(file)
    try:
        gallery, queries = (_names(contents[name]) for name in ("imlist", "qimlist"))
        entries = contents["gnd"]
        _expect(isinstance(entries, list | tuple) and len(entries) == len(queries), "an entry for each query")
        boxes = tuple(_box(entry) for entry in entries)
        lists = [{name: _indices(entry[name], len(gallery)) for name in _LISTS} for entry in entries]
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{file} is not a ground truth of ROxford or RParis ({type(error).__name__}: {error}): fetch it again"
        ) from None
    truth = {
        name: [Truth(_joined(each, relevant), _joined(each, junk)) for each in lists]
        for name, (relevant, junk) in PROTOCOLS.items()
    }
    require(any(len(each.relevant) for each in truth["medium"]), f"{file} has no query with a relevant image")
    paths = [existing_images(root, [f"jpg/{name}.jpg" for name in names]) for names in (queries, gallery)]
    return InstanceSet(
        "revisited",
        CroppedImages(root, paths[0], boxes),
        CroppedImages(root, paths[1], (None,) * len(gallery)),
        truth,
        [name.rpartition("_")[0] or name for name in queries],  # landmarks: all_souls_000013
    )


def _names(value: Any) -> list[str]:
    _expect(isinstance(value, list | tuple) and len(value) > 0, "a list of names")
    _expect(all(isinstance(name, str) and name for name in value), "names as text")
    return list(value)


def _box(entry: Any) -> Box | None:
    if "bbx" not in entry:
        return None
    edges = [float(edge) for edge in plain_pickle.numbers(entry["bbx"])]
    _expect(len(edges) == 4 and bool(np.isfinite(edges).all()), "four numbers in bbx")
    return edges[0], edges[1], edges[2], edges[3]


def _indices(value: Any, images: int) -> np.ndarray:
    found = plain_pickle.numbers(value)
    _expect(all(float(index).is_integer() and 0 <= index < images for index in found), f"indices below {images}")
    return np.unique(np.array(found, np.int64))


def _joined(lists: dict[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    return np.unique(np.concatenate([lists[name] for name in names]))


def _expect(condition: bool, expected: str) -> None:
    if not condition:
        raise ValueError(f"expected {expected}")


LAYOUT = InstanceLayout(
    name="revisited",
    title="ROxford5k or RParis6k: gnd_*.pkl and jpg/",
    matches=lambda root: _file(root) is not None,
    open=_open,
)
