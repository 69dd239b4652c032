"""Tests of exported folders: the same network for everyone who reads one, and nothing that is not wholly as written."""

import hashlib
import json
import os
import stat
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from timm.data import create_transform, resolve_model_data_config
from timm.models import save_for_hf
from torch import Tensor, nn

import excb
from excb.checkpoint import exported
from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.backbone import feature_width
from excb.networks.preprocessing import Preprocessing
from tests.failing_disk import failing_at, names
from tests.run_files import features, photograph, pictures

pytestmark = pytest.mark.usefixtures("one_thread")

RESNET18 = Architecture("resnet18")
RESNET10T = Architecture("timm:resnet10t", {"channels": [8, 16, 24, 32], "stem_width": 8})
CONVNEXT = Architecture("timm:convnext_atto", {"dims": [8, 8, 8, 8], "depths": [1, 1, 1, 1]})
VIT = Architecture("vit_tiny", {"embed_dim": 24, "depth": 1, "num_heads": 4})
LARGE_VIT = Architecture("timm:vit_tiny_patch16_384", {"embed_dim": 24, "depth": 1, "num_heads": 2})
CAIT = Architecture("timm:cait_xxs24_224", {"embed_dim": 8, "depth": 1, "num_heads": 2})  # takes images of one size
MOBILENET = Architecture("torchvision:mobilenet_v3_small", {"reduced_tail": True})
NETWORKS = (RESNET18, RESNET10T, CONVNEXT, VIT, LARGE_VIT, CAIT, MOBILENET)
PREPROCESSING = Preprocessing(93, 64, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic")
FACTS = {"network": "student", "step": 3, "epoch": 0.5, "recipe": {"name": "Käse"}, "checkpoint": None, "origin": None}
every_network = pytest.mark.parametrize("architecture", NETWORKS, ids=lambda architecture: architecture.name)


def build(architecture: Architecture) -> nn.Module:
    """A network in eval mode, none of whose tensors is as a new network has it."""
    torch.manual_seed(0)
    network = architecture.build()
    for tensor in network.state_dict().values():
        if tensor.ndim > 1:
            tensor.mul_(1 + 0.1 * torch.randn(tensor.shape))
        elif tensor.is_floating_point():
            tensor.add_(torch.rand(tensor.shape))  # variances stay positive
    return network.eval()


@pytest.fixture(scope="module")
def networks() -> dict[str, nn.Module]:
    return {architecture.name: build(architecture) for architecture in NETWORKS}


@pytest.fixture(scope="module")
def folders(networks: dict[str, nn.Module], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("exported")
    return {
        architecture.name: exported.write_exported(
            base / architecture.name.replace(":", "_"),
            tensors=networks[architecture.name].state_dict(),
            architecture=architecture,
            preprocessing=PREPROCESSING,
            width=feature_width(networks[architecture.name]),
            facts=FACTS,
        )
        for architecture in NETWORKS
    }


def write(folder: Path, **changes: Any) -> Path:
    """A folder of a few numbers."""
    given: dict[str, Any] = {
        "tensors": {"a": torch.arange(24.0).view(4, 6), "b": torch.tensor(7)},
        "architecture": RESNET18,
        "preprocessing": Preprocessing(),
        "width": 512,
        "heads": {"sizes": torch.ones(3), "student.centroids.weight": torch.eye(3)},
        "facts": FACTS,
    }
    return exported.write_exported(folder, **given | changes)


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return found


def rewrite(folder: Path, config: Any) -> None:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def size_for(architecture: Architecture) -> int:
    return 224 if architecture is CAIT else 64


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---------------------------------------------------------------------------------------------------------------------
# The same network for everyone
# ---------------------------------------------------------------------------------------------------------------------


@every_network
def test_what_was_written_is_read(
    folders: dict[str, Path], networks: dict[str, nn.Module], architecture: Architecture
) -> None:
    found = exported.read(folders[architecture.name])
    assert (found.architecture, found.preprocessing) == (architecture, PREPROCESSING)
    assert found.facts.items() >= FACTS.items()
    network = found.architecture.build().eval()
    network.load_state_dict(found.tensors, strict=True)
    images = pictures(2, size_for(architecture))
    assert torch.equal(features(network, images), features(networks[architecture.name], images))


@pytest.mark.parametrize("architecture", NETWORKS[:-1], ids=lambda architecture: architecture.name)
def test_timm_opens_the_folder_by_its_path(
    folders: dict[str, Path], networks: dict[str, nn.Module], architecture: Architecture
) -> None:
    plain = timm.create_model(f"local-dir:{folders[architecture.name]}", pretrained=True).eval()
    images = pictures(2, size_for(architecture))
    found = features(plain, images)
    assert torch.equal(found, features(networks[architecture.name], images))
    assert found.shape == (2, config_of(folders[architecture.name])["num_features"])
    data = resolve_model_data_config(plain)
    assert data == {
        "input_size": [3, 64, 64],
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "interpolation": "bicubic",
        "crop_pct": pytest.approx(64 / 93),
        "crop_mode": "center",
    }
    transform = create_transform(**data, is_training=False)
    torch.testing.assert_close(transform(photograph(120)), PREPROCESSING(photograph(120)), rtol=0, atol=1e-6)


def test_timm_says_that_it_has_none_of_torchvisions_other_networks(folders: dict[str, Path]) -> None:
    with pytest.raises(RuntimeError, match=r"Unknown model \(torchvision:mobilenet_v3_small\)"):
        timm.create_model(f"local-dir:{folders[MOBILENET.name]}", pretrained=True)


@pytest.mark.parametrize("architecture", [RESNET10T, CONVNEXT, VIT, RESNET18], ids=lambda found: found.name)
def test_timm_puts_a_classifier_on_it_and_takes_grey_images(
    folders: dict[str, Path], networks: dict[str, nn.Module], architecture: Architecture
) -> None:
    """As for fine-tuning: `timm.create_model("hf-hub:...", pretrained=True, num_classes=10)`."""
    place = f"local-dir:{folders[architecture.name]}"
    tuned: Any = timm.create_model(place, pretrained=True, num_classes=10).eval()
    assert features(tuned, pictures(2)).shape == (2, 10)
    tuned.reset_classifier(0)
    assert torch.equal(features(tuned, pictures(2)), features(networks[architecture.name], pictures(2)))
    grey = timm.create_model(place, pretrained=True, in_chans=1).eval()
    assert features(grey, pictures(2)[:, :1]).shape == features(tuned, pictures(2)).shape


@pytest.mark.parametrize("name", ["resnet18", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_plain_torchvision_and_plain_timm_take_the_weights(tmp_path: Path, name: str) -> None:
    ours = build(Architecture(name))
    folder = write(tmp_path / "folder", tensors=ours.state_dict(), architecture=Architecture(name))
    theirs = getattr(torchvision.models, name)()
    theirs.fc = nn.Identity()
    for plain in (theirs, timm.create_model(name, num_classes=0)):
        plain.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
        torch.testing.assert_close(features(plain.eval(), pictures(2)), features(ours, pictures(2)), rtol=0, atol=0)


def test_timms_own_folder_without_its_classifier(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs: Any = timm.create_model("vit_tiny_patch16_224", **VIT.options, num_classes=7)
    save_for_hf(theirs, str(tmp_path), model_args=VIT.options, safe_serialization=True)
    found = exported.read(tmp_path)
    assert found.architecture.name == "timm:vit_tiny_patch16_224"
    assert found.facts["network"] == "pretrained"
    assert found.facts["timm"]["license"] == "apache-2.0"
    network = found.architecture.build().eval()
    network.load_state_dict(found.tensors, strict=True)
    theirs.reset_classifier(0)
    assert torch.equal(features(network, pictures(2, 224)), features(theirs.eval(), pictures(2, 224)))
    assert exported.read_part(tmp_path, exported.HEADS) is None


# ---------------------------------------------------------------------------------------------------------------------
# The files
# ---------------------------------------------------------------------------------------------------------------------


def test_config_tells_everything(tmp_path: Path) -> None:
    preprocessing = Preprocessing(256, 224, std=(0.228, 0.224, 0.225))
    folder = write(tmp_path / "folder", architecture=VIT, preprocessing=preprocessing, width=24)
    assert config_of(folder) == {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 0,
        "num_features": 24,
        "pretrained_cfg": {
            "num_classes": 0,
            "input_size": [3, 224, 224],
            "mean": [0.485, 0.456, 0.406],
            "std": [0.228, 0.224, 0.225],
            "crop_pct": 0.875,
            "interpolation": "bilinear",
            "crop_mode": "center",
            "classifier": "head",
            "first_conv": "patch_embed.proj",
        },
        "model_args": {"embed_dim": 24, "depth": 1, "num_heads": 4, "dynamic_img_size": True, "img_size": 224},
        "excb": FACTS
        | {
            "version": excb.__version__,
            "architecture": {"name": "vit_tiny", "options": {"embed_dim": 24, "depth": 1, "num_heads": 4}},
            "preprocessing": {
                "resize": 256,
                "crop": 224,
                "mean": [0.485, 0.456, 0.406],
                "std": [0.228, 0.224, 0.225],
                "interpolation": "bilinear",
            },
            "sha256": {
                name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
                for name in ("excb_head.safetensors", "model.safetensors")
            },
        },
    }


def test_facts_of_a_folder_that_was_read_are_those_of_the_next(tmp_path: Path) -> None:
    first = write(tmp_path / "first")
    second = write(tmp_path / "second", facts=exported.read(first).facts)
    assert contents(second) == contents(first)
    third = write(tmp_path / "third", facts=exported.read(first).facts, tensors={"a": torch.ones(2)}, heads=None)
    assert exported.read(third).facts["sha256"].keys() == {"model.safetensors"}
    assert torch.equal(exported.read(third).tensors["a"], torch.ones(2))


def test_heads_lie_beside_the_backbone(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder")
    heads = exported.read_part(folder, exported.HEADS)
    assert heads is not None
    assert sorted(heads) == ["sizes", "student.centroids.weight"]
    assert torch.equal(heads["student.centroids.weight"], torch.eye(3))
    assert exported.read(folder).tensors.keys() == {"a", "b"}
    write(folder, heads=None)
    assert names(folder) == ["config.json", "model.safetensors"]
    assert exported.read_part(folder, exported.HEADS) is None


def test_tensors_of_any_kind_are_written_as_they_are(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    tensors: dict[str, Tensor] = {
        "transposed": whole.T,
        "channels_last": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "shared": whole,
        "again": whole,
        "half": whole.half(),
        "count": torch.tensor(3),
        "trained": nn.Parameter(torch.ones(2)),
    }
    found = exported.read(write(tmp_path / "folder", tensors=tensors)).tensors
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert torch.equal(found[name], value)
        assert found[name].dtype == value.dtype
    with safe_open(tmp_path / "folder" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_files_may_be_read_by_whom_other_files_may(tmp_path: Path) -> None:
    (tmp_path / "ordinary").touch()
    mode = stat.S_IMODE((tmp_path / "ordinary").stat().st_mode)
    for path in write(tmp_path / "folder").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == mode, path


def test_files_can_be_added_before_hashes_are_taken(tmp_path: Path) -> None:
    def complete(folder: Path) -> None:
        assert folder.parent == tmp_path
        assert load_file(folder / "model.safetensors").keys() == {"a", "b"}
        save_file({"features": torch.ones(2)}, folder / "selftest.safetensors")

    folder = write(tmp_path / "folder", complete=complete)
    assert sorted(config_of(folder)["excb"]["sha256"]) == [
        "excb_head.safetensors",
        "model.safetensors",
        "selftest.safetensors",
    ]
    found = exported.read_part(folder, exported.SELFTEST)
    assert found is not None
    assert torch.equal(found["features"], torch.ones(2))


# ---------------------------------------------------------------------------------------------------------------------
# Whole or not at all
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts_power", [False, True])
@pytest.mark.parametrize("older", [False, True])
def test_every_failing_step_leaves_the_old_folder_or_the_new(tmp_path: Path, older: bool, cuts_power: bool) -> None:
    new = contents(write(tmp_path / "new", tensors={"new": torch.ones(2)}))
    for step in range(1, 100):
        base = tmp_path / str(step)
        base.mkdir()
        folder = base / "folder"
        old = contents(write(folder)) if older else None
        with failing_at(step, cuts_power=cuts_power) as asked:
            write(folder, tensors={"new": torch.ones(2)})
        if len(asked) < step:
            break
        assert (contents(folder) if folder.exists() else None) in (old, new)
        assert cuts_power or names(base) == (["folder"] if folder.exists() else [])
    assert contents(folder) == new
    assert asked.count("write_bytes") == 2
    assert asked.count("write_text") == 1


def test_error_while_files_are_added_leaves_the_old_folder(tmp_path: Path) -> None:
    def complete(_folder: Path) -> None:
        raise UserError("no photographs")

    before = contents(write(tmp_path / "folder"))
    with pytest.raises(UserError, match="no photographs"):
        write(tmp_path / "folder", tensors={"new": torch.ones(2)}, complete=complete)
    assert contents(tmp_path / "folder") == before
    assert names(tmp_path) == ["folder"]


def test_nothing_but_an_export_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "photographs").mkdir()
    (tmp_path / "photographs" / "README.md").touch()
    (tmp_path / "photographs" / "cat.jpg").touch()
    with pytest.raises(UserError, match=r"cannot write .*photographs: it holds other files \(cat\.jpg\): name a new"):
        write(tmp_path / "photographs")
    assert names(tmp_path / "photographs") == ["README.md", "cat.jpg"]
    with pytest.raises(UserError, match="it is a file, and a folder is needed"):
        write(tmp_path / "photographs" / "cat.jpg")
    with pytest.raises(UserError, match="cannot write"):
        write(tmp_path / "photographs" / "cat.jpg" / "deeper")


@pytest.mark.parametrize("name", ["README.md", "results", "model.safetensors"])
def test_a_folder_that_only_has_an_exports_names_is_not_replaced(tmp_path: Path, name: str) -> None:
    place = tmp_path / "mine" / name
    place.parent.mkdir()
    place.mkdir() if name == "results" else place.write_text("years of work")
    with pytest.raises(UserError, match=rf"cannot write .*mine: it holds {name}, and `excb-zoo export` did not write"):
        write(tmp_path / "mine")
    assert names(tmp_path / "mine") == [name]


def test_a_network_of_another_program_is_not_replaced(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder")
    rewrite(folder, {"model_type": "dinov2"})
    before = contents(folder)
    with pytest.raises(UserError, match="did not write it: name a new folder"):
        write(folder)
    assert contents(folder) == before
    (folder / "config.json").write_text("damaged")  # of an export: written again
    assert config_of(write(folder))["excb"]


def test_other_weights_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    before = contents(write(tmp_path / "folder"))
    write(tmp_path / "folder", keep="say more")  # the same weights
    with pytest.raises(UserError, match=r"folder has other weights: say more$"):
        write(tmp_path / "folder", tensors={"a": torch.ones(2)}, keep="say more")
    assert contents(tmp_path / "folder") == before


def test_card_and_results_go_with_the_weights_they_tell_of(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder")
    (folder / "README.md").touch()
    (folder / "results").mkdir()
    (folder / "results" / "knn.json").touch()
    write(folder)
    assert names(folder) == ["config.json", "excb_head.safetensors", "model.safetensors"]


def test_links_and_relative_paths_lead_where_they_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "config.json").is_file()
    monkeypatch.chdir(tmp_path)
    assert write(Path("deep/relative")) == Path("deep/relative")
    assert exported.read(Path("deep/relative")).tensors.keys() == {"a", "b"}


# ---------------------------------------------------------------------------------------------------------------------
# Damaged files
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "excb_head.safetensors"])
def test_every_changed_byte_is_found_before_the_file_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = write(tmp_path / "folder")
    read = exported.read if name == exported.WEIGHTS else partial(exported.read_part, name=exported.HEADS)
    whole = (folder / name).read_bytes()
    changed = [whole[:end] for end in (0, 4, 8, 40, len(whole) - 1)]
    changed += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 29)]
    changed += [whole + b"\0", b"<html>sign in</html>"]

    def parse(*_arguments: Any) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(safetensors.torch, "load_file", parse)
    for data in changed:
        (folder / name).write_bytes(data)
        with pytest.raises(UserError, match=f"{name} is damaged or another file .*: export it again or fetch") as told:
            read(folder)
        assert hashlib.sha256(data).hexdigest() in str(told.value)
        assert hashlib.sha256(whole).hexdigest() in str(told.value)


def test_without_hashes_damage_to_the_header_is_still_found(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder")
    config = exported.read_config(folder)
    del config["excb"]["sha256"]  # as in folders of version 0.1.0
    rewrite(folder, config)
    whole = (folder / "model.safetensors").read_bytes()
    for data in (b"", whole[:7], whole[:50], whole[:-1], b"\xff" * len(whole)):
        (folder / "model.safetensors").write_bytes(data)
        with pytest.raises(UserError, match=r"model\.safetensors is damaged \("):
            exported.read(folder)
    other = torch.arange(24.0).view(4, 6) + 1
    (folder / "model.safetensors").write_bytes(safetensors.torch.save({"a": other}))
    assert torch.equal(exported.read(folder).tensors["a"], other)


def test_files_of_two_exports_do_not_mix(tmp_path: Path) -> None:
    first, second = write(tmp_path / "first"), write(tmp_path / "second", tensors={"c": torch.ones(1)}, heads=None)
    (second / "excb_head.safetensors").write_bytes((first / "excb_head.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"excb_head\.safetensors is damaged or another file .* says None"):
        exported.read_part(second, exported.HEADS)
    (first / "model.safetensors").write_bytes((second / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"model\.safetensors is damaged or another file"):
        exported.read(first)


def test_missing_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder")
    (folder / "excb_head.safetensors").unlink()
    with pytest.raises(UserError, match=r"excb_head\.safetensors is missing, but config\.json lists it"):
        exported.read_part(folder, exported.HEADS)
    assert exported.read(folder).tensors.keys() == {"a", "b"}
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors is missing, but config\.json lists it"):
        exported.read(folder)
    rewrite(folder, {"architecture": "resnet18", "pretrained_cfg": {}})
    with pytest.raises(UserError, match=r"folder has no model\.safetensors: export it again or fetch it again"):
        exported.read(folder)
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UserError, match=r"cannot read .*config\.json \(No such file"):
            exported.read(place)


def test_folders_of_version_0_1_0_have_no_hashes(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder")
    config = config_of(folder)
    del config["excb"]["sha256"], config["excb"]["checkpoint"], config["excb"]["origin"]
    rewrite(folder, config)
    assert exported.read(folder).tensors.keys() == {"a", "b"}
    config["excb"]["sha256"] = {}  # but where there are hashes, there must be all
    rewrite(folder, config)
    with pytest.raises(UserError, match="is damaged or another file"):
        exported.read(folder)


# ---------------------------------------------------------------------------------------------------------------------
# Hostile files
# ---------------------------------------------------------------------------------------------------------------------

CHANGES: list[dict[str, Any]] = [
    {"architecture": None},
    {"architecture": "resnet18"},
    {"architecture": {"name": "resnet18"}},
    {"architecture": {"name": 18, "options": {}}},
    {"architecture": {"name": "timm:hf-hub:someone/else", "options": {}}},
    {"architecture": {"name": "timm:local-dir:/tmp", "options": {}}},
    {"architecture": {"name": "../resnet18", "options": {}}},
    {"architecture": {"name": "resnet18\n", "options": {}}},
    {"architecture": {"name": "", "options": {}}},
    {"architecture": {"name": "timm:resnet18", "options": [1]}},
    {"architecture": {"name": "timm:resnet18", "options": {"pretrained": True}}},
    {"architecture": {"name": "torchvision:resnet18", "options": {"weights": "DEFAULT"}}},
    {"architecture": {"name": "timm:resnet18", "options": {"checkpoint_path": "/tmp/evil.pth"}}},
    {"architecture": {"name": "timm:resnet18", "options": {"pretrained_cfg": {"url": "https://evil"}}}},
    {"preprocessing": None},
    {"preprocessing": "none"},
    {"preprocessing": {"unknown": 1}},
    {"preprocessing": {"resize": "256"}},
    {"preprocessing": {"crop": True}},
    {"preprocessing": {"crop": 0}},
    {"preprocessing": {"crop": 10**6}},
    {"preprocessing": {"crop": 224.0}},
    {"preprocessing": {"mean": 0.5}},
    {"preprocessing": {"mean": [0.5, 0.5]}},
    {"preprocessing": {"mean": [0.5, 0.5, "0.5"]}},
    {"preprocessing": {"mean": [0.5, 0.5, float("nan")]}},
    {"preprocessing": {"mean": [0.5, 0.5, 10**400]}},
    {"preprocessing": {"std": [0.5, 0.5, 0]}},
    {"preprocessing": {"std": [0.5, 0.5, float("inf")]}},
    {"preprocessing": {"interpolation": "random"}},
    {"preprocessing": {"crop_mode": "random"}},
    {"preprocessing": {"interpolation": ["bilinear"]}},
    {"version": 1},
    {"network": None},
    {"network": ["teacher"]},
    {"step": "3"},
    {"epoch": [1]},
    {"recipe": "rn50"},
    {"checkpoint": "rn50"},
    {"origin": ["file"]},
    {"sha256": None},
    {"sha256": ["0" * 64]},
]


@pytest.mark.parametrize("change", CHANGES, ids=json.dumps)
def test_facts_of_another_kind_are_refused_before_weights_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    folder = write(tmp_path / "folder")
    config = config_of(folder)
    rewrite(folder, config | {"excb": config["excb"] | change})
    monkeypatch.setattr(safetensors.torch, "load_file", lambda _file: pytest.fail("it was parsed"))
    with pytest.raises(UserError, match=r"config\.json was not written by `excb-zoo export` or timm \("):
        exported.read(folder)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 10**6,
        b'{"excb":' * 10**5,
        b'{"step": ' + b"9" * 10**5 + b"}",
        b'{"excb": null}',
        b'{"excb": "yes"}',
        b'{"excb": {}}',
        b"{}",
        b'{"architecture": "resnet51"}',
        b'{"architecture": "resnet18", "pretrained_cfg": {"interpolation": "random"}}',
        b'{"architecture": "resnet18", "pretrained_cfg": {"std": [0, 0, 0]}}',
        b'{"architecture": "resnet18", "model_args": {"checkpoint_path": "/tmp/evil.pth"}}',
    ],
    ids=lambda text: text[:60].decode(errors="replace"),
)
def test_config_of_another_program_is_refused(tmp_path: Path, text: bytes) -> None:
    folder = write(tmp_path / "folder")
    (folder / "config.json").write_bytes(text)
    with pytest.raises(UserError, match=r"config\.json was not written by `excb-zoo export` or timm \("):
        exported.read(folder)


def test_config_without_end_is_not_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder")
    os.truncate(folder / "config.json", 2**40)  # takes no room
    with pytest.raises(UserError, match="larger than 16 MiB: refused"):
        exported.read(folder)


def test_hashes_lead_to_no_other_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder")
    config = config_of(folder)
    config["excb"]["sha256"]["../../secret"] = "0" * 64
    rewrite(folder, config)
    assert exported.read(folder).tensors.keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("vit_tiny", {"depth": 10**9}, "numbers up to 1,048,576"),
        ("vit_tiny", {"depth": 10**5, "embed_dim": 8, "num_heads": 2}, "more than 5,000 tensors"),
        ("timm:convnext_atto", {"dims": [30_000] * 4}, "does not fit the network"),
        ("timm:convnext_atto", {"dims": [[float("inf")]]}, "numbers up to"),
    ],
)
def test_networks_larger_than_any_machine_are_not_built(
    tmp_path: Path, name: str, options: dict[str, Any], words: str
) -> None:
    config = config_of(write(tmp_path / "folder"))
    config["excb"]["architecture"] = {"name": name, "options": options}
    rewrite(tmp_path / "folder", config)
    with pytest.raises(UserError, match=words):
        excb.load(tmp_path / "folder", network="student")


def test_the_same_tensors_are_the_same_bytes(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3), "bé": torch.ones(1, dtype=torch.int64), "empty": torch.empty(0)}
    metadata = {name: f'{name} ü " \u2028' for name in "zyxwvu"}
    contents = {exported.serialised(tensors, metadata) for _ in range(20)}  # the library's own order is one of 5,040
    assert len(contents) == 1
    (tmp_path / "file.safetensors").write_bytes(contents.pop())
    with safe_open(tmp_path / "file.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"} | metadata
        for name, tensor in tensors.items():
            assert torch.equal(file.get_tensor(name), tensor)
