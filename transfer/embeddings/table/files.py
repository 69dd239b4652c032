"""Files of embeddings, .npz, .parquet and .safetensors: written in flat memory and read back; each says its model."""

import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash

from excb.errors import UserError
from excb.files import json_text, npy, tensors
from excb.files.atomic import new_file, read_again
from excb.files.foreign import parsing
from excb.files.parquet import read_parquet, require_pyarrow
from excb.ledger import Ledger

from . import csv_table, vectors
from .vectors import ArrayRows, CheckedRows, Crc32, Vectors

FORMAT = "excb-embeddings-1"
_ADVICE = "name another file"
_INSTEAD = ", or name a file.npz"  # without pyarrow
Labels = list[str | None] | None
# Vectors, paths, JSON, labels, and metadata with the checksums, where the format has none of its own.
Contents = tuple[np.ndarray, list[str], str, Labels, Mapping[str, Any] | None]
# Names in the metadata of .parquet and .safetensors; Arrow's text is UTF-8, so other names are kept there, by rows.
_META, _NAMES = "excb", "excb_names"
_CHECKSUMS = {"excb_xxh3": xxhash.xxh3_64, "excb_crc32": Crc32}  # the first is written
_XXH3 = "excb_xxh3"
_NO_ROWS = np.empty((0, 0), np.float32)


def check_vectors_file(file: Path) -> None:
    """Raise UserError if embeddings cannot be written to a file of this name on this machine."""
    if file.suffix not in (*FORMATS, csv_table.SUFFIX) or file.is_dir():
        suffixes = ", ".join((*FORMATS, csv_table.SUFFIX))
        raise UserError(f"{file}: embeddings are written to a file that ends in {suffixes}")
    if file.suffix == ".parquet":
        require_pyarrow(_INSTEAD)


def write_vectors(made: Vectors, file: Path) -> Path:
    """Write embeddings, some thousand rows at a time; the file appears whole or not at all.

    A CSV is for other programs, and `read_vectors` refuses it. FILE.csv.json beside it says what made its vectors.

    Raises:
        UserError: the name ends otherwise, pyarrow is missing for Parquet, or the file cannot be written.
    """
    check_vectors_file(file)
    if file.suffix == csv_table.SUFFIX:
        return csv_table.write_csv(made, file)
    with new_file(file, advice=_ADVICE) as temporary:
        writer, reader = FORMATS[file.suffix]
        writer(made, temporary, _meta(made, file))
        with read_again(file):
            _, paths, _, labels, _ = reader(temporary, texts_only=True)
            written = labels and [label or "" for label in labels]
            if paths != [*made.paths] or written != (made.labels and [label or "" for label in made.labels]):
                raise ValueError("other paths or labels")
    return file


def read_vectors(file: Path) -> Vectors:
    """Open a file of embeddings; safetensors stay on the disk, and are read as they are needed.

    Raises:
        UserError: it is no such file, or is damaged.
    """
    if file.suffix == csv_table.SUFFIX:
        raise UserError(
            f"{file}: a CSV is for other programs, and does not say which network made its vectors; save the "
            f"embeddings as {', '.join(FORMATS)}, and read those"
        )
    check_vectors_file(file)
    try:
        rows, paths, meta, labels, checksums = FORMATS[file.suffix][1](file, texts_only=False)
        facts = json_text.parse(meta)
        if facts["format"] != FORMAT or rows.ndim != 2 or rows.dtype != np.float32 or len(rows) != len(paths):
            raise ValueError("other contents")
        model, unreadable = dict(facts["model"]), dict(facts["unreadable"])
        ledger = Ledger.from_dict(facts.get("ledger", {}))
        made = Vectors(ArrayRows(rows), paths, _root(facts, file), model, unreadable, ledger, labels)
        for name in _CHECKSUMS:
            if checksums is not None and name in checksums:
                return replace(made, rows=_checked(made, meta, name, checksums[name], file))
        return made
    except FileNotFoundError:
        raise UserError(f"no file {file}: name one that `excb-eval embed` wrote") from None
    except npy.DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{file} holds no embeddings of `excb-eval embed` ({reason}): embed the images again") from None


def facts_of(file: Path) -> tuple[dict[str, Any], str, list[str]]:
    """The model, the images' folder and their paths of a file of embeddings, without its vectors.

    Raises:
        OSError, ValueError and others of `npy.DAMAGE`: it is no such file, or is damaged.
    """
    _, paths, meta, _, _ = FORMATS[file.suffix][1](file, texts_only=True)
    facts = json_text.parse(meta)
    if facts["format"] != FORMAT:
        raise ValueError("other contents")
    return dict(facts["model"]), _root(facts, file), paths


def _root(facts: dict[str, Any], file: Path) -> str:
    """The images' folder: as it is stored, or beside the file if both were moved; else the stored text."""
    stored = str(facts["root"])
    places = (stored, os.path.join(file.parent, str(facts.get("beside", stored))))  # noqa: PTH118 - both are text
    there = next(filter(os.path.isdir, places), None)
    return stored if there is None else os.path.abspath(there)  # noqa: PTH100 - links stay links


def _meta(made: Vectors, file: Path) -> str:
    beside = {}
    if Path(made.root).is_dir():
        with suppress(ValueError):  # another disk
            beside = {"beside": os.path.relpath(made.root, file.parent)}
    return json.dumps({"format": FORMAT} | made.describe() | beside)


class _Checksums:
    """The checksums of what is written: of every part of the vectors, and of all texts together."""

    def __init__(self, made: Vectors, meta: str) -> None:
        self._parts, self._texts = list[int](), _of_texts(made, meta, _XXH3)

    def part(self, vectors: np.ndarray) -> np.ndarray:
        """The same vectors [n, D], as they are stored; call it once for every part in order."""
        stored = np.ascontiguousarray(vectors, "<f4")
        self._parts.append(xxhash.xxh3_64_intdigest(stored.data))
        return stored

    def to_json(self, parts: int) -> str:
        """JSON of one length before and after the `parts` are written."""
        parts_so_far = [*self._parts, *[0] * (parts - len(self._parts))]
        hexadecimal = [f"{part:016x}" for part in parts_so_far]
        return json.dumps({"texts": f"{self._texts:016x}", "rows": vectors.AT_ONCE, "vectors": hexadecimal})


def _of_texts(made: Vectors, meta: str, name: str) -> int:
    checksum = _CHECKSUMS[name]()
    texts = [meta, *made.paths, *((label or "") for label in made.labels or ())]
    checksum.update("\0".join(texts).encode("utf-8", "surrogatepass"))
    return int(checksum.intdigest())


def _checked(made: Vectors, meta: str, name: str, checksums: str, file: Path) -> CheckedRows:
    """The rows of what a file holds, whose checksums are compared as they are read; those of its texts are now."""
    stated = json_text.parse(checksums)
    parts, each = [int(part, 16) for part in stated["vectors"]], int(stated["rows"])
    assert isinstance(made.rows, ArrayRows)
    if int(stated["texts"], 16) != _of_texts(made, meta, name) or each < 1 or len(parts) != -(-len(made) // each):
        raise ValueError("paths, labels or facts have another checksum")
    return CheckedRows(made.rows.array, parts, each, _CHECKSUMS[name], str(file))


def _write_npz(made: Vectors, file: Path, meta: str) -> None:
    """`vectors` [N, D], `paths` [N], `meta`, JSON, and `labels` [N], "" for none: `numpy.load` needs no pickle."""
    shape = (len(made), made.rows.width)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("vectors.npy", "w", force_zip64=True) as stream:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            for part in made.parts():
                stream.write(np.ascontiguousarray(part, "<f4").data)
        arrays = {"paths": np.array(list(made.paths), np.str_), "meta": np.array(meta)}
        if made.labels is not None:
            arrays["labels"] = np.array([label or "" for label in made.labels], np.str_)
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def _read_npz(file: Path, *, texts_only: bool) -> Contents:
    arrays = npy.read_npz(file, but=("vectors",) if texts_only else ())
    labels = arrays["labels"].tolist() if "labels" in arrays else None
    return (
        arrays["vectors"] if not texts_only else _NO_ROWS,
        arrays["paths"].tolist(),
        str(arrays["meta"]),
        labels,
        None,
    )


def _write_safetensors(made: Vectors, file: Path, meta: str) -> None:
    """`vectors` F32 [N, D], `paths` and `labels` U8: texts separated by zero bytes, as the file system has them."""
    texts = {"paths": b"\0".join(os.fsencode(path) for path in made.paths)}
    if made.labels is not None:
        texts["labels"] = b"\0".join(os.fsencode(label or "") for label in made.labels)
    shape = [len(made), made.rows.width]
    end = 4 * math.prod(shape)
    entries: dict[str, Any] = {"vectors": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}
    for name, text in texts.items():
        entries[name] = {"dtype": "U8", "shape": [len(text)], "data_offsets": [end, end + len(text)]}
        end += len(text)
    checksums = _Checksums(made, meta)

    def header() -> bytes:
        facts = {_META: meta, _XXH3: checksums.to_json(-(-len(made) // vectors.AT_ONCE))}
        text = json.dumps({"__metadata__": facts} | entries).encode()
        text += b" " * (-len(text) % 8)  # tensors begin at multiples of 8
        return struct.pack("<Q", len(text)) + text

    with file.open("wb") as stream:
        stream.write(header())
        for part in made.parts():
            stream.write(checksums.part(part).data)
        stream.write(b"".join(texts.values()))
        stream.seek(0)
        stream.write(header())  # now with the checksums


def _read_safetensors(file: Path, *, texts_only: bool) -> Contents:  # noqa: ARG001 - vectors stay on the disk
    with tensors.opened(file) as (opened, start):
        facts, kept = opened.metadata() or {}, set(opened.keys())
        texts = {name: opened.get_tensor(name).tobytes() for name in ("paths", "labels") if name in kept}
        shape = opened.get_slice("vectors").get_shape()
    vectors = _mapped(file, start, shape)
    paths, labels = (
        os.fsdecode(texts[name]).split("\0") if name in texts and len(vectors) else None for name in ("paths", "labels")
    )
    return vectors, paths or [], str(facts[_META]), None if labels is None else [*labels], facts


def _mapped(file: Path, offset: int, shape: Sequence[int]) -> np.ndarray:
    """float32 of a file in place; the array of an empty one needs no file."""
    if 0 in shape:
        return np.empty(tuple(shape), np.float32)
    return np.memmap(file, "<f4", "r", offset, tuple(shape))


def _write_parquet(made: Vectors, file: Path, meta: str) -> None:
    """Columns `path`, `label` and `vector`, a list of float32; the rest is in the schema's metadata, under `excb`."""
    pyarrow, parquet = require_pyarrow(_INSTEAD)
    checksums = _Checksums(made, meta)
    label = [] if made.labels is None else [("label", pyarrow.string())]
    vector = ("vector", pyarrow.list_(pyarrow.float32(), made.rows.width))
    schema = pyarrow.schema(
        [("path", pyarrow.string()), *label, vector],
        metadata={_META: meta, _NAMES: json.dumps(_other_names(made))},
    )
    with parquet.ParquetWriter(file, schema) as writer:
        start = 0
        for part in made.parts():
            end = start + len(part)
            labels = None if made.labels is None else made.labels[start:end]
            columns = arrow_columns(made.paths[start:end], checksums.part(part), labels)
            writer.write_table(pyarrow.table(columns, schema=schema))
            start = end
        writer.add_key_value_metadata({_XXH3: checksums.to_json(0)})


def _other_names(made: Vectors) -> dict[str, dict[int, str]]:
    """Paths and labels that are not UTF-8, which Arrow's columns hold with escapes, by column and row."""
    columns = {"path": made.paths, "label": made.labels or ()}
    return {
        name: {row: text for row, text in enumerate(texts) if text and not _is_utf8(text)}
        for name, texts in columns.items()
    }


def _is_utf8(text: str) -> bool:
    return text.isascii() or text.encode("utf-8", "replace").decode() == text


def arrow_columns(
    paths: Sequence[str], vectors: np.ndarray, labels: Sequence[str | None] | None = None
) -> dict[str, Any]:
    """Paths, labels and vectors [n, D] as arrays of Arrow: strings, and fixed-size lists of float32.

    Raises:
        UserError: pyarrow is not installed.
    """
    pyarrow, _ = require_pyarrow(_INSTEAD)

    def strings(texts: Sequence[str | None]) -> Any:
        shown = [text and text.encode("utf-8", "backslashreplace").decode() for text in texts]
        return pyarrow.array(shown, pyarrow.string())

    values = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
    vector = pyarrow.FixedSizeListArray.from_arrays(values, vectors.shape[1])
    label = {} if labels is None else {"label": strings(labels)}
    return {"path": strings(paths), **label, "vector": vector}


def _read_parquet(file: Path, *, texts_only: bool) -> Contents:
    table = read_parquet(file, _INSTEAD, but=("vector",) if texts_only else ())
    meta = {name.decode(): text.decode() for name, text in table.schema.metadata.items() if name.startswith(b"excb")}
    rows = _NO_ROWS if texts_only else _rows_of(table)
    paths = table.column("path").to_pylist()
    labels = table.column("label").to_pylist() if "label" in table.column_names else None
    names = json_text.parse(meta.get(_NAMES, "{}"))
    for column, texts in (("path", paths), ("label", labels or [])):
        for row, text in names.get(column, {}).items():
            texts[int(row)] = str(text)
    return rows, paths, meta[_META], labels, meta


def _rows_of(table: Any) -> np.ndarray:
    kind = table.schema.field("vector").type
    with parsing():
        parts = [
            part.flatten().to_numpy(zero_copy_only=False).reshape(len(part), -1)
            for part in table.column("vector").chunks
            if len(part)
        ]
        return np.concatenate(parts) if parts else np.empty((0, kind.list_size), np.float32)


Writer = Callable[[Vectors, Path, str], None]  # of all but vectors, paths and labels: JSON


class Reader(Protocol):
    """Reads a file; with `texts_only` all but its vectors, of which there are none then."""

    def __call__(self, file: Path, /, *, texts_only: bool) -> Contents:
        """Raises as `read_vectors` catches."""


FORMATS: dict[str, tuple[Writer, Reader]] = {
    ".npz": (_write_npz, _read_npz),
    ".parquet": (_write_parquet, _read_parquet),
    ".safetensors": (_write_safetensors, _read_safetensors),
}
