"""Before a day is spent: can this detector learn at all, here, from these images?"""

import math
from dataclasses import replace

from excb.errors import UserError

from .core.job import Engine, Job

IMAGES, STEPS = 4, 24  # a few images, seen again and again
SIDE = 320  # of the shorter side, at most
FALL = 0.9  # the loss of the last steps over that of the first, at most


def preflight(engine: Engine, job: Job) -> list[float]:
    """Pass a few training images forward and backward, again and again, with new weights.

    It runs the run's own network, norms and frozen stages, at a smaller size and with an optimizer that is quick; the
    data has been checked before. Nothing is written.

    Returns:
        The loss of every step.

    Raises:
        UserError: the network cannot take a step here, the loss is not finite, or it does not fall.
    """
    settings = job.settings
    sizes = tuple(sorted({min(size, SIDE) for size in settings.min_sizes}))
    quick = replace(
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
    losses = engine.first_losses(replace(job, settings=quick), IMAGES, STEPS)
    bad = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if bad is not None:
        raise UserError(f"pre-flight: the loss is not finite at step {bad}: check the checkpoint (`excb-zoo verify`)")
    part = STEPS // 4
    first, last = sum(losses[:part]) / part, sum(losses[-part:]) / part
    if not last <= FALL * first:
        raise UserError(
            f"pre-flight: {STEPS} steps on {IMAGES} images took the loss from {first:.2f} to {last:.2f} only: check "
            "annotations and checkpoint; --skip-preflight trains all the same"
        )
    job.reporter.note(f"pre-flight: loss {first:.2f} -> {last:.2f} in {STEPS} steps on {IMAGES} images")
    return losses
