"""Convolutions that have taken in their BatchNorm: the same features, and networks for which that cannot be done."""

from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.fx.experimental import optimization
from torch.nn import functional
from torchvision import models
from torchvision.models.mobilenetv2 import MobileNetV2

from excb.networks.frozen.folding import BOUND, without_batchnorm
from excb.networks.frozen.parts import InParts
from excb.networks.frozen.precision import HalfPrecision

SIDE = 64


def trained(network: nn.Module) -> nn.Module:
    """The network with statistics and weights of BatchNorm that change its output, in eval mode."""
    generator = torch.Generator().manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            for tensor, low, high in (
                (module.running_mean, -0.2, 0.2),
                (module.running_var, 0.5, 2.0),
                (module.weight.data, 0.5, 1.5),
                (module.bias.data, -0.2, 0.2),
            ):
                tensor.uniform_(low, high, generator=generator)
    return network.eval()


def norms(network: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def images(count: int = 3) -> Tensor:
    return torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    "build",
    [
        models.resnet18,
        MobileNetV2,
        models.shufflenet_v2_x0_5,
        lambda: timm.create_model("mobilenetv3_small_050"),
    ],
)
@torch.no_grad()
def test_a_folded_network_has_the_features_and_no_batchnorm(build: Callable[[], nn.Module]) -> None:
    network = trained(build())
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    made = without_batchnorm(network, images(1))
    assert norms(made) == 0
    assert norms(network) > 10
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())
    expected, found = network(images()), made(images())
    assert (found - expected).norm() <= BOUND * expected.norm()
    assert not any(module._forward_hooks for module in made.modules())


@torch.no_grad()
def test_it_is_what_torch_fx_makes_of_a_network_that_it_can_trace() -> None:
    network = trained(models.resnet18())
    oracle = optimization.fuse(network)
    weights = {tuple(tensor.shape): tensor for tensor in oracle.state_dict().values()}
    made = without_batchnorm(network, images(1))
    stem = made.get_submodule("conv1")
    assert isinstance(stem, nn.Conv2d)
    torch.testing.assert_close(stem.weight, weights[64, 3, 7, 7])
    torch.testing.assert_close(made(images()), oracle(images()), rtol=1e-5, atol=1e-5)


class Shortcut(nn.Module):
    """A convolution whose output has a second reader."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, batch: Tensor) -> Tensor:
        rows = self.convolution(batch)
        return (self.norm(rows) + rows).flatten(1)


class Shared(nn.Module):
    """A convolution that runs twice, each time before a BatchNorm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 3, 3)
        self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, batch: Tensor) -> Tensor:
        return self.second(self.convolution(self.first(self.convolution(batch)))).flatten(1)


class Reading(nn.Module):
    """A network that reads its BatchNorm's parts itself."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, batch: Tensor) -> Tensor:
        return (self.norm(self.convolution(batch)) * self.norm.weight.view(1, -1, 1, 1)).flatten(1)


@pytest.mark.parametrize("build", [Shortcut, Reading])
def test_a_network_that_folding_would_change_stays_as_it_is(build: Callable[[], nn.Module]) -> None:
    network = trained(build())
    assert without_batchnorm(network, images(1)) is network


@torch.no_grad()
def test_a_layer_that_runs_twice_is_not_folded() -> None:
    network = trained(Shared())
    assert torch.equal(without_batchnorm(network, images(1))(images()), network(images()))


class Twice(nn.Module):
    """A reader that passes an image twice through its network."""

    def __init__(self) -> None:
        super().__init__()
        self.network = models.shufflenet_v2_x0_5()

    def forward(self, batch: Tensor) -> Tensor:
        return torch.cat([self.network(batch), self.network(batch.flip(3))], 1)


@torch.no_grad()
def test_a_reader_that_passes_an_image_twice_has_the_features_of_one_that_does_it_once() -> None:
    reader = trained(Twice())
    made = without_batchnorm(reader, images(1))
    assert norms(made) == 0
    once = without_batchnorm(reader.get_submodule("network"), images(1))
    assert torch.equal(made(images()), torch.cat([once(images()), once(images().flip(3))], 1))


def test_networks_without_batchnorm_in_other_types_or_with_hooks_stay_as_they_are() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    assert without_batchnorm(plain, images(1)) is plain
    watched = trained(models.shufflenet_v2_x0_5())
    handle = watched.register_forward_hook(lambda *_: None)
    assert without_batchnorm(watched, images(1)) is watched
    handle.remove()
    assert norms(without_batchnorm(watched, images(1))) == 0


@torch.no_grad()
def test_in_half_precision_the_network_inside_is_folded() -> None:
    network = trained(models.shufflenet_v2_x0_5())
    made = without_batchnorm(HalfPrecision(network), images(1))
    assert isinstance(made, HalfPrecision)
    assert norms(made) == 0
    assert float(functional.cosine_similarity(made(images()), network(images())).min()) > 0.999


@torch.no_grad()
def test_a_pass_over_many_images_is_folded_from_its_first_batch_on_and_reads_weights_anew() -> None:
    network = trained(models.shufflenet_v2_x0_5())
    batch = images(20)
    # A short batch passes like any other: its rows would differ in their last digits from those of the network.
    assert torch.equal(InParts(network, many=True)(batch[:4]), without_batchnorm(network, batch[:1])(batch[:4]))
    torch.testing.assert_close(InParts(network, many=True)(batch), network(batch), rtol=1e-4, atol=1e-5)
    next(network.parameters()).mul_(2)
    torch.testing.assert_close(InParts(network, many=True)(batch), network(batch), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_norm_without_statistics_of_its_own_is_left_as_it_is() -> None:
    """It normalises by those of each batch, so it is no fixed map."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU()).eval()
    assert torch.equal(without_batchnorm(network, images(1))(images()), network(images()))
