"""The folder of a result: figures, assignments as CSV and Parquet, the picture of sizes, and the atlas."""

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from excb.console import Reporter, plural
from excb.distributed.collectives import run_on_rank0
from excb.files.atomic import write_bytes
from excb.images.image_set import Images
from excb.results.pictures import SIZES
from excb.results.result import ResultRecord

from . import atlas, drawing, exemplars, files
from .assignment import CentroidNeighbours, ClusterAssignment
from .options import ClusterOptions


@dataclass(frozen=True)
class ClusterFiles:
    """Writes the folder of a result."""

    images: Images  # the set
    options: ClusterOptions
    assignment: ClusterAssignment  # of the images
    near: CentroidNeighbours  # of the centroids
    reporter: Reporter  # for messages and progress

    @property
    def scored(self) -> files.Assigned:
        """The cluster of every image."""
        return files.Assigned(self.assignment, self.images)

    def __call__(self, result: ResultRecord, place: Path) -> list[Path]:
        """Write clusters.json, which names its file of assignments, and the files beside it; all ranks call this.

        Args:
            result: the record.
            place: the folder, or FOLDER.json; files of these names in it are replaced.

        Returns:
            The files, JSON first.

        Raises:
            UserError: a file cannot be written, or a folder to compare with is not one of this command.
        """
        folder = place.with_suffix("") if place.suffix == ".json" else place
        return run_on_rank0(partial(self._write, result, folder))

    def _write(self, result: ResultRecord, folder: Path) -> list[Path]:
        assignment, images = self.assignment, self.images
        others = [drawing.Curve(_folder_name(path), files.read_sizes(path)[1]) for path in self.options.compare]
        table = files.to_csv(assignment, images)
        written = {files.TABLE: table}
        if files.has_parquet():
            written[files.PARQUET] = files.to_parquet(assignment, images)
        else:
            self.reporter.note("no assignments.parquet: it needs pyarrow (pip install 'excb[parquet]')")
        curves = [drawing.Curve(result.checkpoint["name"], assignment.sizes), *others]
        drawn = drawing.draw_sizes(curves, title=f"Clusters of {_set_name(images)}, sorted by size")
        written |= {f"{SIZES}.{suffix}": packed for suffix, packed in drawn.items()}
        written[files.ATLAS] = self._atlas(result).encode()
        result = replace(result, predictions={"file": files.TABLE, "sha256": hashlib.sha256(table).hexdigest()})
        for file, packed in written.items():
            write_bytes(packed, folder / file)
        result.write(folder / files.RESULT)  # last: the files that it names exist
        return [folder / file for file in (files.RESULT, *written)]

    def _atlas(self, result: ResultRecord) -> str:
        options, assignment, images = self.options, self.assignment.with_noise_as_cluster(), self.images
        nearest, border = exemplars.choose_exemplars(assignment, options.exemplars)
        wanted = list(exemplars.in_turn(nearest, border, assignment.sizes))
        with self.reporter.progress("pictures of the atlas", len(wanted)) as bar:
            pictures = exemplars.pictures(images, wanted, budget=round(1e6 * options.atlas_mb), progress=bar.advance)
        notes = list(result.notes)
        if missing := len(wanted) - len(pictures):
            note = (
                f"no picture of {missing:,} of {plural(len(wanted), 'exemplar')}: {options.atlas_mb:g} MB are full "
                "(--atlas-mb takes more, --exemplars fewer)"
            )
            self.reporter.note(f"atlas: {note}")
            notes.append(note)
        shown = atlas.contents(
            self.assignment,
            images,
            self.near,
            atlas.Exemplars(nearest, border, pictures),
            figures=result.figures,
            heading={"checkpoint": result.checkpoint["name"], "data": _set_name(images)},
            notes=notes,
        )
        shown["threshold"] = options.duplicates
        shown["balanced"] = "method" not in result.settings  # k-means and HDBSCAN balance nothing
        return atlas.render_atlas(shown)


def _folder_name(path: Path) -> str:
    return (path if path.is_dir() else path.parent).resolve().name


def _set_name(images: Images) -> str:
    """A set's name for the reader: its folder's, with the parent's where that is only "train"."""
    root = Path(images.root)
    return "/".join(root.parts[-2:]) if root.name in ("train", "val", "test") else (root.name or str(root))
