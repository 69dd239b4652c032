"""NumPy's files: every kind of array is read as NumPy reads it, and damage in any byte of an .npz is found."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from excb.files import npy

ARRAYS: dict[str, np.ndarray] = {
    "flat": np.arange(1000, dtype=np.float32),
    "columns": np.asfortranarray(np.arange(60.0).reshape(3, 4, 5)),
    "none": np.empty((0, 7), np.int16),
    "single": np.array("one text"),
    "texts": np.array(["a", "caf\u00e9", ""]),
    "big": np.arange(9, dtype=">i4"),
    "fields": np.array([(1, 2.5), (3, 4.5)], [("a", "i2"), ("b", "f8")]),
    "truth": np.array([True, False]),
    "nothing": np.array(["", ""]),  # of no bytes each
    "times": np.array(["2026-11-27"], "datetime64[D]"),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_those_of_numpy(save: Any, tmp_path: Path) -> None:
    save(tmp_path / "a.npz", **ARRAYS)
    for source in (tmp_path / "a.npz", (tmp_path / "a.npz").read_bytes()):
        read = npy.read_npz(source)
        assert [*read] == [*ARRAYS]
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(read[name], array)
            assert read[name].dtype == array.dtype
            assert read[name].flags.f_contiguous == array.flags.f_contiguous
            assert read[name].flags.writeable
            assert read[name].flags.aligned
    assert [*npy.read_npz(tmp_path / "a.npz", but=("flat", "texts"))] == [
        name for name in ARRAYS if name not in ("flat", "texts")
    ]


def test_later_versions_and_other_entries_are_read_as_numpy_reads_them(tmp_path: Path) -> None:
    later = io.BytesIO()
    np.lib.format.write_array(later, np.arange(5), version=(2, 0))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("later.npy", later.getvalue())
        archive.writestr("facts.txt", b"no array")
    read: dict[str, Any] = npy.read_npz(tmp_path / "a.npz")
    assert read["later"].tolist() == [0, 1, 2, 3, 4]
    assert read["facts.txt"] == b"no array"


def test_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([{}, []], object))
    with pytest.raises(ValueError, match="allow_pickle"):
        npy.read_npz(tmp_path / "a.npz")


def test_a_flipped_bit_anywhere_in_an_array_is_found(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, a=np.arange(300, dtype=np.uint8), b=np.arange(4))
    whole = file.read_bytes()
    begin = whole.index(b"\x93NUMPY")
    for place in range(begin, begin + 128 + 300, 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"\w"):
            npy.read_npz(file)


@pytest.mark.parametrize("shape", [(4,), (3, 2), (2**40, 2**40), (6, 0)])
def test_a_header_of_another_shape_is_refused_or_read_as_numpy_does(shape: tuple[int, ...], tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", stream.getvalue() + np.arange(5, dtype=np.float32).tobytes())
    try:
        with np.load(tmp_path / "a.npz") as arrays:
            expected = arrays["a"]
    except Exception:  # noqa: BLE001 - whatever it is
        with pytest.raises((ValueError, OSError)):
            npy.read_npz(tmp_path / "a.npz")
    else:
        np.testing.assert_array_equal(npy.read_npz(tmp_path / "a.npz")["a"], expected)
