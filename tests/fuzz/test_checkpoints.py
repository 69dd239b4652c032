"""Checkpoint files of anybody: damaged bytes, pickles rewritten opcode by opcode, forged headers, other contents."""

import io
import json
import pickletools
import struct
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from hypothesis import strategies as st

import excb
from excb.checkpoint import layout_table, layouts, reading, run_checkpoint, untrusted
from tests.fuzz import hostile
from tests.fuzz.guard import CANARY, Guard
from tests.fuzz.lane import fuzz
from tests.run_files import contents, tiny_recipe

SAVERS: dict[str, dict[str, bool]] = {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}}
KIND = "checkpoints"


def saved(value: Any, saver: str = "zip") -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, **SAVERS[saver])
    return stream.getvalue()


@cache
def of_run() -> bytes:
    """A run's own checkpoint, as training writes it."""
    stream = io.BytesIO()
    torch.save(
        {"format": run_checkpoint.FORMAT, "version": run_checkpoint.VERSION} | contents(tiny_recipe(), step=1), stream
    )
    return stream.getvalue()


def of_others() -> dict[str, Any]:
    random = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(4, 5, generator=random) for name in ("layer1.0.conv1.weight", "fc.bias")}
    return {"epoch": 3, "state_dict": weights, "note": "text", "flags": [True, None, (1, 2.5)]}


@cache
def files() -> tuple[bytes, ...]:
    tensors = {"layer1.0.conv1.weight": torch.arange(64.0), "fc.bias": torch.zeros(2, 3)}
    small = {
        "format": run_checkpoint.FORMAT,
        "version": 1,
        "model": {},
        "architecture": {"name": "resnet18", "options": {}},
    }
    return (*(saved(of_others(), saver) for saver in SAVERS), safetensors.torch.save(tensors), saved(small))


# ---------------------------------------------------------------------------------------------------------------------
# Damaged bytes
# ---------------------------------------------------------------------------------------------------------------------


@fuzz(
    KIND,
    inputs=120,
    data=st.sampled_from(range(4)).flatmap(lambda number: hostile.damaged(files()[number])),
    name=st.sampled_from(("model.pth", "model.safetensors", "step-1.pt")),
    allow=st.sampled_from(((), tuple(untrusted.ADMISSIBLE))),
)
def test_damaged_files(guard: Guard, data: bytes, name: str, allow: tuple[str, ...]) -> None:
    file = guard.folder / name
    file.write_bytes(data)
    guard.run(lambda: untrusted.read_untrusted(file, allow=allow))
    guard.run(lambda: run_checkpoint.read_run_checkpoint(file), declared=(run_checkpoint.DamagedFileError,))
    guard.run(lambda: reading.read(file, allow=allow))


@fuzz(KIND, inputs=25, place=st.integers(0, 2**20), bits=st.integers(1, 255), cut=st.integers(0, 3))
def test_a_run_folder_with_a_damaged_file(guard: Guard, place: int, bits: int, cut: int) -> None:
    data = bytearray(of_run())
    data[place % len(data)] ^= bits
    file = guard.folder / run_checkpoint.FOLDER / "step-1.pt"
    file.parent.mkdir()
    file.write_bytes(data if cut else data[: place % len(data)])
    guard.run(lambda: excb.load(guard.folder))


# ---------------------------------------------------------------------------------------------------------------------
# Pickles, opcode by opcode
# ---------------------------------------------------------------------------------------------------------------------


def text(word: str) -> bytes:
    data = word.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


GLOBALS = (
    *(("os", "system"), ("posix", "system"), ("subprocess", "Popen"), ("builtins", "exec"), ("builtins", "eval")),
    *(("builtins", "getattr"), ("builtins", "__import__"), ("builtins", "open"), ("shutil", "rmtree"), ("os", "mkdir")),
    *((CANARY, "run"), ("importlib", "import_module"), ("torch", "load"), ("torch.hub", "load"), ("torch", "save")),
    *(("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter"), ("torch", "FloatStorage")),
    *(("torch._utils", "_rebuild_sparse_tensor"), ("torch._utils", "_rebuild_meta_tensor_no_storage")),
    *(("torch._utils", "_rebuild_qtensor"), ("torch._utils", "_rebuild_wrapper_subclass"), ("torch", "Size")),
    *(("torch._tensor", "_rebuild_from_type_v2"), ("torch", "device"), ("torch", "QInt8Storage"), ("torch", "float32")),
    *(("collections", "OrderedDict"), ("collections", "Counter"), ("argparse", "Namespace"), ("pathlib", "PosixPath")),
    *(("numpy._core.multiarray", "_reconstruct"), ("numpy", "dtype"), ("__builtin__", "set"), ("_codecs", "encode")),
)
ARGUMENTS = (
    *(text(f"touch {CANARY}"), text(f"import {CANARY}"), text("storage"), text("cpu"), text("cuda:7"), text("meta")),
    *(
        text("../../escaped"),
        text("\ud800"),
        b"K\x00",
        b"K\xff",
        b"M\xff\xff",
        b"J\xff\xff\xff\x7f",
        b"J\xff\xff\xff\xff",
    ),
    *(b"\x8a\x08" + b"\xff" * 7 + b"\x7f", b"\x8a\x08" + b"\x00" * 7 + b"\x01", b"\x8b\xff\xff\xff\x7f", b"N", b"\x88"),
    *(
        b"G\x7f\xf8" + b"\0" * 6,
        b"]",
        b"}",
        b")",
        b"(",
        b"I99999999999\n",
        b"L-1L\n",
        b"F1e999\n",
        b"S'x'\n",
        b"V\\ud800\n",
    ),
    *(b"X\xff\xff\xff\xff", b"B\xff\xff\xff\xff", b"\x8d" + b"\xff" * 8, b"T\xff\xff\xff\x7f", b"\x95" + b"\xff" * 8),
)
ACTIONS = (
    *(
        b"R",
        b"b",
        b"\x81",
        b"\x92",
        b"\x93",
        b"o",
        b"Q",
        b"P0\n",
        b"ios\nsystem\n",
        b"\x82\x01",
        b"\x84\xff\xff\xff\x7f",
    ),
    *(b"0", b"1", b"2", b"s", b"u", b"a", b"e", b"t", b"\x85", b"\x86", b"\x87", b"l", b"d", b"\x90", b"\x91", b"\x94"),
    *(
        b"h\x00",
        b"h\xff",
        b"j\xff\xff\xff\xff",
        b"q\x00",
        b"r\xff\xff\xff\x7f",
        b".",
        b"\x80\x02",
        b"\x80\xff",
        b"\x97",
    ),
)


@cache
def parts(saver: str) -> tuple[bytes, tuple[bytes, ...], bytes]:
    """A file cut into what comes before its main pickle, the opcodes of this, and what comes after."""
    whole = saved(of_others(), saver)
    if saver == "legacy":  # three small pickles come before
        stream, places = io.BytesIO(whole), [0]
        for _ in range(4):
            list(pickletools.genops(stream))
            places.append(stream.tell())
        before, pickled, after = whole[: places[3]], whole[places[3] : places[4]], whole[places[4] :]
    else:
        with zipfile.ZipFile(io.BytesIO(whole)) as archive:
            before, pickled, after = b"", archive.read("archive/data.pkl"), b""
    starts = [place for _, _, place in pickletools.genops(pickled)]
    return before, tuple(pickled[i:j] for i, j in zip(starts, [*starts[1:], len(pickled)], strict=True)), after


def assembled(codes: list[bytes], saver: str) -> bytes:
    """A file with another main pickle in it."""
    if saver == "legacy":
        return parts(saver)[0] + b"".join(codes) + parts(saver)[2]
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(of_others()))) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"".join(codes) if name.endswith("data.pkl") else old.read(name))
        for entry in new.infolist():
            entry.external_attr = 0  # torch states no access rights, and ours is to be taken for torch's
    return stream.getvalue()


@st.composite
def rewritten(draw: st.DrawFn) -> bytes:
    """A file whose pickle has opcodes removed, doubled, swapped or put in, other numbers, and forbidden calls."""
    saver = draw(st.sampled_from(tuple(SAVERS)))
    codes = list(parts(saver)[1])
    call = st.tuples(
        st.sampled_from(GLOBALS), st.lists(st.sampled_from(ARGUMENTS), max_size=4), st.sampled_from(ACTIONS)
    )
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(1, len(codes) - 1))
        match draw(
            st.sampled_from(("call", "call", "global", "number", "number", "action", "remove", "double", "swap"))
        ):
            case "call":
                (module, name), arguments, action = draw(call)
                codes[at:at] = [named(module, name), b"(", *arguments, b"t", draw(st.sampled_from((b"R", action)))]
            case "global":
                here = [place for place, code in enumerate(codes) if code.startswith(b"c")]
                if here:
                    codes[draw(st.sampled_from(here))] = named(*draw(st.sampled_from(GLOBALS)))
            case "number":  # lengths of storages, sizes and strides of tensors, and words
                here = [place for place, code in enumerate(codes) if code[:1] in b"KMJX"]
                codes[draw(st.sampled_from(here))] = draw(st.sampled_from(ARGUMENTS))
            case "action":
                codes.insert(at, draw(st.sampled_from(ACTIONS)))
            case "remove":
                del codes[at]
            case "double":
                codes.insert(at, codes[at])
            case "swap":
                other = draw(st.integers(1, len(codes) - 1))
                codes[at], codes[other] = codes[other], codes[at]
    return assembled(codes, saver)


@fuzz(KIND, inputs=200, data=rewritten(), allow=st.sampled_from(((), tuple(untrusted.ADMISSIBLE))))
def test_rewritten_pickles(guard: Guard, data: bytes, allow: tuple[str, ...]) -> None:
    file = guard.folder / "step-1.pt"
    file.write_bytes(data)
    guard.run(lambda: run_checkpoint.read_run_checkpoint(file), declared=(run_checkpoint.DamagedFileError,))
    guard.run(lambda: reading.read(file, allow=allow))
    found = guard.run(lambda: untrusted.read_untrusted(file, allow=allow))
    if found is not None:
        guard.run(lambda: layouts.map_file(found, source=Path("model.pth")))


# ---------------------------------------------------------------------------------------------------------------------
# Headers of safetensors
# ---------------------------------------------------------------------------------------------------------------------


def with_header(header: bytes, length: int | None, data: bytes) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


HEADER = {
    "layer1.0.conv1.weight": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]},
    "fc.bias": {"dtype": "I64", "shape": [2], "data_offsets": [64, 80]},
    "__metadata__": {"format": "pt"},
}


@fuzz(
    KIND,
    inputs=60,
    header=hostile.json_text(HEADER),
    length=st.one_of(st.none(), st.sampled_from((0, 1, 8, 2**20, 2**31, 2**62, 2**64 - 1))),
    size=st.sampled_from((80, 80, 0, 79, 1000)),
)
def test_headers_of_safetensors(guard: Guard, header: bytes, length: int | None, size: int) -> None:
    file = guard.folder / "model.safetensors"
    file.write_bytes(with_header(header, length, bytes(size)))
    guard.run(lambda: reading.read(file))


# ---------------------------------------------------------------------------------------------------------------------
# Whole files with other contents
# ---------------------------------------------------------------------------------------------------------------------

TENSORS = st.sampled_from(
    (
        *(torch.zeros(()), torch.zeros(0), torch.zeros(0, 5), torch.ones(3), torch.full((2, 2), float("nan"))),
        *(torch.zeros(1).expand(10**12), torch.zeros(1).expand(2**20, 2**12), torch.zeros(2, dtype=torch.complex64)),
        *(torch.ones(2, dtype=torch.bool), torch.ones(2, 3, dtype=torch.float16), torch.ones(2).to_sparse()),
        *(torch.ones(1, 1, 1, 1, 1, 1), torch.zeros(3, dtype=torch.uint8), torch.full((1,), float("inf"))),
    )
)


@cache
def run_values() -> dict[str, Any]:
    found: dict[str, Any] = torch.load(io.BytesIO(of_run()), weights_only=True)
    return found


@st.composite
def run_contents(draw: st.DrawFn) -> Any:
    """A run's contents with changes, half of them outside the thousand tensors."""
    whole = run_values()
    few = {name: value for name, value in whole.items() if name != "model"}
    new = st.one_of(hostile.values, TENSORS)
    if draw(st.booleans()):
        return draw(hostile.changed(whole, new=new))
    changed = draw(hostile.changed(few, new=new))
    return changed | {"model": changed.get("model", whole["model"])} if isinstance(changed, dict) else changed


@fuzz(
    KIND,
    inputs=40,
    data=run_contents().map(hostile.Large),
    heads=st.booleans(),
    folder=st.booleans(),
)
def test_run_checkpoints_with_other_contents(guard: Guard, data: hostile.Large, heads: bool, folder: bool) -> None:
    file = guard.folder / run_checkpoint.FOLDER / "step-1.pt"
    file.parent.mkdir()
    file.write_bytes(saved(data.value))  # of a stream: torch names the archive after the file otherwise
    guard.run(lambda: excb.load(guard.folder if folder else file, heads=heads))


LAYOUTS: tuple[dict[str, Any], ...] = (
    {
        "student": {
            "backbone.conv1.weight": torch.ones(2, 3, 7, 7),
            "classifier.centroid_layer.weight_v": torch.ones(4, 2),
        }
    },
    {"teacher": {"head.mlp.0.weight": torch.ones(4, 4), "head.last_layer.weight_g": torch.ones(3, 1)}, "epoch": 1},
    {"state_dict": {"module.encoder_q.layer1.0.conv1.weight": torch.ones(2, 2)}, "arch": "resnet50"},
    {"criterion": {"center": torch.zeros(1, 4)}, "teacher": {"blocks.0.attn.qkv.weight": torch.ones(6, 2)}},
    {"layer1.0.conv1.weight": torch.ones(64, 64, 3, 3), "patch_embed.proj.weight": torch.ones(192, 3, 16, 16)},
)


@fuzz(
    KIND,
    inputs=70,
    data=st.sampled_from(LAYOUTS).flatmap(
        lambda whole: hostile.changed(whole, new=st.one_of(hostile.values, TENSORS), most=4)
    ),
    layout=st.one_of(
        st.none(), st.none(), st.sampled_from([each.name for each in layout_table.LAYOUTS]), hostile.names
    ),
    saver=st.sampled_from(tuple(SAVERS)),
)
def test_foreign_files_with_other_contents(guard: Guard, data: Any, layout: str | None, saver: str) -> None:
    file = guard.folder / "model.pth"
    file.write_bytes(saved(data, saver))
    guard.run(lambda: layouts.map_file(untrusted.read_untrusted(file), source=file, layout=layout))


# ---------------------------------------------------------------------------------------------------------------------
# Exported folders
# ---------------------------------------------------------------------------------------------------------------------


@cache
def exported_files() -> dict[str, bytes]:
    """The folder of a tiny network with heads, file by file."""
    import tempfile

    from excb.checkpoint import exported
    from excb.networks.backbone import feature_width

    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run" / run_checkpoint.FOLDER / "step-1.pt"
        run.parent.mkdir(parents=True)
        run.write_bytes(of_run())
        found = reading.read(run)
        folder = exported.write_exported(
            Path(name) / "exported",
            tensors=found.tensors,
            architecture=found.architecture,
            preprocessing=found.preprocessing,
            width=feature_width(found.architecture.build()),
            heads=found.heads,
            facts={"network": "teacher", "step": 1, "epoch": 0.1, "recipe": {"name": "tiny"}, "checkpoint": None},
        )
        return {file.name: file.read_bytes() for file in folder.iterdir()}


@cache
def config() -> dict[str, Any]:
    values: dict[str, Any] = json.loads(exported_files()["config.json"])
    return values


@st.composite
def configs(draw: st.DrawFn) -> bytes:
    """config.json with changes: of ours, of its block alone, or as one of timm's own."""
    whole = config()
    match draw(st.integers(0, 3)):
        case 0:
            return draw(hostile.json_text(whole))
        case 1:
            values = whole | {"excb": draw(hostile.changed(whole["excb"]))}
        case 2:
            values = {name: value for name, value in whole.items() if name != "excb"}
            return draw(hostile.json_text(values))
        case _:
            known = ("timm:resnet10t", "timm:vit_tiny_patch16_224", "vit_tiny", "resnet18", "timm:convnext_atto")
            name = draw(st.one_of(st.sampled_from(known), st.sampled_from(known), hostile.names))
            words = (
                "depth",
                "embed_dim",
                "num_heads",
                "channels",
                "layers",
                "img_size",
                "patch_size",
                "stem_width",
                "block",
            )
            options = draw(
                st.dictionaries(st.sampled_from(words), st.one_of(hostile.numbers, hostile.values), max_size=3)
            )
            values = whole | {"excb": whole["excb"] | {"architecture": {"name": name, "options": options}}}
    return json.dumps(values).encode()


@fuzz(
    "exported folders",
    inputs=50,
    text=configs(),
    heads=st.booleans(),
    damaged=st.booleans(),
    place=st.integers(0, 2**20),
)
def test_exported_folders(guard: Guard, text: bytes, heads: bool, damaged: bool, place: int) -> None:
    folder = guard.folder / "zoo" / "tiny"
    folder.mkdir(parents=True)
    for name, data in exported_files().items():
        (folder / name).write_bytes(data)
    (folder / "config.json").write_bytes(text)
    if damaged:
        weights = bytearray(exported_files()["model.safetensors"])
        weights[place % len(weights)] ^= 0x41
        (folder / "model.safetensors").write_bytes(weights)
    guard.run(lambda: excb.load(folder, heads=heads))
    guard.run(lambda: excb.checkpoints(guard.folder / "zoo"))
