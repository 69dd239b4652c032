"""A set of weights that timm publishes has one default preprocessing, whichever door it is loaded through."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import get_pretrained_cfg, save_for_hf

import excb
from excb.checkpoint.layouts import map_file
from excb.checkpoint.stored import Stored
from excb.checkpoint.timm_format import published_preprocessing
from excb.hub import catalogue, loading, timm_models
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing

PUBLISHED = {
    row.name: (row, place.removeprefix("hf-hub:timm/"))
    for row in catalogue.checkpoints()
    for place in row.locations
    if place.startswith("hf-hub:timm/")
}
NAME, TAGGED = "dinov2_vits14", "vit_small_patch14_dinov2.lvd142m"


def doors(tagged: str) -> dict[str, Stored]:
    """The weights of one of timm's names as every door first has them: with timm's own preprocessing."""
    cfg = get_pretrained_cfg(tagged)
    by_name = Architecture(f"timm:{tagged}")
    prepared = published_preprocessing(by_name)
    assert cfg is not None
    assert prepared is not None
    bare, _, tag = tagged.partition(".")
    stated = {"tag": tag} | ({"num_classes": cfg.num_classes} if cfg.num_classes else {})
    folder = Stored(Path("here"), {}, Architecture(f"timm:{bare}"), prepared, facts={"timm": stated})
    return {
        f"timm:{tagged}": Stored(Path(), {}, by_name, prepared),
        f"hf-hub:timm/{tagged}@main": folder,
        "/a/b": folder,
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_door_has_the_rows_preprocessing(name: str) -> None:
    row, tagged = PUBLISHED[name]
    for door, stored in doors(tagged).items():
        found = timm_models.as_evaluated(stored, door)
        assert found.preprocessing == row.preprocessing, door
        if found.preprocessing != stored.preprocessing:
            assert found.architecture.positions == row.architecture.positions


def test_some_differ_from_timms() -> None:
    """So that the test above can fail."""
    differ = [
        name
        for name, (row, tagged) in PUBLISHED.items()
        if published_preprocessing(Architecture(f"timm:{tagged}")) != row.preprocessing
    ]
    assert {"dinov2_vits14", "dinov3_vits16", "mae_vitb16", "dino_vitb16"} <= set(differ)


@pytest.mark.parametrize(
    "change", [{"tag": "mine"}, {"num_classes": 7}, {"preprocessing": Preprocessing(100, 98)}, {"tag": ["lvd142m"]}]
)
def test_weights_that_were_trained_further_are_others(change: dict[str, Any]) -> None:
    stored = doors(TAGGED)["/a/b"]
    prepared = change.get("preprocessing", stored.preprocessing)
    stated = stored.facts["timm"] | {key: value for key, value in change.items() if key != "preprocessing"}
    other = replace(stored, facts={"timm": stated}, preprocessing=prepared)
    assert timm_models.as_evaluated(other, "/a/b") == other


def test_dinov2_gives_the_same_features_by_name_repository_folder_and_timms_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network = timm.create_model(TAGGED, num_classes=0)
    save_for_hf(network, str(tmp_path), safe_serialization=True)
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))
    monkeypatch.setattr(loading, "fetch_repo", lambda *_arguments, **_options: tmp_path)
    monkeypatch.setattr(timm_models, "kept_copy", lambda *_: None)
    create = timm.create_model

    def published(name: str, *, pretrained: bool = False, pretrained_cfg_overlay: None = None, **options: Any) -> Any:
        made = create(name, pretrained_cfg_overlay=pretrained_cfg_overlay, **options)
        if pretrained:
            made.load_state_dict(network.state_dict())
        return made

    monkeypatch.setattr(timm, "create_model", published)
    by_timm = excb.load(f"timm:{TAGGED}")
    inputs = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        expected = excb.load(NAME)(inputs)
        for backbone in (by_timm, excb.load(tmp_path), excb.load(f"hf-hub:timm/{TAGGED}")):
            assert backbone.transform == Preprocessing(interpolation="bicubic")
            assert torch.equal(backbone(inputs), expected)


@pytest.mark.parametrize("architecture", [None, Architecture("timm:vit_small_patch14_dinov2")])
def test_a_file_of_metas_own_names_is_prepared_as_meta_evaluates(architecture: Architecture | None) -> None:
    network = Architecture("timm:vit_small_patch14_dinov2").build()
    tensors = dict(network.state_dict()) | {"mask_token": torch.zeros(1, 384)}
    stored = map_file(tensors, source=Path("dinov2_vits14_pretrain.pth"), architecture=architecture)
    assert stored.preprocessing == Preprocessing(interpolation="bicubic")
    assert stored.preprocessing_from == "as the authors of such files evaluate them"
