"""The Triton kernels without a GPU: interpreted against float64, and compiled for GPUs that are not here."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.kernels import ARCHITECTURES, TYPES, Compiled, compile_kernels
from excb.objective import chunked, streamed
from excb.objective import triton as objective_triton
from excb.objective.loss import assign
from excb.objective.scores import Average, CentroidGradient, Scores
from tests import interpreted
from tests.excb.objective.batches import (
    OFFICIAL,
    TAU_S,
    TAU_T,
    Batch,
    apart,
    batch_of,
    outcome,
    reference,
)
from tests.interpreted import needs_triton

pytestmark = pytest.mark.usefixtures("one_thread")


# ---------------------------------------------------------------------------------------------------------------------
# Interpreted
# ---------------------------------------------------------------------------------------------------------------------


@needs_triton
def test_interpreted(tmp_path: Path) -> None:
    functions = (operations_equal_float64, loss_equals_float64, winners_are_exact)
    interpreted.interpret(__name__, *(function.__name__ for function in functions), cache=tmp_path)


def interpret(kept: int = 16, walked: int = 16, step: int = 16) -> None:
    """Compute here by the interpreted kernels, with tiles so small that few rows and clusters make many."""
    from tests.excb.objective import interpreter

    interpreter.correct()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tile, in_steps = (objective_triton.Tile(kept, walked, each) for each in (None, step))
    tiles = {torch.bfloat16: tile, torch.float32: in_steps}
    vars(objective_triton)["_tiles"] = lambda rows: objective_triton.Tiles(tiles[rows.dtype], tiles[rows.dtype])
    vars(objective_triton)["obstacle"] = lambda _rows: ""


TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-6, torch.bfloat16: 2**-8}  # bfloat16 also of what is averaged


def operations_equal_float64() -> None:
    """Compare all kernels with the chunked backend in float64, on the same rounded vectors."""
    interpret()
    for dtype, tolerance in TOLERANCES.items():
        for K, D, R, extras in [(37, 16, 5, {}), (70, 40, 18, OFFICIAL), (1, 5, 1, {"winner_gain": 0.6})]:
            batch = batch_of(K, views=(1, 1), images=R, width=D, extras=extras).to(dtype, torch.float32)
            student, teacher = Scores(batch.h[1], batch.centroids, TAU_S), teacher_scores(batch)
            assert (teacher.replaced is not None) == ("winner_gain" in extras)
            averages = []
            for scores, values, winners in [
                (student, batch.centroids, False),
                (teacher, batch.centroids.clone(), True),
                (dataclasses.replace(teacher, replaced=None), None, True),
            ]:
                actual = objective_triton.average(scores, values, winners=winners)
                wide = None if values is None else values.double()
                expected = chunked.average(in_float64(scores), wide, winners=winners)
                assert apart(actual.mean, expected.mean) < tolerance
                assert apart(actual.peak, expected.peak) < 2e-6
                assert apart(actual.total, expected.total) < 2e-6
                assert not winners or torch.equal(actual.winners, expected.winners)
                assert not winners or torch.equal(actual.raw_winners, expected.raw_winners)
                averages.append(expected)
            terms = [term_of(student, averages[0], batch.h[1]), term_of(teacher, averages[1], batch.g[0])]
            actual_gradient = objective_triton.centroid_gradient(terms[0], terms[1])
            wide_terms = [
                CentroidGradient(
                    in_float64(term.scores), term.peak.double(), term.weights.double(), term.vectors.double()
                )
                for term in terms
            ]
            assert apart(actual_gradient, chunked.centroid_gradient(*wide_terms)) < tolerance
        nothing = objective_triton.average(dataclasses.replace(student, rows=student.rows[:0]), None, winners=False)
        assert nothing.peak.shape == (0,)


def loss_equals_float64() -> None:
    """Compare the loss and its gradients with the plain backend in float64."""
    interpret()
    for dtype, tolerance in TOLERANCES.items():
        for extras in ({}, OFFICIAL):
            batch = batch_of(37, views=(2, 1), images=3, width=40, extras=extras).to(dtype, torch.float32)
            actual, expected = outcome(batch, 2, "triton"), reference(batch, 2)
            returned = {torch.float16: 2**-10}.get(dtype, tolerance)  # gradients have the type of what they are of
            for name, gradient in expected.gradients.items():
                assert actual.gradients[name].dtype == dtype
                assert apart(actual.gradients[name], gradient) < returned, (dtype, name)
            assert apart(actual.loss, expected.loss) < tolerance
            assert apart(actual.targets, expected.targets) < tolerance
            assert apart(actual.confidence, expected.confidence) < 1e-5
            assert torch.equal(actual.winners, expected.winners)
            assert torch.equal(actual.raw_winners, expected.raw_winners)


def winners_are_exact() -> None:
    """Assignments at full width are those of float64, but where two clusters are as near as float32's last bits."""
    interpret(kept=64, walked=256, step=64)
    for dtype in TOLERANCES:
        batch = batch_of(1031, views=(2, 0), images=40, width=256, spread=3.0).to(dtype, torch.float32)
        z = batch.queries.double() @ batch.teacher.double().T
        balanced = z * batch.scale.double() + batch.offset.double()
        actual = assign(
            batch.queries,
            batch.teacher,
            batch.scale,
            batch.offset,
            batch.centroids,
            temperature=TAU_T,
            backend="triton",
        )
        for winners, scores in ((actual.raw_winners, z), (actual.winners, balanced)):
            lost = scores.amax(1) - scores.gather(1, winners[:, None])[:, 0]
            assert lost.max() < 2**-21
            assert (winners == scores.argmax(1)).double().mean() == 1
        # The first of equals wins, within a tile and across tiles. Coarse rows have exact sums in whatever order the
        # interpreter's products add them up.
        queries, teacher = ((16 * rows.float()).round().to(dtype) / 16 for rows in (batch.queries, batch.teacher))
        values = batch.centroids
        once, twice = (
            assign(
                queries,
                teacher.repeat(times, 1),
                batch.scale.repeat(times),
                batch.offset.repeat(times),
                values.repeat(times, 1),
                temperature=TAU_T,
                backend="triton",
            )
            for times in (1, 2)
        )
        assert torch.equal(twice.winners, once.winners)
        assert torch.equal(twice.raw_winners, once.raw_winners)


def in_float64(scores: Scores) -> Scores:
    """The same scores of the same vectors, in float64."""

    def wide(pair: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
        return pair and (pair[0].double() if pair[0].is_floating_point() else pair[0], pair[1].double())

    return dataclasses.replace(
        scores,
        rows=scores.rows.double(),
        centroids=scores.centroids.double(),
        balance=wide(scores.balance),
        replaced=wide(scores.replaced),
    )


def teacher_scores(batch: Batch) -> Scores:
    tensors = (batch.queries, batch.teacher, batch.scale, batch.offset, batch.centroids)
    assignment = assign(*tensors, temperature=TAU_T, **batch.extras, backend="chunked")
    assert isinstance(assignment, streamed.StreamedAssignment)
    return assignment.scores


def term_of(scores: Scores, average: Average, vectors: Tensor) -> CentroidGradient:
    weights = torch.rand(len(vectors)) / average.total.float()
    return CentroidGradient(scores, average.peak.float(), weights, vectors)


# ---------------------------------------------------------------------------------------------------------------------
# Compiled
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.kernels
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("extras", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["equations", "extras"])
def test_compiled_kernels_neither_spill_nor_exceed_their_gpu(architecture: int, type_: str, extras: bool) -> None:
    compiled = list(compile_kernels(architecture, type_, extras=extras))
    assert {kernel: fault for kernel in compiled if (fault := kernel.fault())} == {}
    assert len(compiled) == 5  # three with products and the merges of two


def test_what_is_wrong_with_a_kernel_is_said() -> None:
    good = Compiled("student", 90, "bf16", 255, 0, 232_448, "wgmma")
    assert not good.fault()
    assert not dataclasses.replace(good, kernel="merge, student", instruction="").fault()
    assert dataclasses.replace(good, spills=8).fault() == "spills 8 bytes"
    assert "232449 bytes of shared memory" in dataclasses.replace(good, shared=232_449).fault()
    assert dataclasses.replace(good, instruction="mma").fault() == "uses mma"
    assert dataclasses.replace(good, instruction="").fault() == "uses no matrix instruction"


@pytest.mark.parametrize(
    ("capability", "row"),
    [((8, 0), (8, 0)), ((8, 6), (12, 0)), ((8, 9), (12, 0)), ((9, 0), (9, 0)), ((10, 3), (10, 0)), ((12, 1), (12, 0))],
)
def test_a_gpu_gets_tiles_that_fit_it(
    capability: tuple[int, int], row: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    for dtype in (torch.bfloat16, torch.float32):
        rows: Any = SimpleNamespace(device=torch.device("cuda"), dtype=dtype)
        assert objective_triton._tiles(rows) is objective_triton.TILES[row, dtype]
