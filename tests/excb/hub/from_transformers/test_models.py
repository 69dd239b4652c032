"""Folders of transformers: the features and inputs of transformers' own model and image processor, or a refusal."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import excb
from excb.errors import UserError
from excb.images.photographs import photograph
from excb.zoo.export import export
from tests.excb.networks.from_transformers.small_models import MODELS, save, scattered

PHOTOGRAPHS = ("cat", "coffee", "astronaut")  # wider than high by odd and even sides, and square
FULL = {  # classes that hold an encoder and something else
    "dinov2": "Dinov2ForImageClassification",
    "vit": "ViTForImageClassification",
    "resnet": "ResNetForImageClassification",
    "convnext": "ConvNextForImageClassification",
}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def theirs(network: Any, inputs: torch.Tensor) -> torch.Tensor:
    """The output of transformers' own model: pooled, or the class token of ViT, whose pooler is BERT's."""
    with torch.no_grad():
        outputs = network(inputs)
    if isinstance(network, transformers.ViTModel):
        tokens: torch.Tensor = outputs.last_hidden_state
        return tokens[:, 0]
    pooled: torch.Tensor = outputs.pooler_output
    return pooled.flatten(1)


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float(((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).max().detach())


@pytest.mark.parametrize("kind", MODELS)
def test_features_are_the_librarys_own(tmp_path: Path, kind: str) -> None:
    network = save(tmp_path, kind)
    backbone = excb.load(tmp_path)
    assert backbone.entry.architecture.name == f"transformers:{kind}"
    side = 56 if kind.startswith("dinov2") else 64
    inputs = torch.stack([backbone.transform(photograph(name)) for name in PHOTOGRAPHS])
    inputs = torch.nn.functional.interpolate(inputs, (side, side), mode="area")
    assert apart(backbone(inputs), theirs(network, inputs)) < 1e-6
    assert backbone(inputs).shape == (3, backbone.width)
    assert apart(backbone(inputs), theirs(network, inputs).roll(1, 0)) > 1e-4  # images differ: the test can fail


def test_a_file_of_the_folder_is_the_folder(tmp_path: Path) -> None:
    save(tmp_path, "vit")
    inputs = torch.randn(1, 3, 64, 64)
    by_file, by_folder = excb.load(tmp_path / "model.safetensors"), excb.load(str(tmp_path))
    assert torch.equal(by_file(inputs), by_folder(inputs))
    assert by_file.transform == by_folder.transform


@pytest.mark.parametrize("kind", FULL)
def test_classifiers_are_left_out(tmp_path: Path, kind: str) -> None:
    made: Any = getattr(transformers, FULL[kind])
    whole = scattered(made(made.config_class(**MODELS[kind][1])).eval())
    save(tmp_path, kind, whole)
    inputs = torch.randn(2, 3, 56, 56) if kind == "dinov2" else torch.randn(2, 3, 64, 64)
    backbone = excb.load(tmp_path)
    assert apart(backbone(inputs), theirs(getattr(whole, whole.base_model_prefix), inputs)) < 1e-6


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_of_images_and_texts_the_half_for_images(tmp_path: Path, kind: str) -> None:
    part = f"{kind}_vision_model"
    texts = {"vocab_size": 10, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    texts |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config: Any = {"clip": transformers.CLIPConfig, "siglip": transformers.SiglipConfig}[kind]
    made: Any = {"clip": transformers.CLIPModel, "siglip": transformers.SiglipModel}[kind]
    whole = scattered(made(config(vision_config=MODELS[part][1], text_config=texts)).eval())
    save(tmp_path, part, whole)
    inputs = torch.randn(2, 3, 64, 64)
    assert apart(excb.load(tmp_path)(inputs), theirs(whole.vision_model, inputs)) < 1e-6


def test_weights_in_several_files_and_in_half_precision(tmp_path: Path) -> None:
    network = save(tmp_path, "dinov2")
    inputs = torch.randn(2, 3, 56, 56)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in parts.items():
        save_file({name: tensors[name] for name in own}, tmp_path / file)
    where = {name: file for file, own in parts.items() for name in own}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}), encoding="utf-8")
    assert apart(excb.load(tmp_path)(inputs), theirs(network, inputs)) < 1e-6
    half = {name: value.half() for name, value in tensors.items()}
    torch.save(half, tmp_path / "pytorch_model.bin")
    backbone = excb.load(tmp_path)
    assert next(backbone.parameters()).dtype == torch.float32
    assert 0 < apart(backbone(inputs), theirs(network, inputs)) < 1e-2


def changed(folder: Path, file: str, **values: Any) -> None:
    stated = json.loads((folder / file).read_text(encoding="utf-8"))
    (folder / file).write_text(json.dumps(stated | values), encoding="utf-8")


def test_code_that_a_folder_names_is_not_run(tmp_path: Path) -> None:
    save(tmp_path, "dinov2")
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", encoding="utf-8")
    code = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model", "AutoImageProcessor": "evil.Processor"}
    changed(tmp_path, "config.json", auto_map=code, _attn_implementation="someone/kernel", use_kernels=True)
    changed(tmp_path, "preprocessor_config.json", auto_map=code)
    excb.load(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "bert"}, "networks of transformers' type 'bert' cannot be loaded"),
        ({"hidden_size": 64}, "fewer numbers"),
        ({"num_hidden_layers": 4}, "unexpected"),
        ({"hidden_size": "many"}, "does not take these options"),
        ({"num_hidden_layers": 10**9}, "numbers up to"),
        ({"num_channels": 4}, "images of 4 channels"),
        ({"mlp_ratio": 2}, r"missing or misshapen \(encoder.layer"),
        ({"hidden_act": "nothing"}, "does not fit|does not take"),
        ({"num_attention_heads": 3}, "does not fit|does not take"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    save(tmp_path, "dinov2")
    changed(tmp_path, "config.json", **values)
    with pytest.raises(UserError, match=message):
        excb.load(tmp_path)


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    save(tmp_path, "dinov2")
    tensors = load_file(tmp_path / "model.safetensors")
    lost = tensors.pop("layernorm.weight")
    save_file(tensors | {"classifier.weight": lost}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"1 missing or misshapen \(layernorm.weight\)"):
        excb.load(tmp_path)


def test_without_an_image_processor_nothing_is_guessed(tmp_path: Path) -> None:
    save(tmp_path, "vit")
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match="nothing says how its images are prepared"):
        excb.load(tmp_path)


def test_a_bare_name_of_the_hub_gets_the_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="hf-hub:facebook/dinov2-small"):
        excb.load("facebook/dinov2-small")


def test_an_export_loads_again(tmp_path: Path) -> None:
    save(tmp_path / "theirs", "dinov2")
    backbone = excb.load(tmp_path / "theirs")
    export(str(tmp_path / "theirs"), tmp_path / "ours")
    again = excb.load(tmp_path / "ours")
    inputs = torch.randn(2, 3, 56, 56)
    assert torch.equal(again(inputs), backbone(inputs))
    assert again.transform == backbone.transform
