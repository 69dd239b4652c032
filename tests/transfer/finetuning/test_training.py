"""Tests of fine-tuning: against a plain loop, interrupted, and shared by two and three processes."""

import copy
import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.distributed.collectives import rank
from excb.distributed.parallel import joined
from excb.errors import UserError
from excb.images.image_set import ImageSet
from excb.seeding import Purpose, fold, generator
from excb.transfer.data.batches import Augmentation, TrainingBatches
from excb.transfer.finetuning import training
from excb.transfer.finetuning.training import Settings
from excb.transfer.task import Task
from tests.clone import ROOT
from tests.forked import launch
from tests.run_files import TINY_VIT, tiny_recipe, write_run
from tests.transfer.labelled_images import write_folder

SETTINGS = Settings(backbone_lr=0.05, head_lr=0.3, epochs=3, batch=17)  # batches of 17, 17 and 1
DROPOUT = {**TINY_VIT, "options": TINY_VIT["options"] | {"proj_drop_rate": 0.2, "drop_path_rate": 0.2}}


@pytest.fixture(autouse=True)
def one_thread_each(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process, and of those that a test starts."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """35 train and 19 test images: neither 2 nor 3 processes share them evenly."""
    place = tmp_path_factory.mktemp("finetune")
    for name, model in (("resnet", None), ("vit", TINY_VIT), ("dropout", DROPOUT)):
        write_run(place / name, 5, recipe=tiny_recipe(model, eval_resize=48, eval_crop=48))
    write_folder(place / "train", each=5, seed=1)
    write_folder(place / "test", each=3, seed=2)
    for name in ("ant", "bee"):
        min((place / "test" / name).iterdir()).unlink()
    return place


def prepare(place: Path, network: str, **options: Any) -> Task:
    return Task.prepare(
        str(place / network), place / "train", place / "test", device="cpu", batch=4, workers=0, **options
    )


def double(task: Task) -> Task:
    return replace(task, backbone=copy.deepcopy(task.backbone).double())


def run(task: Task, settings: Settings = SETTINGS, *, seed: int = 0, state: Path | None = None) -> Tensor:
    chosen = np.arange(len(task.train))
    return training.finetune(task, chosen, settings, seed=seed, reporter=Reporter(quiet=True), state=state)


def weights(state: Path) -> dict[str, Tensor]:
    return run_checkpoint.read_run_checkpoint(state)["model"]


# ---------------------------------------------------------------------------------------------------------------------
# What it computes
# ---------------------------------------------------------------------------------------------------------------------


def by_loop(task: Task, settings: Settings, seed: int) -> tuple[dict[str, Tensor], np.ndarray]:
    """A plain training loop: the weights it ends with and the scores of every test image."""
    assert task.train.labels is not None
    augmentation = Augmentation.like(task.preprocessing)
    backbone = copy.deepcopy(task.backbone).train()
    head = nn.Linear(backbone.width, len(task.train.classes or ())).double()
    with torch.no_grad():
        random = torch.Generator().manual_seed(fold(Purpose.TRANSFER_WEIGHTS, seed))
        head.weight.copy_(0.01 * torch.randn(head.weight.shape, generator=random))
        head.bias.zero_()
    both = [
        torch.optim.SGD(backbone.parameters(), lr=settings.backbone_lr, momentum=0.9),
        torch.optim.SGD(head.parameters(), lr=settings.head_lr, momentum=0.9),
    ]
    steps = settings.epochs * math.ceil(len(task.train) / settings.batch)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, steps) for each in both]
    for epoch in range(settings.epochs):
        order = generator(Purpose.TRANSFER_ORDER, seed, epoch).permutation(len(task.train)).tolist()
        while order:
            batch, order = order[: settings.batch], order[settings.batch :]
            views = [
                augmentation(task.train.open(i), generator(Purpose.TRANSFER_VIEW, seed, epoch, i)).double()
                for i in batch
            ]
            scores = head(backbone(torch.stack(views)))
            loss = nn.CrossEntropyLoss()(scores, torch.from_numpy(task.train.labels[batch]))
            for each in both:
                each.zero_grad()
            loss.backward()
            for each, schedule in zip(both, schedules, strict=True):
                each.step()
                schedule.step()
    backbone.eval()
    with torch.no_grad():
        rows = [head(backbone(task.preprocessing(task.test.open(i)).double()[None]))[0] for i in range(len(task.test))]
    state = {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
    return state | {f"head.{name}": value for name, value in head.state_dict().items()}, torch.stack(rows).numpy()


@pytest.mark.parametrize("network", ["resnet", "vit"])
def test_equals_a_plain_loop(place: Path, tmp_path: Path, network: str) -> None:
    task = double(prepare(place, network))
    top5 = run(task, seed=3, state=tmp_path / "state.pt")
    expected, scores = by_loop(task, SETTINGS, 3)
    found = weights(tmp_path / "state.pt")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-10)
    assert top5.tolist() == np.argsort(-scores, axis=1)[:, :5].tolist()


def test_it_learns_what_can_be_learned(place: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, colour in (("blue", (60, 60, 180)), ("green", (60, 180, 60)), ("red", (180, 60, 60))):
        (tmp_path / name).mkdir()
        for number in range(8):
            pixels = (np.array(colour) + random.normal(0, 30, (48, 48, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    task = Task.prepare(str(place / "resnet"), tmp_path, tmp_path, device="cpu", batch=8, workers=0)
    top5 = run(task, Settings(backbone_lr=0.01, head_lr=0.1, epochs=8, batch=8))
    assert top5.shape == (24, 3)
    assert (top5[:, 0].numpy() == task.test.labels).mean() > 0.9


def test_only_the_chosen_images_are_read_and_the_backbone_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = prepare(place, "resnet")
    before = copy.deepcopy(task.backbone.state_dict())
    read: list[int] = []
    opened = ImageSet.open

    def watched(images: ImageSet, index: int) -> Image.Image:
        if images is task.train:
            read.append(index)
        return opened(images, index)

    monkeypatch.setattr(ImageSet, "open", watched)
    chosen = np.array([3, 30, 7, 11])
    training.finetune(task, chosen, replace(SETTINGS, epochs=2, batch=4), seed=0, reporter=Reporter(quiet=True))
    assert sorted(read) == sorted(2 * chosen.tolist())
    assert not task.backbone.training
    for name, value in task.backbone.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_micro_batches_change_nothing_without_batchnorm(place: Path, tmp_path: Path) -> None:
    task = double(prepare(place, "vit"))
    run(task, state=tmp_path / "one.pt")
    run(task, replace(SETTINGS, accumulate=4), state=tmp_path / "four.pt")
    torch.testing.assert_close(weights(tmp_path / "four.pt"), weights(tmp_path / "one.pt"), rtol=1e-9, atol=1e-9)


def test_bf16_is_close_and_keeps_the_weights_as_they_are(place: Path, tmp_path: Path) -> None:
    task, settings = prepare(place, "vit"), replace(SETTINGS, epochs=1)
    run(task, settings, state=tmp_path / "full.pt")
    run(task, replace(settings, precision="bf16"), state=tmp_path / "half.pt")
    full, half = weights(tmp_path / "full.pt"), weights(tmp_path / "half.pt")
    assert half["head.weight"].dtype == torch.float32
    assert 0 < float((full["head.weight"] - half["head.weight"]).abs().max()) < 0.1


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backbone_lr": -1.0}, "at least 0"),
        ({"head_lr": math.nan}, "at least 0"),
        ({"momentum": 1.0}, "momentum"),
        ({"precision": "fp8"}, "not 'fp8'"),
        ({"epochs": 0}, "at least 1"),
        ({"accumulate": 0}, "at least 1"),
    ],
)
def test_settings_out_of_range(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        replace(SETTINGS, **changes)


def test_divergence_is_told(place: Path) -> None:
    with pytest.raises(UserError, match=r"diverged in step \d of 9: lower the learning rates"):
        run(prepare(place, "vit"), replace(SETTINGS, backbone_lr=1e30, head_lr=1e30))


def test_a_late_verdict_leaves_the_weights_as_they_were(place: Path) -> None:
    """As on a GPU: a fused optimizer skips the step that diverged, and all until the loss has been read."""
    task = prepare(place, "vit")
    batches = TrainingBatches(task.train, Augmentation.like(task.preprocessing), batch=8, seed=0, workers=0)
    late = training._Training(task, SETTINGS, 0, None, steps=9)
    late._fused = late._optimizer.param_groups[0]["fused"] = late._optimizer.param_groups[1]["fused"] = True
    views = batches.run(first=0, last=2)
    assert math.isnan(late.step(next(views), 0))
    first = late.step(next(views), 1)
    assert first == late._mean_loss > 0
    before = [weight.clone() for weight in late.classifier.parameters()]
    hook = late.classifier.register_forward_hook(lambda _module, _inputs, scores: scores * math.inf)
    late.step(next(views), 2)
    hook.remove()
    with pytest.raises(UserError, match="diverged in step 3 of 9"):
        late.step(next(views), 3)
    for weight, old in zip(late.classifier.parameters(), before, strict=True):
        assert torch.equal(weight, old)


def test_a_single_image_is_too_little_for_batchnorm(place: Path) -> None:
    with pytest.raises(UserError, match="the last batch of an epoch is a single image"):
        run(prepare(place, "resnet", resize=32, crop=32), replace(SETTINGS, epochs=1))


def test_nothing_chosen(place: Path) -> None:
    with pytest.raises(UserError, match="no train image"):
        training.finetune(
            prepare(place, "vit"), np.array([], dtype=int), SETTINGS, seed=0, reporter=Reporter(quiet=True)
        )


def test_broken_test_image_is_named(place: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "test", each=1)
    next((folder / "cat").iterdir()).write_bytes(b"no image")
    task = Task.prepare(str(place / "vit"), place / "train", folder, device="cpu", batch=4, workers=0)
    with pytest.raises(UserError, match=r"1 of 7 images in .* cannot be read, such as cat/0.png"):
        run(task, replace(SETTINGS, epochs=1))


# ---------------------------------------------------------------------------------------------------------------------
# Interruptions
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ["resnet", "dropout"])
def test_an_interrupted_run_goes_on_to_the_bit(
    place: Path, tmp_path: Path, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = prepare(place, network)
    whole = run(task, state=tmp_path / "whole.pt")
    step = training._Training.step

    def stop(self: Any, batch: Any, number: int) -> float:
        if number == 4:
            raise KeyboardInterrupt
        return step(self, batch, number)

    monkeypatch.setattr(training._Training, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        run(task, state=tmp_path / "parts.pt")
    assert run_checkpoint.read_run_checkpoint(tmp_path / "parts.pt")["epochs"] == 1
    torch.manual_seed(12)
    monkeypatch.setattr(training._Training, "step", step)
    assert torch.equal(run(task, state=tmp_path / "parts.pt"), whole)
    one, other = (
        run_checkpoint.read_run_checkpoint(tmp_path / "whole.pt"),
        run_checkpoint.read_run_checkpoint(tmp_path / "parts.pt"),
    )
    assert all(torch.equal(other["model"][name], value) for name, value in one["model"].items())
    monkeypatch.setattr(training._Training, "step", lambda *_: pytest.fail("it was finished"))
    assert torch.equal(run(task, state=tmp_path / "parts.pt"), whole)


def test_a_state_of_something_else_is_refused(place: Path, tmp_path: Path) -> None:
    task, state = prepare(place, "vit"), tmp_path / "state.pt"
    settings = replace(SETTINGS, epochs=1)
    run(task, settings, state=state)
    with pytest.raises(UserError, match=r"another run \(head_lr was 0.3, now 1.0\): remove it"):
        run(task, replace(settings, head_lr=1.0), state=state)
    with pytest.raises(UserError, match=r"\(seed was 0, now 1\)"):
        run(task, settings, seed=1, state=state)
    with pytest.raises(UserError, match=r"\(other weights\)"):
        run(double(task), settings, state=state)
    run_checkpoint.write_run_checkpoint({"model": {}}, state)
    with pytest.raises(UserError, match="backbone_lr was not set, now "):
        run(task, settings, state=state)
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"is damaged .*: remove it"):
        run(task, settings, state=state)


def test_a_state_of_other_files_is_refused_and_one_of_a_copy_resumes(place: Path, tmp_path: Path) -> None:
    settings, state, copied = replace(SETTINGS, epochs=1), tmp_path / "state.pt", tmp_path / "train"
    first = run(prepare(place, "vit"), settings, state=state)
    shutil.copytree(place / "train", copied, copy_function=shutil.copyfile)  # with other times
    task = Task.prepare(str(place / "vit"), copied, place / "test", device="cpu", batch=4, workers=0)
    assert torch.equal(run(task, settings, state=state), first)
    file = copied / task.train.paths[-1]
    Image.new("RGB", (100, 90)).save(file)
    with pytest.raises(UserError, match=r"another run \(other files\): remove it"):
        run(task, settings, state=state)
    contents = run_checkpoint.read_run_checkpoint(state)
    del contents["finetune"]["files"]  # as earlier versions wrote it
    run_checkpoint.write_run_checkpoint(contents, state)
    assert torch.equal(run(task, settings, state=state), first)


# ---------------------------------------------------------------------------------------------------------------------
# Many processes
# ---------------------------------------------------------------------------------------------------------------------

NETWORKS = {"resnet": replace(SETTINGS, epochs=1, accumulate=2), "vit": replace(SETTINGS, epochs=1, accumulate=3)}


def run_both(place: Path, out: Path) -> None:
    """Fine-tune both networks in float64; the last batch of an epoch leaves some processes without an image."""
    for network, settings in NETWORKS.items():
        top5 = run(double(prepare(place, network)), settings, state=out / f"{network}.pt")
        torch.save(top5, out / f"{network}.top5-{rank()}")


@pytest.mark.parametrize("processes", [2, 3])
def test_many_processes_are_one(place: Path, tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
    run_both(place, tmp_path / "one")
    assert launch("tests.transfer.finetuning.test_training", [str(place), str(tmp_path / "many")], processes) == 0
    for network in NETWORKS:
        one, many = weights(tmp_path / "one" / f"{network}.pt"), weights(tmp_path / "many" / f"{network}.pt")
        torch.testing.assert_close(many, one, rtol=1e-9, atol=1e-9)
        expected = torch.load(tmp_path / "one" / f"{network}.top5-0")
        for number in range(processes):
            assert torch.equal(torch.load(tmp_path / "many" / f"{network}.top5-{number}"), expected)


if __name__ == "__main__":  # one of several processes
    with joined("cpu"):
        torch.set_num_threads(1)
        run_both(Path(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)  # gloo's threads may still let go of Python objects, and would abort an interpreter that is ending
