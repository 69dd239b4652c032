"""A traced step: sizes for any number of images, and launches against those on fake CUDA tensors."""

import pytest

from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan import trace as tracing
from excb.pretrain.plan.fakes import FEW
from excb.pretrain.plan.trace import Growth, trace_step
from excb.pretrain.recipe import Recipe
from tests.pretrain.fake_steps import stated
from tests.pretrain.small_runs import OVERRIDES


def small(*values: str) -> Recipe:
    return apply(find_recipe("quickstart"), [*OVERRIDES, f"method.clusters={FEW}", *values])


def test_a_size_says_how_it_grows() -> None:
    prime = tracing.IMAGES
    sizes = (Growth.of(0), Growth.of(640), Growth.of(3 * prime), Growth.of(4 * prime**2))
    assert sizes == (Growth(), Growth(fixed=640), Growth(image=3), Growth(pair=4))
    total = sum(sizes, Growth())
    assert (total.at(prime), total.at(10)) == (640 + 3 * prime + 4 * prime**2, 640 + 30 + 400)
    assert total - sizes[1] == Growth(0, 3, 4)


@pytest.mark.parametrize("values", [(), ("method.contrast=0.5",)])
def test_another_number_of_images_gives_the_same_sizes(
    monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...]
) -> None:
    first = trace_step(small(*values))
    monkeypatch.setattr(tracing, "IMAGES", 499)
    second = trace_step(small(*values))
    for name in ("forward", "backward", "views", "saved", "buffers"):
        assert getattr(first, name) == getattr(second, name)
    assert [first.highest(images) for images in (2, 64)] == [second.highest(images) for images in (2, 64)]
    assert any(size.pair for size in first.alive) == ("method.contrast=0.5" in values)


@pytest.mark.parametrize("name", ["conv4_tiny", "rn10_tiny"])
def test_launches_are_near_those_on_fake_cuda(name: str) -> None:
    recipe = apply(find_recipe(name), ["efficiency.precision=bf16"])
    trace, counted = trace_step(recipe), stated("launches")[name]
    # The loss has kernels of its own there, whose number differs.
    assert trace.forward == pytest.approx(sum(counted[phase] for phase in ("networks", "loss")), rel=0.1)
    assert trace.backward == pytest.approx(counted["backward"], rel=0.1)
