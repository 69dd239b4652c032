"""CUDA without a GPU: tensors with device, shape and type but no values, and a record of what would launch or wait.

Tensors of the CPU stay real. Those of `cuda` are torch's FakeTensors, so a mix of devices fails as on a GPU. Every
operation that would make the CPU wait for the GPU is recorded with the function that asked for it, and so are the
operations that would launch kernels, with the bytes that they read and write. A copy to the CPU is full of ones, which
are finite and true.

Nothing here runs on a GPU, so nothing here is a time.
"""

import ctypes
import functools
import platform
import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.kernels import kernels_of

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")

# An A100 of 80 GB, as far as the product asks.
PROPERTIES = SimpleNamespace(
    name="fake CUDA device",
    major=8,
    minor=0,
    multi_processor_count=108,
    shared_memory_per_block_optin=166_912,
    total_memory=80 * 2**30,
)
# A wait is named by the innermost function of one of these packages.
NAMED = re.compile(r"(excb|timm|tests|torchvision\.(models|ops)|torch\.(nn\.modules|optim|amp))\.")
LARGE = 2**16  # weights with more elements are not drawn: a large network is built in less time, and loses them anyway
# Operations that only allocate or describe memory, besides those that torch knows as views.
NO_KERNEL = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_unsafe_view",
    "lift_fresh",
    "is_pinned",
    "_local_scalar_dense",
}
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
# The shape of what these return depends on values.
SIZED_BY_VALUES = {"nonzero", "masked_select", "bincount", "nms", "_unique2", "unique_dim", "unique_consecutive"}

# An operation and its arguments without values -> whether it returns several tensors, and what these are like.
_SHAPES: dict[Any, tuple[bool, list[tuple[torch.Size, tuple[int, ...], torch.dtype]]]] = {}


@dataclass(frozen=True)
class Wait:
    """Why the CPU would wait for the GPU, and the function that made it."""

    why: str
    place: str  # module:function


@dataclass
class Cost:
    """The cost of a phase: operations with kernels, and the bytes that they read and write."""

    launches: int = 0
    bytes: int = 0


@dataclass
class Record:
    """The record of what happened on the fake device."""

    waits: Counter[Wait] = field(default_factory=Counter)
    costs: dict[str, Cost] = field(default_factory=dict)

    def unexpected(self, allowed: Collection[str]) -> dict[Wait, int]:
        """Waits of functions that are not allowed to."""
        return {wait: count for wait, count in self.waits.items() if wait.place not in allowed}


class FakeCuda(TorchDispatchMode):
    """Run operations on `cuda` without values, and record what would launch kernels or wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record, self._fake = Record(), FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        self._pinned: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._phases = ["other"]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what runs in this block under this name."""
        self._phases.append(name)
        try:
            yield
        finally:
            self._phases.pop()

    def reset(self) -> None:
        """Forget what was recorded."""
        self.record = Record()

    def wait(self, why: str) -> None:
        """Record that the CPU waits."""
        self.record.waits[Wait(why, _place())] += 1

    def launch(self, read: Iterable[Any], written: Iterable[Any]) -> None:
        """Record a kernel by the tensors that it reads and writes."""
        cost = self.record.costs.setdefault(self._phases[-1], Cost())
        cost.launches += 1
        cost.bytes += sum(each.numel() * each.itemsize for part in (read, written) for each in part)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation: of the CPU on real tensors, of CUDA on fake ones."""
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # asked by torch itself, hundreds of times a step
            return args[0].fake_device
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        device = torch.device(kwargs.get("device") or CPU)
        if device.type == "cpu" and not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return self._on_cpu(func, args, kwargs)
        if (answer := self._waited(func, args, kwargs)) is not None:
            return answer
        if func in INDEXED and not _fills(args):
            args = (args[0], [self._index(index, args[0]) for index in args[1]], *args[2:])
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if _in_place(func):  # faster than with shapes, which the CPU's tests see, and a fused SGD has no shapes
            mixed = [tensor for tensor in tensors if tensor.device.type != "cuda" and tensor.ndim]
            assert not mixed or func is aten.copy_.default, (
                f"{_place()} calls {func} with tensors of the CPU and of CUDA"
            )
            written, returns = _written(func, args, kwargs), len(func._schema.returns)
            result = None if not returns else written[0] if returns == 1 else tuple(written)
        else:
            result = self._without_values(func, args, kwargs)
        if not (func.is_view or _name(func) in NO_KERNEL):
            self._count(func, args, kwargs, tensors, result)
        return result

    def _without_values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation on fake tensors. torch finds the shapes once, as that takes most of a step's time.

        Only of results that are new tensors of the device, whose shapes follow from those of the arguments.
        """
        like = None if _aliases(func) else (func, _described(args), _described(kwargs))
        if like in _SHAPES:
            several, shapes = _SHAPES[like]
            made = [
                FakeTensor(self._fake, torch.empty_strided(shape, stride, dtype=dtype, device="meta"), CUDA)
                for shape, stride, dtype in shapes
            ]
            return tuple(made) if several else made[0]
        with self._fake:
            result = func(*args, **kwargs)
        parts = result if isinstance(result, tuple) else (result,)
        if like is not None and all(isinstance(part, FakeTensor) and part.fake_device == CUDA for part in parts):
            _SHAPES[like] = isinstance(result, tuple), [(part.shape, part.stride(), part.dtype) for part in parts]
        return result

    def _waited(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation for which the CPU may wait; None if it is not one."""
        if func is aten._local_scalar_dense.default:
            self.wait("a value is read")
            return torch.ones((), dtype=args[0].dtype).item()
        if func in (aten._to_copy.default, aten.copy_.default):
            return self._copy(func, args, kwargs)
        name = _name(func)
        if name == "equal":
            self.wait("values are compared")
            return True
        if name in SIZED_BY_VALUES:
            self.wait(f"the shape of {name} depends on values")
            return self._sized(name, *args, **kwargs)
        return None

    def _count(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], result: Any) -> None:
        read = {id(tensor): tensor for tensor in tensors if isinstance(tensor, FakeTensor)}
        written = [tensor for tensor in tree_leaves(result) if isinstance(tensor, Tensor) and id(tensor) not in read]
        written += [tensor for tensor in tree_leaves(_written(func, args, kwargs)) if isinstance(tensor, FakeTensor)]
        self.launch(read.values(), written)

    def _on_cpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Real operations. Page-locked memory needs a GPU, so it is only noted."""
        if func is aten.is_pinned.default:
            return args[0].untyped_storage() in self._pinned
        if func in (aten.uniform_.default, aten.normal_.default) and args[0].numel() > LARGE:
            return args[0].zero_()  # drawing takes long; torch's trunc_normal_ draws until all values are within bounds
        pinned = func is aten._pin_memory.default or kwargs.get("pin_memory") is True
        if func is aten._pin_memory.default:
            func, args, kwargs = aten.clone.default, args[:1], {}
        result = func(*args, **{name: value for name, value in kwargs.items() if name != "pin_memory"})
        if pinned:
            self._pinned.add(result.untyped_storage())
        return result

    def _copy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """A copy between devices; None if it is not one."""
        source = args[0] if func is aten._to_copy.default else args[1]
        target: Tensor | None = None if func is aten._to_copy.default else args[0]
        at_once = kwargs.get("non_blocking", args[2] if target is not None and len(args) > 2 else False)
        device = target.device if target is not None else torch.device(kwargs.get("device") or source.device)
        if source.device.type == device.type:
            return None
        if device.type == "cuda":
            if not isinstance(source, FakeTensor) and not (source.ndim == 0 and target is not None):
                if source.untyped_storage() not in self._pinned:
                    self.wait("a copy from pageable memory")
                elif not at_once:
                    self.wait("a copy to the device that blocks")
            return None
        pinned = target is None or target.untyped_storage() in self._pinned  # torch pins what such a copy makes
        if not (at_once and pinned):
            self.wait("a copy to the CPU")
        self.launch([source], [source])
        if target is not None:
            return target.fill_(1)
        copy = torch.ones(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        self._pinned.add(copy.untyped_storage())
        return copy

    def _sized(self, name: str, values: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The result of an operation whose shape depends on values: as if all were true, or all different."""
        with self._fake:
            if name == "nonzero":
                return torch.zeros(values.numel(), values.ndim, dtype=torch.int64, device=values.device)
            if name == "nms":
                return torch.zeros(len(values), dtype=torch.int64, device=values.device)
            if name == "masked_select":
                return torch.zeros(values.numel(), dtype=values.dtype, device=values.device)
            if name == "bincount":
                least = kwargs.get("minlength", args[1] if len(args) > 1 else 0)
                return torch.zeros(max(1, least), dtype=torch.int64, device=values.device)
        raise AssertionError(f"{_place()} calls {name}, whose shape depends on values")

    def _index(self, index: Tensor | None, indexed: Tensor) -> Tensor | None:
        """An index as the device would need it: no value decides the result's shape, and all is on the device."""
        if index is None:
            return None
        if index.device.type != indexed.device.type:
            self.wait("an index is on the CPU")
            with self._fake:
                index = torch.zeros(index.shape, dtype=index.dtype, device=indexed.device)
        if index.dtype in (torch.bool, torch.uint8):
            self.wait("an index is a mask")
            with self._fake:  # as if all were chosen
                return torch.zeros(index.numel(), dtype=torch.int64, device=index.device)
        return index


def _fills(args: Sequence[Any]) -> bool:
    """Whether `x[mask] = number` becomes a masked fill inside its kernel, which knows no shape of the values."""
    masks = [index for index in args[1] if index is not None]
    number = args[2] if len(args) > 2 else None
    return (
        isinstance(number, Tensor)
        and number.numel() == 1
        and number.device.type == "cpu"
        and len(masks) == 1
        and masks[0].dtype == torch.bool
        and masks[0].device.type == "cuda"
    )


@functools.cache
def _aliases(func: Any) -> bool:
    """Whether what an operation returns may share memory with what it was given, or what it was given changes."""
    schema = func._schema
    return any(each.alias_info is not None for each in (*schema.arguments, *schema.returns))


def _described(value: Any) -> Any:
    """All of an argument that decides the shapes of results, to be compared."""
    if isinstance(value, Tensor):
        device = value.fake_device if isinstance(value, FakeTensor) else value.device
        return value.shape, value.stride(), value.dtype, device
    if isinstance(value, list | tuple):
        return tuple(map(_described, value))
    if isinstance(value, dict):
        return tuple((name, _described(each)) for name, each in sorted(value.items()))
    return type(value), value  # 1, 1.0 and True are equal


@functools.cache
def _in_place(func: Any) -> bool:
    """Whether an operation returns nothing but what it was given to overwrite."""
    schema = func._schema
    overwrites = any(argument.is_write for argument in schema.arguments)
    returned = all(value.alias_info is not None and value.alias_info.is_write for value in schema.returns)
    return overwrites and returned and torch.Tag.inplace_view not in func.tags


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operation overwrites."""
    arguments = enumerate(func._schema.arguments)
    given = [args[at] if at < len(args) else kwargs.get(each.name) for at, each in arguments if each.is_write]
    return [value for value in given if value is not None]


def _name(func: Any) -> str:
    """An operation's name, without its overload."""
    name: str = func._schema.name
    return name.split("::")[1]


def _place() -> str:
    """The innermost function outside of this file and of torch's machinery, as module:function."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module != __name__ and NAMED.match(module):
            return f"{module}:{frame.f_code.co_qualname}"
        frame = frame.f_back
    return "unknown"


def _apply(module: torch.nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> torch.nn.Module:
    """torch's `Module._apply` without what it does to keep a parameter's identity, which fake tensors refuse."""
    for each in module.modules() if recurse else [module]:
        for name, parameter in each._parameters.items():
            if parameter is not None:
                with torch.no_grad():
                    each._parameters[name] = torch.nn.Parameter(change(parameter), parameter.requires_grad)
        for name, buffer in each._buffers.items():
            if buffer is not None:
                each._buffers[name] = change(buffer)
    return module


class _Stream:
    """A stream or an event; only an event's wait is one of the CPU."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = CUDA

    def record_event(self, *_: Any) -> "_Stream":
        return self

    def nothing(self, *_: Any) -> None:
        pass

    record = wait_event = wait_stream = wait = nothing

    def query(self) -> bool:
        return True


class _Kernel:
    """Stands for a Triton kernel: its tensors are allocated before it runs."""

    def __init__(self, mode: FakeCuda) -> None:
        self._mode = mode

    def __getitem__(self, _grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*args: Any, **_: Any) -> None:
            self._mode.launch([each for each in args if isinstance(each, FakeTensor)], [])

        return run


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Have torch believe in one GPU, whose tensors have no values."""
    mode = FakeCuda()
    events = type("Event", (_Stream,), {"synchronize": lambda _self: mode.wait("an event")})
    streams = type("Stream", (_Stream,), {"synchronize": lambda _self: mode.wait("a stream")})
    stream = streams()
    state = torch.zeros(16, dtype=torch.uint8)
    replaced: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "is_bf16_supported": lambda including_emulation=True: True,
            "get_device_capability": lambda _device=None: (PROPERTIES.major, PROPERTIES.minor),
            "get_device_properties": lambda _device=None: PROPERTIES,
            "get_device_name": lambda _device=None: PROPERTIES.name,
            "mem_get_info": lambda _device=None: (PROPERTIES.total_memory, PROPERTIES.total_memory),
            "max_memory_allocated": lambda _device=None: 0,
            "reset_peak_memory_stats": lambda _device=None: None,
            "empty_cache": lambda: None,
            "synchronize": lambda _device=None: mode.wait("the device"),
            "is_current_stream_capturing": lambda: False,
            "manual_seed": lambda _seed: None,
            "manual_seed_all": lambda _seed: None,
            "get_rng_state": lambda _device=None: state,
            "set_rng_state": lambda _state, _device=None: None,
            "set_device": lambda _device: None,
            "device": lambda _device: nullcontext(),
            "Stream": streams,
            "Event": events,
            "stream": lambda _stream: nullcontext(),
            "current_stream": lambda _device=None: stream,
        },
        Tensor: {"record_stream": lambda _self, _stream: None},
        torch.accelerator: {"is_available": lambda: True},
        torch.nn.Module: {"_apply": _apply},
        FakeTensorMode: {"avoid_device_init": True},  # else it would believe in the GPU, too
    }
    with ExitStack() as stack:
        for owner, names in replaced.items():
            for name, value in names.items():
                stack.enter_context(mock.patch.object(owner, name, value))
        from excb.objective import triton_kernels
        from excb.pretrain.data import augmentation_kernels

        for module in (triton_kernels, augmentation_kernels):
            for name in kernels_of(module):
                stack.enter_context(mock.patch.object(module, name, _Kernel(mode)))
        torch._C._ensureCUDADeviceGuardSet()
        lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(..., device="cuda")` is then a copy that we see
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifted)
        stack.enter_context(_no_primary_context())
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # there is no thread of a device
        stack.enter_context(mode)
        yield mode


def obstacle() -> str:
    """Why CUDA cannot be faked here; empty where it can."""
    if torch.cuda.is_available():
        return "there is a real CUDA device"
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return "the hooks' table is known on Linux on x86-64 and ARM64 only"
    return "" if _entry() is not None else "torch's headers or its library do not show the hooks' table"


@functools.cache
def _entry() -> int | None:
    """The place of `hasPrimaryContext` in the table of CUDA's hooks, by the order of declarations in torch's header."""
    header = Path(torch.__file__).parent / "include/ATen/detail/AcceleratorHooksInterface.h"
    if not header.is_file():
        return None
    names = re.findall(r"^  virtual [^;{]*?(~?\w+)\(", header.read_text(), re.MULTILINE)
    if names[:1] != ["~AcceleratorHooksInterface"] or "hasPrimaryContext" not in names:
        return None
    return names.index("hasPrimaryContext") + 1  # a virtual destructor has two entries


@contextmanager
def _no_primary_context() -> Iterator[None]:
    """Answer autograd's question whether the device is in use with no; torch itself raises where there is no GPU.

    autograd asks C++ for it, through an object whose first word leads to a table of functions. For this block it leads
    to a copy of the table with one entry replaced.
    """
    entry = _entry()
    assert entry is not None
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
    get_hooks = library._ZN2at6detail12getCUDAHooksEv
    get_hooks.restype = ctypes.c_void_p
    word = ctypes.sizeof(ctypes.c_void_p)
    first = ctypes.cast(get_hooks(), ctypes.POINTER(ctypes.c_void_p))
    usual, before, after = first[0], 2, 64  # what precedes the first function says which class this is
    assert usual is not None
    table = (ctypes.c_void_p * (before + after))()
    ctypes.memmove(table, usual - before * word, len(table) * word)
    answer = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int8)(lambda _hooks, _device: False)
    table[before + entry] = ctypes.cast(answer, ctypes.c_void_p).value
    first[0] = ctypes.addressof(table) + before * word
    try:
        yield
    finally:
        first[0] = usual
