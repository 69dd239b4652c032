"""Tests of `excb-eval features`: the exported file, and the plan that is made beforehand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.features import cache, listing
from excb.features.extraction import Extraction
from excb.transfer.features.export import describe_plan, export_features, plan_features
from excb.transfer.task import Task
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import CLASSES, assert_features, changed, features_by_loop, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")

QUIET = Reporter(quiet=True)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Fourteen train images, and test images of a known and an unknown class."""
    place = tmp_path_factory.mktemp("features")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_folder(place / "train", each=2, seed=1)
    write_folder(place / "test", each=1, seed=2, classes=("bee", "gnu", "yak"))
    return Task.prepare(str(place / "run"), place / "train", place / "test", device="cpu", batch=4, workers=0)


def sets_of(task: Task) -> dict[str, Extraction]:
    return {name: task.extraction(getattr(task, name)) for name in ("train", "test")}


def test_exported_file_holds_both_sets(task: Task, tmp_path: Path) -> None:
    file = export_features(sets_of(task), task.cache, tmp_path / "new" / "features.npz", QUIET)
    with np.load(file, allow_pickle=False) as found:
        for name in ("train", "test"):
            folder = getattr(task, name).root
            expected, _ = features_by_loop(excb.load(folder.parent / "run"), folder)
            assert_features(found[f"{name}_rows"], expected)
            assert found[f"{name}_rows"].dtype == np.float32
            files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
            assert found[f"{name}_names"].tolist() == files
            assert found[f"{name}_labels"].dtype == np.int64
            of_labels = found["classes"][found[f"{name}_labels"]]
            assert of_labels.tolist() == [path.partition("/")[0] for path in files]
        assert found["classes"].tolist() == [*CLASSES, "yak"]
    assert [path.name for path in file.parent.iterdir()] == ["features.npz"]


def test_exported_file_needs_its_name(task: Task, tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "file").write_text("in the way")
    for name in ("features.json", "features", "folder.npz"):
        with pytest.raises(UserError, match=f"--out .*{name}: features are written to a file that ends in .npz"):
            export_features(sets_of(task), task.cache, tmp_path / name, QUIET)
    with pytest.raises(UserError, match=r"cannot write .*features\.npz"):
        export_features(sets_of(task), task.cache, tmp_path / "file" / "features.npz", QUIET)


def test_plan_before_and_after(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SHARD_BYTES", 5 * 32 * 4)
    task = replace(task, cache=tmp_path / "cache")
    found = plan_features(sets_of(task), task.cache)
    assert found["width"] == 32
    assert found["sets"]["train"] == {"images": 14, "cached": 0, "bytes": 14 * 32 * 4}
    assert found["sets"]["test"] == {"images": 3, "cached": 0, "bytes": 3 * 32 * 4}
    assert 0 < found["seconds_per_image"] < 5
    assert found["seconds"] == pytest.approx(17 * found["seconds_per_image"])
    assert not (tmp_path / "cache").exists()
    text = describe_plan(found).splitlines()
    assert text[0] == "train: 14 images, none cached, 0.0 MiB of features"
    assert text[2].startswith("estimate: ")
    for images in (task.train, task.test):
        task.features(images, "set", QUIET)
    (listing.entries(tmp_path / "cache")[0].folder / "00000.npy").unlink()
    assert plan_features(sets_of(task), task.cache)["sets"]["train"]["cached"] == 9
    task.features(task.train, "train", QUIET)
    found = plan_features(sets_of(task), task.cache)
    assert [found["sets"][name]["cached"] for name in ("train", "test")] == [14, 3]
    assert (found["seconds_per_image"], found["seconds"]) == (None, 0)
    assert describe_plan(found).splitlines()[2] == "no image passes through the network: all features are cached"
    beside = plan_features({}, task.cache, timed=task.extraction(task.train), passes=40)
    assert beside["seconds"] == pytest.approx(40 * beside["seconds_per_image"])
    text = describe_plan(beside, ["4 epochs of 10 images"]).splitlines()
    assert text[0] == "4 epochs of 10 images"
    assert text[1].startswith("estimate: ")


def test_plan_without_a_cache(task: Task) -> None:
    assert plan_features(sets_of(task), task.cache)["sets"]["train"]["cached"] == 0


def test_plan_names_an_unreadable_image(task: Task, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", each=2, classes=("ant", "bee"))
    (folder / "ant" / "0.png").write_bytes(b"nothing")
    broken = changed(task.train, root=folder, paths=["ant/0.png"], labels=np.zeros(1, int))
    sets = sets_of(replace(task, train=broken))
    with pytest.raises(UserError, match=r"ant/0\.png cannot be read"):
        plan_features(sets, task.cache)
