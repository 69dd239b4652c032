"""Start programs that compile nothing without torch's compiler, whose import takes more than a second.

torchvision's RoIAlign imports it for one function; torch at an optimizer's first step and timm for a network that few
use, to hide functions from a compiler that is not there.
"""

import builtins
import functools
import inspect
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_FUNCTION = "is_compile_supported"
# Who imports it: torchvision 0.29 by "from torch._dynamo.utils import is_compile_supported" when it is loaded, torch
# 2.14 by "import torch._dynamo" inside functions.
_IMPORTERS = frozenset(("torchvision.ops.roi_align", "torch._compile", "torch.compiler", "torch.optim.optimizer"))


def defer_compiler() -> None:
    """Let torch, torchvision and timm load torch's compiler on first use. For programs, not for a library's user.

    torchvision keeps `torch._dynamo` out of its import elsewhere ("lazy_compile" in the same file). Nothing changes in
    modules that are loaded already, once the compiler is loaded, or where anything else is asked of it.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds those modules, and nothing else."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module as Python finds it, run with an `import` of its own."""
        if fullname not in _IMPORTERS or _COMPILER in sys.modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Runs the module with an `import` that gives it stand-ins for the compiler."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module. Only its own `import` differs: a stand-in in sys.modules would be every thread's."""
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


def _import(name: str, global_names: Any = None, local_names: Any = None, wanted: Any = (), level: int = 0) -> Any:
    if _COMPILER not in sys.modules:
        if name == f"{_COMPILER}.utils" and wanted == (_FUNCTION,):
            stand_in = ModuleType(name)
            setattr(stand_in, _FUNCTION, _is_compile_supported)
            return stand_in
        if name == _COMPILER and not wanted:
            return _Torch()
    return __import__(name, global_names, local_names, wanted, level)


def _is_compile_supported(device_type: Any) -> Any:
    from torch._dynamo.utils import is_compile_supported

    return is_compile_supported(device_type)


class _Torch:
    """Torch, with a stand-in for the compiler: the value of `import torch._dynamo` in a function."""

    def __getattr__(self, name: str) -> Any:
        return _Compiler() if name == "_dynamo" else getattr(sys.modules["torch"], name)


class _Compiler:
    """Does what the compiler does while nothing is compiled; anything else is asked of the compiler itself."""

    def __getattr__(self, name: str) -> Any:
        import torch._dynamo

        return getattr(torch._dynamo, name)

    def graph_break(self) -> None:
        """There is no graph."""

    def disable(self, function: Any = None, *args: Any, **named: Any) -> Any:
        """The function, or what decorates one, hidden from the compiler once that is loaded; torch keeps the result."""
        if function is None:
            return lambda decorated: self.disable(decorated, *args, **named)
        if not inspect.isroutine(function):  # of a class or a network it makes something of its own
            import torch._dynamo

            return torch._dynamo.disable(function, *args, **named)
        disabled: list[Callable[..., Any]] = []

        @functools.wraps(function)
        def call(*values: Any, **more: Any) -> Any:
            if _COMPILER not in sys.modules:
                return function(*values, **more)
            if not disabled:
                import torch._dynamo

                disabled.append(torch._dynamo.disable(function, *args, **named))
            return disabled[0](*values, **more)

        return call
