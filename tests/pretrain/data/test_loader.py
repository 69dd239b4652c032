"""Training batches: the order, going on in the middle, workers, and what takes a broken file's place."""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import Tensor

from excb import seeding
from excb.errors import UserError
from excb.images.image_set import ImageSet
from excb.images.photographs import photograph
from excb.images.scanning import scan_folder
from excb.pretrain.data.augmentation import PARAMETERS
from excb.pretrain.data.batch import NO_IMAGE, Broken, Item, ViewBatch, collate
from excb.pretrain.data.broken_files import BrokenFiles
from excb.pretrain.data.loader import REPLACEMENTS, TrainingViews, loader
from excb.pretrain.data.sampler import BatchSampler, SampleRef, epoch_order
from excb.pretrain.data.views import ViewMaker
from excb.pretrain.recipe import EfficiencySettings, Recipe, ViewSettings

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = ViewSettings(global_views=2, local_views=3, global_size=16, local_size=8)
IMAGES, BATCH, SEED, EPOCHS = 11, 3, 4, 3
PER_EPOCH = IMAGES // BATCH
LEAST_P = 1e-3


def write_image(file: Path, number: int) -> None:
    pixels = np.random.default_rng(number).integers(0, 256, (20 + number, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    folder = tmp_path_factory.mktemp("images")
    for number in range(IMAGES):
        write_image(folder / f"{number:02}.png", number)
    return scan_folder(folder)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """The same set with images 2 and 7 unreadable."""
    folder = tmp_path_factory.mktemp("damaged")
    for number in range(IMAGES):
        if number in (2, 7):
            (folder / f"{number:02}.png").write_text("no image")
        else:
            write_image(folder / f"{number:02}.png", number)
    return scan_folder(folder)


@pytest.fixture(scope="module")
def unreadable(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    folder = tmp_path_factory.mktemp("unreadable")
    for number in range(IMAGES):
        (folder / f"{number:02}.png").touch()
    return scan_folder(folder)


def recipe_of(
    *, seed: int = SEED, settings: ViewSettings = SETTINGS, epochs: int = EPOCHS, **efficiency: Any
) -> Recipe:
    recipe = replace(Recipe(name=""), views=settings)
    return recipe.change(run={"seed": seed}, optim={"epochs": epochs, "batch": BATCH}, efficiency=efficiency)


def batches(
    images: ImageSet,
    *,
    start: int = 0,
    stop: int = EPOCHS * PER_EPOCH,
    workers: int = 0,
    seed: int = SEED,
    settings: ViewSettings = SETTINGS,
    **options: Any,
) -> list[ViewBatch]:
    recipe = recipe_of(seed=seed, settings=settings, **options)
    return list(loader(images, recipe, start=start, stop=stop, workers=workers, pin_memory=False))


def assert_same(first: Sequence[ViewBatch], second: Sequence[ViewBatch]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for field in dataclasses.fields(ViewBatch):
            mine, theirs = getattr(one, field.name), getattr(other, field.name)
            assert torch.equal(mine, theirs) if isinstance(mine, Tensor) else mine == theirs, field.name


# ---------------------------------------------------------------------------------------------------------------------
# Order
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 11, 1000])
def test_every_image_once_in_an_epoch(count: int) -> None:
    assert sorted(epoch_order(count, seed=3, epoch=5).tolist()) == list(range(count))


def test_order_differs_by_epoch_and_seed_and_is_theirs_alone() -> None:
    orders = [epoch_order(100, seed=seed, epoch=epoch).tolist() for seed in range(4) for epoch in range(4)]
    assert len({tuple(order) for order in orders}) == 16
    np.random.seed(0)  # noqa: NPY002 - the global state must not count
    torch.manual_seed(0)
    again = [epoch_order(100, seed=seed, epoch=epoch).tolist() for seed in range(4) for epoch in range(4)]
    assert orders == again


def test_every_image_is_anywhere_as_often() -> None:
    places = np.array([epoch_order(8, seed=0, epoch=epoch) for epoch in range(2000)])
    for image in range(8):
        counts = np.bincount(np.nonzero(places == image)[1], minlength=8)
        assert stats.chisquare(counts).pvalue > LEAST_P
    followers = np.bincount([(order[1] - order[0]) % 8 for order in places], minlength=8)[1:]
    assert stats.chisquare(followers).pvalue > LEAST_P


def test_schedule_goes_through_every_epochs_order() -> None:
    steps = list(BatchSampler(IMAGES, BATCH, seed=SEED, start=0, stop=EPOCHS * PER_EPOCH))
    assert len(steps) == 9
    for step, refs in enumerate(steps):
        epoch, place = divmod(step, 3)
        order = epoch_order(IMAGES, seed=SEED, epoch=epoch)
        assert refs == [SampleRef(epoch, p, order[p]) for p in range(3 * place, 3 * place + 3)]
    # Two of eleven images are left out of every epoch, others each time.
    left_out = [
        set(range(IMAGES)) - {ref.sample for refs in steps if refs[0].epoch == epoch for ref in refs}
        for epoch in range(EPOCHS)
    ]
    assert [len(missing) for missing in left_out] == [2, 2, 2]
    assert len(set(map(frozenset, left_out))) > 1


@pytest.mark.parametrize("start", range(10))
def test_a_later_start_gives_the_rest_of_the_run(start: int) -> None:
    whole = list(BatchSampler(IMAGES, BATCH, seed=SEED, start=0, stop=9))
    rest = BatchSampler(IMAGES, BATCH, seed=SEED, start=start, stop=9)
    assert list(rest) == whole[start:]
    assert len(rest) == len(whole[start:])
    assert list(rest) == whole[start:]  # a second pass is the same
    assert list(BatchSampler(IMAGES, BATCH, seed=SEED, start=0, stop=start)) == whole[:start]


def test_a_batch_of_all_images_is_the_whole_epoch() -> None:
    (refs,) = BatchSampler(5, 5, seed=0, start=3, stop=4)
    assert sorted(ref.sample for ref in refs) == list(range(5))
    assert {ref.epoch for ref in refs} == {3}
    assert [ref.position for ref in refs] == list(range(5))


# ---------------------------------------------------------------------------------------------------------------------
# Batches
# ---------------------------------------------------------------------------------------------------------------------


def test_layout_and_contents_of_a_batch(images: ImageSet) -> None:
    whole = batches(images)
    assert len(whole) == 9
    batch, epoch = whole[4], 1
    assert batch.local_crops is not None
    assert batch.local_parameters is not None
    assert batch.global_crops.shape == (2, BATCH, 16, 16, 3)
    assert batch.global_parameters.shape == (2, BATCH, PARAMETERS)
    assert batch.local_crops.shape == (3, BATCH, 8, 8, 3)
    assert batch.local_parameters.shape == (3, BATCH, PARAMETERS)
    assert (batch.global_crops.dtype, batch.local_crops.dtype) == (torch.uint8, torch.uint8)
    assert (batch.samples.dtype, batch.used.dtype) == (torch.int64, torch.int64)
    assert batch.samples.tolist() == epoch_order(IMAGES, seed=SEED, epoch=epoch)[3:6].tolist()
    assert torch.equal(batch.used, batch.samples)
    assert batch.broken == []
    # Each view by itself: which row and which view it is.
    maker = ViewMaker(SETTINGS, seed=SEED, epochs=EPOCHS)
    for place, sample in enumerate(batch.samples.tolist()):
        with Image.open(images.file(sample)) as image:
            for view in range(5):
                crops, parameters = maker.cut(image, epoch=epoch, sample=sample, views=range(view, view + 1))
                stacked, rows = (
                    (batch.global_crops[view], batch.global_parameters[view])
                    if view < 2
                    else (batch.local_crops[view - 2], batch.local_parameters[view - 2])
                )
                assert np.array_equal(stacked[place].numpy(), crops[0])
                assert np.array_equal(rows[place].numpy(), parameters[0])


def test_without_local_views_there_are_none(images: ImageSet) -> None:
    (batch,) = batches(images, stop=1, settings=dataclasses.replace(SETTINGS, local_views=0))
    assert batch.local_crops is None
    assert batch.local_parameters is None
    (with_local,) = batches(images, stop=1)
    assert torch.equal(batch.global_crops, with_local.global_crops)


def test_the_runs_length_reaches_the_crops(images: ImageSet) -> None:
    moving = dataclasses.replace(SETTINGS, global_scale=(0.9, 1.0), scale_end=0.1)
    first, last = batches(images, stop=9, settings=moving)[0], batches(images, stop=9, settings=moving)[-1]
    fixed = batches(images, stop=9, settings=dataclasses.replace(SETTINGS, global_scale=(0.9, 1.0)))
    assert torch.equal(first.global_crops, fixed[0].global_crops)
    assert not torch.equal(last.global_crops, fixed[-1].global_crops)


def test_workers_change_nothing(damaged: ImageSet) -> None:
    assert_same(batches(damaged, workers=2), batches(damaged))


def large_photographs(folder: Path) -> ImageSet:
    """JPEGs whose crops are larger than the views, another format, and a broken file."""
    picture = photograph("coffee")
    for number in range(4):
        picture.crop((10 * number, 0, 500 + 10 * number, 390)).save(folder / f"{number}.jpg")
    picture.save(folder / "4.png")
    (folder / "5.jpg").write_bytes((folder / "0.jpg").read_bytes()[:2000])
    return scan_folder(folder)


def test_scaled_decoding_changes_pixels_a_little_and_nothing_else(tmp_path: Path) -> None:
    images = large_photographs(tmp_path)
    whole, smaller = batches(images, stop=4), batches(images, stop=4, scaled_decoding=True)
    changed = 0
    for one, other in zip(whole, smaller, strict=True):
        steps = (one.global_crops.int() - other.global_crops.int()).abs().float().mean((0, 2, 3, 4))
        for image, distance in zip(one.used.tolist(), steps.tolist(), strict=True):
            changed += distance > 0
            assert distance < 12
            assert images.paths[image].endswith("jpg") or distance == 0
        assert_same([dataclasses.replace(one, global_crops=other.global_crops, local_crops=other.local_crops)], [other])
    assert changed >= 4


def test_workers_change_nothing_where_images_are_decoded_smaller(tmp_path: Path) -> None:
    images = large_photographs(tmp_path)
    expected = batches(images, stop=4, scaled_decoding=True)
    assert_same(batches(images, stop=4, scaled_decoding=True, workers=2), expected)
    assert_same(batches(images, start=1, stop=4, scaled_decoding=True), expected[1:])


@pytest.mark.parametrize("prefetch", [1, 3])
def test_reading_ahead_changes_nothing(images: ImageSet, prefetch: int) -> None:
    expected = batches(images, stop=4)
    assert_same(batches(images, stop=4, workers=1, prefetch=prefetch), expected)
    assert_same(batches(images, stop=4, prefetch=prefetch), expected)  # without workers it means nothing


def test_each_worker_reads_as_many_batches_ahead_as_asked(images: ImageSet) -> None:
    options: dict[str, Any] = {"start": 0, "stop": 1, "pin_memory": False}
    five, usual = recipe_of(prefetch=5), recipe_of()
    assert loader(images, five, workers=2, **options).prefetch_factor == 5
    assert loader(images, usual, workers=2, **options).prefetch_factor == EfficiencySettings().prefetch
    assert loader(images, five, workers=0, **options).prefetch_factor is None


@pytest.mark.parametrize(("start", "workers"), [(1, 0), (4, 0), (5, 2), (9, 0)])
def test_a_loader_started_in_the_middle_resumes(damaged: ImageSet, start: int, workers: int) -> None:
    assert_same(batches(damaged, start=start, workers=workers), batches(damaged)[start:])


def test_another_seed_gives_other_batches(images: ImageSet) -> None:
    first, other = batches(images, stop=3), batches(images, stop=3, seed=SEED + 1)
    assert not any(torch.equal(one.global_crops, two.global_crops) for one, two in zip(first, other, strict=True))


def test_the_same_image_is_seen_differently_in_every_epoch(images: ImageSet) -> None:
    seen: dict[int, list[Tensor]] = {}
    for batch in batches(images):
        for place, sample in enumerate(batch.samples.tolist()):
            seen.setdefault(sample, []).append(batch.global_crops[:, place].flatten(0, 1))
    pairs = [pair for crops in seen.values() for pair in itertools.combinations(crops, 2)]
    assert len(pairs) > 10
    assert not any(torch.equal(one, other) for one, other in pairs)


def test_global_random_states_do_not_count(images: ImageSet) -> None:
    runs = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002 - the global state is what this test is about
        torch.manual_seed(seed)
        runs.append(batches(images, stop=2))
    assert_same(*runs)


@pytest.mark.gpu
def test_pinned_batches_are_the_same(damaged: ImageSet) -> None:
    for batch in batches(damaged, stop=4):
        pinned = batch.pin_memory()
        assert pinned.global_crops.is_pinned()
        assert_same([pinned], [batch])


# ---------------------------------------------------------------------------------------------------------------------
# Broken files
# ---------------------------------------------------------------------------------------------------------------------


def replacements(ref: SampleRef, *, bad: set[int], seed: int = SEED, count: int = IMAGES) -> list[int]:
    """The replacements of a broken image: numbers named by (seed, epoch, position, attempt) until one is good."""
    tried: list[int] = []
    for attempt in range(REPLACEMENTS):
        random = seeding.generator(seeding.Purpose.REPLACEMENT, seed, ref.epoch, ref.position, attempt)
        tried.append(int(random.integers(count)))
        if tried[-1] not in bad:
            break
    return tried


def test_a_broken_image_is_replaced_in_its_place(images: ImageSet, damaged: ImageSet) -> None:
    whole, replaced = batches(images), batches(damaged)
    sampler = list(BatchSampler(IMAGES, BATCH, seed=SEED, start=0, stop=9))
    maker = ViewMaker(SETTINGS, seed=SEED, epochs=EPOCHS)
    broken_refs = 0
    for refs, expected, batch in zip(sampler, whole, replaced, strict=True):
        assert torch.equal(batch.samples, expected.samples)  # what was scheduled, in its order
        names: list[tuple[str, str]] = []
        for place, ref in enumerate(refs):
            if ref.sample not in (2, 7):
                assert batch.used[place] == ref.sample
                assert torch.equal(batch.global_crops[:, place], expected.global_crops[:, place])
                continue
            broken_refs += 1
            tried = replacements(ref, bad={2, 7})
            assert batch.used[place] == tried[-1]
            chain = [ref.sample, *tried]
            names += [(f"{bad:02}.png", f"{good:02}.png") for bad, good in itertools.pairwise(chain)]
            # The views are the replacement's pixels, named by the scheduled image.
            with Image.open(damaged.file(tried[-1])) as image:
                crops, parameters = maker.cut(image, epoch=ref.epoch, sample=ref.sample, views=range(2))
            assert np.array_equal(batch.global_crops[:, place].numpy(), crops)
            assert np.array_equal(batch.global_parameters[:, place].numpy(), parameters)
        assert [(broken.path, broken.replacement) for broken in batch.broken] == names
        assert all("UnidentifiedImageError" in broken.reason for broken in batch.broken)
    assert broken_refs >= 4


def test_a_replacement_depends_on_seed_epoch_and_position_only(damaged: ImageSet) -> None:
    def used(ref: SampleRef, *, seed: int = SEED, settings: ViewSettings = SETTINGS, epochs: int = EPOCHS) -> int:
        return TrainingViews(damaged, recipe_of(seed=seed, settings=settings, epochs=epochs))[ref][1]

    refs = [SampleRef(epoch, position, 2) for epoch in range(4) for position in range(6)]
    expected = [replacements(ref, bad={2, 7})[-1] for ref in refs]
    assert [used(ref) for ref in refs] == expected
    assert [used(ref._replace(sample=7)) for ref in refs] == expected  # not on which image is broken
    assert [used(ref, settings=dataclasses.replace(SETTINGS, local_views=0), epochs=9) for ref in refs] == expected
    assert [used(ref, seed=SEED + 1) for ref in refs] != expected
    assert len(set(expected)) >= 6
    assert {2, 7}.isdisjoint(expected)


def test_a_set_without_a_readable_image_gives_empty_views(unreadable: ImageSet) -> None:
    (batch,) = batches(unreadable, stop=1)
    assert batch.used.tolist() == [NO_IMAGE] * BATCH
    assert len(batch.broken) == BATCH * REPLACEMENTS
    assert batch.global_crops.shape == (2, BATCH, 16, 16, 3)
    with pytest.raises(UserError, match=r"3 of 3 images seen are broken") as error:
        BrokenFiles().count(batch, images=3, epoch=BATCH)
    assert "\n" not in str(error.value)
    assert ".png" in str(error.value)


def test_a_set_without_a_readable_image_is_refused_with_workers_too(unreadable: ImageSet) -> None:
    (batch,) = batches(unreadable, stop=1, workers=1)
    with pytest.raises(UserError, match="broken"):
        BrokenFiles().count(batch, images=3, epoch=BATCH)


SET = {"images": 5000, "epoch": 5000}  # of which the batches are a part


def stand_in(size: int, *, broken: Sequence[str] = (), used: Sequence[int] | None = None) -> ViewBatch:
    """A batch in which as many images as there are names were replaced; the crops do not matter."""
    samples = torch.arange(size)
    shown = samples.clone()
    shown[: len(broken)] += 1000
    nothing = torch.empty(0)
    files = [Broken(path, "OSError: truncated", "good.png") for path in broken]
    return ViewBatch(nothing, nothing, None, None, samples, torch.tensor(used) if used is not None else shown, files)


def test_every_broken_file_is_named_once_and_counted_each_time() -> None:
    counter = BrokenFiles()
    assert [broken.path for broken in counter.count(stand_in(50, broken=["a.png", "b.png"]), **SET)] == [
        "a.png",
        "b.png",
    ]
    assert (counter.seen, counter.found) == (50, 2)
    assert counter.count(stand_in(50), **SET) == []
    assert [broken.path for broken in counter.count(stand_in(50, broken=["b.png", "c.png"]), **SET)] == ["c.png"]
    assert (counter.seen, counter.found) == (150, 4)


def test_files_of_one_batch_are_named_once() -> None:
    named = BrokenFiles().count(stand_in(50, broken=["a.png", "a.png", "b.png"]), **SET)
    assert [broken.path for broken in named] == ["a.png", "b.png"]


@pytest.mark.parametrize(
    ("images", "seen", "found", "refused"),
    [
        (150, 150, 150, False),  # too few seen to judge
        (400, 199, 199, False),
        (200, 200, 2, False),  # exactly 1 %
        (200, 200, 3, True),
        (300, 300, 3, False),
        (300, 300, 4, True),
        (403, 256, 3, False),  # more than 1 % of those seen, but the set may be within it
        (403, 256, 5, True),  # whatever comes
        (403, 403 * 7, 7 * 4, False),  # the same four in every epoch
        (403, 403 * 7, 7 * 4 + 1, True),
        (100_000, 200, 7, False),  # may be chance: 3.5 standard deviations
        (100_000, 200, 8, True),
        (100_000, 10_000, 140, False),
        (100_000, 10_000, 141, True),
        (100_000, 100_000, 1_000, False),
        (100_000, 100_000, 1_001, True),
    ],
)
def test_a_set_is_refused_above_one_percent(images: int, seen: int, found: int, refused: bool) -> None:
    """The last image of so many decides."""
    counter = BrokenFiles()
    counter.seen, counter.found = seen - 1, found - 1
    batch = stand_in(1, broken=["last.png"])
    if not refused:
        assert len(counter.count(batch, images=images, epoch=images)) == 1
        assert (counter.seen, counter.found) == (seen, found)
        return
    with pytest.raises(UserError, match=f"{found:,} of {seen:,} images") as error:
        counter.count(batch, images=images, epoch=images)
    message = str(error.value)
    assert "last.png" in message
    assert f"more than 1 % of {images:,}" in message
    assert "\n" not in message


@pytest.mark.parametrize("seed", range(5))
def test_which_images_come_first_decides_nothing(seed: int) -> None:
    """3 of 403, in any order and over several epochs, are 0.74 %."""
    random, counter = np.random.default_rng(seed), BrokenFiles()
    broken = np.arange(403) < 3
    for _ in range(4):
        for batch in np.split(random.permutation(broken)[: 6 * 64], 6):
            names = ["some.png"] * int(batch.sum())
            counter.count(stand_in(64, broken=names), images=403, epoch=6 * 64)
    assert counter.seen == 4 * 384


def test_the_refusal_comes_once_200_are_seen() -> None:
    counter = BrokenFiles()
    for number in range(19):
        counter.count(stand_in(10, broken=[f"{number}.png"]), **SET)
    assert (counter.seen, counter.found) == (190, 19)
    with pytest.raises(UserError, match="20 of 200"):
        counter.count(stand_in(10, broken=["x.png"]), **SET)


def test_a_refusal_names_no_more_than_three_files() -> None:
    with pytest.raises(UserError) as error:
        BrokenFiles().count(stand_in(300, broken=[f"{number:03}.png" for number in range(250)]), **SET)
    assert str(error.value).count(".png") == 3


def test_a_single_image_that_nothing_replaces_is_refused_at_once() -> None:
    with pytest.raises(UserError, match="1 of 2 images seen"):
        BrokenFiles().count(stand_in(2, used=[0, NO_IMAGE]), **SET)


def test_replacements_that_are_broken_too_do_not_count_twice(damaged: ImageSet) -> None:
    counter, refs = BrokenFiles(), 0
    chains = 0
    for batch in batches(damaged):
        refs += sum(sample in (2, 7) for sample in batch.samples.tolist())
        chains += len(batch.broken)
        counter.count(batch, images=len(damaged), epoch=9)
    assert counter.found == refs
    assert counter.seen == 27
    assert chains >= refs


@pytest.mark.parametrize("resumed_at", [0, 100, 300])
def test_a_resumed_run_tolerates_as_many_broken_images_as_an_undisturbed_one(resumed_at: int) -> None:
    """Of 300 images 3 may be broken, and in the epoch that is begun each is read once."""
    counter = BrokenFiles(seen=resumed_at, found=0)
    left = 300 if resumed_at == 300 else 300 - resumed_at
    counter.count(stand_in(left - 50, broken=["a.png", "b.png", "c.png"]), images=300, epoch=300)
    with pytest.raises(UserError, match=f"4 of {left} images seen"):
        counter.count(stand_in(50, broken=["d.png"]), images=300, epoch=300)


def test_counts_go_on_from_a_checkpoint(damaged: ImageSet) -> None:
    whole, first = BrokenFiles(), BrokenFiles()
    steps = batches(damaged)
    for batch in steps:
        whole.count(batch, **SET)
    for batch in steps[:4]:
        first.count(batch, **SET)
    state: dict[str, Any] = {"seen": first.seen, "found": first.found}
    second = BrokenFiles(**state)
    for batch in steps[4:]:
        second.count(batch, **SET)
    assert (second.seen, second.found) == (whole.seen, whole.found)
    assert whole.found > 0


def test_a_fixed_set_is_not_refused_for_what_it_was() -> None:
    resumed = BrokenFiles(seen=200, found=150)
    for _ in range(30):
        resumed.count(stand_in(10), **SET)
    resumed.count(stand_in(10, broken=["a.png"]), **SET)
    assert (resumed.seen, resumed.found) == (510, 151)


def test_collating_stacks_view_by_view() -> None:
    def item(number: int) -> Item:
        crops: np.ndarray = np.full((2, 4, 4, 3), number, np.uint8)
        parameters: np.ndarray = np.full((2, PARAMETERS), number, np.float32)
        crops[1] += 100
        return Item(
            SampleRef(0, number, 10 + number),
            20 + number,
            [crops, parameters],
            [Broken(f"{number}", "", "")] * number,
        )

    batch = collate([item(0), item(1), item(2)])
    assert batch.global_crops[:, :, 0, 0, 0].tolist() == [[0, 1, 2], [100, 101, 102]]
    assert batch.global_parameters[:, :, 0].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert batch.samples.tolist() == [10, 11, 12]
    assert batch.used.tolist() == [20, 21, 22]
    assert [broken.path for broken in batch.broken] == ["1", "2", "2"]
