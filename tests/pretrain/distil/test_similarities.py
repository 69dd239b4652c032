"""Similarities to other images, against loops over keys, with a queue that is empty, partly filled or full."""

import pytest
import torch
from torch import Tensor

from excb.pretrain.distil.similarities import Similarities
from tests.pretrain.distil import cases, loops

TAUS = {"tau_t": 0.3, "tau_s": 0.5}


def objective(queue: int, *, filled: int = 0) -> Similarities:
    made = Similarities(cases.settings(similarities=1.0, queue=queue), cases.WIDTH).double()
    if filled:
        made.start(cases.unit_rows(filled, cases.WIDTH, seed=7), seed=0)
    return made


@cases.every_way
@pytest.mark.parametrize(("queue", "filled"), [(0, 0), (6, 0), (6, 4), (6, 6), (6, 9)])
def test_value_and_gradient_are_those_of_the_loops(sees: str, queue: int, filled: int) -> None:
    predicted, targets, weights = cases.predictions(), cases.targets(sees), cases.weights(sees)
    loss, pending = objective(queue, filled=filled)(predicted, targets, weights)
    earlier = list(cases.unit_rows(filled, cases.WIDTH, seed=7)[:queue]) if filled else []
    assert torch.equal(pending, targets[0])
    cases.same_value_and_gradient(
        loss, lambda rows: loops.similarities(rows, targets, weights, earlier, **TAUS), predicted
    )


@pytest.mark.parametrize(("queue", "images"), [(6, 4), (6, 6), (5, 7), (1, 3), (0, 3)])
def test_the_newest_rows_take_the_place_of_the_oldest(queue: int, images: int) -> None:
    made, wanted = objective(queue), list[Tensor]()
    for batch in range(4):
        rows = cases.unit_rows(images, cases.WIDTH, seed=10 + batch)
        made.update(rows)
        wanted = [*rows, *wanted][:queue]
        there = made.queue[made.queue.any(1)]
        assert len(there) == len(wanted)
        assert torch.equal(there, torch.stack(wanted) if wanted else there)


def test_keys_after_updates_are_those_of_the_queue() -> None:
    made, predicted, targets = objective(6), cases.predictions(), cases.targets("image")
    earlier = cases.unit_rows(4, cases.WIDTH, seed=12)
    made.update(earlier)
    loss, _ = made(predicted, targets, cases.weights("image"))
    wanted = loops.similarities(predicted, targets, cases.weights("image"), list(earlier), **TAUS)
    torch.testing.assert_close(loss, wanted, **cases.EXACT)


def test_the_queue_is_in_the_state_dict_and_restored() -> None:
    made, other = objective(6, filled=4), objective(6)
    made.update(cases.unit_rows(3, cases.WIDTH, seed=13))
    other.load_state_dict(made.state_dict())
    predicted, targets, weights = cases.predictions(), cases.targets("view"), cases.weights("view")
    assert torch.equal(made(predicted, targets, weights)[0], other(predicted, targets, weights)[0])
    assert torch.equal(made.queue, other.queue)


def test_an_image_that_the_teacher_could_not_read_is_no_key() -> None:
    """Its row is zeros: a similarity of 0 to everything would be more than that to many images."""
    made, predicted, targets = objective(6, filled=4), cases.predictions(), cases.targets("image")
    targets[0, 1] = 0
    made.update(torch.zeros(1, cases.WIDTH, dtype=torch.float64))
    found, _ = made(predicted[:, [0, 2, 3]], targets[:, [0, 2, 3]], cases.weights("image"))
    whole, _ = made(predicted, targets, cases.weights("image"))
    alone, _ = made(predicted[:, [1]], targets[:, [1]], cases.weights("image"))
    others = (4 * whole - _with_all_keys(made, predicted, targets)) / 3
    torch.testing.assert_close(others, found, **cases.EXACT)
    assert alone.isfinite()


def _with_all_keys(made: Similarities, predicted: Tensor, targets: Tensor) -> Tensor:
    """The loss of image 1 of the batch, whose target is zeros: a uniform one over the other images and the queue."""
    keys = torch.cat([targets[0][[0, 2, 3]], made.queue[made.queue.any(1)]])
    scores = torch.nn.functional.normalize(predicted[:, 1], dim=-1) @ keys.T / TAUS["tau_s"]
    return -scores.log_softmax(-1).mean()


def test_one_image_alone_without_a_queue_gives_no_nan() -> None:
    made, predicted = objective(0), cases.predictions()
    loss, _ = made(predicted[:, :1], cases.targets("image")[:, :1], cases.weights("image"))
    (gradient,) = torch.autograd.grad(loss, predicted)
    assert loss.isfinite()
    assert not gradient.any()
