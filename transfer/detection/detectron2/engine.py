"""Detectron2 as an engine: its trainer and hooks on the project's batches; runs resume bit-exactly."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from excb import seeding
from excb.charts.tensorboard import TensorBoardWriter
from excb.distributed.collectives import gather_objects, rank, world_size
from excb.distributed.parallel import average_gradients
from excb.distributed.signals import StopRequest
from excb.errors import UserError, require
from excb.files.atomic import write_text

from ...coco.annotations import CocoSet
from ..setup.job import Job
from ..setup.samples import evaluation_samples, training_sample
from ..setup.settings import DetectionSettings, rescaled
from .hooks import Batches, Checkpoints, ProgressLine, ScalarWriter, SeedStep, StopHook, StoppedError
from .losses import Detectron2Trainer, MixedPrecisionTrainer, WriteLosses
from .model import configuration, detector, inputs

# After .model, which silences the warnings of Detectron2's first import.
from detectron2.config import CfgNode  # isort: skip
from detectron2.engine import HookBase, hooks  # isort: skip
from detectron2.evaluation.coco_evaluation import instances_to_coco_json  # isort: skip
from detectron2.solver import build_lr_scheduler, build_optimizer, get_default_optimizer_params  # isort: skip
from detectron2.utils.events import EventStorage  # isort: skip
from excb.console import plural

differences: tuple[str, ...] = (
    "mask targets are cropped from bit masks of the image's training size, as with Detectron2's INPUT.MASK_FORMAT "
    "bitmask; its own recipes crop them from polygons",
    "order, sizes and flips of images, and the sampled regions, depend on seed and step alone, so that a run resumes "
    "bit-exactly; Detectron2 draws new ones",
    "a CPU trains in one process, with BatchNorm in place of SyncBN",
)
TENSORBOARD, LOG, CONFIG = "tensorboard", "detectron2.log", "detectron2.yaml"
WRITE_EVERY = 20  # steps between points in TensorBoard, as in Detectron2


def train_detector(job: Job, stop: StopRequest) -> bool:
    """As `Engine.train_detector`.

    Raises:
        UserError: the settings cannot run on this machine, memory is too small, the loss diverges, or the folder holds
            another run.
    """
    settings, config = job.settings, _configuration(job)
    with _log(job.folder / LOG if rank() == 0 else None), _errors_reported(job):
        network = detector(config, extra_norm=settings.extra_norm, backbone=job.backbone)
        optimizer = _optimizer(config, settings, network)
        model, no_loader = average_gradients(network) or network, ()  # the loader depends on the step to resume from
        if settings.precision == "amp":
            scaler = torch.amp.GradScaler("cuda")
            trainer: Detectron2Trainer = MixedPrecisionTrainer(model, no_loader, optimizer, grad_scaler=scaler)
        else:
            trainer = Detectron2Trainer(model, no_loader, optimizer)
        checkpoints, line = Checkpoints(network, job, trainer), ProgressLine()
        rates = hooks.LRScheduler(scheduler=build_lr_scheduler(config, optimizer))
        losses = WriteLosses(settings.save_every, WRITE_EVERY)
        trainer.register_hooks([SeedStep(settings.seed), hooks.IterationTimer(), losses, line, rates])
        start = checkpoints.restore()
        if start == settings.iterations:
            return True
        batches = Batches(job, start)
        note = f"recomputing BatchNorm's statistics on {plural(settings.precise_bn_iterations, 'batch', 'batches')}"
        later = Batches(job, settings.iterations, note)  # the batches after training's, wherever it was interrupted
        trainer.register_hooks(_hooks_of_results(job, trainer, checkpoints, start, later))
        trainer.register_hooks([StopHook(checkpoints, stop)])
        if rank() == 0:
            write_text(config.dump(), job.folder / CONFIG)
        trainer.reset_data_loader(lambda: batches)
        with (
            closing(batches),
            closing(later),
            job.rank0_reporter.progress("detection: training", settings.iterations, done=start) as line.bar,
        ):
            try:
                trainer.train(start, settings.iterations)
            except StoppedError:
                return False
    return True


def predict(job: Job, images: CocoSet) -> list[dict[str, Any]]:
    """As `Engine.predict`.

    Raises:
        UserError: the folder holds no trained detector, or memory is too small.
    """
    settings, config = job.settings, _configuration(job)
    detections: list[dict[str, Any]] = []
    with _log(None), _errors_reported(job), torch.no_grad():
        network = detector(config, extra_norm=settings.extra_norm, backbone=job.backbone).eval()
        require(Checkpoints(network, job).restore() > 0, f"{job.folder} holds no trained detector: train first")
        samples = evaluation_samples(images, settings, rank=rank(), world=world_size(), workers=job.workers)
        with job.rank0_reporter.progress("detection: evaluation", len(range(rank(), len(images), world_size()))) as bar:
            for sample in samples:
                instances = network(inputs([sample], settings, training=False))[0]["instances"].to("cpu")
                detections += instances_to_coco_json(instances, sample.image_id)
                bar.advance()
    for result in detections:
        result["category_id"] = images.category_ids[result["category_id"]]
    gathered = [result for part in gather_objects(detections) for result in part]
    return sorted(gathered, key=lambda result: int(result["image_id"])) if rank() == 0 else []


def first_losses(job: Job, images: int, iterations: int) -> list[float]:
    """As `Engine.first_losses`; the learning rate scales with the smaller batch and is warmed up for a quarter.

    Raises:
        UserError: the settings cannot run on this machine, or memory is too small.
    """
    indices = range(min(images, len(job.train.trainable)))
    settings = rescaled(job.settings, len(indices))
    if settings.norm != "FrozenBN":
        settings = replace(settings, norm="BN")
    config = _configuration(replace(job, settings=settings))
    samples = []
    for index in indices:
        random = seeding.generator(seeding.Purpose.TRANSFER_VIEW, settings.seed, 0, index)
        samples.append(training_sample(job.train.trainable, index, settings, random))
    losses, devices = [], [job.device] if job.device.type == "cuda" else []
    with _log(None), _errors_reported(job), torch.random.fork_rng(devices), EventStorage():
        network = detector(config, extra_norm=settings.extra_norm, backbone=job.backbone).train()
        optimizer = _optimizer(config, settings, network)
        for step in range(iterations):
            # The same regions in every step, so that only learning changes the loss.
            torch.manual_seed(seeding.fold(seeding.Purpose.STEP, settings.seed))
            loss = torch.stack(list(network(inputs(samples, settings, training=True)).values())).sum()
            optimizer.zero_grad()
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = settings.base_lr * min(1.0, (step + 1) / max(1, iterations // 4))
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def _configuration(job: Job) -> CfgNode:
    on_cpu = job.device.type == "cpu"
    if on_cpu and world_size() > 1:
        raise UserError.on_all_ranks(
            "Detectron2 trains in one process on a CPU: start one, or use --engine torchvision"
        )
    require(not (on_cpu and job.settings.precision == "amp"), "precision=amp needs a GPU: use precision=fp32")
    return configuration(job.settings, depth=job.depth, classes=len(job.train.classes), device=job.device)


def _optimizer(config: CfgNode, settings: DetectionSettings, network: nn.Module) -> torch.optim.Optimizer:
    if settings.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = build_optimizer(config, network)
        return optimizer
    groups = get_default_optimizer_params(network, weight_decay_norm=config.SOLVER.WEIGHT_DECAY_NORM)
    return torch.optim.AdamW(groups, lr=settings.base_lr, weight_decay=settings.weight_decay)


def _hooks_of_results(
    job: Job, trainer: Detectron2Trainer, checkpoints: Checkpoints, start: int, later: Batches
) -> list[HookBase]:
    """Detectron2's hooks that write results: BatchNorm statistics before the checkpoint, then TensorBoard."""
    settings, registered = job.settings, []
    if settings.precise_bn:
        registered.append(hooks.PreciseBN(0, trainer.model, later, settings.precise_bn_iterations))
    if rank() == 0:
        registered.append(hooks.PeriodicCheckpointer(checkpoints, settings.save_every))
        scalars = ScalarWriter(TensorBoardWriter(job.folder / TENSORBOARD, purge_step=start))
        registered.append(hooks.PeriodicWriter([scalars], WRITE_EVERY))
    return registered


@contextmanager
def _log(file: Path | None) -> Iterator[None]:
    """Redirect Detectron2's log to a file, or drop it, so that it does not reach the terminal."""
    handler = logging.NullHandler() if file is None else _handler(file)
    loggers = [logging.getLogger(name) for name in ("detectron2", "fvcore", "torch.fx._symbolic_trace")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        with warnings.catch_warnings():
            # Detectron2 uses calls that newer versions of torch and NumPy deprecate.
            warnings.filterwarnings("ignore", "torch.meshgrid", UserWarning)
            for category in (DeprecationWarning, FutureWarning):
                warnings.filterwarnings("ignore", category=category, module=r"detectron2\.")
            yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
        handler.close()


def _handler(file: Path) -> logging.Handler:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(file, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {file}: {error}") from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s"))
    return handler


@contextmanager
def _errors_reported(job: Job) -> Iterator[None]:
    """Turn out-of-memory errors and divergence into a UserError."""
    try:
        yield
    except FloatingPointError as error:
        reason = str(error).splitlines()[0]
        raise UserError.on_all_ranks(f"training diverged ({reason}): lower base_lr or lengthen warmup") from None
    except (MemoryError, RuntimeError) as error:
        out_of_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not out_of_memory and "can't allocate memory" not in str(error):  # the CPU allocator raises RuntimeError
            raise
        batch, rois = job.settings.batch, job.settings.rois
        raise UserError(
            f"out of memory on {job.device}: lower the batch ({batch}), rois ({rois}) or image sizes"
        ) from None
