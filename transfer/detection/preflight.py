"""The check before a long run: does the loss fall on a few images, on this machine, with this data?"""

import math
from dataclasses import replace

from excb.errors import UserError

from .setup.job import Engine, Job

IMAGES, STEPS = 4, 24  # the same few images in every step
SIDE = 320  # largest shorter side in pixels
FALL = 0.9  # largest ratio of the last steps' loss to the first steps'


def preflight(engine: Engine, job: Job) -> list[float]:
    """Train a new detector for a few steps on a few training images.

    It has the run's network, norms and frozen stages, smaller images and a faster optimizer. Nothing is written.

    Returns:
        The loss of every step.

    Raises:
        UserError: the network cannot take a step on this machine, or the loss is not finite or does not fall.
    """
    settings = job.settings
    sizes = tuple(sorted({min(size, SIDE) for size in settings.min_sizes}))
    short = replace(
        settings,
        min_sizes=sizes[-1:],
        test_size=sizes[-1],
        max_size=min(settings.max_size, 2 * sizes[-1]),
        optimizer="adamw",
        base_lr=1e-4,
        batch=2,
        rois=min(settings.rois, 64),
        warmup=1,
        steps=(),
        iterations=STEPS,
    )
    losses = engine.first_losses(replace(job, settings=short), IMAGES, STEPS)
    broken = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if broken is not None:
        raise UserError(f"preflight: the loss is not finite at step {broken}: check the checkpoint (`excb-zoo verify`)")
    part = STEPS // 4
    first, last = sum(losses[:part]) / part, sum(losses[-part:]) / part
    if not last <= FALL * first:
        raise UserError(
            f"preflight: the loss only fell from {first:.2f} to {last:.2f} in {STEPS} steps on {IMAGES} images: check "
            "annotations and checkpoint, or train anyway with --skip-preflight"
        )
    job.reporter.note(f"preflight: loss {first:.2f} -> {last:.2f} in {STEPS} steps on {IMAGES} images")
    return losses
