"""Files that commands write beside results. Each is known by what it holds: a file of something else is kept."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from excb.errors import UserError
from excb.files import tensors
from excb.files.csv_text import first_cells
from excb.files.foreign import open_file, read_bytes
from excb.results.pictures import CONFUSION, MARKS
from excb.results.replacing import ADVICE, has_content

_HEAD = 2**16  # bytes of a picture in which its mark is


@dataclass(frozen=True)
class FileBeside:
    """A kind of file beside a result.

    Attributes:
        name: of the file; {} stands for the result's without .json.
        what: it holds, in words.
        is_own: whether a file that is there holds that; it may raise OSError and ValueError where it does not.
    """

    name: str
    what: str
    is_own: Callable[[Path], bool]

    def at(self, result: Path) -> Path:
        """The file beside a result's."""
        return result.with_name(self.name.replace("{}", result.name.removesuffix(".json")))


def refuse_other_beside(result: Path, files: Iterable[FileBeside], *, advice: str = ADVICE) -> None:
    """Refuse to replace files beside a result that are of something else, and results without their places.

    Args:
        result: FILE.json.
        files: that are written with it.
        advice: what to do, as the end of a sentence.

    Raises:
        UserError: one holds something else.
    """
    for each in files:
        file = each.at(result)
        if has_content(file) and not _is_own(each, file):
            raise UserError(f"{file} is there, and holds no {each.what} of this version: {advice}")


def refuse_folders(files: Iterable[Path]) -> None:
    """Refuse folders where files shall be written. Raises UserError if there is one."""
    if folder := next((file for file in files if file.is_dir()), None):
        raise UserError(f"{folder} is a folder, and a file of this name is to be written: name another with --out")


def _is_own(each: FileBeside, file: Path) -> bool:
    try:
        return each.is_own(file)
    except (OSError, UserError, ValueError):
        return False


def scored_files(label_sets: bool, *, pictures: Sequence[str] = (CONFUSION,)) -> list[FileBeside]:
    """The answers for every test image beside a result, and its pictures.

    Args:
        label_sets: whether each image has a set of labels, and the answers are scores of them.
        pictures: words in the pictures' names.
    """
    if label_sets:
        return [FileBeside("{}.safetensors", "scores", _has_label_scores)]
    return [arrays_beside("predictions", "targets", "names", "classes"), *map(drawn_beside, pictures)]


def arrays_beside(what: str, *names: str) -> FileBeside:
    """FILE.npz with arrays of these names."""
    return FileBeside("{}.npz", what, partial(_has_arrays, names))


def drawn_beside(word: str, suffix: str = ".png", *, named: bool = True) -> FileBeside:
    """FILE.WORD.png, a picture that this program has drawn; WORD.png where it is not `named` after the result."""
    return FileBeside(f"{'{}.' if named else ''}{word}{suffix}", "picture", _is_own_picture)


def table_beside(name: str, what: str, columns: Sequence[str]) -> FileBeside:
    """A CSV with these columns."""
    return FileBeside(name, what, lambda file: first_cells(file) == [*columns])


def text_beside(name: str, what: str, *texts: str) -> FileBeside:
    """A file that holds these texts."""
    return FileBeside(name, what, partial(_has_texts, texts))


def page_beside(name: str, command: str) -> FileBeside:
    """A page of a command of `excb-eval`, which its footer names."""
    return text_beside(name, f"page of {command}", "<footer>", f"excb-eval {command}")


def _is_own_picture(file: Path) -> bool:
    """Whether this program has drawn a picture. Raises OSError if it cannot be read."""
    with open_file(file) as stream:
        head = stream.read(_HEAD)
    return any(mark in head for mark in MARKS)


def _has_texts(texts: Sequence[str], file: Path) -> bool:
    content = read_bytes(file)
    return all(text.encode() in content for text in texts)


def _has_arrays(names: Sequence[str], file: Path) -> bool:
    from excb.files.npy import names_in  # NumPy; the records of protocols import this module

    return {*names} <= names_in(file)


def _has_label_scores(file: Path) -> bool:
    header, _ = tensors.header_of(file)
    return "targets" in header and {"names", "classes"} <= {*header.get("__metadata__", ())}
