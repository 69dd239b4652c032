"""Masks as COCO's run-length codes, by pycocotools; `run_lengths` checks codes of unknown origin first."""

import warnings
from typing import Any

import numpy as np


def packed(code: dict[str, Any]) -> dict[str, Any]:
    """A run-length code, compressed if it is not."""
    from pycocotools import mask as coco

    made: dict[str, Any] = coco.frPyObjects(code, *code["size"]) if isinstance(code["counts"], list) else code
    return made


def decoded(code: dict[str, Any]) -> np.ndarray:
    """The mask [height, width] bool of a compressed run-length code."""
    from pycocotools import mask as coco

    # pycocotools 2.0.11 warns with NumPy 2, which changed when arrays are copied.
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return np.asarray(coco.decode(code) > 0)


def encoded(mask: np.ndarray) -> dict[str, Any]:
    """The compressed run-length code of a mask [height, width] bool."""
    from pycocotools import mask as coco

    code = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": [int(side) for side in code["size"]], "counts": code["counts"].decode()}
