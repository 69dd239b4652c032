"""Parts of blocks against a loop over cells, and rows of some of them among those of all."""

from pathlib import Path

import pytest
import torch

from excb.console import Reporter
from excb.networks.blocks import Blocks
from excb.transfer.features.parts import Part
from excb.transfer.probes.rows import part_rows, shapes_of
from excb.transfer.task import Task
from tests.run_files import TINY_VIT, tiny_recipe, write_run
from tests.transfer.labelled_images import write_folder

pytestmark = pytest.mark.usefixtures("one_thread")
TWO_BLOCKS = TINY_VIT | {"options": TINY_VIT["options"] | {"depth": 2}}
PARTS = [Part("own"), Part("cls", 0), Part("mean", 1), Part("gem", 1), Part("patches", 0)]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    place = tmp_path_factory.mktemp("parts")
    write_run(place / "vit", 5, recipe=tiny_recipe(TWO_BLOCKS, eval_resize=48, eval_crop=48))
    write_folder(place / "train", each=2)
    return Task.prepare(
        str(place / "vit"), place / "train", place / "train", device="cpu", batch=4, workers=0, cache=place / "cache"
    )


def test_parts_by_a_loop_over_images_and_cells(task: Task) -> None:
    shapes = shapes_of(task)
    rows = part_rows(task, task.train, PARTS, shapes, Reporter(quiet=True), name="train")
    got = {part: rows([part]) for part in PARTS}
    reader = Blocks(task.backbone.network)
    for number in range(len(task.train)):
        image = task.preprocessing(task.train.open(number))[None]
        with torch.no_grad():
            outputs, _ = reader(image)
            expected = {Part("own"): task.backbone(image)[0]}
        assert outputs[0].class_token is not None
        expected[Part("cls", 0)] = outputs[0].class_token[0]
        cells = outputs[1].map[0].flatten(1).unbind(1)
        expected[Part("mean", 1)] = sum(cells, torch.zeros(())) / len(cells)
        powers = [cell.clamp(min=1e-6) ** 3 for cell in cells]
        expected[Part("gem", 1)] = (sum(powers, torch.zeros(())) / len(cells)) ** (1 / 3)
        expected[Part("patches", 0)] = torch.cat(outputs[0].map[0].flatten(1).unbind(1))
        for part, row in expected.items():
            torch.testing.assert_close(got[part][torch.tensor([number])][0], row, rtol=1e-4, atol=1e-5)


def test_rows_of_several_parts_in_any_order_scaled_and_whole(task: Task) -> None:
    shapes, chosen = shapes_of(task), [Part("mean", 1), Part("own")]
    rows = part_rows(task, task.train, PARTS, shapes, Reporter(quiet=True), name="train")
    both = rows(chosen)
    whole = torch.cat([rows([part]).all() for part in chosen], 1)
    torch.testing.assert_close(both.all(), whole, rtol=0, atol=0)
    picked = torch.tensor([5, 0, 5])
    torch.testing.assert_close(both.divided(2)[picked], whole[picked] / 2, rtol=0, atol=0)
    assert both[torch.empty(0, dtype=torch.int64)].shape == (0, both.width)
    assert both.mean_square() == pytest.approx(float(whole.double().square().mean()))


def test_the_cache_keeps_other_parts_apart(task: Task) -> None:
    shapes, root = shapes_of(task), task.cache
    assert isinstance(root, Path)
    part_rows(task, task.train, PARTS, shapes, Reporter(quiet=True), name="train")
    for part in (Part("gem", 0), Part("gem", 1), Part("gem", 0)):
        part_rows(task, task.train, [part], shapes, Reporter(quiet=True), name="train")
    assert sum(entry.is_dir() for entry in (root / "features").iterdir()) == 3  # and PARTS
