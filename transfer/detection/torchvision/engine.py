"""torchvision as an engine: a loop around Mask R-CNN from torchvision's parts; runs resume bit-exactly."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from excb import seeding
from excb.charts.tensorboard import TensorBoardWriter
from excb.checkpoint import run_checkpoint
from excb.checkpoint.same_run import require_same_run
from excb.console import plural
from excb.distributed.collectives import all_succeed, gather_objects, rank, run_on_rank0, world_size
from excb.distributed.signals import StopRequest
from excb.errors import UserError

from ...coco.annotations import CocoSet
from ...coco.scoring import as_results
from ..setup.job import Job
from ..setup.samples import Loader, Sample, evaluation_samples, training_sample
from .model import Detector
from .pasting import to_original
from .training import Training, learning_rate, losses_of, memory_for, new_detector, optimizer

differences: tuple[str, ...] = (
    "box losses are smooth L1 with beta 1/9, Detectron2's are L1 (beta 0)",
    "mask targets are cropped with soft edges, Detectron2 rounds them to 0 or 1",
    "the RPN's losses are divided by the number of sampled anchors, Detectron2's by 256 per image even if fewer",
    "batches are padded to multiples of 16 pixels (fpn: 64), Detectron2 pads C4's to the largest image (fpn: 32)",
    "fpn: regions are aligned without Detectron2's shift by half a pixel",
    "precise BN weights all batches equally, Detectron2 by their pixels",
    "naiveSyncBN is SyncBN; on CPUs every rank's mean has the same weight, whatever its number of regions",
)

KEPT = 2  # number of newest checkpoints kept
WRITTEN = 20  # steps between entries in TensorBoard, as in Detectron2; short runs write every step


def train_detector(job: Job, stop: StopRequest) -> bool:
    """As `Engine.train_detector`."""
    settings, reporter = job.settings, job.rank0_reporter
    saved = run_on_rank0(lambda: _newest(job))
    training = Training(job)
    done = training.restore(saved) if saved is not None else 0
    if saved is not None and saved["finished"]:
        return True

    def save(*, finished: bool = False) -> None:
        run_on_rank0(lambda: _save(job.folder, training.state() | {"detection": job.training, "finished": finished}))

    with _tensorboard(job, done) as write, reporter.progress("training", settings.iterations, done=done) as bar:
        batches, unread = _batches(job, start=done), deque[tuple[int, Callable[[], dict[str, float]]]]()

        def report(*, but: int) -> None:
            """Read the losses of all steps but the newest ones, which may still run."""
            while len(unread) > but:
                number, read = unread.popleft()
                losses = read()
                write(losses, number)
                bar.status = f"loss {losses['loss']:.3f}"

        for step in range(done, settings.iterations):
            unread.append((step, training.step(all_succeed(lambda: next(batches)), step)))
            report(but=1 if training.lags else 0)
            asked = stop.agreed()
            bar.advance()
            last = step + 1 == settings.iterations
            if asked or last or (step + 1) % settings.save_every == 0:
                report(but=0)  # before it is saved
                save(finished=last and not settings.precise_bn)
            if asked:
                return last and not settings.precise_bn
    if settings.precise_bn:
        if not training.measure_batchnorm(_batches(job, start=settings.iterations), stop, reporter):
            return False
        save(finished=True)
    return True


@torch.no_grad()
def predict(job: Job, images: CocoSet) -> list[dict[str, Any]]:
    """As `Engine.predict`."""
    if (saved := run_on_rank0(lambda: _newest(job))) is None:
        raise UserError.on_all_ranks(f"{job.folder} holds no checkpoint: train first")
    model = new_detector(job).to(job.device).eval()
    model.load_state_dict(saved["model"])
    samples = evaluation_samples(images, job.settings, rank=rank(), world=world_size(), workers=job.workers)

    def share() -> list[dict[str, Any]]:
        results = []
        with job.rank0_reporter.progress("evaluation", len(range(rank(), len(images), world_size()))) as bar:
            for sample in samples:
                results += detect(model, sample, images)
                bar.advance()
        return results

    parts = gather_objects(all_succeed(share))
    return [result for part in parts for result in part] if rank() == 0 else []


def detect(model: Detector, sample: Sample, images: CocoSet) -> list[dict[str, Any]]:
    """One image's detections as COCO's results."""
    with memory_for("the detections of an image"):
        detections = model([sample.image.to(model.get_buffer("mean").device)])
    input_size = sample.image.shape[1], sample.image.shape[2]
    return as_results(images, sample.image_id, **to_original(detections[0], input_size, sample.size))


def first_losses(job: Job, images: int, iterations: int) -> list[float]:
    """As `Engine.first_losses`; the learning rate scales with the smaller batch and is warmed up for a quarter.

    Every step has the same images and regions, so that only learning changes the loss.
    """
    settings, train = job.settings, job.train.trainable
    indices = range(min(images, len(train)))
    rate, warmup = settings.base_lr * len(indices) / settings.batch, max(1, iterations // 4)
    views = [seeding.generator(seeding.Purpose.TRANSFER_VIEW, settings.seed, 0, index) for index in indices]
    samples = [training_sample(train, index, settings, view) for index, view in zip(indices, views, strict=True)]
    losses = []
    with torch.random.fork_rng([job.device] if job.device.type == "cuda" else []):
        model = new_detector(job).to(job.device).train()
        updates = optimizer(model, settings)
        for step in range(iterations):
            for group in updates.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / warmup)
            torch.manual_seed(seeding.fold(seeding.Purpose.STEP, settings.seed))
            updates.zero_grad()
            with memory_for(f"{plural(len(samples), 'image')} at once"):
                loss = torch.stack(list(losses_of(model, samples, job.device).values())).sum()
                loss.backward()
            updates.step()
            losses.append(float(loss.detach()))
    return losses


def _batches(job: Job, *, start: int) -> Iterator[list[Sample]]:
    return iter(Loader(job.train, job.settings, start=start, rank=rank(), world=world_size(), workers=job.workers))


def _newest(job: Job) -> dict[str, Any] | None:
    """The newest intact checkpoint, or None where there is none yet; refused if of another run."""
    if (newest := run_checkpoint.read_newest(job.folder, job.reporter.warn)) is None:
        return None
    file, contents = newest
    require_same_run(file, contents.get("detection"), job.training, advice="choose another folder")
    return contents


def _save(folder: Path, contents: dict[str, Any]) -> None:
    run_checkpoint.write_run_checkpoint(
        contents, folder / run_checkpoint.FOLDER / run_checkpoint.name_of(contents["step"])
    )
    for old in run_checkpoint.in_run(folder)[KEPT:]:
        old.unlink()


@contextmanager
def _tensorboard(job: Job, done: int) -> Iterator[Callable[[dict[str, float], int], None]]:
    """Yield a function that writes a step's losses to TensorBoard, from step `done` on."""
    if rank() > 0:
        yield lambda _losses, _step: None
        return
    settings = job.settings
    every = WRITTEN if settings.iterations > 100 * WRITTEN else 1
    writer = TensorBoardWriter(job.folder / "tensorboard", purge_step=done + 1)

    def write(losses: dict[str, float], step: int) -> None:
        if (step + 1) % every == 0:
            values = losses | {"learning_rate": learning_rate(settings, step)}
            writer.add_scalars({f"train/{name}": value for name, value in values.items()}, step + 1)

    try:
        yield write
    finally:
        writer.close()
