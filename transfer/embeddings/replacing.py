"""Files that `embed`, `search` and `map` may replace: vectors of the same network and images, and pages of them."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.console import plural
from excb.errors import UserError
from excb.files import json_text
from excb.files.csv_text import path_cell
from excb.files.foreign import read_bytes, sha256_of
from excb.files.npy import DAMAGE
from excb.pages.origin import PageOrigin, real_root, refuse_other_page
from excb.results.replacing import ADVICE, has_content

from .copies.near_duplicates import refuse_other_table
from .exporting import names_beside
from .table import csv_table
from .table.files import facts_of
from .table.vectors import Vectors

if TYPE_CHECKING:
    from ..task import Task

INDEX_ADVICE = "name another file with --index, or replace it with --overwrite"


@dataclass(frozen=True)
class Source:
    """The network and the images of vectors.

    Attributes:
        weights: SHA-256 of the network's.
        root: of the images.
        paths: of the images, also of those that cannot be read.
    """

    weights: str
    root: str
    paths: Sequence[str]

    @classmethod
    def of(cls, made: Vectors) -> "Source":
        """Of vectors that there are."""
        return cls(str(made.model.get("weights_sha256", "")), made.root, made.paths)

    @classmethod
    def of_task(cls, task: "Task") -> "Source":
        """Of vectors that a task will make."""
        return cls(task.describe_checkpoint()["weights_sha256"], os.fspath(task.train.root), task.train.paths)

    @cached_property
    def place(self) -> str:
        """The root, as one folder has it under any of its names."""
        return real_root(self.root)

    def page(self, command: str) -> PageOrigin:
        """The origin of a command's page on them."""
        return PageOrigin.of(command, self.root, self.weights)

    def refuse_other(self, file: Path, model: Any, root: str | None, paths: Collection[str], advice: str) -> None:
        """Refuse to replace vectors of another network or of images that are not among these.

        Images may have come: then nothing is lost. Of settings such as the size of images the latest are wanted.

        Args:
            file: that has them.
            model: what it says of the network; None where it says nothing.
            root: of its images; None likewise.
            paths: of its images.
            advice: what to do, as the end of a sentence.

        Raises:
            UserError: they are of something else.
        """
        if model is not None and str(model.get("weights_sha256", "")) != self.weights:
            raise UserError(f"{file} has vectors of other weights, {model.get('name')}: {advice}")
        if root is not None and real_root(root) != self.place:
            raise UserError(f"{file} has vectors of other images, of {root}: {advice}")
        if lost := set(paths).difference(self.paths):
            some = f"{plural(len(lost), 'image')} that {'is' if len(lost) == 1 else 'are'} not among these"
            raise UserError(f"{file} has vectors of {some}, such as {min(lost)}: {advice}")


def refuse_other_vectors(file: Path, source: Source, *, advice: str = ADVICE) -> None:
    """Refuse to replace a file of embeddings of something else, or another file.

    Args:
        file: that would be replaced.
        source: of the new embeddings.
        advice: what to do, as the end of a sentence.

    Raises:
        UserError: it is one, or a CSV that was changed since it was written.
    """
    if file.suffix == csv_table.SUFFIX:
        refuse_other_csv(file, source, advice)
        return
    if not has_content(file):
        return
    try:
        model, root, listed = facts_of(file)
    except DAMAGE:
        raise _not_written(file, advice) from None
    source.refuse_other(file, model, root, listed, advice)


def refuse_other_csv(file: Path, source: Source, advice: str) -> None:
    """Refuse to replace a CSV of something else.

    One of earlier versions has no facts beside it: its paths are compared.

    Raises:
        UserError: it is one, or was changed since it was written.
    """
    beside, facts = csv_table.facts_beside(file), dict[str, Any]()
    if has_content(beside):
        try:
            facts = csv_table.read_facts(file)
        except DAMAGE:
            raise _not_written(beside, advice) from None
    if not has_content(file):
        return
    try:
        paths = {*csv_table.paths_of(file)}
        changed = bool(facts) and facts[csv_table.DIGEST] != sha256_of(file)
    except DAMAGE:
        raise _not_written(file, advice) from None
    as_cells = Source(source.weights, source.root, [path_cell(path) for path in source.paths])
    as_cells.refuse_other(file, facts.get("model"), facts.get("root"), paths, advice)
    if changed:
        raise UserError(f"{file} was changed since it was written: {advice}")


def _not_written(file: Path, advice: str) -> UserError:
    return UserError(f"{file} is there, and `excb-eval embed` did not write it: {advice}")


def refuse_other_index(file: Path, source: Source, *, advice: str = INDEX_ADVICE) -> None:
    """Refuse to replace an index of something else, or other files with its names; arguments as above.

    Raises:
        UserError: there is one.
    """
    names = names_beside(file)
    if not has_content(file) and not has_content(names):
        return
    try:
        facts = json_text.parse(read_bytes(names))
        model, root, paths = dict(facts["model"]), str(facts["root"]), [str(path) for path in facts["paths"]]
    except DAMAGE:
        there = file if has_content(file) else names
        raise UserError(f"{there} is there, and is no index of `excb-eval`: {advice}") from None
    source.refuse_other(file, model, root, paths, advice)


def refuse_other_search(page: Path, source: Source, *, duplicates: bool) -> None:
    """Refuse to replace a page of another search, or a table beside it that is none of near-duplicates.

    Raises:
        UserError: there is one.
    """
    refuse_other_page(page, source.page("search"))
    if duplicates:
        refuse_other_table(page.with_suffix(".csv"))
