"""Tests of pickles of plain values: every protocol reads alike, and nothing in a file is run."""

import pickle
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from excb.errors import UserError
from excb.transfer.instances.layouts.plain_pickle import numbers, read_pickle


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_and_arrays_are_read(tmp_path: Path, protocol: int) -> None:
    values = {
        "text": ["a", "ü"],
        "lists": [[1, 2.5], (3,), []],
        "arrays": [np.array([4, 5]), np.array([6.5], np.float32), np.array([7], ">i4"), np.array([], np.int64)],
        "scalars": [np.float64(8.5), np.int32(9)],
        "table": np.array([[1, 2], [3, 4]], np.uint8),
    }
    file = tmp_path / "a.pkl"
    file.write_bytes(pickle.dumps(values, protocol=protocol))
    found = read_pickle(file)
    assert found["text"] == ["a", "ü"]
    assert [numbers(each) for each in found["lists"]] == [[1, 2.5], [3], []]
    assert [numbers(each) for each in found["arrays"]] == [[4, 5], [6.5], [7], []]
    assert numbers(found["scalars"]) == [8.5, 9]
    assert numbers(found["table"]) == [1, 2, 3, 4]


class Harmful:
    """Runs a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def test_a_file_that_would_run_code_is_refused_in_one_line(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    file = tmp_path / "gnd.pkl"
    for protocol in range(6):
        file.write_bytes(pickle.dumps({"gnd": Harmful(Path.touch, witness)}, protocol=protocol))
        with pytest.raises(UserError, match="refused, since reading it could run code") as caught:
            read_pickle(file)
        assert "\n" not in str(caught.value)
    assert not witness.exists()


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x80\x04garbage",
        pickle.dumps([1, 2])[:-1],
        b"\x80\x02]r" + struct.pack("<I", 2**31 - 1) + b".",  # a memo of 32 GB
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b".",  # a terabyte of bytes
        pickle.dumps(np.array([None, "text"], object), protocol=2),
        pickle.dumps(np.array(["text"]), protocol=2),
        b"cnumpy\ndtype\n(VO8\ntRcnumpy.core.multiarray\nscalar\n(NVx\ntR.",
    ],
    ids=["empty", "garbage", "cut", "memo", "bytes", "objects", "texts", "scalar"],
)
def test_damage_is_one_line(tmp_path: Path, packed: bytes) -> None:
    file = tmp_path / "gnd.pkl"
    file.write_bytes(packed)
    with pytest.raises(UserError, match="is damaged or no pickle of plain values") as caught:
        read_pickle(file)
    assert "\n" not in str(caught.value)


def test_missing_and_too_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="cannot read"):
        read_pickle(tmp_path / "none.pkl")
    monkeypatch.setattr("excb.transfer.instances.layouts.plain_pickle.LARGEST", 3)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([1, 2, 3]))
    with pytest.raises(UserError, match=r"more than 0\.0 MB"):
        read_pickle(tmp_path / "a.pkl")


def test_other_values_are_no_numbers() -> None:
    for wrong in ("text", [True], ["1"], {"a": 1}, None):
        with pytest.raises(ValueError, match="where"):
            numbers(wrong)


def test_files_that_repeat_what_they_hold_are_refused(tmp_path: Path) -> None:
    # References take two bytes each: 140 kB of them would become gigabytes where each is read.
    raw = np.arange(5_000)
    names = ["a" * 5_000] * 20_000
    for contents in ([raw] * 50_000, [[raw] * 300] * 300, [names] * 1_000, {"gnd": [{"easy": [raw] * 100}] * 1_000}):
        file = tmp_path / "gnd.pkl"
        file.write_bytes(pickle.dumps(contents, protocol=2))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(UserError, match="its values repeat themselves"):
            read_pickle(file)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_bytes_that_are_built_again_and_again_are_refused(tmp_path: Path) -> None:
    text = b"\x8c" + b"\xff" + b"a" * 255
    encode = b"c_codecs\nencode\n"
    again = b"h\x00h\x01h\x02\x86R"  # encode(text, "latin1") from the memo
    packed = b"\x80\x04" + encode + b"q\x00" + text + b"q\x01" + b"\x8c\x06latin1q\x02" + b"]" + b"(" + again * 50_000
    file = tmp_path / "gnd.pkl"
    file.write_bytes(packed + b"e.")
    with pytest.raises(UserError, match="its values repeat themselves"):
        read_pickle(file)
