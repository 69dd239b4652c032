"""Tests of `excb.load` by name and address: fetched once, verified, imported whole, and had again with no network."""

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import excb
from excb.checkpoint import exported
from excb.errors import UserError
from excb.hub import catalogue, resolve, selftest
from excb.hub.catalogue import Checkpoint, Figure
from excb.hub.trained_heads import Heads
from excb.method import ExCB
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.zoo.export import export
from tests.file_server import FileServer, Served
from tests.run_files import TINY_RESNET, TINY_VIT, features, pictures, tiny_recipe, write_run

ARCHITECTURE = Architecture(TINY_RESNET["backbone"], TINY_RESNET["options"])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return tmp_path / "home"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as server:
        yield server


def serve(server: FileServer, folder: Path) -> torch.nn.Module:
    """Put a network's state dict, as training code of others saves it, at /net.pth; the network."""
    network = ARCHITECTURE.build().eval()
    folder.mkdir(exist_ok=True)
    torch.save({"state_dict": {f"module.{n}": v for n, v in network.state_dict().items()}}, folder / "net.pth")
    server.files["/net.pth"] = Served((folder / "net.pth").read_bytes())
    return network


def row(server: FileServer, **changes: object) -> Checkpoint:
    known = Checkpoint(
        name="theirs",
        aliases=("their_network",),
        method="SimCLR",
        architecture=ARCHITECTURE,
        preprocessing=Preprocessing(70, 60, std=(0.228, 0.224, 0.225)),
        source=server.url("/net.pth"),
        locations=(server.url("/net.pth"),),
        licence="MIT",
        figures=(Figure("linear_top1", 12.5, "their README"),),
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def test_a_name_is_fetched_verified_and_imported_once(
    server: FileServer, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = serve(server, tmp_path / "files")
    catalogue.add(row(server), home / "catalogue.toml")
    assert resolve.local_folder(row(server)) is None
    backbone = excb.load("theirs")
    assert torch.equal(features(backbone, pictures()), features(network, pictures()))
    assert backbone.transform == Preprocessing(70, 60, std=(0.228, 0.224, 0.225))
    assert backbone.entry.checkpoint is not None
    assert backbone.entry.checkpoint.figures == (Figure("linear_top1", 12.5, "their README"),)
    assert (backbone.entry.checkpoint.licence, backbone.entry.checkpoint.method) == ("MIT", "SimCLR")
    asked = len(server.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = excb.load("their_network")
    assert torch.equal(features(again, pictures()), features(network, pictures()))
    assert len(server.asked) == asked
    assert [known.name for known in excb.checkpoints()].count("theirs") == 1


def test_an_address_is_imported_under_a_name_of_its_own(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    vit = Architecture("vit_small", {"depth": 12, "num_heads": 6})
    network = vit.build().eval()
    (tmp_path / "files").mkdir()
    contents = {"model": network.state_dict(), "arch": "vit_small_patch16_224"}  # which has six heads in timm
    torch.save(contents, tmp_path / "files" / "vit.pth")
    server.files["/vit.pth"] = Served((tmp_path / "files" / "vit.pth").read_bytes())
    backbone = excb.load(server.url("/vit.pth"))
    assert backbone.entry.architecture.name == "vit_small"
    images = pictures(1, 32)
    torch.testing.assert_close(features(backbone, images), features(network, images))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.testing.assert_close(features(excb.load(server.url("/vit.pth")), images), features(network, images))
    assert [folder.name[:4] for folder in home.iterdir() if (folder / "config.json").is_file()] == ["web-"]


@pytest.mark.parametrize("place", ["name", "address"])
def test_a_first_load_reads_the_file_and_builds_the_network_once(
    server: FileServer, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    serve(server, tmp_path / "files")
    catalogue.add(row(server), home / "catalogue.toml")
    name = "theirs" if place == "name" else server.url("/net.pth")
    # Tensors alone would not tell this tiny network.
    monkeypatch.setattr("excb.checkpoint.layouts.recognise", lambda _tensors: ARCHITECTURE)
    calls: list[str] = []

    def count(target: str, what: str) -> None:
        module, _, attribute = target.rpartition(".")
        owner = Architecture if attribute == "build" else importlib.import_module(module)
        original = getattr(owner, attribute)

        def counted(*inputs: Any, **options: Any) -> Any:
            if what != "build" or torch.get_default_device().type != "meta":  # a blueprint holds no weights
                calls.append(what)
            return original(*inputs, **options)

        monkeypatch.setattr(owner, attribute, counted)

    count("excb.networks.architecture.build", "build")
    count("excb.checkpoint.untrusted.read_untrusted", "read the file")
    count("excb.checkpoint.exported.read", "read the folder")
    count("excb.checkpoint.exported.write_exported", "write")
    first = excb.load(name)
    assert sorted(calls) == ["build", "read the file", "read the folder", "write"]
    calls.clear()
    again = excb.load(name)
    assert sorted(calls) == ["build", "read the folder"]
    assert again.entry == first.entry
    assert again.transform == first.transform
    assert torch.equal(features(again, pictures()), features(first, pictures()))
    folder = Path(first.entry.source).parent
    self_test = exported.read_part(folder, exported.SELFTEST)
    assert self_test is not None
    selftest.check_self_test(first, self_test)
    assert not first.network.training


def test_a_first_load_for_images_of_another_size(server: FileServer, tmp_path: Path, home: Path) -> None:
    vit = Architecture("vit_small", {"depth": 4, "num_heads": 3, "embed_dim": 48})
    (tmp_path / "vit.pth").parent.mkdir(exist_ok=True)
    torch.save(vit.build().state_dict(), tmp_path / "vit.pth")
    server.files["/vit.pth"] = Served((tmp_path / "vit.pth").read_bytes())
    catalogue.add(
        row(server, architecture=vit, locations=(server.url("/vit.pth"),), preprocessing=Preprocessing()),
        home / "catalogue.toml",
    )
    first = excb.load("theirs", img_size=96)
    again = excb.load("theirs", img_size=96)
    assert first.entry == again.entry
    assert first.transform == again.transform
    for name, value in again.network.state_dict().items():
        assert torch.equal(value, first.network.state_dict()[name]), name


def test_the_next_place_is_asked_where_one_fails(server: FileServer, tmp_path: Path, home: Path) -> None:
    network = serve(server, tmp_path / "files")
    server.files["/gone.pth"] = Served(status=404)
    places = (server.url("/gone.pth"), server.url("/net.pth"))
    catalogue.add(row(server, locations=places), home / "catalogue.toml")
    assert torch.equal(features(excb.load("theirs"), pictures()), features(network, pictures()))


def test_all_places_that_failed_are_told(server: FileServer, home: Path) -> None:
    server.files |= {"/one.pth": Served(status=404), "/two.pth": Served(status=403)}
    places = (server.url("/one.pth"), server.url("/two.pth"))
    catalogue.add(row(server, locations=places), home / "catalogue.toml")
    with pytest.raises(UserError, match=r"from any of its 2 locations: .*one\.pth.*; .*two\.pth"):
        excb.load("theirs")


def test_a_wrong_hash_is_refused_and_nothing_imported(server: FileServer, tmp_path: Path, home: Path) -> None:
    serve(server, tmp_path / "files")
    catalogue.add(row(server, digest="sha256:" + "0" * 64), home / "catalogue.toml")
    with pytest.raises(UserError, match="is not the file it should be"):
        excb.load("theirs")
    assert resolve.local_folder(row(server)) is None
    assert list((home / "downloads").glob("*.wrong"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nnclr_rn50", "nnclr_rn50 has no weights to load: .*no public weights"),
        ("rn50_100ep", "rn50_100ep has no weights to load: .*excb-pretrain rn50_100ep"),
        ("rn50_40ep", "shows all names; did you mean 'rn50_400ep'"),
        ("hf-hub:nobody", "hf-hub:nobody|nobody"),
        ("http://example.org/net.pth", "https"),
    ],
)
def test_names_without_weights(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        excb.load(name)
    assert "\n" not in str(caught.value)


def test_offline_and_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        excb.load("swav_rn50")


def test_a_path_that_is_spelt_like_a_name(
    server: FileServer, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = serve(server, tmp_path / "files")
    catalogue.add(row(server), home / "catalogue.toml")
    write_run(tmp_path / "theirs", 3)
    monkeypatch.chdir(tmp_path)
    assert torch.equal(features(excb.load("theirs"), pictures()), features(network, pictures()))
    for place in ("./theirs", Path("theirs")):
        assert excb.load(place).entry.step == 3


# ---------------------------------------------------------------------------------------------------------------------
# What else `load` can do
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output_norm", [False, True])
@pytest.mark.parametrize("kind", ["run", "exported"])
def test_heads_give_the_similarities_of_the_model_in_training(tmp_path: Path, kind: str, output_norm: bool) -> None:
    recipe = tiny_recipe().change(method={"projector_output_norm": output_norm})
    run = write_run(tmp_path / "run", 4, recipe=recipe)
    place = run if kind == "run" else export(str(run), tmp_path / "exported")
    backbone = excb.load(place, heads=True)
    assert isinstance(backbone.heads, Heads)
    model = ExCB(ARCHITECTURE.build(), ARCHITECTURE.build(), recipe.method)
    model.load_state_dict(torch.load(run / "checkpoints" / "step-4.pt", weights_only=True)["model"])
    model.eval()
    with torch.no_grad():
        expected = model.project(pictures()) @ model.teacher.centroids().T
        assert backbone.heads.teacher is not None
        torch.testing.assert_close(backbone.heads.teacher(backbone(pictures())), expected)
        assert backbone.heads.student is not None
        assert backbone.heads.student.predictor is not None
        rows = torch.randn(5, 4)
        assert model.student.predictor is not None
        torch.testing.assert_close(backbone.heads.student.predictor(rows), model.student.predictor(rows))
    assert torch.equal(backbone.heads.sizes, model.sizes)  # type: ignore[arg-type]
    assert excb.load(place).heads is None


def test_heads_of_a_file_without_them(server: FileServer, tmp_path: Path) -> None:
    serve(server, tmp_path / "files")
    file = tmp_path / "files" / "net.pth"
    torch.save(Architecture("resnet18").build().state_dict(), file)
    with pytest.raises(
        UserError, match=r"holds a backbone without heads .*: name a run of excb-pretrain that trains them, an"
    ):
        excb.load(file, heads=True)


def test_pyramid_map_and_gradients(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1)
    maps = excb.load(run, features="pyramid")
    found = maps(pictures())
    assert [tuple(one.shape) for one in found] == [(3, 8, 16, 16), (3, 16, 8, 8), (3, 24, 4, 4), (3, 32, 2, 2)]
    assert (maps.width, maps.strides) == ((8, 16, 24, 32), (4, 8, 16, 32))
    last = excb.load(run, features="map").train()
    last(pictures()).square().sum().backward()
    assert all(parameter.grad is not None for parameter in last.parameters())
    assert last.state_dict().keys() == excb.load(run).state_dict().keys()
    with pytest.raises(UserError, match="features"):
        excb.load(run, features="maps")  # type: ignore[arg-type]


def test_img_size_interpolates_position_embeddings_and_moves_the_crop(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1, recipe=tiny_recipe(TINY_VIT, eval_resize=256, eval_crop=224))
    small, usual = excb.load(run, img_size=96), excb.load(run)
    assert (small.transform.resize, small.transform.crop) == (109, 96)
    assert small.network.pos_embed.shape[1] == 37  # type: ignore[index]
    images = pictures(2, 96)
    # A ViT that takes images of any size interpolates its embeddings at every pass, to the same numbers.
    torch.testing.assert_close(features(small, images), features(usual, images), rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="16"):
        excb.load(run, img_size=100)


@pytest.mark.parametrize(
    ("name", "side", "words"),
    [
        ("conv4_photos", 1, r"cannot take images of 1 x 1 pixels \(.*\): choose another size"),
        (
            "untrained:timm:swin_tiny_patch4_window7_224",
            48,
            "cannot be resized to images of 48 x 48 pixels.*such as 224",
        ),
        ("untrained:timm:coatnet_0_rw_224", 96, "cannot take images of 96 x 96 pixels"),
    ],
)
def test_sizes_that_a_network_does_not_take_are_refused_when_it_is_loaded(name: str, side: int, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        excb.load(name, img_size=side)
    assert "\n" not in str(caught.value)


def test_an_architecture_is_no_checkpoint_and_names_those_of_timm() -> None:
    words = "timm:resnet18 has timm's weights, and untrained:timm:resnet18 random ones$"
    with pytest.raises(UserError, match=words):
        resolve.resolve("resnet18")
