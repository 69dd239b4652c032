"""`excb.Encoder` as scikit-learn uses it, and `Backbone.encode` as programs for sentence-transformers do."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

import excb
from excb.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")
CKPT = "tiny_grocery"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Twelve pictures, reddish ones first."""
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(12):
        pixels = random.integers(0, 90, (40, 50, 3)).astype(np.uint8)
        pixels[..., 0 if number < 6 else 2] += 120
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return [str(file) for file in sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def expected(files: list[str]) -> np.ndarray:
    """Vectors, one image at a time."""
    backbone = excb.load(CKPT)
    rows = []
    for file in files:
        with Image.open(file) as image, torch.no_grad():
            rows.append(backbone(backbone.transform(image)[None])[0].numpy())
    return np.stack(rows)


@pytest.mark.parametrize("kind", ["paths", "array of paths", "column", "pictures", "pixels"])
def test_images_of_every_kind_have_the_vectors_of_a_loop(kind: str, files: list[str], expected: np.ndarray) -> None:
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    given: dict[str, Any] = {
        "paths": files,
        "array of paths": np.array(files),
        "column": np.array(files, dtype=object)[:, None],
        "pictures": [Image.fromarray(each) for each in pixels],
        "pixels": pixels,
    }
    encoder = excb.Encoder(CKPT, batch_size=5)
    assert np.allclose(encoder.fit_transform(given[kind]), expected, atol=1e-5)
    assert len(encoder.get_feature_names_out()) == encoder.n_features_out_ == expected.shape[1]


def test_a_pipeline_is_cross_validated(files: list[str]) -> None:
    pipeline = make_pipeline(excb.Encoder(CKPT, normalize=True), LogisticRegression(C=100))
    labels = ["red"] * 6 + ["blue"] * 6
    assert cross_val_score(pipeline, files, labels, cv=3).mean() > 0.9
    search = GridSearchCV(pipeline, {"encoder__normalize": [False, True]}, cv=2).fit(files, labels)
    assert search.predict(files).tolist() == labels


def test_a_pickle_loads_the_network_again_and_does_not_hold_it(files: list[str], expected: np.ndarray) -> None:
    encoder = excb.Encoder(CKPT, batch_size=7).fit(files)
    packed = pickle.dumps(encoder)
    assert len(packed) < 1000
    again = pickle.loads(packed)
    assert again.get_params() == encoder.get_params()
    assert np.allclose(again.transform(files[:3]), expected[:3], atol=1e-5)


def test_a_pickle_finds_a_path_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(pickle.dumps(excb.Encoder("run"))).ckpt == str(tmp_path / "run")
    (tmp_path / CKPT).mkdir()  # a name of the catalogue comes first
    for name in (CKPT, "timm:run", "nowhere"):
        assert pickle.loads(pickle.dumps(excb.Encoder(name))).ckpt == name


def test_settings_are_those_of_the_moment(files: list[str], expected: np.ndarray) -> None:
    encoder = excb.Encoder(CKPT)
    plain = clone(encoder).set_params(normalize=False).transform(files[:2])
    unit = encoder.set_params(normalize=True).transform(files[:2])
    assert np.allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)
    own = excb.Encoder(excb.load(CKPT))
    assert np.allclose(clone(own).transform(files[:2]), expected[:2], atol=1e-5)
    with pytest.raises(UserError, match="conv5"):
        encoder.set_params(ckpt="conv5").transform(files[:1])


@pytest.mark.parametrize(
    "check",
    [
        "check_estimator_cloneable",
        "check_estimator_tags_renamed",
        "check_valid_tag_types",
        "check_estimator_repr",
        "check_no_attributes_set_in_init",
        "check_parameters_default_constructible",
        "check_get_params_invariance",
        "check_set_params",
        "check_do_not_raise_errors_in_init_or_set_params",
        "check_mixin_order",
    ],
)
def test_scikit_learn_finds_nothing_wrong(check: str) -> None:
    # Its other checks pass tables of numbers, which are no images; its own `check_estimator` leaves them out, too.
    found = getattr(estimator_checks, check)("Encoder", excb.Encoder(CKPT))
    assert found is None  # it raises what it finds


@pytest.mark.parametrize(
    ("images", "message"), [("a.png", "images are several: pass a list of them"), ([], "no image")]
)
def test_what_is_no_list_of_images_is_refused(images: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        excb.Encoder(CKPT).transform(images)


def test_encode_is_that_of_sentence_transformers(files: list[str], expected: np.ndarray) -> None:
    backbone = excb.load(CKPT)
    rows = backbone.encode(files, batch_size=5)
    assert isinstance(rows, np.ndarray)
    assert np.allclose(rows, expected, atol=1e-5)
    one = backbone.encode(Path(files[3]), normalize_embeddings=True, convert_to_tensor=True)
    assert isinstance(one, torch.Tensor)
    assert np.allclose(one, expected[3] / np.linalg.norm(expected[3]), atol=1e-6)
