"""Embeddings as maps and exports take them, with labels: those that are given, their own, or class folders."""

from collections.abc import Mapping, Sequence
from typing import Any

from excb.console import plural
from excb.errors import require

from ..exports.exported_images import ExportedImages
from .vectors import Vectors

Labels = Sequence[Any] | Mapping[str, Any]  # one per image in their order, or by path; None without


def exported(made: Vectors, labels: Labels | None = None) -> ExportedImages:
    """Embeddings to hand over. Raises UserError if there are other labels than images."""
    return ExportedImages(
        made.rows, made.paths, made.root, labels_or_folders(made, labels), str(made.model.get("name"))
    )


def labels_or_folders(made: Vectors, labels: Labels | None = None) -> list[str | None] | None:
    """The label of every image: given, or its own, or its class folder; None where no image has any.

    Raises:
        UserError: there are other labels than images.
    """
    given = getattr(made, "labels", None) if labels is None else labels
    if isinstance(given, Mapping):
        given = [given.get(path) for path in made.paths]
    if given is not None:
        require(
            len(given) == len(made),
            f"{plural(len(given), 'label')} for {plural(len(made), 'image')}: pass one for each, or a mapping from "
            "paths to labels",
        )
        if any(label is not None for label in given):
            return [None if label is None else str(label) for label in given]
    return _class_folders(made.paths)


def _class_folders(paths: Sequence[str]) -> list[str | None] | None:
    """The first folder of every path, where each has one and there are at least two; else None."""
    tops = list[str | None](path.split("/", 1)[0] for path in paths)
    return tops if len(set(tops)) > 1 and all("/" in path for path in paths) else None
