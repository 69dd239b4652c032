"""Checkpoint files of unknown origin, read without running any code in them."""

import argparse
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from excb.errors import UserError, first_line
from excb.files.foreign import TooLargeError, open_file
from excb.files.pickles import check_pickle
from excb.files.stated.entries import check_stored
from excb.files.tensors import read_tensors


class Inert:
    """Stands in for an object in a file that is neither tensor nor plain value: takes anything, does nothing."""

    __slots__ = ()

    def __init__(self, *values: Any, **named: Any) -> None:
        del values, named

    def __setstate__(self, state: Any) -> None:
        del state


# What a file may name besides tensors and plain values, if whoever reads it allows it by name. Nothing here is the real
# thing but the namespace, which only holds values: no code of NumPy or of any framework sees the file.
ADMISSIBLE: dict[str, type] = {"argparse.Namespace": argparse.Namespace} | dict.fromkeys(
    (
        "__main__.exclude_bias_and_norm",  # a function that Barlow Twins' and VICReg's optimizers refer to
        "mmengine.logging.history_buffer.HistoryBuffer",
        "numpy._core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "numpy.core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar",
        "numpy.dtype",
        "numpy.ndarray",
        "pathlib.PosixPath",
        "pathlib.WindowsPath",
        "pathlib._local.PosixPath",
        "pathlib._local.WindowsPath",
        "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",
    ),
    Inert,
)

# How files of other kinds are recognised, and what the message says.
_SIGNATURES = {
    b"version https://git-lfs": "is a pointer of Git LFS, not the file itself: fetch it with `git lfs pull`",
    b"\x89HDF": "is an HDF5 file, as Keras writes: convert it to PyTorch first",
    b"\x93NUMPY": "is a NumPy array, not a PyTorch checkpoint",
    b"\x1f\x8b": "is compressed (gzip): unpack it and name the file inside",
    b"BZh": "is compressed (bzip2): unpack it and name the file inside",
    b"\xfd7zXZ": "is compressed (xz): unpack it and name the file inside",
}
_HTML = (b"<!doctype", b"<html", b"<head", b"<?xml")
_WEB_PAGE = "is a web page, not a checkpoint (share links often give one): fetch the file itself with a browser"
_TENSORFLOW = re.compile(r".*(\.index|\.meta|\.pb|\.pbtxt|\.data-\d+-of-\d+)")
_TENSORFLOW_INDEX = b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"  # at its end
_TENSORFLOW_REASON = "is a TensorFlow checkpoint: convert it to PyTorch first"
_TORCH_PICKLE = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the number at the start of torch's files before version 1.6
_OTHER_PICKLE = (
    "is a pickle that torch.save did not write (Detectron2, JAX, dill and NumPy write such): refused, since reading it "
    "could run code; convert it to PyTorch or safetensors where you trust it"
)

LEGACY = 5  # pickles of a file of torch before version 1.6
SHARED = 16  # times that a file's tensors may take the memory that they share
SMALL = 2**26  # bytes beside that

# How torch and zipfile refuse what is not a checkpoint, besides `pickle.UnpicklingError`.
REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
)


def read_untrusted(file: Path, *, allow: Collection[str] = ()) -> dict[Any, Any]:
    """Read a safetensors file or a file of `torch.save`, onto the CPU.

    Tensors of newer torch files are mapped from disk, so that only those that are used take memory.

    Args:
        file: the file, of any origin.
        allow: names of `ADMISSIBLE` that the file may hold besides tensors and plain values.

    Raises:
        UserError: it is no such file, damaged, holds more than was allowed, or is not a dictionary.
    """
    if unknown := sorted(set(allow) - ADMISSIBLE.keys()):
        raise UserError(f"{', '.join(unknown)} cannot be allowed: only {', '.join(sorted(ADMISSIBLE))} can")
    try:
        size = file.stat().st_size
        with open_file(file) as stream:
            head = stream.read(1024)
            stream.seek(max(0, size - 8))
            tail = stream.read()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None
    if reason := _why_refused(file, head, tail):
        raise UserError(f"{file} {reason}")
    try:
        contents = read_tensors(file) if _is_safetensors(file, head) else _read_torch(file, head, set(allow))
    except TooLargeError as error:
        raise UserError(f"{file}: {error}") from None
    except REFUSALS as error:
        raise UserError(f"{file} is damaged or incomplete ({first_line(error)}): fetch it again") from None
    if not isinstance(contents, Mapping):
        raise UserError(f"{file} holds a {type(contents).__name__}, not tensors by name: save the model's state_dict()")
    if reason := repeated(contents):
        raise UserError(f"{file} {reason}")
    return dict(contents)


def repeated(contents: Any) -> str | None:
    """Why contents are refused whose tensors repeat their memory: copied, they would fill any machine's.

    A pickle states sizes and strides of a tensor: with strides of zero, a few bytes are terabytes. None where tensors
    share no more than those of several networks in one file do.
    """
    import torch

    total, stored = 0, dict[int, int]()
    waiting, seen = [contents], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            storage = value.untyped_storage()
            stored[storage._cdata] = storage.nbytes()
            total += value.numel() * value.element_size()
        elif isinstance(value, (Mapping, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, Mapping) else value)
    held = sum(stored.values())
    if total <= SHARED * held + SMALL:
        return None
    return f"holds tensors of {total / 1e9:,.1f} GB in {held / 1e9:,.3f} GB, which repeat themselves: refused"


def _why_refused(file: Path, head: bytes, tail: bytes) -> str | None:
    """Why a file is refused that is of another kind by its first bytes, its last bytes or its name."""
    recognised = head.startswith(b"PK\x03\x04") or _TORCH_PICKLE in head[:32] or _is_safetensors(file, head)
    kinds = (
        (not head, "is empty: fetch it again"),
        (head.lstrip().lower().startswith(_HTML), _WEB_PAGE),
        *((head.startswith(start), reason) for start, reason in _SIGNATURES.items()),
        (tail == _TENSORFLOW_INDEX or _TENSORFLOW.fullmatch(file.name) is not None, _TENSORFLOW_REASON),
        (head[257:262] == b"ustar", "is a tar archive: unpack it and name the file inside"),
        (head.startswith(b"\x80") and not recognised, _OTHER_PICKLE),
        (not recognised, "is not a checkpoint: expected a safetensors file or one that torch.save wrote"),
    )
    return next((reason for holds, reason in kinds if holds), None)


def _is_safetensors(file: Path, head: bytes) -> bool:
    """By its name, or by what it starts with: the length of a JSON object in eight bytes, and the object."""
    return file.suffix == ".safetensors" or (head[5:9] == b"\0\0\0{" and not head.startswith(b"PK"))


def _read_torch(file: Path, head: bytes, allow: set[str]) -> Any:
    import torch

    zipped = head.startswith(b"PK")
    (_check_archive if zipped else _check_pickles)(file)
    admitted = [(ADMISSIBLE[name], name) for name in sorted(allow)]
    with warnings.catch_warnings(), torch.serialization.safe_globals(admitted):  # type: ignore[arg-type]
        warnings.simplefilter("ignore")  # of old formats: the user cannot change them
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)
        except pickle.UnpicklingError as error:
            raise _refusal(file, str(error), zipped=zipped) from None


def _check_pickles(file: Path) -> None:
    """Raise ValueError unless the pickles of a file of torch before version 1.6 may be read."""
    with _mapped(file) as data:
        place = 0
        for _ in range(LEGACY):
            place = check_pickle(data, place)


@contextmanager
def _mapped(file: Path) -> Iterator[mmap]:
    with open_file(file) as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as mapped:
        yield mapped


def check_contents(file: Path, archive: zipfile.ZipFile) -> None:
    """Check that an archive of torch's, whose entries are stored, holds what was written, and may be read.

    Raises:
        BadZipFile: a checksum is another.
        ValueError: its pickle would take too much memory or time.
    """
    with _mapped(file) as mapped:  # as torch will
        for entry in archive.infolist():  # of several with one name torch may read any, in capitals too
            begin = check_stored(entry, mapped)
            if entry.filename.lower().endswith("/data.pkl"):
                check_pickle(mapped, begin, begin + entry.file_size)


def _check_archive(file: Path) -> None:
    """Raise unless all that torch would read of a zip archive is as torch wrote it: torch compares no checksums."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if any(name.endswith("/constants.pkl") for name in names):
            raise UserError(f"{file} is a TorchScript archive, which holds code: save the model's state_dict() instead")
        if not any(name.endswith("/data.pkl") for name in names):
            raise UserError(f"{file} is a zip archive, but not torch's: unpack it and name the file inside")
        # An entry that claims to be a folder would be read as whatever is in memory.
        if odd := [e.filename for e in archive.infolist() if e.compress_type or e.flag_bits & 1 or e.is_dir()]:
            raise zipfile.BadZipFile(f"entry {odd[0]}")
        check_contents(file, archive)


def _refusal(file: Path, message: str, *, zipped: bool) -> UserError:
    """Why torch's unpickler refused a file, which it does before it runs anything."""
    import torch

    match = re.search(r"GLOBAL ([^\s:]+)", message)
    if match is None:
        reason = re.search(r"Unpickler error: (.*)", message)
        what = reason[1].strip() if reason else message.partition("\n")[0]
        return UserError(f"{file} holds more than tensors and plain values, or is damaged ({what}): refused")
    names = {match[1]}
    if zipped:
        try:
            names |= set(torch.serialization.get_unsafe_globals_in_checkpoint(file))
        except (pickle.UnpicklingError, *REFUSALS):
            pass  # then the first of them must do
    if harmful := sorted(names - ADMISSIBLE.keys()):
        return UserError(
            f"{file} holds {', '.join(harmful)}: refused, since it could run code; where you trust its origin, save "
            "the model's state_dict() alone"
        )
    options = " ".join(f"--allow-global {name}" for name in sorted(names))
    return UserError(
        f"{file} holds more than tensors and plain values; it is harmless: convert it with excb-zoo import {file} "
        f"--name NAME {options}, and use that name"
    )
