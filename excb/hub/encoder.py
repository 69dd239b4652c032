"""`excb.Encoder`: a frozen network as a transformer of scikit-learn, from images to vectors."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from torch.nn import functional

from excb.errors import require
from excb.hub.resolve import lasting

if TYPE_CHECKING:
    from excb.hub.backbone import Backbone


class Encoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no annotations
    """Images to vectors in a pipeline of scikit-learn. Nothing is fitted: the network stays as it is.

    ::

        pipeline = make_pipeline(excb.Encoder("conv4_photos"), StandardScaler(), LogisticRegression())
        cross_val_score(pipeline, paths, labels, n_jobs=2)

    Every copy that scikit-learn makes loads the network once, when it is used. A pickle holds its name, not its
    weights, unless `ckpt` is a network in memory.

    Args:
        ckpt: anything that `excb.load` takes, or a `Backbone`.
        network: of a run's checkpoint, "teacher" or "student".
        device: cpu, cuda or auto; of a `Backbone` its own counts.
        batch_size: images at once.
        normalize: whether vectors have length 1.
    """

    def __init__(
        self,
        ckpt: "str | Path | Backbone" = "conv4_photos",
        *,
        network: Literal["teacher", "student"] = "teacher",
        device: str = "auto",
        batch_size: int = 64,
        normalize: bool = False,
    ) -> None:
        self.ckpt = ckpt
        self.network = network
        self.device = device
        self.batch_size = batch_size
        self.normalize = normalize

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Load the network; images and labels change nothing. Raises UserError if it cannot be loaded."""
        del X, y
        self.n_features_out_ = int(self._backbone().width)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Vectors [N, D] float32 of images.

        Args:
            X: files, PIL images, or uint8 arrays [H, W, 3]: a list, a column, or an array [N, H, W, 3].

        Raises:
            UserError: an image cannot be read or is none, or the network cannot be loaded.
        """
        images = self._images(X)
        require(bool(images), "there is no image to encode: pass one, or several")
        rows = self._backbone().embed(images, batch=self.batch_size)
        return (functional.normalize(rows, dim=1) if self.normalize else rows).numpy()

    @staticmethod
    def _images(X: Any) -> list[Any]:
        require(isinstance(X, Iterable) and not isinstance(X, str | bytes), "images are several: pass a list of them")
        array = X if isinstance(X, np.ndarray) else X.to_numpy() if hasattr(X, "to_numpy") else None
        if array is None or array.dtype == np.uint8:
            return list(X)
        return list(array.reshape(-1) if array.ndim == 2 and array.shape[1] == 1 else array)  # a column of a table

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the vectors' numbers: encoder0, encoder1, ..."""
        del input_features
        return np.array([f"encoder{number}" for number in range(int(self._backbone().width))], dtype=object)

    def _backbone(self) -> "Backbone":
        """The network, loaded once with the settings that it has now."""
        from excb.distributed.machine import choose_device
        from excb.hub.backbone import Backbone
        from excb.hub.loading import load

        if isinstance(self.ckpt, Backbone):
            return self.ckpt
        settings = (str(self.ckpt), self.network, self.device)
        known: tuple[Any, Backbone] | None = self.__dict__.get("_loaded")
        if known is None or known[0] != settings:
            known = settings, load(self.ckpt, network=self.network).to(choose_device(self.device))
            self.__dict__["_loaded"] = known
        return known[1]

    def __getstate__(self) -> dict[str, Any]:
        """Without the network: another process loads it by name, in any working directory."""
        state = {name: value for name, value in super().__getstate__().items() if name != "_loaded"}
        return state | {"ckpt": lasting(self.ckpt)} if isinstance(self.ckpt, str | os.PathLike) else state

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.no_validation = True  # images are no table of numbers
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags
