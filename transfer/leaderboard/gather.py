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


def gather(named: Sequence[Path | ResultRecord], out: Path) -> tuple[list[MeasuredResult], list[Path]]:
    """Read results, each file once; a result that is there twice counts once.

    Args:
        named: results, result files, and folders that hold some at any depth; JSON of other kinds is passed over there,
            and so are results without a figure that a board shows, such as those of clusters.
        out: folder of the page, which links to files near it.

    Returns:
        The results; and the files of those that were passed over.

    Raises:
        UserError: something is missing or damaged, a folder holds no result, or it is none of this version, or a board
            cannot show it (`check_shown`).
    """
    results: dict[str, MeasuredResult] = {}
    for result in (each for each in named if isinstance(each, ResultRecord)):
        row = find(str(result.checkpoint.get("name") or result.checkpoint.get("source")))
        results.setdefault(result.to_json(), MeasuredResult(result, FigureSource("measured now"), row))
    paths = [each for each in named if isinstance(each, Path)]
    passed_over = []
    for file, result in results_of(paths).items():
        if file not in paths and not is_shown(result):
            passed_over.append(file)
            continue
        check_shown(file, result)
        results.setdefault(result.to_json(), MeasuredResult(result, _source(file, out), _checkpoint(result, file)))
    for file, result in _results(BUNDLED):  # a copy of one has its name: claims were read from it
        results[result.to_json()] = MeasuredResult(result, _source(file, out), _checkpoint(result, file))
    return list(results.values()), passed_over


def results_of(named: Sequence[Path]) -> dict[Path, ResultRecord]:
    """The results that are named, or that lie in a folder that is, by their files.

    Raises:
        UserError: a result is missing or damaged, or a folder holds none.
    """
    found: dict[Path, ResultRecord] = {}
    for path in named:
        if not (results := dict(_results(path))):
            raise UserError(f"no result of `excb-eval` below {path}: name a file that --out wrote, or a folder of them")
        found |= results
    return found


def _results(path: Path) -> Iterator[tuple[Path, ResultRecord]]:
    if not path.is_dir():
        yield path, ResultRecord.read(path)
        return
    for file in sorted(_below(path)):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if not hidden and file.is_file() and (result := _result_in(file)) is not None:
            yield file, result


def _below(folder: Path) -> Iterator[Path]:
    """All JSON files; not by rglob, which silently passes over a folder that cannot be read."""

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot read {error.filename} ({error.strerror}): make it readable, or name other folders")

    for place, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(place) / name for name in names if name.endswith(".json"))


def _result_in(file: Path) -> ResultRecord | None:
    """The result in a JSON file of a folder; None for JSON of other kinds."""
    try:
        values = json_text.parse(read_bytes(file))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}): fix it, or move it out of the folder") from None
    if not isinstance(values, dict) or not {"schema", "protocol", "figures"} <= values.keys():
        return None
    return ResultRecord.from_values(values, source=str(file))


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
