"""`excb.Embedder`: batches of a distributed data set to vectors; Ray Data's `map_batches` takes the class as it is."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from excb.errors import UserError, require

if TYPE_CHECKING:
    from torch import Tensor

VECTOR, ERROR = "vector", "error"


class Embedder:
    """Adds a vector to every row of a batch of images; each worker loads the network once.

    ::

        photos = ray.data.read_parquet("s3://bucket/photos")
        options = {"ckpt": "rn50_400ep", "column": "bytes"}
        actors = ray.data.ActorPoolStrategy(size=8)
        vectors = photos.map_batches(excb.Embedder, fn_constructor_kwargs=options, batch_size=256, compute=actors)
        vectors.write_parquet("s3://bucket/vectors")

    An image that cannot be read does not end the job: its vector is NaN, and the column `error` says why.

    Args:
        ckpt: anything that `excb.load` takes, on a disk that all workers see, or a name that each fetches.
        column: the images: encoded bytes, paths of files, or uint8 arrays [H, W, 3].
        network: of a run's checkpoint.
        device: cpu, cuda or auto: the GPU that the worker was given, if any.
        batch: images at once through the network; a block of rows may be larger.
        range: LOW..HIGH, the stored values that become black and white, of images of more than 8 bits; by default the
            checkpoint's. A worker sees blocks, not the set, so nothing is measured: without either, such images have no
            vector, and `error` says so.

    Raises:
        UserError: the checkpoint or the device cannot be used, or the range is none.
    """

    def __init__(
        self,
        ckpt: str | Path,
        *,
        column: str = "bytes",
        network: Literal["teacher", "student"] = "teacher",
        device: str = "auto",
        batch: int = 64,
        range: str | None = None,  # noqa: A002 - as the option of commands and of `excb.embed` is called
    ) -> None:
        from excb.distributed.machine import choose_device
        from excb.hub.loading import load
        from excb.networks.frozen.parts import InParts

        require(batch >= 1, "batch must be at least 1")
        self.backbone = load(ckpt, network=network).to(choose_device(device))
        if range is not None:
            self.backbone.transform = self.backbone.transform.with_range(range)
        self.column, self.batch = column, batch
        self._passed = InParts(self.backbone, many=True)

    def __call__(self, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The same columns with `vector` [B, D] float32 and `error`, empty for images that were read.

        Raises:
            UserError: there is no such column.
        """
        from excb.networks.features import vectors

        if self.column not in rows:
            raise UserError(f"no column {self.column!r}: there are {', '.join(rows)}; name it with column=")
        images = rows[self.column]
        made = np.full((len(images), self.backbone.width), np.nan, np.float32)
        errors = [""] * len(images)
        for start in range(0, len(images), self.batch):
            inputs, places = list["Tensor"](), list[int]()
            for place in range(start, min(start + self.batch, len(images))):
                try:
                    inputs.append(self._prepared(images[place]))
                    places.append(place)
                except UserError as error:
                    errors[place] = str(error)
            if inputs:
                made[places] = vectors(self.backbone, inputs, self._passed).numpy()
        return {**rows, VECTOR: made, ERROR: np.array(errors)}

    def _prepared(self, image: Any) -> "Tensor":
        """One image as the network's input. Raises UserError if it cannot be read."""
        from excb.images.decoding import BrokenImageError, PixelsError, open_image

        if isinstance(image, bytes | bytearray | memoryview):
            try:
                image = open_image(io.BytesIO(image), self.backbone.transform.pixels)
            except PixelsError as error:
                raise UserError(f"{error}; excb.Embedder(..., range='0..4095')") from None
            except BrokenImageError as error:
                raise UserError(str(error)) from None
        return self.backbone.transform(os.fspath(image) if isinstance(image, os.PathLike) else image)
