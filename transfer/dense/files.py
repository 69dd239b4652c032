"""The files of a dense result: areas of every image, from which all figures follow, and a sheet of masks."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from excb.distributed.collectives import run_on_rank0
from excb.files.atomic import write_bytes, write_text
from excb.results.pictures import MASKS, picture_beside
from excb.results.result import ResultRecord

from .comparison import Segmentations
from .patches.metrics import Areas
from .pictures import mask_sheet
from .setup import DenseTask


@dataclass(frozen=True)
class DenseMeasurements:
    """The measurements beside the result: areas for every figure and seed, and masks to look at."""

    areas: dict[str, list[Areas]]  # by head and part, such as "knn_1of8"
    masks: dict[str, dict[int, np.ndarray]]  # predicted masks by head and image


@dataclass(frozen=True)
class DenseFiles:
    """Writes a result with what it was made of."""

    task: DenseTask
    measured: DenseMeasurements

    @property
    def scored(self) -> Segmentations:
        """The areas that `excb.compare` tests."""
        images = self.task.test.images
        return Segmentations(images.paths, images.classes, self.measured.areas)

    def __call__(self, result: ResultRecord, file: Path) -> list[Path]:
        """Write FILE.json, and beside it FILE.areas.json and FILE.masks.png; rank 0 does, for all.

        Returns:
            The files, JSON first.

        Raises:
            UserError: one cannot be written, or a pictured image cannot be read.
        """
        return run_on_rank0(lambda: self._write(result, file))

    def _write(self, result: ResultRecord, file: Path) -> list[Path]:
        stem, files = file.name.removesuffix(".json"), [file]
        areas = file.with_name(f"{stem}.areas.json")
        text = json.dumps(self._areas(), separators=(",", ":")) + "\n"
        write_text(text, areas)
        files.append(areas)
        if self.measured.masks:
            files.append(picture_beside(file, MASKS))
            write_bytes(self._picture(), files[-1])
        digest = hashlib.sha256(text.encode()).hexdigest()
        result = replace(result, predictions={"file": areas.name, "sha256": digest})
        result.write(file)  # last: the files that it names exist
        return files

    def _areas(self) -> dict[str, Any]:
        """By run and seed, for every image the classes that occur: class -> right, predicted and true pixels."""
        images = self.task.test.images
        runs = {run: [_by_image(areas) for areas in seeds] for run, seeds in self.measured.areas.items()}
        return {"classes": list(images.classes), "images": list(images.paths), "areas": runs}

    def _picture(self) -> bytes:
        images, masks = self.task.test.images, self.measured.masks
        size = self.task.scoring.mask_size
        rows = []
        for image in next(iter(masks.values())):
            view = self.task.test.of(image).start
            original = size == "original"
            picture = images.open(image) if original else self.task.test.open(view)
            true = images.mask(image) if original else self.task.test.mask(view)
            predicted: Mapping[str, np.ndarray] = {head: masks[head][image] for head in masks}
            rows.append((picture, {"true": true, **predicted}))
        return mask_sheet(rows, len(images.classes))


def _by_image(areas: Areas) -> list[dict[int, list[int]]]:
    counts = np.stack([areas.right, areas.predicted, areas.true], axis=2)  # [N, C, 3]
    return [{label: image[label].tolist() for label in np.flatnonzero(image.any(1)).tolist()} for image in counts]
