"""Networks without random weights, where a checkpoint or nothing follows: drawing them takes longer than reading."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Operations in place, by which initialisations draw values and change what they drew.
_DRAWN = frozenset({"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_", "fill_", "zero_"})


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
