"""Embeddings: a vector for every image, with its path and all that says how it was made; searched exactly."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from excb.console import plural
from excb.errors import UserError, require
from excb.images.picture import is_picture
from excb.neighbours.nearest import Index
from excb.networks.features import embed_images as embed_pictures

from .vectors import Vectors, in_place

if TYPE_CHECKING:
    from excb.hub.backbone import Backbone
    from excb.images.picture import Picture


class Match(NamedTuple):
    """An image that a search found."""

    path: str  # below the embeddings' root
    cosine: float  # similarity with the query, -1 to 1
    row: int  # of the vectors


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings(Vectors):
    """Vectors of images, and what is done with them; their fields are those of `Vectors`.

    Attributes:
        backbone: made the vectors; of those that were read from a file it is loaded by name where it is needed.
    """

    backbone: "Backbone | None" = None

    @cached_property
    def vectors(self) -> np.ndarray:
        """All rows [N, D] float32 in memory, which takes N x D x 4 bytes; the same array each time."""
        return np.concatenate(list(self.parts())) if len(self) else np.empty((0, self.rows.width), np.float32)

    def search(self, query: "Picture | np.ndarray | Tensor", k: int = 12) -> list[Match]:
        """The k images nearest to a query by cosine, exact; equal ones in the order of their rows.

        Args:
            query: a PIL image, an array of pixels [H, W, 3] or a file; or a vector [D], such as a row of `vectors`.
            k: how many; all where there are fewer images.

        Raises:
            UserError: the query is something else, or the network that made the vectors cannot be loaded.
        """
        return self.search_vectors(self.embed_query(query)[None], k)[0]

    def search_vectors(self, queries: "np.ndarray | Tensor", k: int = 12) -> list[list[Match]]:
        """`search` for several vectors [Q, D] in one pass over the images."""
        require(k >= 1, f"k is {k}: ask for one image at least")
        rows = torch.as_tensor(np.asarray(queries, dtype=np.float32))
        fits = rows.ndim == 2 and rows.shape[1] == self.rows.width
        require(
            fits,
            f"queries of shape {list(rows.shape)} do not fit: these vectors have {plural(self.rows.width, 'number')}",
        )
        neighbours = self._index.nearest(rows, min(k, len(self)))
        return [
            [Match(self.paths[index], cosine, index) for index, cosine in zip(indices, cosines, strict=True)]
            for indices, cosines in zip(neighbours.indices.tolist(), neighbours.similarities.tolist(), strict=True)
        ]

    def embed_query(self, query: "Picture | np.ndarray | Tensor") -> Tensor:
        """The vector [D] of a query."""
        if isinstance(query, Tensor | np.ndarray) and query.ndim == 1:
            return torch.as_tensor(query).detach().float().cpu()
        if not is_picture(query):
            shape = f" of shape {list(query.shape)}" if isinstance(query, Tensor) else ""
            raise UserError(
                "a query is an image (PIL, uint8 array [H, W, 3], file) or a vector [D], not a "
                f"{type(query).__name__}{shape}: for several vectors call search_vectors"
            )
        backbone = self._network
        return embed_pictures(backbone, backbone.transform, query)[0]

    @cached_property
    def _index(self) -> Index:
        """The vectors, prepared for searching once; they stay where they are, on the disk or in memory."""
        return Index(in_place(self.rows))

    @cached_property
    def _network(self) -> "Backbone":
        """The network that made the vectors, with the preprocessing that they had."""
        from excb.networks.backbone import weights_hash
        from excb.networks.rules import preprocessing_from

        if self.backbone is not None:
            return self.backbone
        from excb.hub.loading import load

        source = str(self.model.get("loads") or "")
        require(bool(source), "these vectors were made by a network in memory: search by vectors that it makes")
        backbone = load(source, network="student" if self.model.get("network") == "student" else "teacher")
        if weights_hash(backbone.network) != self.model.get("weights_sha256"):
            raise UserError(f"{source} has other weights than made these vectors: embed the images again")
        backbone.transform = preprocessing_from(dict(self.model["preprocessing"]))
        return backbone

    def near_duplicates(self, cosine: float = 0.95) -> list[list[str]]:
        """Groups of images that are linked by pairs of at least this cosine: the largest first, each sorted by path.

        Every pair is compared: N^2 x D multiplications, and no more memory than for some thousand rows.

        Raises:
            UserError: the cosine is out of range, or so low that the pairs are too many.
        """
        from .duplicates import groups

        return [[self.paths[index] for index in group] for group in groups(self.rows, cosine)]

    def save(self, file: str | Path) -> Path:
        """Write FILE.npz, FILE.parquet or FILE.safetensors, in flat memory; `Embeddings.load` reads each.

        Raises:
            UserError: the name ends otherwise, or the file cannot be written.
        """
        from .files import write_vectors

        return write_vectors(self, Path(file))

    def save_index(self, file: str | Path) -> list[Path]:
        """Write a FAISS index of the unit vectors (inner products are cosines), and FILE.json with their paths.

        Raises:
            UserError: FAISS is not installed, or a file cannot be written.
        """
        from .index import write_index

        return write_index(self, Path(file))

    @classmethod
    def load(cls, file: str | Path) -> "Embeddings":
        """Open what `save` wrote; vectors stay on the disk where the format allows it.

        Raises:
            UserError: it is no such file, or is damaged.
        """
        from .files import read_vectors

        vectors = read_vectors(Path(file))
        return cls(vectors.rows, vectors.paths, vectors.root, vectors.model, vectors.unreadable)
