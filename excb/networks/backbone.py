"""Built backbones, images [B, C, H, W] -> features [B, width]: width, channels, modes, hash of the weights, sizes."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from excb.errors import UserError, first_line

# What networks raise for options and images that they do not accept.
REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
BF16_PAYS = 3_000_000  # multiply-adds of an image in convolutions, below which bfloat16 is hardly faster
# Operations in place, by which initialisations draw values and change what they drew.
_DRAWN = frozenset({"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_", "fill_", "zero_"})


def feature_width(backbone: nn.Module) -> int:
    """Width of the features that a built backbone returns."""
    return int(getattr(backbone, "head_hidden_size", None) or backbone.num_features)  # type: ignore[arg-type]


def image_channels(backbone: nn.Module) -> int:
    """C, the channels of the images that a backbone takes: 3 unless `Architecture.build` built it for others."""
    inner = getattr(backbone, "network", None)  # of what reads a network's features
    if isinstance(inner, nn.Module):
        return image_channels(inner)
    channels = getattr(backbone, "image_channels", 3)
    return channels if isinstance(channels, int) else 3


def weights_hash(weights: nn.Module | Mapping[str, Tensor]) -> str:
    """SHA-256 of every tensor of a state: name, type, shape and bytes. It identifies weights in results."""
    tensors = weights.state_dict() if isinstance(weights, nn.Module) else weights
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def has_batchnorm(backbone: nn.Module) -> bool:
    """Whether any layer of the backbone is a BatchNorm."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in backbone.modules())


@contextmanager
def evaluating(backbone: nn.Module) -> Iterator[None]:
    """Put a backbone into eval mode while the block runs, then restore the mode of each of its modules."""
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class Uninitialised(TorchFunctionMode):
    """A block that leaves parameters, and tensors that have no values, as they were allocated.

    torch's generator does not move, and buffers are computed as usual. A network that is built on a device with memory
    must then be loaded strictly: what its parameters hold is arbitrary.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, unless it fills a parameter."""
        named = kwargs or {}
        # Functions of torch.nn.init arrive whole, and name their tensor.
        fills = getattr(func, "__name__", "") in _DRAWN or getattr(func, "__module__", "") == "torch.nn.init"
        first = args[0] if args else named.get("tensor")
        if fills and isinstance(first, Tensor) and (isinstance(first, nn.Parameter) or first.is_meta):
            return first
        return func(*args, **named)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Networks built in this block have names, shapes and types, and neither memory nor values.

    On torch's meta device alone, each initial value would still be computed as a shape, which takes most of the time.
    """
    with torch.device("meta"), Uninitialised():  # type: ignore[no-untyped-call, unused-ignore]
        yield


def uncompiled(module: nn.Module) -> AbstractContextManager[None]:
    """Run a compiled module eagerly, since its graphs are for the shapes of training."""
    if getattr(module, "_compiled_call_impl", None) is None:
        return nullcontext()  # without importing the compiler, which takes seconds
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


@dataclass(frozen=True)
class LayerPass:
    """A convolution or linear layer that an image passed."""

    layer: nn.Conv2d | nn.Linear
    side: int  # the shorter one of the map that it sees, in pixels; 1 for a linear layer
    multiply_adds: int

    @property
    def one_pixel(self) -> bool:
        """Whether it is a strided convolution larger than 1 x 1, and sees a map of one pixel."""
        layer = self.layer
        return isinstance(layer, nn.Conv2d) and self.side == 1 and max(layer.kernel_size) > 1 and max(layer.stride) > 1

    @property
    def depthwise(self) -> bool:
        """Whether it is a convolution of each channel alone."""
        return isinstance(self.layer, nn.Conv2d) and self.layer.groups == self.layer.in_channels > 1


def layer_passes(backbone: nn.Module, size: int) -> list[LayerPass]:
    """All convolutions and linear layers that a square image of this size (pixels) passes, in order.

    Raises UserError unless the backbone takes it.
    """
    passes = list[LayerPass]()

    def look(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        side = min(inputs[0].shape[-2:]) if isinstance(layer, nn.Conv2d) else 1
        passes.append(LayerPass(layer, side, output.numel() // layer.weight.shape[0] * layer.weight.numel()))

    layers = [layer for layer in backbone.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(look) for layer in layers]
    try:
        check_resolution(backbone, [size])
    finally:
        for hook in hooks:
            hook.remove()
    return passes


def strides_over_one_pixel(backbone: nn.Module, size: int) -> bool:
    """Whether a strided convolution larger than 1 x 1 sees a map of one pixel in images of this size (pixels).

    oneDNN's bfloat16 kernel for that, on CPUs, reads memory that nobody wrote (torch 2.15: NaN in most runs).
    """
    return any(each.one_pixel for each in layer_passes(backbone, size))


def bf16_pays_on_cpus(backbone: nn.Module, size: int) -> bool:
    """Whether a CPU that computes in bfloat16 trains this network faster in it, with images of this size (pixels).

    So it was measured for networks of dense convolutions (`benchmarks/cpu_precision.py`). Depthwise ones are slower in
    oneDNN's bfloat16, small networks equally fast. Some transformers were faster; their accuracy was not compared.
    """
    passes = layer_passes(backbone, size)
    convolutions = sum(each.multiply_adds for each in passes if isinstance(each.layer, nn.Conv2d))
    return (
        convolutions >= BF16_PAYS
        and convolutions > sum(each.multiply_adds for each in passes) / 2
        and not any(each.depthwise for each in passes)
    )


def check_resolution(backbone: nn.Module, sizes: Iterable[int]) -> None:
    """Raise UserError unless the backbone takes square images of these sizes (pixels)."""
    device, channels = next(backbone.parameters()).device, image_channels(backbone)
    for size in sizes:
        try:
            with evaluating(backbone), torch.no_grad():
                backbone(torch.zeros(1, channels, size, size, device=device))
        except REFUSALS as error:
            raise UserError(
                f"the backbone cannot take images of {size} x {size} pixels ({first_line(error)}): choose another size"
            ) from None
