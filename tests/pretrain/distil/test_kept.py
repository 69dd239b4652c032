"""Features that teachers made of whole images: the rows of the images asked for, whatever the shards and the gaps."""

from pathlib import Path

import numpy as np
import pytest
import torch

from excb.console import Reporter
from excb.features import cache
from excb.images.scanning import scan_folder
from excb.networks.frozen.folding import BOUND
from excb.pretrain.data.batch import NO_IMAGE
from excb.pretrain.distil.kept import KeptTargets, cells_of_teacher, features_of_teacher
from excb.pretrain.distil.settings import DistilSettings
from excb.pretrain.distil.teachers import Teacher
from tests.pretrain.distil import taught
from tests.pretrain.small_runs import write_images

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures."""
    return write_images(tmp_path_factory.mktemp("images"), classes=3, each=4)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> list[Teacher]:
    """Two teachers of different widths and preprocessing."""
    folder = tmp_path_factory.mktemp("teachers")
    files = [
        taught.write_teacher(folder, taught.CONV, name="a.pt"),
        taught.write_teacher(folder, taught.RESNET, crop=64, name="b.pt"),
    ]
    return taught.teachers(DistilSettings(maps=1.0, teacher_sees="view"), *map(taught.load, files))


def kept(several: list[Teacher], folder: Path, *, root: Path | None, reporter: Reporter | None = None) -> KeptTargets:
    quiet = reporter or Reporter(quiet=True)
    found = [features_of_teacher(each, scan_folder(folder), root, quiet, device=CPU, workers=0) for each in several]
    return KeptTargets(found, device=CPU, dtype=torch.float64)


@pytest.mark.parametrize("cached", [False, True])
def test_rows_are_those_of_the_teachers_own_embedding(
    several: list[Teacher], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    if cached:
        monkeypatch.setattr(cache, "SHARD_BYTES", 4 * 12 * 5)  # shards of five and of three images, and a rest
    targets = kept(several, images, root=tmp_path if cached else None)
    wanted = [each.backbone.embed([scan_folder(images).file(n) for n in range(12)]) for each in several]
    used = torch.tensor([11, 0, 5, 5, 3, 8])
    for found, whole in zip(targets(used, ()), wanted, strict=True):
        assert found.maps is None
        assert found.rows is not None
        assert found.rows.dtype is torch.float64
        torch.testing.assert_close(found.rows, whole[used][None].double())
    assert whole.shape == (12, several[1].width)


def test_they_are_computed_once(
    several: list[Teacher], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kept(several, images, root=tmp_path)(torch.arange(12), ())

    def refuse(*_arguments: object) -> None:
        raise AssertionError("computed again")

    for each in several:
        monkeypatch.setattr(each.backbone, "forward", refuse)
    again = kept(several, images, root=tmp_path)(torch.arange(12), ())
    for one, other in zip(first, again, strict=True):
        assert one.rows is not None
        assert other.rows is not None
        assert torch.equal(one.rows, other.rows)


def test_what_could_not_be_read_is_a_row_of_zeros_and_counted(
    several: list[Teacher], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_images(tmp_path / "images", classes=2, each=4)
    names = sorted(folder.rglob("*.png"))
    names[2].write_bytes(b"no image")
    targets = kept(several[:1], folder, root=None, reporter=Reporter())
    (found,) = targets(torch.tensor([1, 2, NO_IMAGE, 7]), ())
    assert found.rows is not None
    assert found.rows[0].any(1).tolist() == [True, False, False, True]
    whole = several[0].backbone.embed([name for name in names if name != names[2]])
    torch.testing.assert_close(found.rows[0, [0, 3]], whole[[1, 6]].double())
    assert "could not read 1 of 8 images: they teach nothing" in capsys.readouterr().err


def test_cells_are_those_of_the_maps_of_whole_images(several: list[Teacher], images: Path) -> None:
    for teacher in several:
        found = cells_of_teacher(teacher, scan_folder(images), device=CPU, workers=0)
        inputs = torch.stack([teacher.transform(scan_folder(images).file(n)) for n in range(12)])
        _, maps = teacher.look(inputs)
        assert maps is not None
        rows = [maps[n, :, y, x] for n in range(12) for y in range(maps.shape[2]) for x in range(maps.shape[3])]
        expected = torch.stack(rows)
        assert (found - expected).norm() <= BOUND * expected.norm()  # BatchNorm is folded in one of them
        assert np.isfinite(found.numpy()).all()
