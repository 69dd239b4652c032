"""Which sets a command line means, where their files lie, and the splits that are not torchvision's."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.errors import UserError
from excb.images.image_set import ledger_of
from excb.transfer.sets.catalogue import GROUPS, SETS
from excb.transfer.sets.choosing import open_sets, sets_named
from excb.transfer.sets.layouts import caltech101, sun397, voc2007
from excb.transfer.sets.metrics import MAP, MAP11, MEAN_PER_CLASS, TOP1
from tests.transfer.labelled_images import write_folder
from tests.transfer.multilabel_images import write_lists, write_voc


def note(_text: str) -> None:
    pass


def picture(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(file)


def test_the_groups_have_the_metrics_of_their_papers() -> None:
    fine = {entry.name: entry.metric for entry in GROUPS["fine-grained"]}
    assert len(fine) == 12
    means = {name for name, metric in fine.items() if metric is MEAN_PER_CLASS}
    assert means == {"aircraft", "pets", "caltech101", "flowers"}
    assert [name for name, metric in fine.items() if metric is MAP11] == ["voc2007"]
    assert {entry.metric.name for entry in GROUPS["vtab-natural"]} == {TOP1.name}


def test_names_groups_files_and_own_sets(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[set]]\nname = "a"\ndata = "photos"\n\n'
        '[[set]]\nname = "b"\ntrain = "t"\ntest = "u"\nmetric = "mean_per_class"\n'
        '\n[[set]]\nname = "c"\ndata = "multilabel:lists"\n',
        encoding="utf-8",
    )
    entries = sets_named(["pets", str(file)], {"d": str(tmp_path)})
    assert [entry.name for entry in entries] == ["pets", "a", "b", "c", "d"]
    assert [entry.metric for entry in entries[1:]] == [TOP1, MEAN_PER_CLASS, MAP, TOP1]
    assert entries[1].place == str(tmp_path / "photos")
    assert entries[3].place == f"multilabel:{tmp_path / 'lists'}"
    assert [entry.name for entry in sets_named(["fine-grained"], {}, ["dtd", "cars"])] == ["cars", "dtd"]


@pytest.mark.parametrize(
    ("words", "own", "only", "told"),
    [
        ([], {}, [], "name sets: fine-grained"),
        (["pet"], {}, [], "did you mean 'pets'"),
        ([], {"photos": ""}, [], "write NAME=DIR"),
        ([], {"a/b": "x"}, [], "letters, digits"),
        ([], {"all": "x"}, [], "choose another name"),
        (["pets"], {"Pets": "x"}, [], "two sets are called pets"),
        (["pets"], {}, ["pet"], "--only pet: no such set"),
        (["missing.toml"], {}, [], "cannot read the sets"),
    ],
)
def test_mistakes_are_one_line(words: list[str], own: dict[str, str], only: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told) as raised:
        sets_named(words, own, only)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "needs a .*set"),
        ('[[set]]\nname = "a"\n', "it needs data, or train and test"),
        ('[[set]]\nname = "a"\ndata = "x"\nmetrics = "top1"\n', "did you mean 'metric'"),
        ('[[set]]\nname = "a"\ndata = "x"\nmetric = "top2"\n', "no metric top2"),
        ('[[set]]\nname = "a"\ndata = 3\n', "all values are text"),
        ("[[set]\n", "cannot read the sets"),
    ],
)
def test_mistakes_in_a_file_are_one_line(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=told) as raised:
        sets_named([str(file)], {})
    assert "\n" not in str(raised.value)


def test_sets_that_are_missing_are_skipped_with_the_place_where_they_should_lie(tmp_path: Path) -> None:
    write_folder(tmp_path / "own" / "train", each=2)
    write_folder(tmp_path / "own" / "test", each=1, seed=1)
    entries = sets_named(["birdsnap", "cars", "voc2007"], {"own": str(tmp_path / "own")})
    found, skipped = open_sets(entries, tmp_path / "sets", note)
    assert [each.entry.name for each in found] == ["own"]
    assert skipped["birdsnap"] == "torchvision has no loader for it"
    assert skipped["cars"].endswith(f"it should lie in {tmp_path / 'sets' / 'stanford_cars'}")
    assert "VOCdevkit" in skipped["voc2007"]
    with pytest.raises(UserError, match="none of the sets is there"):
        open_sets(entries[:2], tmp_path / "sets", note)


def test_likely_mistakes_of_a_set_are_in_its_ledger(tmp_path: Path) -> None:
    """A test image that is a train image, a class without train images, a folder of no image: as in other protocols."""
    write_folder(tmp_path / "own" / "train", each=2)
    write_folder(tmp_path / "own" / "test", each=1, seed=1)
    first, second, *_ = sorted((tmp_path / "own" / "train").iterdir())
    (tmp_path / "own" / "train" / "zebra").mkdir()
    shutil.rmtree(first)
    shutil.copy(next(second.iterdir()), tmp_path / "own" / "test" / second.name / "copy.png")
    (opened,), _ = open_sets(sets_named([], {"own": str(tmp_path / "own")}), tmp_path / "sets", note)
    lines = ledger_of(opened.test).lines()
    assert any(f"1 image of classes that train lacks, such as {first.name}: counted as wrong" in line for line in lines)
    assert any("copy.png" in line and "figures on copies say nothing about new images" in line for line in lines)
    assert any("zebra" in line for line in lines)


def test_a_metric_that_does_not_fit_the_labels_is_refused(tmp_path: Path) -> None:
    write_lists(tmp_path / "lists")
    file = tmp_path / "mine.toml"
    file.write_text('[[set]]\nname = "a"\ndata = "multilabel:lists"\nmetric = "top1"\n', encoding="utf-8")
    with pytest.raises(UserError, match="the metric top1 needs one class for each image"):
        open_sets(sets_named([str(file)], {}), tmp_path, note)


def test_voc_2007_is_trainval_and_test(tmp_path: Path) -> None:
    train, test = voc2007(write_voc(tmp_path), note)
    assert (len(train), len(test)) == (20, 12)


def test_caltech_draws_thirty_of_each_class(tmp_path: Path) -> None:
    folder = tmp_path / "caltech101" / "101_ObjectCategories"
    for name, images in (("ant", 33), ("bee", 31)):
        for number in range(images):
            picture(folder / name / f"{number:04}.png")
    train, test = caltech101(tmp_path, note)
    assert (len(train), len(test)) == (60, 4)
    assert train.labels is not None
    assert np.bincount(train.labels).tolist() == [30, 30]
    assert not set(train.paths) & set(test.paths)
    (folder / "bee" / "0000.png").unlink()
    with pytest.raises(UserError, match="has 30 images: the set is not complete"):
        caltech101(tmp_path, note)


def test_sun397_has_the_split_of_its_lists(tmp_path: Path) -> None:
    folder = tmp_path / "SUN397"
    for name in ("a/abbey/1.png", "a/abbey/2.png", "b/bar/indoor/1.png", "b/bar/indoor/2.png"):
        picture(folder / name)
    (folder / "Training_01.txt").write_text("/b/bar/indoor/1.png\n/a/abbey/2.png\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"no list .*Testing_01\.txt"):
        sun397(tmp_path, note)
    (folder / "Testing_01.txt").write_text("/a/abbey/1.png\n/b/bar/indoor/2.png\n", encoding="utf-8")
    train, test = sun397(tmp_path, note)
    assert train.classes == test.classes == ("a/abbey", "b/bar/indoor")
    assert list(train.paths) == ["a/abbey/2.png", "b/bar/indoor/1.png"]
    assert train.labels is not None
    assert train.labels.tolist() == [0, 1]
    (folder / "a/abbey/1.png").unlink()
    with pytest.raises(UserError, match="which is not in"):
        sun397(tmp_path, note)


def test_every_entry_says_where_it_lies_and_who_made_it() -> None:
    for entry in SETS.values():
        assert entry.place
        assert entry.source
        assert entry.split
