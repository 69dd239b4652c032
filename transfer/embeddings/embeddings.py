"""Embeddings: a vector for every image, with its path and all that says how it was made; searched exactly."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from excb.console import Reporter, plural
from excb.errors import UserError, in_short, path_text, require
from excb.images.decoding import BrokenImageError, open_image
from excb.images.picture import is_picture
from excb.neighbours.approximate import ApproximateIndex
from excb.neighbours.nearest import Index
from excb.networks.features import embed_images as embed_pictures
from excb.results.replacing import PYTHON_ADVICE

from .table import tables
from .table.csv_table import write_csv
from .table.vectors import ArrayRows, Vectors, in_place

if TYPE_CHECKING:
    import pandas

    from excb.hub.backbone import Backbone

    from ..clusters.options import ClusterMethod
    from ..map.columns import Values
    from ..map.making import MapResult
    from ..map.projection import ProjectionMethod
    from .clustering import EmbeddingClusters
    from .copies.near_duplicates import NearDuplicates
    from .exporting import Labels

FILE = "a file is named by a path"  # and nothing else


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
        """All rows [N, D] float32 in memory, which takes N x D x 4 bytes; the same array each time.

        What is in memory already, such as the rows of an .npz file, is not copied: who changes the array changes these
        embeddings, too, but not an index that was made of them before.
        """
        held = in_place(self.rows)
        if isinstance(held, Tensor):
            return held.numpy()
        if isinstance(self.rows, ArrayRows):
            return self.rows.rows(0, len(self)).numpy()
        return np.concatenate(list(self.parts())) if len(self) else np.empty((0, self.rows.width), np.float32)

    def __getitem__(self, key: Any) -> Any:
        """One vector [D] by its path or row; or some images, as embeddings, by a slice, a mask [N] or a list of these.

        Raises:
            KeyError, IndexError: there is no such path or row, or the mask has another length.
        """
        if isinstance(key, str | int | np.integer):
            row = tables.row_of(self, key)
            return self.rows.rows(row, row + 1)[0].numpy()
        chosen = tables.chosen_rows(self, key)
        paths = [self.paths[index] for index in chosen.tolist()]
        labels = None if self.labels is None else [self.labels[index] for index in chosen.tolist()]
        return replace(self, rows=tables.subset_of(self.rows, chosen), paths=paths, labels=labels)

    def __iter__(self) -> Iterator[np.ndarray]:
        """The vectors [D], row by row."""
        for part in self.parts():
            yield from part

    def __contains__(self, path: object) -> bool:
        return path in self.numbers

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """`vectors`, for NumPy and what takes its arrays, such as scikit-learn."""
        return np.array(self.vectors, dtype=dtype, copy=copy)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The columns `path`, `label` and `vector`, for what takes Arrow's tables, such as polars and DuckDB."""
        return tables.to_arrow(self, self.vectors).__arrow_c_stream__(requested_schema)

    @classmethod
    def concatenate(cls, several: Sequence["Embeddings"]) -> "Embeddings":
        """Several embeddings as one, in their order; paths start from the folder that holds all of their roots.

        Raises:
            UserError: other networks made them, or an image is in two of them.
        """
        return cls(**vars(tables.joined_embeddings(several)), backbone=several[0].backbone)

    def with_labels(self, labels: "Sequence[str | None] | Mapping[str, str | None]") -> "Embeddings":
        """The same with other labels: one for each image, or those of some paths. Raises UserError if none fits."""
        return replace(self, labels=tables.labels_for(self, labels))

    def to_pandas(self) -> "pandas.DataFrame":
        """A data frame indexed by path: label if there are some, v0, v1, ... Raises UserError without pandas."""
        return tables.to_pandas(self, self.vectors)

    def to_csv(self, file: str | Path, *, overwrite: bool = False) -> Path:
        """Write a CSV with path, label if there are some, v0, v1, ...; FILE.csv.json says what made the vectors.

        Raises:
            UserError: it cannot be written, or as `save`.
        """
        from .replacing import Source, refuse_other_csv

        place = Path(path_text(file, FILE))
        if not overwrite:
            refuse_other_csv(place, Source.of(self), PYTHON_ADVICE)
        return write_csv(self, place)

    def files(self, matches: "Iterable[Match | str]") -> list[Path]:
        """The files of matches or of paths, for `excb.image_grid`; of images in a folder."""
        return [Path(self.root) / (each if isinstance(each, str) else each.path) for each in matches]

    def search(self, query: Any, k: int = 12, *, approximate: bool = False) -> Any:
        """The k images nearest to a query by cosine, exact; equal ones in the order of their rows.

        An image that is among the embeddings finds itself first.

        Args:
            query: a path of these embeddings, a row's number or a `Match`; a PIL image, an array of pixels [H, W, 3], a
                file or its bytes; a vector [D]. Several are a list of these, or vectors [Q, D].
            k: how many; all where there are fewer images.
            approximate: search through `graph`, which is built first: faster among many images, and may miss some.

        Returns:
            A list of `Match`; of several queries, a list of these.

        Raises:
            UserError: the query is something else, or the network that made the vectors cannot be loaded.
        """
        if isinstance(query, list) or self._holds_vectors(query):
            require(len(query) > 0, "there is no query: pass one, or several")
            rows = query if self._holds_vectors(query) else torch.stack([self.embed_query(each) for each in query])
            return self.search_vectors(rows, k, approximate=approximate)
        return self.search_vectors(self.embed_query(query)[None], k, approximate=approximate)[0]

    def _holds_vectors(self, query: Any) -> bool:
        """Whether a query is several vectors [Q, D], and not a grey image."""
        if not isinstance(query, Tensor | np.ndarray) or query.ndim != 2:
            return False
        floating = query.is_floating_point() if isinstance(query, Tensor) else query.dtype.kind == "f"
        return floating and query.shape[1] == self.rows.width

    def search_vectors(
        self, queries: "np.ndarray | Tensor", k: int = 12, *, approximate: bool = False
    ) -> list[list[Match]]:
        """`search` for several vectors [Q, D] in one pass over the images."""
        require(_is_number(k) and k >= 1, f"k is {k}: ask for a whole number of images, at least one")
        rows = torch.as_tensor(np.asarray(queries, dtype=np.float32))
        fits = rows.ndim == 2 and rows.shape[1] == self.rows.width
        require(
            fits,
            f"queries of shape {list(rows.shape)} do not fit: these vectors have {plural(self.rows.width, 'number')}",
        )
        index: Index | ApproximateIndex = self.graph if approximate else self._index
        neighbours = index.nearest(rows, min(k, len(self)))
        return [
            [Match(self.paths[index], cosine, index) for index, cosine in zip(indices, cosines, strict=True)]
            for indices, cosines in zip(neighbours.indices.tolist(), neighbours.similarities.tolist(), strict=True)
        ]

    def embed_query(self, query: Any) -> Tensor:
        """The vector [D] of one query, as `search` takes it."""
        if isinstance(query, Match):
            query = query.path
        if (isinstance(query, str) and query in self.numbers) or _is_number(query):
            try:
                return torch.from_numpy(self[query].copy())
            except IndexError:
                raise UserError(f"there is no row {query}: these are {plural(len(self), 'row')}") from None
        if isinstance(query, Tensor | np.ndarray) and (query.ndim == 1 or self._holds_vectors(query)):
            require(query.ndim == 1 or len(query) == 1, "several vectors are several queries: call search")
            return torch.as_tensor(query).detach().float().cpu().flatten()
        if isinstance(query, bytes | bytearray | memoryview):
            query = _decoded(bytes(query))
        if not is_picture(query):
            shape = f" of shape {list(query.shape)}" if isinstance(query, Tensor) else ""
            raise UserError(
                "a query is an image (PIL, uint8 array [H, W, 3], file, bytes), a path or row of these embeddings, a "
                f"Match, a vector [D], or a list of these, not a {type(query).__name__}{shape}"
            )
        backbone = self.network
        return embed_pictures(backbone, backbone.transform, query)[0]

    @cached_property
    def _index(self) -> Index:
        """The vectors, prepared for searching once; they stay where they are, on the disk or in memory."""
        return Index(in_place(self.rows))

    @cached_property
    def graph(self) -> ApproximateIndex:
        """The graph of approximate searches, built once; `graph.recall()` measures how many of the nearest it finds.

        It holds a copy of the vectors in memory.

        Raises:
            UserError: FAISS is missing.
        """
        return ApproximateIndex(in_place(self.rows))

    @cached_property
    def network(self) -> "Backbone":
        """The network that made the vectors, with the preprocessing that they had. Raises UserError without one."""
        from excb.networks.backbone import weights_hash
        from excb.networks.rules import preprocessing_from

        if self.backbone is not None:
            return self.backbone
        from excb.hub.loading import load
        from excb.hub.resolve import is_known, resolve

        source = str(self.model.get("loads") or "")
        require(bool(source), "these vectors were made by a network in memory: search by vectors that it makes")
        require(
            is_known(source),
            f"the file of these vectors names a network elsewhere, {source}: if you trust it, pass the network with "
            f"excb.Embeddings.load(FILE, backbone=excb.load({source!r}))",
        )
        place = resolve(source).path
        require(
            place is None or place.exists(),
            f"these vectors were made by {place}, and nothing is there: pass the network with "
            "excb.Embeddings.load(FILE, backbone=excb.load(PATH))",
        )
        backbone = load(source, network="student" if self.model.get("network") == "student" else "teacher")
        if weights_hash(backbone.network) != self.model.get("weights_sha256"):
            raise UserError(f"{source} has other weights than made these vectors: embed the images again")
        try:
            backbone.transform = preprocessing_from(dict(self.model["preprocessing"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"the preprocessing of these vectors is damaged ({error}): embed the images again"
            ) from None
        return backbone

    def near_duplicates(self, cosine: float | None = None, *, quiet: bool = False) -> "NearDuplicates":
        """Groups of images that are almost the same, the largest first, and the file of each to keep.

        A group is an image and those that have at least this cosine with it. Every pair is compared: N^2 x D
        multiplications, and no more memory than for some thousand rows.

        Args:
            cosine: from which images count as almost the same. By default it is chosen on these images: altered copies
                of some are embedded, and compared with their neighbours (`copies.thresholds.calibrate_copies`).
            quiet: no progress.

        Raises:
            UserError: the cosine is out of range, or so low that the pairs are too many. Without one: the images'
                files or the network are gone, or there are too few.
        """
        from .copies.near_duplicates import find_near_duplicates

        numbers = isinstance(cosine, Real | None)
        require(numbers, f"near-duplicates have a cosine above -1 and at most 1, not {in_short(cosine)}")
        return find_near_duplicates(self, lambda: self.network, cosine, Reporter(quiet=quiet))

    def clusters(self, k: int | None = None, *, method: "ClusterMethod" = "kmeans") -> "EmbeddingClusters":
        """Clusters of the images by their unit vectors; `.save(FOLDER)` writes a page to browse them.

        Args:
            k: clusters of k-means; by default the square root of the number of images, so that each has about as many.
            method: "kmeans", or "hdbscan", which finds the number itself and leaves outliers in none.

        Raises:
            UserError: there are too few images, or k is out of range or given for HDBSCAN.
        """
        from ..clusters.partition import partition
        from .clustering import EmbeddingClusters

        return EmbeddingClusters(self, partition(self.rows, method=method, k=k))

    def _repr_html_(self) -> str:
        from .notebook import embeddings_html

        return embeddings_html(self)

    def map(
        self,
        file: str | Path,
        *,
        labels: "Labels | None" = None,
        colours: "Mapping[str, Values] | None" = None,
        colour_by: str | None = None,
        method: "ProjectionMethod" = "auto",
        seed: int = 0,
        pictures_mb: float = 32.0,
        quiet: bool = False,
        overwrite: bool = False,
    ) -> "MapResult":
        """Write FILE.html: the images in the plane, with pictures, colours, search and selection.

        Args:
            file: the page, which needs no other file. An earlier map of the same network and images is replaced.
            labels: one per image in their order, or by path; by default the embeddings' own, else class folders.
            colours: more columns by name, likewise, such as clusters and predictions.
            colour_by: the column that colours the map at first.
            method: "umap", "tsne", or "auto": UMAP where umap-learn is installed.
            seed: of the layout.
            pictures_mb: megabytes of pictures at most.
            quiet: no notes and no progress.
            overwrite: replace another page or file as well.

        Returns:
            The file, and the `projection` with the `points` [N, 2].

        Raises:
            UserError: Bokeh or UMAP is not installed, a column does not fit the images, or the file cannot be written,
                or is of something else.
        """
        from excb.pages.origin import refuse_other_page

        from .maps import draw_map
        from .replacing import Source

        place = Path(path_text(file, FILE))
        if not overwrite:
            refuse_other_page(place, Source.of(self).page("map"), advice=PYTHON_ADVICE)
        return draw_map(
            self,
            place,
            labels=labels,
            colours=colours,
            colour_by=colour_by,
            method=method,
            seed=seed,
            pictures_mb=pictures_mb,
            reporter=Reporter(quiet=quiet),
        )

    def save(self, file: str | Path, *, overwrite: bool = False) -> Path:
        """Write FILE.npz, FILE.parquet or FILE.safetensors, which `Embeddings.load` reads, or FILE.csv, in flat memory.

        Args:
            file: it may hold vectors of the same network and of these images or fewer, which are replaced.
            overwrite: replace whatever is there.

        Raises:
            UserError: the name ends otherwise, or the file cannot be written, or has something else.
        """
        from .replacing import Source, refuse_other_vectors
        from .table.files import check_vectors_file, write_vectors

        place = Path(path_text(file, FILE))
        check_vectors_file(place)
        if not overwrite:
            refuse_other_vectors(place, Source.of(self), advice=PYTHON_ADVICE)
        return write_vectors(self, place)

    def save_index(self, file: str | Path, *, overwrite: bool = False) -> list[Path]:
        """Write a FAISS index of the unit vectors (inner products are cosines), and FILE.json with their paths.

        Args:
            file: it may be an index of the same network and of these images or fewer, which is replaced.
            overwrite: replace whatever is there.

        Raises:
            UserError: FAISS is not installed, or a file cannot be written, or is something else.
        """
        from .exporting import write_index
        from .replacing import Source, refuse_other_index

        place = Path(path_text(file, FILE))
        if not overwrite:
            refuse_other_index(place, Source.of(self), advice=PYTHON_ADVICE)
        return write_index(self, place)

    def to_fiftyone(self, name: str | None = None, *, labels: "Labels | None" = None) -> Any:
        """A `fiftyone.Dataset` of the images' files, with the fields `embedding` and `ground_truth`.

        Args:
            name: under which FiftyOne keeps it; without one, it forgets it when Python ends.
            labels: as `map` takes them.

        Raises:
            UserError: FiftyOne is not installed, it has a data set of that name, or the images are not files.
        """
        from ..exports.fiftyone import make_fiftyone
        from .exporting import exported

        return make_fiftyone(exported(self, labels), name)

    def to_lance(self, place: str | Path, *, labels: "Labels | None" = None) -> Path:
        """Write a Lance data set, FOLDER.lance: `path`, `vector` and `label`. LanceDB opens it as a table.

        Raises:
            UserError: pylance is not installed, the name ends otherwise, or the place is taken or cannot be written.
        """
        from ..exports.lance import write_lance
        from .exporting import exported

        return write_lance(exported(self, labels), Path(path_text(place, FILE)))

    def to_qdrant(self, client: Any, collection: str, *, labels: "Labels | None" = None) -> int:
        """Fill a new collection of Qdrant with cosine distance: row as id, and `path`, `root` and `label`.

        Args:
            client: a `qdrant_client.QdrantClient`, or a folder for Qdrant's local mode.
            collection: its name.
            labels: as `map` takes them.

        Returns:
            The number of points.

        Raises:
            UserError: qdrant-client is not installed, or there is such a collection already.
        """
        from ..exports.qdrant import write_qdrant
        from .exporting import exported

        return write_qdrant(exported(self, labels), client, collection)

    @classmethod
    def load(cls, file: str | Path, *, backbone: "Backbone | None" = None) -> "Embeddings":
        """Open what `save` wrote; vectors stay on the disk where the format allows it.

        Args:
            file: of any origin.
            backbone: the network that made the vectors, for searches by images. Without it, a network on this machine,
                of the catalogue or of timm is loaded by its name; an address that the file states is not contacted.

        Raises:
            UserError: it is no such file, or is damaged.
        """
        from .table.files import read_vectors

        return cls(**vars(read_vectors(Path(path_text(file, FILE)))), backbone=backbone)


def _is_number(query: object) -> bool:
    """Whether it is a whole number, such as that of a row; True is none."""
    return isinstance(query, int | np.integer) and not isinstance(query, bool)


def _decoded(content: bytes) -> Image.Image:
    """The image that a file's bytes hold. Raises UserError if they hold none."""
    try:
        return open_image(io.BytesIO(content))
    except BrokenImageError as error:
        raise UserError(f"the bytes of the query are no image ({error})") from None
