"""Files of embeddings, .npz, .parquet and .safetensors: written in flat memory and read back; each says its model."""

import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from excb.errors import UserError
from excb.files import json_text, npy
from excb.files.atomic import new_file
from excb.ledger import Ledger

from .vectors import ArrayRows, Vectors

FORMAT = "excb-embeddings-1"
_ADVICE = "name another file"
Contents = tuple[np.ndarray, list[str], str, list[str | None] | None]  # vectors, paths, JSON, labels


def check_vectors_file(file: Path) -> None:
    """Raise UserError if embeddings cannot be written to a file of this name on this machine."""
    if file.suffix not in FORMATS or file.is_dir():
        raise UserError(f"{file}: embeddings are written to a file that ends in {', '.join(FORMATS)}")
    if file.suffix == ".parquet":
        _pyarrow()


def write_vectors(made: Vectors, file: Path) -> Path:
    """Write embeddings, some thousand rows at a time; the file appears whole or not at all.

    Raises:
        UserError: the name ends otherwise, pyarrow is missing for Parquet, or the file cannot be written.
    """
    check_vectors_file(file)
    with new_file(file, advice=_ADVICE) as temporary:
        FORMATS[file.suffix][0](made, temporary)
    return file


def read_vectors(file: Path) -> Vectors:
    """Open a file of embeddings; safetensors stay on the disk, and are read as they are needed.

    Raises:
        UserError: it is no such file, or is damaged.
    """
    check_vectors_file(file)
    try:
        with npy.unwarned():
            rows, paths, meta, labels = FORMATS[file.suffix][1](file)
        facts = json_text.parse(meta)
        if facts["format"] != FORMAT or rows.ndim != 2 or rows.dtype != np.float32 or len(rows) != len(paths):
            raise ValueError("other contents")
        model, unreadable = dict(facts["model"]), dict(facts["unreadable"])
        ledger = Ledger.from_dict(facts.get("ledger", {}))
        return Vectors(ArrayRows(rows), paths, str(facts["root"]), model, unreadable, ledger, labels)
    except FileNotFoundError:
        raise UserError(f"no file {file}: name one that `excb-eval embed` wrote") from None
    except npy.DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{file} holds no embeddings of `excb-eval embed` ({reason}): embed the images again") from None


def _meta(made: Vectors) -> str:
    return json.dumps({"format": FORMAT} | made.describe())


def _write_npz(made: Vectors, file: Path) -> None:
    """`vectors` [N, D], `paths` [N], `meta`, JSON, and `labels` [N], "" for none: `numpy.load` needs no pickle."""
    shape = (len(made), made.rows.width)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("vectors.npy", "w", force_zip64=True) as stream:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            for part in made.parts():
                stream.write(np.ascontiguousarray(part, "<f4").data)
        arrays = {"paths": np.array(list(made.paths), np.str_), "meta": np.array(_meta(made))}
        if made.labels is not None:
            arrays["labels"] = np.array([label or "" for label in made.labels], np.str_)
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def _read_npz(file: Path) -> Contents:
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:  # closed where it is damaged, too
        labels = arrays["labels"].tolist() if "labels" in arrays else None
        return arrays["vectors"], arrays["paths"].tolist(), str(arrays["meta"]), labels


def _write_safetensors(made: Vectors, file: Path) -> None:
    """`vectors` F32 [N, D], `paths` and `labels` U8: texts separated by zero bytes, as the file system has them."""
    texts = {"paths": b"\0".join(os.fsencode(path) for path in made.paths)}
    if made.labels is not None:
        texts["labels"] = b"\0".join(os.fsencode(label or "") for label in made.labels)
    shape = [len(made), made.rows.width]
    end = 4 * math.prod(shape)
    tensors: dict[str, Any] = {"vectors": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}
    for name, text in texts.items():
        tensors[name] = {"dtype": "U8", "shape": [len(text)], "data_offsets": [end, end + len(text)]}
        end += len(text)
    header = json.dumps({"__metadata__": {"excb": _meta(made)}} | tensors).encode()
    header += b" " * (-len(header) % 8)  # tensors begin at multiples of 8
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        for part in made.parts():
            stream.write(np.ascontiguousarray(part, "<f4").data)
        stream.write(b"".join(texts.values()))


def _read_safetensors(file: Path) -> Contents:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as opened:
            meta, kept = str((opened.metadata() or {})["excb"]), set(opened.keys())
            texts = {name: opened.get_tensor(name).tobytes() for name in ("paths", "labels") if name in kept}
            shape = opened.get_slice("vectors").get_shape()
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
    vectors = _mapped(file, 8 + length, shape)
    paths, labels = (
        [os.fsdecode(text) for text in texts[name].split(b"\0")] if name in texts and len(vectors) else None
        for name in ("paths", "labels")
    )
    return vectors, paths or [], meta, None if labels is None else [*labels]


def _mapped(file: Path, offset: int, shape: Sequence[int]) -> np.ndarray:
    """float32 of a file in place; the array of an empty one needs no file."""
    if 0 in shape:
        return np.empty(tuple(shape), np.float32)
    return np.memmap(file, "<f4", "r", offset, tuple(shape))


def _write_parquet(made: Vectors, file: Path) -> None:
    """Columns `path`, `label` and `vector`, a list of float32; the rest is in the schema's metadata, under `excb`."""
    pyarrow, parquet = _pyarrow()
    label = [] if made.labels is None else [("label", pyarrow.string())]
    vector = ("vector", pyarrow.list_(pyarrow.float32(), made.rows.width))
    schema = pyarrow.schema([("path", pyarrow.string()), *label, vector], metadata={"excb": _meta(made)})
    with parquet.ParquetWriter(file, schema) as writer:
        start = 0
        for part in made.parts():
            end = start + len(part)
            labels = None if made.labels is None else made.labels[start:end]
            columns = arrow_columns(made.paths[start:end], part, labels)
            writer.write_table(pyarrow.table(columns, schema=schema))
            start = end


def arrow_columns(
    paths: Sequence[str], vectors: np.ndarray, labels: Sequence[str | None] | None = None
) -> dict[str, Any]:
    """Paths, labels and vectors [n, D] as arrays of Arrow: strings, and fixed-size lists of float32.

    Raises:
        UserError: pyarrow is not installed.
    """
    pyarrow, _ = _pyarrow()

    def strings(texts: Sequence[str | None]) -> Any:
        shown = [text and text.encode("utf-8", "backslashreplace").decode() for text in texts]
        return pyarrow.array(shown, pyarrow.string())

    values = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
    vector = pyarrow.FixedSizeListArray.from_arrays(values, vectors.shape[1])
    label = {} if labels is None else {"label": strings(labels)}
    return {"path": strings(paths), **label, "vector": vector}


def _read_parquet(file: Path) -> Contents:
    pyarrow, parquet = _pyarrow()
    if not file.is_file():
        raise FileNotFoundError(file)
    try:
        table = parquet.read_table(file)
        meta: Mapping[bytes, bytes] = table.schema.metadata or {}
        column = table.column("vector").combine_chunks()
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from None
    width = table.schema.field("vector").type.list_size
    values = column.values.to_numpy(zero_copy_only=False)
    labels = table.column("label").to_pylist() if "label" in table.column_names else None
    return values.reshape(len(table), width), table.column("path").to_pylist(), meta[b"excb"].decode(), labels


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            "Parquet and Arrow need pyarrow: run `pip install 'excb[parquet]'`, or name a file.npz"
        ) from None
    return pyarrow, parquet


Writer = Callable[[Vectors, Path], None]
Reader = Callable[[Path], Contents]
FORMATS: dict[str, tuple[Writer, Reader]] = {
    ".npz": (_write_npz, _read_npz),
    ".parquet": (_write_parquet, _read_parquet),
    ".safetensors": (_write_safetensors, _read_safetensors),
}
