"""Files of unknown origin: what is read, what is refused and in which words, and that no code in them ever runs."""

import argparse
import gzip
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import types
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from excb.checkpoint import untrusted
from excb.checkpoint.layouts import map_file
from excb.errors import UserError

NUMPY_2, NUMPY_1 = "numpy._core.multiarray", "numpy.core.multiarray"
SAVERS: dict[str, dict[str, bool]] = {
    "zip": {},
    "legacy": {"_use_new_zipfile_serialization": False},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.pth"


@pytest.fixture(autouse=True)
def allowed_globals_are_as_before() -> Iterator[None]:
    before = set(torch.serialization.get_safe_globals())  # torch keeps a set: the order of its list means nothing
    yield
    assert set(torch.serialization.get_safe_globals()) == before


def tensors() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    return {name: torch.randn(40, 50, generator=random) for name in ("a.weight", "b.weight")}


def refused(file: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        untrusted.read_untrusted(file, **options)
    message = str(caught.value)
    assert str(file) in message
    assert "\n" not in message
    return message


# ---------------------------------------------------------------------------------------------------------------------
# What is read
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saver", SAVERS)
def test_files_of_torch(file: Path, saver: str) -> None:
    torch.save({"epoch": 3, "model": tensors(), "note": None}, file, **SAVERS[saver])
    contents = untrusted.read_untrusted(file)
    assert contents.keys() == {"epoch", "model", "note"}
    assert contents["epoch"] == 3
    assert all(torch.equal(contents["model"][name], value) for name, value in tensors().items())


def test_tensors_stay_on_disk_until_they_are_used(file: Path) -> None:
    torch.save(tensors(), file)
    contents = untrusted.read_untrusted(file)
    data = tensors()["b.weight"].numpy().tobytes()
    with file.open("r+b") as stream:
        stream.seek(file.read_bytes().index(data))
        stream.write(bytes(len(data)))
    assert not contents["b.weight"].any()


@pytest.mark.parametrize("name", ["model.safetensors", "renamed.bin"])
def test_safetensors_by_name_or_content(tmp_path: Path, name: str) -> None:
    safetensors.torch.save_file(tensors(), tmp_path / name)
    contents = untrusted.read_untrusted(tmp_path / name)
    assert contents.keys() == tensors().keys()
    assert all(torch.equal(contents[name], value) for name, value in tensors().items())


# ---------------------------------------------------------------------------------------------------------------------
# Code in files
# ---------------------------------------------------------------------------------------------------------------------


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def test_the_payload_is_sharp(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "made")))
    assert (tmp_path / "made").is_dir()


@pytest.mark.parametrize("saver", SAVERS)
@pytest.mark.parametrize("allow", [(), tuple(untrusted.ADMISSIBLE)])
def test_code_is_refused_and_not_run(
    file: Path, saver: str, allow: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    made = file.parent / "made"
    contents = {"state_dict": tensors(), "args": argparse.Namespace(hook=Payload(made))}
    torch.save(contents, file, **SAVERS[saver])
    message = refused(file, allow=allow)
    assert not made.exists()
    if saver == "zip" or allow:
        assert "posix.mkdir" in message
        assert "could run code" in message


def test_a_bare_pickle_is_not_even_opened(file: Path) -> None:
    file.write_bytes(pickle.dumps({"model": {}, "payload": Payload(file.parent / "made")}))
    assert "a pickle that torch.save did not write (Detectron2, " in refused(file)
    assert not (file.parent / "made").exists()


def test_a_whole_model_is_refused_with_what_to_do(file: Path) -> None:
    torch.save({"model": nn.Linear(2, 2)}, file)
    message = refused(file)
    assert "torch.nn.modules.linear.Linear" in message
    assert "save the model's state_dict()" in message


def test_torchscript_is_refused(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/constants.pkl", b"")
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
    assert "TorchScript archive, which holds code" in refused(file)


# ---------------------------------------------------------------------------------------------------------------------
# Harmless names
# ---------------------------------------------------------------------------------------------------------------------


def with_arguments() -> dict[str, Any]:
    """As the authors' ExCB files: a namespace, and learning rates that are NumPy's."""
    return {
        "teacher": tensors(),
        "args": argparse.Namespace(backbone="resnet50", epochs=400),
        "optimizer": {"lr": np.float64(0.6)},
    }


def test_harmless_names_must_be_allowed_and_are_told_all_at_once(file: Path) -> None:
    torch.save(with_arguments(), file)
    message = refused(file)
    names = ["argparse.Namespace", f"{NUMPY_2}.scalar", "numpy.dtype"]
    allowed = " ".join(f"--allow-global {name}" for name in names)
    assert message.endswith(
        f"harmless: convert it with excb-zoo import {file} --name NAME {allowed}, and use that name"
    )
    left = refused(file, allow=names[:1])
    assert "--allow-global numpy.dtype" in left
    assert "argparse" not in left


@pytest.mark.parametrize("module", [NUMPY_1, NUMPY_2])
def test_allowed_names_are_read_under_both_spellings_of_numpy(file: Path, module: str) -> None:
    torch.save(with_arguments(), file, _use_new_zipfile_serialization=False)
    data = file.read_bytes()
    assert data.count(f"c{NUMPY_2}\n".encode()) == 1
    file.write_bytes(data.replace(f"c{NUMPY_2}\n".encode(), f"c{module}\n".encode()))
    assert f"--allow-global {module}.scalar" in refused(file, allow=["argparse.Namespace"])
    contents = untrusted.read_untrusted(file, allow=["argparse.Namespace", "numpy.dtype", f"{module}.scalar"])
    assert torch.equal(contents["teacher"]["a.weight"], tensors()["a.weight"])
    assert contents["args"].epochs == 400
    assert type(contents["optimizer"]["lr"]) is untrusted.Inert  # NumPy has not seen it


def foreign(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class that pickles as another package's."""
    made = type(name, (), {"__module__": module})
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        if ".".join(parts[:end]) not in sys.modules:
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(parts[end - 1]))
    monkeypatch.setattr(sys.modules[module], name, made, raising=False)
    return made


def test_functions_and_buffers_of_others_become_inert(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = foreign("mmengine.logging.history_buffer", "HistoryBuffer", monkeypatch)()
    buffer.values = np.arange(3.0)
    function = foreign("__main__", "exclude_bias_and_norm", monkeypatch)
    torch.save({"model": tensors(), "message_hub": buffer, "optimizer": {"filter": function}}, file)
    monkeypatch.undo()
    allow = [f"{NUMPY_2}._reconstruct", "numpy.ndarray", "numpy.dtype", "__main__.exclude_bias_and_norm"]
    assert "--allow-global mmengine.logging.history_buffer.HistoryBuffer" in refused(file, allow=allow)
    contents = untrusted.read_untrusted(file, allow=[*allow, "mmengine.logging.history_buffer.HistoryBuffer"])
    assert torch.equal(contents["model"]["b.weight"], tensors()["b.weight"])
    assert contents["optimizer"]["filter"] is untrusted.Inert
    assert type(contents["message_hub"]) is untrusted.Inert


def test_only_the_fixed_list_can_be_allowed(file: Path) -> None:
    torch.save(tensors(), file)
    with pytest.raises(
        UserError, match=r"os\.system, posix\.system cannot be allowed: only .*argparse\.Namespace.* can"
    ):
        untrusted.read_untrusted(file, allow=["posix.system", "argparse.Namespace", "os.system"])


# ---------------------------------------------------------------------------------------------------------------------
# Other kinds of files
# ---------------------------------------------------------------------------------------------------------------------


def zipped(**entries: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return stream.getvalue()


def tarred() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("pickle"))
    return stream.getvalue()


def numpy_file() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("model.pth", b"", "is empty"),
        ("model.pth", b"\n<!DOCTYPE html><html><title>Google Drive - Virus scan warning", "web page"),
        ("model.pth", b"<HTML><body>Quota exceeded", "with a browser"),
        ("model.pkl", pickle.dumps({"model": {}, "__author__": "x"}, 4), "Detectron2"),
        ("model.npz", zipped(**{"a.npy": numpy_file()}), "a zip archive, but not torch's"),
        ("model.npy", numpy_file(), "NumPy array"),
        ("model.ckpt-225206.index", b"\0" * 90 + b"\x57\xfb\x80\x8b\x24\x75\x47\xdb", "TensorFlow checkpoint"),
        ("renamed", b"\0" * 90 + b"\x57\xfb\x80\x8b\x24\x75\x47\xdb", "TensorFlow checkpoint"),
        ("model.ckpt-250228.data-00000-of-00001", b"\0" * 90, "TensorFlow checkpoint"),
        ("model.h5", b"\x89HDF\r\n\x1a\n", "HDF5"),
        ("model.pth.gz", gzip.compress(b"x" * 90, mtime=0), "gzip"),
        ("model.tar", tarred(), "tar archive"),
        ("model.pth", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        ("notes.txt", b"words" * 99, "is not a checkpoint"),
    ],
)
def test_other_kinds_are_named(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert words in refused(tmp_path / name)


def test_nothing_there_and_a_folder(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "absent.pth")
    assert "Is a directory" in refused(tmp_path)


@pytest.mark.parametrize(("contents", "kind"), [(torch.ones(3), "Tensor"), ([1, 2], "list"), ("text", "str")])
def test_what_is_no_dictionary_is_refused(file: Path, contents: Any, kind: str) -> None:
    torch.save(contents, file)
    assert f"holds a {kind}, not tensors by name" in refused(file)


# ---------------------------------------------------------------------------------------------------------------------
# Damage and malice
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saver", [*SAVERS, "safetensors"])
def test_a_file_cut_short(file: Path, saver: str) -> None:
    if saver == "safetensors":
        safetensors.torch.save_file(tensors(), file)
    else:
        torch.save({"model": tensors()}, file, **SAVERS[saver])
    whole = file.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 60):
        file.write_bytes(whole[:size])
        assert "damaged" in refused(file), size


def test_an_altered_weight(file: Path) -> None:
    torch.save({"model": tensors()}, file)
    data = bytearray(file.read_bytes())
    start = data.index(tensors()["b.weight"].numpy().tobytes()[:64])
    data[start + 70] ^= 1
    file.write_bytes(data)
    assert "damaged or incomplete (checksum of " in refused(file)


def test_a_compressed_archive_is_refused_as_damaged(file: Path) -> None:
    torch.save({"model": tensors()}, file)
    with zipfile.ZipFile(file) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in entries.items():
            new.writestr(name, data)
    assert "damaged or incomplete (entry " in refused(file)


def with_header(header: Any, length: int | None = None, data: bytes = b"\0" * 64) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]} | changes}


@pytest.mark.parametrize(
    "data",
    [
        with_header(entry(), length=2**62),
        with_header(entry(), length=2**64 - 1),
        with_header(b"{" * 5000),
        with_header(b"not JSON"),
        with_header([]),
        with_header({"a": None}),
        with_header(entry(shape=[2**40, 2**40])),
        with_header(entry(shape=[-16])),
        with_header(entry(shape=[17])),
        with_header(entry(data_offsets=[64, 0])),
        with_header(entry(data_offsets=[0, 2**63])),
        with_header(entry(data_offsets=[32, 96])),
        with_header(entry(dtype="F7")),
        with_header(entry() | {"b": entry()["a"]}),
        b"\0" * 8,
    ],
)
def test_hostile_headers_of_safetensors(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(with_header(entry()))
    assert untrusted.read_untrusted(file)["a"].shape == (16,)
    file.write_bytes(data)
    assert "is damaged or incomplete (" in refused(file)


def archive_of(pickled: bytes) -> bytes:
    return zipped(**{"archive/data.pkl": pickled, "archive/version": b"3\n"})


def test_dictionaries_that_hold_themselves(file: Path) -> None:
    cycle: dict[str, Any] = {"weights": tensors()}
    cycle["self"] = cycle["weights"]["self"] = cycle
    torch.save(cycle, file)
    contents = untrusted.read_untrusted(file)
    assert contents["self"]["self"]["weights"] is contents["weights"]
    with pytest.raises(UserError, match="cannot tell the architecture"):
        map_file(contents, source=Path("it"))


def test_enormous_nesting(file: Path) -> None:
    depth, key = 100_000, b"X\x01\0\0\0a"
    file.write_bytes(archive_of(b"\x80\x02}" + (key + b"}") * depth + b"s" * depth + b"."))
    contents = untrusted.read_untrusted(file)
    for _ in range(depth):
        contents = contents["a"]
    assert contents == {}
    with pytest.raises(UserError, match="holds no tensors by name"):
        map_file(untrusted.read_untrusted(file), source=Path("it"))


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b".",
        b"\x80\x02",
        b"\x80\x02K\x01K\x02s.",
        b"\x80\x02}R.",
        b"\x80\x02}}b.",
        b"\x80\x02h\x05.",
        b"\x80\x02X\xff\xff\xff\xff.",
        b"\x80\x02X\x02\0\0\0\xff\xff.",
        b"\x80\x02)Q.",
        b"\x80\x04\x95.",
        b"\x80\x02cargparse\nNamespace\n(K\x01tR.",  # a namespace takes no such argument
        b"\x80\x02cargparse\nNamespace\n)\x81K\x01b.",  # nor such a state
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"\x80\x02ctorch\nFloatStorage\n)R.",
    ],
)
def test_broken_pickles_are_refused_in_one_line(file: Path, pickled: bytes) -> None:
    file.write_bytes(archive_of(pickled))
    assert refused(file, allow=["argparse.Namespace"])


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
@pytest.mark.parametrize("name", ["data.pkl", "DATA.PKL"])
@pytest.mark.parametrize("first", [True, False])
def test_every_pickle_of_one_name_is_looked_at(file: Path, name: str, first: bool) -> None:
    torch.save({"a": torch.zeros(2)}, file)
    with zipfile.ZipFile(file) as archive:
        entries = [(each.filename, archive.read(each)) for each in archive.infolist()]
    prefix = entries[0][0].split("/")[0]
    sized = (f"{prefix}/{name}", b"\x80\x02cbuiltins\nbytearray\nJ\x08\0\0\0\x85R.")
    with zipfile.ZipFile(file, "w") as archive:
        for entry, data in [sized, *entries] if first else [*entries, sized]:
            archive.writestr(entry, data)
    with pytest.raises(UserError, match="it holds a bytearray"):
        untrusted.read_untrusted(file)
