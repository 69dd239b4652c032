"""Clusters of embeddings as a result: the images of each, the most typical first, and a folder with an atlas."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from excb.console import Reporter, plural
from excb.images.image_set import ImageSet
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.results.replacing import PYTHON_FOLDER_ADVICE

from ..clusters.assignment import NOISE
from ..clusters.options import ClusterOptions
from ..clusters.partition import Partition
from ..clusters.protocol import measure_clusters
from ..clusters.record import CLUSTERS
from ..runner import refuse_other_files

NO_LABEL = "(no label)"  # of images without one, in the atlas


@dataclass(frozen=True, eq=False)
class EmbeddingClusters(Sequence[Any]):
    """Clusters of embeddings; a sequence of the embeddings of each, the nearest to its centroid first.

    Attributes:
        embeddings: of all images.
        partition: the clusters, and how they were made.
    """

    embeddings: Any  # not by name: that module imports this one
    partition: Partition

    def __len__(self) -> int:
        """K, without the outliers."""
        return self.partition.assignment.clusters

    @overload
    def __getitem__(self, key: int) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> list[Any]: ...
    def __getitem__(self, key: int | slice) -> Any:
        if isinstance(key, slice):
            return [self[number] for number in range(len(self))[key]]
        return self._images(range(len(self))[key])

    @property
    def outliers(self) -> Any:
        """The images that HDBSCAN leaves in no cluster; none of k-means."""
        return self._images(NOISE)

    @property
    def numbers(self) -> np.ndarray:
        """The cluster of each image, int64 [N]; -1 for outliers."""
        return self.partition.assignment.first

    @property
    def sizes(self) -> np.ndarray:
        """Images of each cluster, int64 [K]."""
        return self.partition.assignment.sizes

    def __repr__(self) -> str:
        left = self.partition.assignment.noise
        beside = f", {plural(left, 'outlier')}" if left else ""
        return f"{plural(len(self), 'cluster')} of {plural(len(self.embeddings), 'image')}{beside}"

    def save(self, folder: str | Path, *, quiet: bool = False, overwrite: bool = False) -> list[Path]:
        """Write what `excb-eval clusters --out FOLDER` writes: atlas.html, assignments.csv, sizes, clusters.json.

        Pictures of files that are gone are left out.

        Args:
            folder: it may hold clusters of the same network and images, which are replaced.
            quiet: no notes and no progress.
            overwrite: replace whatever is there.

        Raises:
            UserError: the folder cannot be written, or has files of something else.
        """
        made, images = self.embeddings, self._image_set()
        data = {"images": {"root": made.root, "images": len(images), "fingerprint": images.fingerprint}}
        facts = {"checkpoint": dict(made.model), "data": data | {"classes": len(images.classes or ())}}
        measured = measure_clusters(
            self.partition,
            images,
            ClusterOptions(),
            Reporter(quiet=quiet),
            facts=facts | {"ledger": made.ledger},
            settings={"preprocessing": made.model.get("preprocessing")},
            since=time.monotonic(),
            remarks=self._remarks(),
        )
        if not overwrite:
            refuse_other_files(
                CLUSTERS,
                CLUSTERS.result_file(Path(folder)),
                weights=measured.result.checkpoint.get("weights_sha256"),
                data=measured.result.data,
                label_sets=False,
                advice=PYTHON_FOLDER_ADVICE,
            )
        return measured.write(measured.result, Path(folder))

    def _remarks(self) -> list[str]:
        missing = sum(label is None for label in self.embeddings.labels or ())
        counted = plural(missing, "image has no label and counts", "images have no label and count")
        return [f"{counted} as of the class {NO_LABEL} in purity and NMI"] if missing else []

    def _images(self, number: int) -> Any:
        rows = np.flatnonzero(self.numbers == number)
        order = np.argsort(-self.partition.assignment.similarity[rows], kind="stable")
        return self.embeddings[rows[order]]

    def _image_set(self) -> ImageSet:
        """The images as files, with their labels."""
        made = self.embeddings
        prepared = made.model.get("preprocessing") or {}
        pixels = Pixels.from_dict(prepared["pixels"]) if "pixels" in prepared else EIGHT_BIT
        if made.labels is None:
            return ImageSet(Path(made.root), list(made.paths), pixels=pixels)
        classes, labels = np.unique([label or NO_LABEL for label in made.labels], return_inverse=True)
        return ImageSet(Path(made.root), list(made.paths), labels, tuple(classes.tolist()), pixels=pixels)
