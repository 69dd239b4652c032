"""Tests of the parts of a training set: SimCLR's lists, lists of one's own, and seeded shares of every class."""

import hashlib
import io
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest

from excb.errors import UserError
from excb.images.image_set import ImageSet
from excb.transfer.data import splits
from excb.transfer.data.splits import simclr_split, stratified_split
from tests.clone import SHARED

COPIES = SHARED / "data" / "simclr_splits"
needs_copies = pytest.mark.skipif(not COPIES.is_dir(), reason="no copies of SimCLR's lists beside this clone")
SETS = [np.repeat(np.arange(7), 30), np.repeat(np.arange(5), [3, 200, 41, 17, 99]), np.arange(4), np.zeros(50, int)]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str, timeout: float) -> Any:
        raise URLError("no network in tests")

    monkeypatch.setattr(splits, "open_address", refuse)


def published(percent: int) -> str:
    return (COPIES / f"{percent}percent.txt").read_text(encoding="utf-8")


def imagenet(names: str) -> ImageSet:
    """An image set of these names and others, in class folders."""
    listed = [f"{name.partition('_')[0]}/{name}" for name in names.split()]
    return ImageSet(Path("imagenet"), sorted([*listed, *(f"n0144076{i}/other_{i}.JPEG" for i in range(9))]))


# ---------------------------------------------------------------------------------------------------------------------
# SimCLR's lists
# ---------------------------------------------------------------------------------------------------------------------


@needs_copies
@pytest.mark.parametrize(("percent", "count"), [(1, 12_811), (10, 128_116)])
def test_published_list_is_found_in_imagenet(percent: int, count: int, tmp_path: Path) -> None:
    images = imagenet(published(percent))
    chosen = simclr_split(percent, images, file=COPIES / f"{percent}percent.txt", cache=tmp_path)
    assert chosen.dtype == np.int64
    assert {images.paths[i].partition("/")[2] for i in chosen} == set(published(percent).split())
    assert len(chosen) == count
    assert (np.diff(chosen) > 0).all()


@needs_copies
def test_list_is_downloaded_once_verified_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def opener(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        return io.BytesIO(published(1).encode())

    monkeypatch.setattr(splits, "open_address", opener)
    images, cache = imagenet(published(1)), tmp_path / "a" / "cache"
    first, second = simclr_split(1, images, cache=cache), simclr_split(1, images, cache=cache)
    address = "https://raw.githubusercontent.com/google-research/simclr/master/imagenet_subsets/1percent.txt"
    assert asked == [address]
    assert (first == second).all()
    (kept,) = cache.iterdir()  # and no half-written file
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == splits._PUBLISHED[1].sha256
    kept.write_text("damaged\n", encoding="utf-8")
    assert (simclr_split(1, images, cache=cache) == first).all()
    assert asked == [address, address]


@pytest.mark.parametrize("answer", [b"", b"<html>please log in</html>", b"\xff\xfe", b"n01440764_1.JPEG\n" * 12_811])
def test_another_answer_is_refused_and_not_kept(answer: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(splits, "open_address", lambda address, timeout: io.BytesIO(answer))
    with pytest.raises(UserError, match=r"lines?, not SimCLR's 12,811: name a copy .* --split-file FILE"):
        simclr_split(1, imagenet(""), cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_network_the_error_says_where_the_list_is_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"simclr/master/imagenet_subsets/10percent.txt \(.*--split-file FILE"
    ) as caught:
        simclr_split(10, imagenet(""), cache=tmp_path)
    assert "\n" not in str(caught.value)


def test_there_is_no_published_list_of_another_share(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="SimCLR published lists of 1 % and 10 %, none of 5 %"):
        simclr_split(5, imagenet(""), cache=tmp_path)


@needs_copies
def test_damaged_copies_and_the_other_list_are_refused(tmp_path: Path) -> None:
    short = tmp_path / "1percent.txt"
    short.write_text("\n".join(published(1).split()[:-1]), encoding="utf-8")
    with pytest.raises(UserError, match="is not SimCLR's 1 % list: it has 12,810 lines of 12,811"):
        simclr_split(1, imagenet(published(1)), file=short, cache=tmp_path)
    other = tmp_path / "mine.txt"
    shutil.copy(COPIES / "10percent.txt", other)
    with pytest.raises(UserError, match="is SimCLR's 10 % list, not the 1 % one"):
        simclr_split(1, imagenet(published(1)), file=other, cache=tmp_path)


@needs_copies
def test_copy_with_windows_line_ends_is_sound(tmp_path: Path) -> None:
    file = tmp_path / "1percent.txt"
    file.write_text(published(1), encoding="utf-8-sig", newline="\r\n")
    assert len(simclr_split(1, imagenet(published(1)), file=file, cache=tmp_path)) == 12_811


# ---------------------------------------------------------------------------------------------------------------------
# Lists of one's own
# ---------------------------------------------------------------------------------------------------------------------

PETS = ImageSet(Path("pets"), ["cat/1.png", "cat/2.png", "dog/2.png", "dog/3.png"])


def own(tmp_path: Path, text: str) -> np.ndarray:
    file = tmp_path / "own.txt"
    file.write_text(text, encoding="utf-8")
    return simclr_split(1, PETS, file=file, cache=tmp_path)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("3.png\n1.png", [0, 3]), ("dog/2.png\ncat/1.png\n", [0, 2]), ("# mine\n\n  cat/2.png\n3.png\n", [1, 3])],
)
def test_list_of_names_or_paths(text: str, chosen: list[int], tmp_path: Path) -> None:
    assert own(tmp_path, text).tolist() == chosen


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.png\n9.png\n8.png\n", r"2 of 3 names of .*own.txt not in pets, such as 9.png"),
        ("1.png\n1.png\n", "names 1.png more than once"),
        ("1.png\ncat/1.png\n", "names one image twice, by file name and by path"),
        ("2.png\n", "names 2.png, but pets holds cat/2.png and dog/2.png: write paths"),
        ("", "names no image"),
    ],
)
def test_wrong_lists_are_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        own(tmp_path, text)


# ---------------------------------------------------------------------------------------------------------------------
# Seeded shares
# ---------------------------------------------------------------------------------------------------------------------


def webster(sizes: list[int], seats: int) -> list[int]:
    """Seats of every class, one at a time to the largest n / (2s + 1); the first goes to everyone."""
    given = [1] * len(sizes)
    while sum(given) < seats:
        quotients = [n / (2 * s + 1) if s < n else 0 for n, s in zip(sizes, given, strict=True)]
        given[quotients.index(max(quotients))] += 1
    return given


@pytest.mark.parametrize("labels", SETS)
@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.25, 1 / 3, 0.9, 1.0])
def test_every_class_gives_its_share(labels: np.ndarray, fraction: float) -> None:
    chosen = stratified_split(labels, fraction, seed=3)
    sizes = np.bincount(labels)
    counts = np.bincount(labels[chosen], minlength=len(sizes))
    assert len(chosen) == len(set(chosen.tolist())) == max(len(sizes), round(fraction * len(labels)))
    assert (np.diff(chosen) > 0).all()
    assert counts.min() >= 1
    if len(set(sizes.tolist())) == 1:  # ties: any class may give one more
        assert np.ptp(counts) <= 1
    else:
        assert counts.tolist() == webster(sizes.tolist(), len(chosen))
        assert (abs(counts - np.maximum(1, fraction * sizes)) <= 1).all()


def test_counts_have_the_form_of_simclrs_list() -> None:
    labels = np.repeat(np.arange(100), 1281)
    counts = np.bincount(labels[stratified_split(labels, 0.01, seed=0)])
    assert Counter(counts.tolist()) == {13: 81, 12: 19}


@pytest.mark.parametrize("labels", SETS)
def test_smaller_shares_lie_in_larger_ones(labels: np.ndarray) -> None:
    shares = [set(stratified_split(labels, fraction, seed=1).tolist()) for fraction in (0.01, 0.02, 0.1, 0.11, 0.5, 1)]
    assert all(small <= large for small, large in pairwise(shares))
    assert shares[-1] == set(range(len(labels)))


def test_one_percent_is_a_strict_subset_of_ten() -> None:
    labels = np.random.default_rng(0).integers(0, 20, 3000)
    assert set(stratified_split(labels, 0.01, seed=5).tolist()) < set(stratified_split(labels, 0.1, seed=5).tolist())


def test_choice_is_a_function_of_the_seed() -> None:
    labels = SETS[1]
    first, again, other = (stratified_split(labels, 0.1, seed=seed).tolist() for seed in (0, 0, 1))
    assert first == again != other


def test_every_image_of_a_class_is_as_likely() -> None:
    labels = np.repeat([0, 1], 10)
    times = np.bincount(np.concatenate([stratified_split(labels, 0.4, seed=seed) for seed in range(500)]))
    assert np.abs(times - 200).max() < 5 * np.sqrt(500 * 0.4 * 0.6)


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.01, float("nan")])
def test_impossible_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(UserError, match="it must be above 0 and at most 1"):
        stratified_split(SETS[0], fraction, seed=0)
