"""Files of others are opened by `excb.files` and a few readers of one format each; nothing else calls a parser."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.test_layout import CORE, LEAVES, parse, sources, where

# What opens or parses a file, by the module that it is imported from; "" for methods of paths and builtins.
PARSERS = {
    "": {"open", "read_bytes", "read_text"},
    "csv": {"DictReader", "reader"},
    "json": {"load"},
    "numpy": {"load", "loadtxt", "genfromtxt", "fromfile"},
    "pickle": {"load", "loads"},
    "PIL.Image": {"open"},
    "PIL": {"open"},
    "pyarrow.parquet": {"read_table", "ParquetFile"},
    "safetensors": {"safe_open"},
    "safetensors.numpy": {"load", "load_file"},
    "safetensors.torch": {"load", "load_file"},
    "tarfile": {"open"},
    "tomllib": {"load", "loads"},
    "torch": {"load"},
    "zipfile": {"ZipFile"},
}
NAMES = {"np": "numpy", "parquet": "pyarrow.parquet", "Image": "PIL.Image"}
# Modules that may, and why.
DOORS = {
    "excb/checkpoint/run_checkpoint.py": "torch's archives, whose checksums it compares first",
    "excb/checkpoint/untrusted.py": "torch's archives and pickles, by torch's restricted unpickler",
    "excb/files/csv_text.py": "CSV",
    "excb/files/foreign.py": "the door",
    "excb/files/npy.py": "NumPy's files",
    "excb/files/parquet.py": "Parquet",
    "excb/files/tensors.py": "safetensors",
    "excb/files/toml.py": "TOML",
    "excb/images/formats/plugins.py": "images",
    "excb/images/tars/table.py": "members of shards, from a stream that is open",
    "excb/remote/wheels.py": "wheels, inside `parsing`",
    "pretrain/figures/diagrams.py": "CSV of a text that was bounded",
    "transfer/clusters/files.py": "CSV of a text that was bounded",
    "pretrain/data/hub_stream.py": "Parquet of a set that the user streams",
    "pretrain/data/stream_images.py": "Parquet of a set that the user streams",
    # Files of the system or of this package.
    "excb/distributed/launcher.py": "/proc",
    "excb/distributed/machine.py": "/proc and /sys",
    "excb/files/confined.py": "/proc",
    "excb/files/locks.py": "/proc",
    "excb/pages/frame.py": "templates of this package",
    "excb/report.py": "/proc",
    "pretrain/doctor/accelerator.py": "/proc",
    "pretrain/doctor/limits.py": "/sys",
    "pretrain/doctor/versions.py": "an image that it made",
    "transfer/data/alterations.py": "an image that it made",
    "transfer/embeddings/table/files.py": "a zip archive that it writes",
    "transfer/embeddings/table/csv_table.py": "a CSV table that it wrote just now",
    "transfer/map/page.py": "a file of Bokeh",
    "transfer/robustness/imagenet_c/digital.py": "an image that it made",
}


ANY_CALL = re.compile(rf"\b({'|'.join(sorted(set.union(*PARSERS.values())))})\(")


def parser_calls(tree: ast.Module) -> Iterator[str]:
    """Calls of parsers, as they are written; `open` that only writes, or opens an image by number, is none."""
    imported = {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            name, module = node.func.id, imported.get(node.func.id, "")
            if name in PARSERS.get(module, ()) and not writes(node.args[1:]):
                yield ast.unparse(node)
        elif isinstance(node.func, ast.Attribute):
            base, name = ast.unparse(node.func.value), node.func.attr
            if name in PARSERS.get(NAMES.get(base, base), ()) or (name in PARSERS[""] and reads_path(node, base)):
                yield ast.unparse(node)


def reads_path(call: ast.Call, base: str) -> bool:
    """Whether a method of these names is that of a path: other things that are opened take numbers or names."""
    if call.func.attr != "open":  # type: ignore[attr-defined]
        return True
    mode = call.args[0] if call.args else None
    text = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) <= set("rbt+")
    return base != "os" and (text or (mode is None and any(word.arg == "encoding" for word in call.keywords)))


def writes(arguments: list[ast.expr]) -> bool:
    return any(isinstance(mode, ast.Constant) and not set("wax").isdisjoint(str(mode.value)) for mode in arguments[:1])


def test_only_doors_call_parsers() -> None:
    offences = [
        f"{where(file)}: {call[:80]}"
        for file in sources(CORE, *LEAVES)
        if where(file) not in DOORS and ANY_CALL.search(file.read_text(encoding="utf-8"))
        for call in parser_calls(parse(file))
    ]
    assert offences == [], "read by excb.files.foreign, or say here why not"


def test_every_door_is_one() -> None:
    assert [name for name in DOORS if not list(parser_calls(parse(Path(name).absolute())))] == []


def test_calls_of_parsers_are_seen() -> None:
    seen = """
open(a); open(a, "rb"); a.read_text(); a.read_bytes(encoding="x"); a.open(); a.open("rb"); a.open(encoding="x")
np.load(a); Image.open(a); torch.load(a); tomllib.loads(a); zipfile.ZipFile(a); pickle.loads(a)
def f():
    from safetensors.torch import load_file
    load_file(a)
"""
    others = 'open(a, "wb"); a.open("ab"); images.open(3); images.open(i); os.open(a, 0); json.loads(a); torch.save(a)'
    assert len(list(parser_calls(ast.parse(seen)))) == 13
    assert list(parser_calls(ast.parse(others))) == []
