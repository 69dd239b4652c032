"""A model of a step's time on 1, 8 and 64 GPUs: counted work over peak figures, every term shown. Nothing is measured.

Peaks are taken as reached, which makes the model too fast; it knows no caches and no fused kernels, which makes it too
slow: it is no bound in either direction. `assumptions` says all that it assumes and leaves out.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from excb.console import Reporter

from ..recipe import Recipe
from .assumptions import (
    ASSUMED,
    BACKWARD,
    CORES,
    DECODING,
    EXCHANGE,
    EXCHANGE_ACROSS,
    FORWARD,
    LAUNCH,
    LEFT_OUT_LONGER,
    LEFT_OUT_SHORTER,
    NODE,
)
from .fakes import value_bytes
from .flops import Counts, communication
from .peaks import Peaks
from .trace import Trace
from .work import Work, step_work

PROCESSES = (1, 8, 64)
HALF_BYTES = 2  # of a gradient that travels in 16 bits


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step of one process, by term."""

    compute: float  # products at the peak rate, or at the memory's where that is slower
    memory: float  # all other operations at the memory's peak
    launches: float  # of the CPU, beside the GPU's work
    gradients: float  # their all-reduce
    hidden: float  # of that, behind the backward pass
    collectives: float  # BatchNorm, sizes, balancing, contrast, distillation: nothing hides them
    decoding: float  # of the CPU's cores, beside the GPU's work

    @property
    def gpu(self) -> float:
        """What the GPU does one after the other."""
        return self.compute + self.memory + self.gradients - self.hidden + self.collectives

    @property
    def total(self) -> float:
        """The longest of what runs at the same time."""
        return max(self.gpu, self.launches, self.decoding)

    @property
    def bound(self) -> str:
        """What the step waits for."""
        return max(("gpu", "launches", "decoding"), key=lambda name: getattr(self, name))


def step_time(recipe: Recipe, counts: Counts, work: Work, processes: int, peaks: Peaks) -> StepTime:
    """The model for a number of processes, eight in a node.

    Args:
        recipe: the recipe, its precision resolved.
        counts: what its networks have and do.
        work: of a micro-batch of one of these processes.
        processes: how many; they share the recipe's batch.
        peaks: of each one's GPU.
    """
    efficiency, flops = recipe.efficiency, counts.flops
    parts, share = efficiency.accumulate, recipe.optim.batch // processes
    rate, bandwidth = peaks.rate(efficiency.precision, tf32=efficiency.tf32), 1e9 * peaks.bandwidth
    again = FORWARD * flops.student * efficiency.checkpointing
    of_forward = share * (FORWARD * flops.student + flops.teacher + flops.frozen_teachers + flops.loss_head / 2)
    of_backward = share * (BACKWARD * flops.student + again + flops.loss_head / 2)
    forward = max(of_forward / rate, parts * work.forward.product_bytes / bandwidth)
    backward = max(of_backward / rate, parts * work.backward.product_bytes / bandwidth)
    moved = parts * (work.forward.other_bytes + work.backward.other_bytes + work.views.other_bytes)
    launches = parts * (work.forward.launches + work.backward.launches + work.views.launches) + work.update.launches
    gradients = hidden = collectives = 0.0
    if processes > 1:
        across = processes > NODE
        # A ring within the node for each of its GPUs, every ring with another GPU's network adapter.
        link = 1e9 * (min(peaks.link, NODE * peaks.network / 8) if across else peaks.link)
        start = EXCHANGE_ACROSS if across else EXCHANGE
        sent = communication(recipe, counts, processes)
        size = sent.gradients * (
            HALF_BYTES / value_bytes(recipe) if efficiency.compression in ("bf16", "fp16") else 1.0
        )
        whole = value_bytes(recipe) * counts.trained
        buckets = max(1, math.ceil(whole / (2**20 * efficiency.bucket_mb)))
        gradients = size / link + buckets * start
        # The last bucket is full when the backward pass ends. Only the last micro-batch's gradients travel.
        behind = (backward + parts * work.backward.other_bytes / bandwidth) / parts
        hidden = min(gradients * (1 - 1 / buckets), behind)
        others = sent.exchanges + bool(sent.sizes) + bool(sent.balancing)
        others += 2 * bool(sent.contrast) + bool(sent.distillation)
        collectives = (sent.total - sent.gradients) / link + others * start
    return StepTime(
        compute=forward + backward,
        memory=(moved + work.update.other_bytes) / bandwidth,
        launches=launches * LAUNCH,
        gradients=gradients,
        hidden=hidden,
        collectives=collectives,
        decoding=share * DECODING / CORES,
    )


def scaling(recipe: Recipe, counts: Counts, trace: Trace, peaks: Peaks) -> dict[str, Any]:
    """The model for 1, 8 and 64 processes that share the batch equally, with what it takes as given and leaves out.

    Efficiency is relative to the first of these numbers.

    Args:
        recipe: the recipe, its precision resolved.
        counts: what its networks have and do.
        trace: of its step.
        peaks: of each process's GPU.
    """
    batch, parts = recipe.optim.batch, recipe.efficiency.accumulate
    numbers = [processes for processes in PROCESSES if batch % (parts * processes) == 0]
    weights = sum(counts.parameters["student"].values())
    rows: list[dict[str, Any]] = []
    for processes in numbers:
        work = step_work(recipe, trace, batch // (parts * processes), weights=weights)
        time = step_time(recipe, counts, work, processes, peaks)
        seconds = time.total
        alone = rows[0]["seconds"] if rows else seconds
        rows.append(
            {"processes": processes, **asdict(time), "gpu": time.gpu, "seconds": seconds, "bound": time.bound}
            | {"images_per_second": batch / seconds, "efficiency": alone / (processes * seconds)}
        )
    left_out = {"longer": LEFT_OUT_LONGER, "shorter": LEFT_OUT_SHORTER}
    return {"steps": rows, "peaks": asdict(peaks), "assumed": ASSUMED, "left_out": left_out}


def print_scaling(model: Mapping[str, Any], batch: int, device: str, reporter: Reporter) -> None:
    """The table of `scaling`, in milliseconds, how to read it, and how far to trust it."""
    rows = model["steps"]
    if not rows:
        return
    terms = ("compute", "memory", "launches", "gradients", "hidden", "collectives", "decoding", "seconds")
    cells = [[term if term != "seconds" else "step", *(f"{1e3 * row[term]:,.2f}" for row in rows)] for term in terms]
    cells.append(["the limit is", *(row["bound"] for row in rows)])
    cells.append(["images/s", *(f"{row['images_per_second']:,.0f}" for row in rows)])
    cells.append(["efficiency", *(f"{row['efficiency']:.0%}" for row in rows)])
    title = f"\nA model, not a measurement: ms of a step of {batch:,} images, shared by so many {device}"
    reporter.table(title, ["", *(str(row["processes"]) for row in rows)], cells)
    left_out, assumed = model["left_out"], "\n".join(f"- {assumption}" for assumption in model["assumed"])
    reporter.answer(
        "step = the longest of launches (CPU), decoding (CPU cores), and compute + memory + gradients - hidden + "
        "collectives (GPU)\n"
        f"takes peaks as reached: {model['peaks']['source']}\n"
        f"assumes\n{assumed}\n"
        f"leaves out what makes a step longer: {', '.join(left_out['longer'])}\n"
        f"leaves out what makes a step shorter: {', '.join(left_out['shorter'])}"
    )
