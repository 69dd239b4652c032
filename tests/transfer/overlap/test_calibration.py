"""Thresholds, whitening, planted copies and pairs, each against a loop or a closed form."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from excb.errors import UserError
from excb.images.image_set import ImageSet
from excb.images.subset import Subset
from excb.transfer.embeddings.table.vectors import ArrayRows
from excb.transfer.overlap.altered import KINDS, Altered, drawn
from excb.transfer.overlap.calibration import Calibration, _unrelated, threshold
from excb.transfer.overlap.descriptors import Whitening
from excb.transfer.overlap.hashing import of_bits
from excb.transfer.overlap.matching import DescriptorRows, pairs


def test_a_threshold_leaves_one_percent_of_false_alarms() -> None:
    random = np.random.default_rng(1)
    unrelated = torch.from_numpy(random.uniform(-1, 0.9, 500))
    chosen = threshold(unrelated, "features")
    assert int((unrelated >= chosen).sum()) == 5
    assert int((unrelated >= chosen - 0.001).sum()) > 5
    bits = torch.tensor([of_bits(each) for each in [9, 11, 12, 12, *[20] * 296]])
    assert threshold(bits, "hash") == of_bits(11)
    assert threshold(torch.ones(300), "hash") == 1  # many identical images: those only
    assert threshold(torch.ones(300), "features") == 1


def test_whitened_rows_have_mean_zero_and_equal_variances() -> None:
    random = np.random.default_rng(2)
    rows = (random.normal(size=(400, 5)) @ random.normal(size=(5, 5)) + 7).astype(np.float32)
    white = Whitening.fit(ArrayRows(rows))(ArrayRows(rows)).double().numpy()
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(white.T @ white / 400, np.eye(5), atol=1e-3)


def test_rows_that_are_all_equal_are_whitened_to_zero() -> None:
    white = Whitening.fit(ArrayRows(np.ones((30, 4), np.float32)))(ArrayRows(np.ones((30, 4), np.float32)))
    assert (white == 0).all()


@pytest.mark.parametrize("images", [60, 150, 400])
def test_new_images_are_no_nearer_to_few_train_images_than_these_to_one_another(images: int) -> None:
    """Features wider than the set would make its images orthogonal: every threshold would find every new image."""
    random = np.random.default_rng(9)
    train, new = (torch.from_numpy(random.normal(size=(count, 300))).float() for count in (images, 1000))
    whitening = Whitening.fit(ArrayRows(train.numpy()))
    bank, queries = (
        torch.nn.functional.normalize(whitening(ArrayRows(rows.numpy())).double(), dim=1) for rows in (train, new)
    )
    own = (bank @ bank.T).fill_diagonal_(-1).amax(1)
    limit = threshold(own[: images // 2], "features")
    counted = float((own[images // 2 :] >= limit).double().mean())
    found = float(((queries @ bank.T).amax(1) >= limit).double().mean())
    assert found == pytest.approx(counted, abs=0.05)  # without the limit of directions: 1.0, 1.0, and 0.0 counted


@pytest.mark.parametrize("labelled", [True, False])
def test_unrelated_images_are_of_other_classes_or_all_others(labelled: bool) -> None:
    random = np.random.default_rng(3)
    bank = random.normal(size=(40, 3)).astype(np.float32)
    labels = random.integers(0, 4, 40)
    chosen = np.array([2, 9, 30])
    mirror = random.normal(size=(3, 3)).astype(np.float32)
    whole = ImageSet(Path(), [str(number) for number in range(40)], labels)
    sides = torch.from_numpy(bank[chosen]), torch.from_numpy(mirror)
    best = _unrelated(torch.from_numpy(bank), Subset(whole, chosen), sides, by_class=labelled)
    for place, index in enumerate(chosen):
        others = [j for j in range(40) if (labels[j] != labels[index] if labelled else j != index)]
        cosines = [
            query @ bank[j] / np.linalg.norm(query) / np.linalg.norm(bank[j])
            for query in (bank[index], mirror[place])
            for j in others
        ]
        assert float(best[place]) == pytest.approx(max(cosines), abs=1e-5)


def test_one_class_cannot_calibrate() -> None:
    whole = ImageSet(Path(), ["a", "b"], np.zeros(2, np.int64), ("one",))
    rows = torch.ones(2, 3)
    with pytest.raises(UserError, match="no train image is of another class, to set thresholds by"):
        _unrelated(rows, Subset(whole, np.arange(2)), (rows, rows), by_class=True)


def test_recall_and_precision_are_shares_of_equal_numbers() -> None:
    found = {name: {kind: torch.arange(10) < right for kind in KINDS} for name, right in (("features", 4), ("hash", 9))}
    alarms = {"features": torch.arange(10) > 7, "hash": torch.arange(10) == 9}
    made = Calibration({}, found, alarms).with_either()
    assert made.recall("either", "crop") == 0.9
    assert made.precision("features", "crop") == pytest.approx(0.4 / 0.6)
    assert made.precision("either", "crop") == pytest.approx(0.9 / 1.1)


def test_planted_copies_are_the_same_every_time_and_of_their_kind(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    Image.fromarray(random.integers(0, 256, (40, 60, 3)).astype(np.uint8)).save(tmp_path / "0.png")
    images = ImageSet(tmp_path, ["0.png"])
    copies = {kind: Altered(images, kind).open(0) for kind in KINDS}
    for kind, copy in copies.items():
        assert copy.tobytes() == Altered(images, kind).open(0).tobytes()
    assert copies["flip"].tobytes() == ImageOps.mirror(images.open(0)).tobytes()
    assert copies["jpeg"].size == (60, 40)
    width, height = copies["crop"].size
    assert 0.75 <= width / 60 <= 0.95
    assert height == pytest.approx(width * 40 / 60, abs=1)
    assert len({Altered(images, kind).fingerprint for kind in KINDS} | {images.fingerprint}) == len(KINDS) + 1


def test_drawn_images_are_different_ones_in_order() -> None:
    images = ImageSet(Path(), [str(number) for number in range(50)])
    chosen = drawn(images, 20).indices.tolist()
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 20
    assert drawn(images, 99).indices.tolist() == list(range(50))


def test_pairs_are_those_of_a_loop() -> None:
    random = np.random.default_rng(5)
    train, upright, mirrored = (torch.from_numpy(random.normal(size=(n, 4))).float() for n in (30, 12, 12))
    rows, thresholds = {"features": DescriptorRows(train, upright, mirrored)}, {"features": 0.8}
    near = {"features": rows["features"].near(0.8, 30, torch.device("cpu"), lambda _done: None)}
    found = pairs(rows, thresholds, near)
    expected = {}
    for test in range(12):
        for each in range(30):
            sides = [
                float(side[test].double() @ train[each].double() / side[test].norm() / train[each].norm())
                for side in (upright, mirrored)
            ]
            if max(sides) >= 0.8:
                expected[test, each] = (max(sides), sides[1] > sides[0])
    assert {pair[:2] for pair in found} == set(expected)
    assert found
    for pair in found:
        cosine, flipped = expected[pair.test, pair.train]
        assert pair.similarities["features"] == pytest.approx(cosine, abs=1e-6)
        assert pair.mirrored == flipped
    ranked = [pair.similarities["features"] for pair in found]
    assert ranked == sorted(ranked, reverse=True)


def test_no_pairs_are_no_error() -> None:
    rows = DescriptorRows(torch.eye(3), -torch.eye(3), -torch.eye(3))
    assert pairs({"hash": rows}, {"hash": 0.9}, {"hash": rows.near(0.9, 3, torch.device("cpu"), lambda _n: None)}) == []
