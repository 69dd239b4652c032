"""Near-duplicates as a result: groups around one image each, the file of each to keep, and a CSV to act on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from excb.console import Reporter, plural
from excb.errors import UserError
from excb.files.atomic import write_text
from excb.files.csv_text import first_cells, path_cell, plain_table
from excb.images.digests import upright_sizes
from excb.results.replacing import ADVICE, PYTHON_ADVICE, has_content

from ..table.vectors import Vectors
from .duplicates import star_groups, unit_rows
from .thresholds import CopyThreshold, Network, alike_pictures, calibrate_copies

COLUMNS = ("group", "keep", "path", "cosine", "width", "height", "bytes")
SHOWN = 10  # groups that a terminal shows
KEEP = "the most pixels, then the largest file, then the first path"  # the rule that chooses the file to keep


def refuse_other_table(table: Path, *, advice: str = ADVICE) -> None:
    """Refuse to replace a table that is none of near-duplicates. Raises UserError then."""
    if has_content(table) and first_cells(table) != [*COLUMNS]:
        raise UserError(f"{table} is there, and is no table of near-duplicates: {advice}")


@dataclass(frozen=True)
class NearDuplicate:
    """An image of a group.

    Attributes:
        path: below the embeddings' root.
        cosine: with the image of its group that is kept, or with the representative where none is.
        width: in pixels, upright; None where the file cannot be read, as for height and size.
        height: likewise.
        size: in bytes.
    """

    path: str
    cosine: float
    width: int | None = None
    height: int | None = None
    size: int | None = None

    @property
    def order(self) -> tuple[int, int, str]:
        """The least of a group is kept: `KEEP`."""
        return -(self.width or 0) * (self.height or 0), -(self.size or 0), self.path


@dataclass(frozen=True, eq=False)
class DuplicateGroup(Sequence[str]):
    """Images that are near-duplicates of one of them; a sequence of their paths, sorted.

    Attributes:
        members: the images.
        keep: the path of the one to keep; empty where none of the files can be read.
        representative: the path of the one that all others are near.
        weakest: the least cosine of any two.
    """

    members: Sequence[NearDuplicate]
    keep: str
    representative: str
    weakest: float

    @overload
    def __getitem__(self, key: int) -> str: ...
    @overload
    def __getitem__(self, key: slice) -> list[str]: ...
    def __getitem__(self, key: int | slice) -> str | list[str]:
        return [member.path for member in self.members][key]

    def __len__(self) -> int:
        return len(self.members)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return repr(list(self))

    @property
    def others(self) -> list[str]:
        """The paths that are not kept, but for files that cannot be read: one of these may have the most pixels."""
        return [member.path for member in self.members if member.path != self.keep and member.width is not None]


@dataclass(frozen=True, eq=False)
class NearDuplicates(Sequence[DuplicateGroup]):
    """Groups of near-duplicates, the largest first; a sequence of them.

    Attributes:
        groups: these.
        cosine: from which images count as near-duplicates.
        threshold: how the cosine was chosen; None where it was given.
        root: of the images.
    """

    groups: Sequence[DuplicateGroup]
    cosine: float
    threshold: CopyThreshold | None = None
    root: str = ""

    @overload
    def __getitem__(self, key: int) -> DuplicateGroup: ...
    @overload
    def __getitem__(self, key: slice) -> list[DuplicateGroup]: ...
    def __getitem__(self, key: int | slice) -> DuplicateGroup | list[DuplicateGroup]:
        return list(self.groups)[key] if isinstance(key, slice) else self.groups[key]

    def __len__(self) -> int:
        return len(self.groups)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        """The number of groups, and the first of them."""
        rest = len(self) - SHOWN
        lines = [self.summary, *([self.unread] if self.unread else [])]
        lines += [f"  {_advice(group)}" for group in self[:SHOWN]]
        return "\n".join([*lines, *([f"  and {plural(rest, 'smaller group')}"] if rest > 0 else [])])

    @property
    def summary(self) -> str:
        """How many, from which cosine on, and how well that finds copies, in a sentence; `threshold` says more."""
        counted = f"{plural(len(self), 'group')} of near-duplicates, {plural(sum(map(len, self)), 'image')} in them"
        found = f", which finds {self.threshold.found_percent:.0f} % of altered copies" if self.threshold else ""
        return f"{counted}, with a cosine of {self.cosine:.4g} or more{found}"

    @property
    def unread(self) -> str:
        """A sentence on files that cannot be read, about which nothing is advised; empty where all can."""
        paths = [each.path for group in self for each in group.members if each.width is None]
        if not paths:
            return ""
        return (
            f"{plural(len(paths), 'file')} of these groups, such as {paths[0]}, cannot be read below {self.root}: "
            "nothing is said about them"
        )

    def to_csv(self, file: str | Path, *, overwrite: bool = False) -> Path:
        """Write FILE.csv: group, keep (yes or no, or empty), path, cosine with the kept image, width, height and bytes.

        `keep` is empty for files that cannot be read, since their pixels and bytes are not known.

        Raises:
            UserError: it cannot be written; or another file is there that is no such table, without `overwrite`.
        """
        if not overwrite:
            refuse_other_table(Path(file), advice=PYTHON_ADVICE)
        write_text(plain_table(COLUMNS, self._rows(), ends="\r\n"), Path(file))
        return Path(file)

    def _rows(self) -> Iterator[list[Any]]:
        for number, group in enumerate(self, 1):
            for each in group.members:
                kept = "" if each.width is None else "yes" if each.path == group.keep else "no"
                cosine = f"{each.cosine:.6f}"
                yield [number, kept, path_cell(each.path), cosine, each.width, each.height, each.size]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "near_duplicates": [list(group) for group in self],
            "keep": [group.keep for group in self],
            "weakest_cosine": [group.weakest for group in self],
            "cosine": self.cosine,
            "calibration": None if self.threshold is None else self.threshold.to_dict(),
        }


def find_near_duplicates(
    embeddings: Vectors, load: Network, cosine: float | None, reporter: Reporter
) -> NearDuplicates:
    """The groups of embeddings, at a cosine or, if it is None, at one that is calibrated with their images and network.

    In the second case pictures that look the same are near-duplicates whatever their cosine (`alike_pictures`).

    Raises:
        UserError: the cosine is out of range or leaves too many pairs, or as `calibrate_copies`.
    """
    alike = alike_pictures(embeddings) if cosine is None else None
    threshold = calibrate_copies(embeddings, load, reporter, alike=alike) if cosine is None else None
    limit = threshold.cosine if threshold is not None else float(cosine or 0)
    with reporter.progress("pairs of images", len(embeddings)) as bar:
        stars = star_groups(embeddings.rows, limit, bar.advance, also=alike or ())
    members = sorted({row for star in stars for row in star})
    measured = _measured(Path(embeddings.root), [embeddings.paths[row] for row in members])
    files = dict(zip(members, measured, strict=True))
    return NearDuplicates([_group(embeddings, star, files) for star in stars], limit, threshold, embeddings.root)


def _advice(group: DuplicateGroup) -> str:
    if not group.keep:
        return f"alike: {', '.join(group)}"
    return f"keep {group.keep}" + (f", not {', '.join(group.others)}" if group.others else "")


def _group(embeddings: Vectors, star: Sequence[int], measured_files: Mapping[int, NearDuplicate]) -> DuplicateGroup:
    """The group of some rows, the representative first, with the measured files of all."""
    rows = sorted(star)
    unit = torch.cat([unit_rows(embeddings.rows, row, row + 1) for row in rows])
    files = [measured_files[row] for row in rows]
    measured = [place for place, each in enumerate(files) if each.width is not None]
    shown = min(measured, key=lambda place: files[place].order, default=rows.index(star[0]))
    cosines = (unit @ unit[shown]).clamp(-1, 1).tolist()
    members = [
        NearDuplicate(each.path, cosine, each.width, each.height, each.size)
        for each, cosine in zip(files, cosines, strict=True)
    ]
    return DuplicateGroup(members, files[shown].path if measured else "", embeddings.paths[star[0]], _weakest(unit))


def _weakest(unit: torch.Tensor) -> float:
    """The least cosine of any two of unit rows [n, D]; a thousand rows at a time."""
    return float(np.clip(min(float((part @ unit.T).min()) for part in unit.split(1024)), -1, 1))


def _measured(root: Path, paths: Sequence[str]) -> list[NearDuplicate]:
    """Pixels and bytes of files, as far as they are there."""
    files, found = [root / path for path in paths], []
    for path, file, size in zip(paths, files, upright_sizes(files, files.__getitem__), strict=True):
        try:
            found.append(NearDuplicate(path, 1.0, *size, file.stat().st_size) if size else NearDuplicate(path, 1.0))
        except OSError:  # removed since
            found.append(NearDuplicate(path, 1.0))
    return found
