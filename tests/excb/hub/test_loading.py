"""Tests of `excb.load`: from wherever a checkpoint lies the same features, and every tensor matched or refused."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import excb
from excb.checkpoint import reading, run_checkpoint
from excb.checkpoint.stored import Which
from excb.errors import UserError
from excb.files.foreign import sha256_of
from excb.hub import catalogue, loading
from excb.hub.backbone import Backbone
from excb.hub.catalogue import Checkpoint
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.zoo.export import export
from tests.clone import ROOT
from tests.run_files import damage, features, photograph, pictures, tiny_recipe, write_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "tiny", 9, 10)


@pytest.fixture(scope="module")
def tensors(run: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = run_checkpoint.read_run_checkpoint(run / "checkpoints" / "step-10.pt")["model"]
    return found


def built(tensors: dict[str, Tensor], network: str) -> nn.Module:
    """The oracle: the architecture, with one network's tensors put in by hand."""
    prefix = f"{network}.backbone."
    module = Architecture("timm:resnet10t", {"channels": [8, 16, 24, 32], "stem_width": 8}).build()
    chosen = {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
    module.load_state_dict(chosen, strict=True)
    return module.eval()


# ---------------------------------------------------------------------------------------------------------------------
# What is loaded
# ---------------------------------------------------------------------------------------------------------------------


def test_features_are_the_teachers_wherever_the_checkpoint_lies(
    run: Path, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    exported = export(str(run), tmp_path / "exported")
    expected = features(built(tensors, "teacher"), pictures())
    assert expected.shape == (3, 32)
    places: list[str | Path] = [
        run,
        str(run),
        run / "checkpoints",
        run / "checkpoints" / "step-10.pt",
        exported,
        exported / "model.safetensors",
    ]
    for place in places:
        assert torch.equal(features(excb.load(place), pictures()), expected), place
    older = features(excb.load(run / "checkpoints" / "step-9.pt"), pictures())
    assert not torch.allclose(older, expected)


def test_student_and_teacher(run: Path, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    expected = features(built(tensors, "student"), pictures())
    student = excb.load(run, network="student")
    assert torch.equal(features(student, pictures()), expected)
    assert student.entry.network == "student"
    assert excb.load(run).entry.network == "teacher"
    assert not torch.allclose(features(excb.load(run), pictures()), expected)
    exported = export(str(run), tmp_path / "student", network="student")
    assert torch.equal(features(excb.load(exported, network="student"), pictures()), expected)
    with pytest.raises(UserError, match=r"holds the student alone: load that one .*--network student\), or the run$"):
        excb.load(exported)


def test_unknown_network_is_refused(run: Path) -> None:
    with pytest.raises(UserError, match="'teacher' or 'student', not 'both'"):
        excb.load(run, network="both")  # type: ignore[arg-type]


def test_backbone_is_in_eval_mode_on_the_cpu_and_plain_inside(run: Path) -> None:
    backbone = excb.load(run)
    assert isinstance(backbone, excb.Backbone)
    assert not any(module.training for module in backbone.modules())
    assert {parameter.device.type for parameter in backbone.parameters()} == {"cpu"}
    assert backbone.width == 32
    assert type(backbone.network).__module__.startswith("timm.")
    assert torch.equal(features(backbone, pictures()), features(backbone.network, pictures()))


def test_fine_tuning_gets_gradients_everywhere(run: Path) -> None:
    backbone = excb.load(run).train()
    assert all(module.training for module in backbone.modules())
    backbone(pictures()).square().sum().backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_transform_is_the_checkpoints_preprocessing(tmp_path: Path) -> None:
    recipe = tiny_recipe(eval_resize=70, eval_crop=60, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    run = write_run(tmp_path / "run", 1, recipe=recipe)
    for place in (run, export(str(run), tmp_path / "exported")):
        backbone = excb.load(place)
        assert backbone.transform == Preprocessing(70, 60, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
        image = photograph()
        # Written out: shorter side to 70, central 60 x 60, scaled to [0, 1], normalised.
        resized = image.resize((70 * image.width // image.height, 70), Image.Resampling.BILINEAR)
        left, top = round((resized.width - 60) / 2), 5
        pixels = torch.tensor(list(resized.crop((left, top, left + 60, top + 60)).tobytes())).view(60, 60, 3) / 255
        expected = (pixels - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor([0.4, 0.5, 0.6])
        torch.testing.assert_close(backbone.transform(image), expected.permute(2, 0, 1))
        assert features(backbone, backbone.transform(image)[None]).shape == (1, 32)


def test_a_mirror_of_timms_has_the_catalogues_preprocessing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same name gives the same features, whether its mirror or its origin was fetched."""
    architecture, wanted = Architecture("timm:resnet10t"), Preprocessing(interpolation="bicubic")
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    save_file(dict(architecture.build().state_dict()), mirror / "model.safetensors")
    published = {"input_size": [3, 224, 224], "crop_pct": 0.9, "interpolation": "bicubic"}
    config = {"architecture": "resnet10t", "num_classes": 0, "pretrained_cfg": published}
    (mirror / "config.json").write_text(json.dumps(config), encoding="utf-8")
    row = Checkpoint(
        name="theirs",
        method="DINO",
        architecture=architecture,
        preprocessing=wanted,
        source="https://theirs.example",
        locations=("hf-hub:timm/theirs",),
    )
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))
    catalogue.add(row, tmp_path / "zoo" / "catalogue.toml")
    monkeypatch.setattr(loading, "fetch_repo", lambda *_arguments, **_options: mirror)
    assert excb.load(mirror).transform == Preprocessing(248, 224, interpolation="bicubic")
    assert excb.load("theirs").transform == wanted


def test_a_mirror_of_timms_interpolates_as_the_catalogue_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, positions = tmp_path / "mirror", {"position_interpolation": "dino"}
    mirror.mkdir()
    save_file(dict(Architecture("vit_tiny").build().state_dict()), mirror / "model.safetensors")
    published = {"input_size": [3, 224, 224], "crop_pct": 0.9, "interpolation": "bicubic"}
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 0, "pretrained_cfg": published}
    (mirror / "config.json").write_text(json.dumps(config), encoding="utf-8")
    row = Checkpoint(
        name="theirs",
        method="DINO",
        architecture=Architecture("vit_tiny", positions),
        preprocessing=Preprocessing(interpolation="bicubic"),
        source="https://theirs.example",
        locations=("hf-hub:timm/theirs",),
    )
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))
    catalogue.add(row, tmp_path / "zoo" / "catalogue.toml")
    monkeypatch.setattr(loading, "fetch_repo", lambda *_arguments, **_options: mirror)
    timms, theirs = excb.load(mirror), excb.load("theirs")
    assert theirs.entry.architecture.options == positions
    for side, equal in ((224, True), (96, False)):  # their own size is not interpolated
        images = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            assert torch.equal(theirs(images), timms(images)) == equal


def test_a_row_that_says_all_of_its_network_has_it_whatever_the_mirror_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CLIP's, of which timm has one repository for two activations."""
    mirror, ours = tmp_path / "mirror", Architecture("timm:vit_tiny_patch16_224", {"act_layer": "quick_gelu"})
    mirror.mkdir()
    save_file(dict(Architecture("vit_tiny").build().state_dict()), mirror / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 0, "pretrained_cfg": {}}
    (mirror / "config.json").write_text(json.dumps(config), encoding="utf-8")
    row = Checkpoint(
        name="theirs",
        method="CLIP",
        architecture=ours,
        preprocessing=Preprocessing(),
        source="https://theirs.example",
        locations=("hf-hub:timm/theirs",),
        terms="read these first",
    )
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))
    catalogue.add(row, tmp_path / "zoo" / "catalogue.toml")
    asked = []

    def fetched(*_arguments: Any, **options: Any) -> Path:
        asked.append(options["terms"])
        return mirror

    monkeypatch.setattr(loading, "fetch_repo", fetched)
    backbone = excb.load("theirs")
    assert asked == ["read these first"]
    assert backbone.entry.architecture == ours
    assert type(backbone.network.blocks[0].mlp.act).__name__ == "QuickGELU"  # type: ignore[index, union-attr]


def test_terms_of_an_address_are_told_before_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Checkpoint(
        name="theirs",
        method="DINO",
        architecture=Architecture("vit_tiny"),
        preprocessing=Preprocessing(),
        source="https://theirs.example",
        locations=("https://theirs.example/weights.pth",),
        terms="read these first",
    )
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))
    catalogue.add(row, tmp_path / "zoo" / "catalogue.toml")

    def refuse(*_arguments: Any, **_options: Any) -> Path:
        assert "read these first" in capsys.readouterr().err
        raise UserError("asked")

    monkeypatch.setattr(loading, "fetch_url", refuse)
    with pytest.raises(UserError, match="asked"):
        excb.load("theirs")


def test_entry_tells_where_the_weights_come_from_and_how_they_were_trained(run: Path, tmp_path: Path) -> None:
    entry = excb.load(run).entry
    assert entry.source == str(run / "checkpoints" / "step-10.pt")
    assert entry.architecture == Architecture("timm:resnet10t", {"channels": [8, 16, 24, 32], "stem_width": 8})
    assert (entry.step, entry.epoch, entry.network) == (10, 1.0, "teacher")
    assert entry.recipe == tiny_recipe().to_dict()
    exported = export(str(run), tmp_path / "exported")
    again = excb.load(exported).entry
    assert again.source == str(exported / "model.safetensors")
    assert (again.architecture, again.step, again.epoch, again.network, again.recipe) == (
        entry.architecture,
        entry.step,
        entry.epoch,
        entry.network,
        entry.recipe,
    )


def test_full_checkpoints_are_told_from_backbones_alone(run: Path, tmp_path: Path) -> None:
    assert reading.read(run).full
    assert not reading.read(export(str(run), tmp_path / "exported")).full


# ---------------------------------------------------------------------------------------------------------------------
# Strictness
# ---------------------------------------------------------------------------------------------------------------------

LAYER = "teacher.backbone.layer1.0.conv1.weight"


def without(tensors: dict[str, Tensor]) -> None:
    del tensors[LAYER]


def with_extra(tensors: dict[str, Tensor]) -> None:
    tensors["teacher.backbone.layer9.weight"] = torch.ones(2)


def misshapen(tensors: dict[str, Tensor]) -> None:
    tensors[LAYER] = tensors[LAYER][:, :3].contiguous()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without, r"1 missing \(layer1\.0\.conv1\.weight\)"),
        (with_extra, r"1 unexpected \(layer9\.weight\)"),
        (misshapen, r"1 misshapen \(layer1\.0\.conv1\.weight \(8, 3, 3, 3\) for \(8, 16, 3, 3\)\)"),
    ],
)
def test_checkpoint_that_does_not_fit_is_refused_by_the_tensors_name(
    tmp_path: Path, tensors: dict[str, Tensor], change: Any, words: str
) -> None:
    changed = dict(tensors)
    change(changed)
    run = write_run(tmp_path / "run", 3, model=changed)
    with pytest.raises(UserError, match=words) as caught:
        excb.load(run)
    assert "nothing was loaded" in str(caught.value)
    assert str(run / "checkpoints" / "step-3.pt") in str(caught.value)
    assert "timm:resnet10t" in str(caught.value)
    assert excb.load(run, network="student").width == 32  # of which nothing is missing


def test_buffers_count_as_tensors(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    changed = {name: value for name, value in tensors.items() if not name.endswith("bn1.running_mean")}
    with pytest.raises(UserError, match=r"missing \(bn1\.running_mean, layer1\.0\.bn1\.running_mean, .*, \.\.\.\)"):
        excb.load(write_run(tmp_path / "run", 3, model=changed))


def test_negative_variances_are_refused_in_runs_and_in_exported_folders(
    run: Path, tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    variances = [name for name in tensors if name.endswith("running_var")]
    for name in (variances[0], "teacher.backbone.bn1.running_var"):
        broken = write_run(tmp_path / "run", 9, model=tensors | {name: tensors[name] - 1e3})
        network: Which = "student" if name.startswith("student") else "teacher"
        with pytest.raises(UserError, match=r"step-9\.pt holds negative variances in 1 tensor"):
            excb.load(broken, network=network)
    folder = export(str(run), tmp_path / "exported")
    weights, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    save_file(load_file(weights) | {"bn1.running_var": torch.full((8,), -1.0)}, weights)
    config["excb"]["sha256"]["model.safetensors"] = sha256_of(weights)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"model\.safetensors holds negative variances in 1 tensor \(bn1\.running_var"):
        excb.load(folder)


def test_checkpoint_of_another_architecture_than_it_says_is_refused(tmp_path: Path) -> None:
    wider = {"name": "timm:resnet10t", "options": {"channels": [8, 16, 24, 40], "stem_width": 8}}
    with pytest.raises(UserError, match=r"misshapen \(layer4"):
        excb.load(write_run(tmp_path / "wider", 1, architecture=wider))
    with pytest.raises(UserError, match="no backbone is called 'timm:resnet10tt'; did you mean"):
        excb.load(write_run(tmp_path / "unknown", 1, architecture={"name": "timm:resnet10tt", "options": {}}))


# ---------------------------------------------------------------------------------------------------------------------
# Damage, and nothing there
# ---------------------------------------------------------------------------------------------------------------------


def test_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 9, 10)
    newest = run / "checkpoints" / "step-10.pt"
    damage(newest)
    with pytest.warns(UserWarning, match="is damaged .*trying the one before") as caught:
        backbone = excb.load(run)
    assert backbone.entry.step == 9
    assert [str(newest) in str(one.message) for one in caught] == [True]
    assert caught[0].filename == __file__  # the line that called `load`, which is the one to look at
    with pytest.raises(UserError, match=r"is damaged .*: use an earlier checkpoint of the run"):
        excb.load(newest)


def test_run_of_damaged_checkpoints_only(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 3)
    damage(run / "checkpoints" / "step-3.pt")
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(UserError, match="every checkpoint in"):
        excb.load(run)


@pytest.mark.parametrize("kind", ["missing", "empty", "images", "missing file"])
def test_path_without_a_checkpoint_says_what_to_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "place"
    if kind == "empty":
        path.mkdir()
    elif kind == "images":
        path.mkdir()
        (path / "1.png").touch()
    elif kind == "missing file":
        path.mkdir()
        path /= "model.safetensors"
    with pytest.raises(
        UserError, match=r"no checkpoint .*: name a run folder, a checkpoint file or an exported folder"
    ):
        excb.load(path)


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("words", encoding="utf-8")
    with pytest.raises(UserError, match=r"notes\.txt is not a checkpoint"):
        excb.load(tmp_path / "notes.txt")


def test_damaged_exported_weights(run: Path, tmp_path: Path) -> None:
    folder = export(str(run), tmp_path / "exported")
    whole = (folder / "model.safetensors").read_bytes()
    for data in (b"", whole[:7], whole[:50], whole[:-1], b"\xff" * len(whole)):
        (folder / "model.safetensors").write_bytes(data)
        with pytest.raises(UserError, match=r"model\.safetensors is damaged .*: export it again"):
            excb.load(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.update(excb=None),
        lambda config: config.update(excb="yes"),
        lambda config: config["excb"].pop("architecture"),
        lambda config: config["excb"].update(architecture="resnet18"),
        lambda config: config["excb"].pop("preprocessing"),
        lambda config: config["excb"].update(preprocessing="none"),
        lambda config: config["excb"]["preprocessing"].update(unknown=1),
    ],
)
def test_config_of_another_program_is_refused(run: Path, tmp_path: Path, change: Any) -> None:
    folder = export(str(run), tmp_path / "exported")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    change(config)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match=r"config\.json was not written by `excb-zoo export`"):
        excb.load(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null"])
def test_config_that_is_no_json_object_is_refused(run: Path, tmp_path: Path, text: bytes) -> None:
    folder = export(str(run), tmp_path / "exported")
    (folder / "config.json").write_bytes(text)
    with pytest.raises(UserError, match=r"config\.json was not written by `excb-zoo export`"):
        excb.load(folder)
    (folder / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"config\.json \(it is no text in UTF-8 \(byte 1\): save it as UTF-8\)"):
        excb.load(folder)


# ---------------------------------------------------------------------------------------------------------------------
# The package's own names
# ---------------------------------------------------------------------------------------------------------------------


def stub_names() -> list[str]:
    """The public names in the stub, which type checkers read."""
    tree = ast.parse((ROOT / "excb" / "__init__.pyi").read_text(encoding="utf-8"))
    imported = [alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    return [name for name in imported if name is not None]


def test_public_names_are_there_and_listed() -> None:
    from excb.errors import UserError as Error
    from excb.method import ExCB

    assert dir(excb) == sorted(excb.__all__) == sorted(stub_names())
    assert {"Backbone", "ExCB", "UserError", "__version__", "checkpoints", "load", "train"} <= set(dir(excb))
    for name in dir(excb):
        assert getattr(excb, name) is not None
    assert excb.load is loading.load
    assert excb.Backbone is Backbone
    assert excb.ExCB is ExCB
    assert excb.UserError is Error
    assert excb.__version__.count(".") == 2


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'excb' has no attribute 'laod'"):
        _ = excb.laod  # type: ignore[attr-defined]
    assert not hasattr(excb, "resnet50")


def test_a_backbone_embeds_images_of_any_kind_and_size(run: Path) -> None:
    backbone = excb.load(run)
    images = [Image.new("RGB", (80, 60), "red"), Image.new("L", (70, 99)), Image.new("RGB", (64, 64), "blue")]
    expected = torch.cat([backbone(backbone.transform(image)[None]) for image in images])
    torch.testing.assert_close(backbone.embed(images, batch=2), expected)
    torch.testing.assert_close(backbone.embed(images[0]), expected[:1])
    with pytest.raises(UserError, match="this backbone returns a map: load it with features='pool'"):
        excb.load(run, features="map").embed(images)
    with pytest.raises(UserError, match=r"not a torch\.Tensor"):
        backbone.transform(torch.zeros(3, 4, 4))  # type: ignore[arg-type]
