"""Result files from anywhere: named ones, those of folders, and those of the checkpoint that comes with the package."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from excb.checkpoint.exported import CONFIG
from excb.errors import UserError, printable
from excb.files import json_text
from excb.files.foreign import read_bytes
from excb.hub.catalogue import BUNDLED, Checkpoint, find
from excb.results.result import ResultRecord

from .board import FigureSource, MeasuredResult
from .submission import check_shown, is_shown

_NEAR = 2  # a page may link to files that lie at most so many folders above its own


def gather(named: Sequence[Path | ResultRecord], out: Path) -> list[MeasuredResult]:
    """Read results; one that is there twice counts once.

    Args:
        named: results, result files, and folders that hold some at any depth; JSON of other kinds is passed over there,
            and so are results without a figure that a board shows (`passed_over`).
        out: folder of the page, which links to files near it.

    Raises:
        UserError: something is missing or damaged, a folder holds no result, or it is none of this version, or a board
            cannot show it (`check_shown`).
    """
    results: dict[str, MeasuredResult] = {}
    for result in (each for each in named if isinstance(each, ResultRecord)):
        row = find(str(result.checkpoint.get("name") or result.checkpoint.get("source")))
        results.setdefault(result.to_json(), MeasuredResult(result, FigureSource("measured now"), row))
    paths = [each for each in named if isinstance(each, Path)]
    left_out = passed_over(paths)
    for file in results_of(paths):
        if file in left_out:
            continue
        result = ResultRecord.read(file)
        check_shown(file, result)
        results.setdefault(result.to_json(), MeasuredResult(result, _source(file, out), _checkpoint(result, file)))
    for file in _files(BUNDLED):  # a copy of one has its name: claims were read from it
        result = ResultRecord.read(file)
        results[result.to_json()] = MeasuredResult(result, _source(file, out), _checkpoint(result, file))
    return list(results.values())


def results_of(named: Sequence[Path]) -> list[Path]:
    """The result files that are named, or that lie in a folder that is.

    Raises:
        UserError: a folder holds none, or a file in it that may be a damaged result.
    """
    by_path = {path: list(_files(path)) for path in named}
    for path, files in by_path.items():
        if not files:
            raise UserError(f"no result of `excb-eval` below {path}: name a file that --out wrote, or a folder of them")
    return [file for files in by_path.values() for file in files]


def passed_over(named: Sequence[Path]) -> list[Path]:
    """The results of folders without a figure that a board shows, such as those of clusters; named files are refused.

    Raises:
        UserError: as `results_of`, or a result is damaged.
    """
    files = results_of([path for path in named if path.is_dir()])
    return [file for file in files if file not in named and not is_shown(ResultRecord.read(file))]


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for file in sorted(_below(path)):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if not hidden and file.is_file() and _is_result(file):
            yield file


def _below(folder: Path) -> Iterator[Path]:
    """All JSON files; not by rglob, which silently passes over a folder that cannot be read."""

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot read {error.filename} ({error.strerror}): make it readable, or name other folders")

    for place, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(place) / name for name in names if name.endswith(".json"))


def _is_result(file: Path) -> bool:
    try:
        values = json_text.parse(read_bytes(file))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}): fix it, or move it out of the folder") from None
    return isinstance(values, dict) and {"schema", "protocol", "figures"} <= values.keys()


def _source(file: Path, out: Path) -> FigureSource:
    """The file by its name, and a link to it from the page's folder where it lies near, so that both may be moved."""
    if file.is_relative_to(BUNDLED):
        name = PurePosixPath("excb", "bundled", file.relative_to(BUNDLED).as_posix()).as_posix()
    else:
        name = printable(file.name)
    try:
        way = PurePosixPath(Path(os.path.relpath(file.resolve(), out.resolve())).as_posix())
    except ValueError:  # on another drive
        return FigureSource(name)
    return FigureSource(name, quote(os.fsencode(str(way))) if way.parts.count("..") <= _NEAR else None)


def _checkpoint(result: ResultRecord, file: Path) -> Checkpoint | None:
    """The catalogue's row of what a result is of: it is named there, or lies in the exported folder of one."""
    folder = file.parent.parent
    if (folder / CONFIG).is_file() and (row := find(folder.name)) is not None:
        return row
    name = result.checkpoint.get("name") or result.checkpoint.get("source")
    return find(name) if isinstance(name, str) else None
