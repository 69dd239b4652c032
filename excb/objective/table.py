"""The tables of losses and of loss backends: one line each. Importing it needs no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    """A loss that `method.loss` names."""

    module: str  # it has a function of the loss's name with the signature of `excb.objective.loss.cross_entropy`
    # It reads p_t as a matrix, `plain.Assignment.probabilities`, so all backends but plain are out.
    probabilities: bool = True


@dataclass(frozen=True)
class Backend:
    """A way to compute assignments and the cross-entropy that `efficiency.objective` names."""

    # It has the functions of `excb.objective.scores.Operations` (plain has its own). Where it cannot score all rows it
    # also has `obstacle(rows)`, which says why.
    module: str
    precisions: tuple[str, ...] = ()  # that it takes, of `efficiency.precision`; empty: all


LOSSES = {
    "cross_entropy": Loss("excb.objective.loss", probabilities=False),
}

AUTO = "auto"  # the first backend of the table that can run
BACKENDS = {
    "triton": Backend("excb.objective.triton", precisions=("bf16", "fp16", "fp32")),
    "chunked": Backend("excb.objective.chunked"),
    "plain": Backend("excb.objective.plain"),
}
