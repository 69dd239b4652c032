"""Import torchvision without torch's compiler: its RoIAlign imports it for one function, more than half of the time."""

import builtins
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

_IMPORTER = "torchvision.ops.roi_align"  # 0.29: "from torch._dynamo.utils import is_compile_supported"
_COMPILER = "torch._dynamo.utils"
_FUNCTION = "is_compile_supported"


def defer_compiler() -> None:
    """Let torchvision load torch's compiler on first use. For programs of their own, not for a library's user.

    torchvision keeps `torch._dynamo` out of its import elsewhere ("lazy_compile" in the same file). Nothing changes if
    the module is loaded already, or if it asks for anything else.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds the one module, and nothing else."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module as Python finds it, run with an `import` of its own."""
        if fullname != _IMPORTER or "torch._dynamo" in sys.modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Runs the module with an `import` that gives it a stand-in for the compiler's function."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module. Only its own `import` differs: a stand-in in sys.modules would be every thread's."""
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


def _import(name: str, global_names: Any = None, local_names: Any = None, wanted: Any = (), level: int = 0) -> Any:
    if name == _COMPILER and wanted == (_FUNCTION,):
        stand_in = ModuleType(_COMPILER)
        setattr(stand_in, _FUNCTION, _is_compile_supported)
        return stand_in
    return __import__(name, global_names, local_names, wanted, level)


def _is_compile_supported(device_type: Any) -> Any:
    from torch._dynamo.utils import is_compile_supported

    return is_compile_supported(device_type)
