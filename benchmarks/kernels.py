"""Compile our Triton kernels for GPUs that need not be here: registers, spills, shared memory, instruction.

Run: python -m benchmarks.kernels [--architecture 80 90 100 120] [--type bf16 fp32] [--all] [--json FILE]

Kernels are compiled as they are launched for `rn50_400ep` (K = 65,536, D = 256, two global views of 128 images), by
Triton and the ptxas that comes with it; nothing runs. The loss's are compiled for each type of rows, the augmentation's
for the global views (u8). `--all` adds those of the authors' extra terms (a gain on the winner, a clamp).
Exit code 1: a kernel spills registers, exceeds its GPU's shared memory, or is one of the loss and multiplies without
the matrix instruction that its GPU has.
"""

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from excb.errors import UserError, run_program
from excb.files.atomic import write_text
from excb.objective import triton as objective_triton
from excb.objective.scores import CentroidGradient, Scores
from excb.pretrain.data.augmentation import PARAMETERS
from excb.pretrain.data.fused_augmentation import augment_fused

ROWS, CLUSTERS, WIDTH = 256, 65_536, 256
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Architecture:
    """A GPU as far as kernels depend on it."""

    shared: int  # bytes of shared memory that a program can have
    instructions: dict[str, str]  # that multiply matrices, by type


# In float32 the kernels for 9.0 use mma: of TF32, wgmma takes factors in one layout only, and spills.
ARCHITECTURES = {
    80: Architecture(166_912, {"bf16": "mma", "fp32": "mma"}),
    90: Architecture(232_448, {"bf16": "wgmma", "fp32": "mma"}),
    100: Architecture(232_448, {"bf16": "tcgen05", "fp32": "tcgen05"}),
    120: Architecture(101_376, {"bf16": "mma", "fp32": "mma"}),
}
_INSTRUCTIONS = {
    "tcgen05": r"tcgen05\.mma\.\S*kind::(f16|tf32)",
    "wgmma": r"wgmma\.mma_async\.\S*(bf16|tf32)",
    "mma": r"(?<!g)mma\.sync\.\S*(bf16|tf32)",
}
_TRITON_TYPES = {
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
}
_NO_PRODUCTS = ("merge", "colour_kernel", "finish_kernel")  # kernels that multiply no matrices


@dataclass(frozen=True)
class Compiled:
    """The resources that a compiled kernel needs."""

    kernel: str
    architecture: int
    type: str
    registers: int  # of a thread
    spills: int  # bytes that a thread stores to and loads from memory for want of registers
    shared: int  # bytes of a program
    instruction: str  # that multiplies matrices; empty where there is none

    def fault(self) -> str:
        """The fault of a kernel in words; empty where there is none."""
        gpu = ARCHITECTURES[self.architecture]
        expected = "" if self.kernel.startswith(_NO_PRODUCTS) else gpu.instructions[self.type]
        if self.spills:
            return f"spills {self.spills} bytes"
        if self.shared > gpu.shared:
            return f"needs {self.shared} bytes of shared memory, and there are {gpu.shared}"
        return "" if self.instruction == expected else f"uses {self.instruction or 'no matrix instruction'}"


def compile_kernels(architecture: int, type_: str, *, extras: bool = False) -> Iterator[Compiled]:
    """Compile every kernel for an architecture and a type of rows, as a training step launches it.

    Args:
        architecture: a key of `ARCHITECTURES`.
        type_: a key of `TYPES`.
        extras: compile the kernels of the authors' extra terms instead of the equations'.
    """
    from excb.objective import triton_kernels

    tiles = objective_triton.TILES[divmod(architecture, 10), TYPES[type_]]
    for name, launch in _launches(TYPES[type_], extras=extras).items():
        with (
            mock.patch.object(objective_triton, "_tiles", return_value=tiles),
            _recorded(triton_kernels, architecture) as compiled,
        ):
            launch()
        for kernel, resources in compiled.items():
            called = f"merge, {name}" if kernel == "merge" else name
            yield dataclasses.replace(resources, kernel=called, type=type_)


def compile_augmentation(architecture: int) -> Iterator[Compiled]:
    """Compile the kernels of the augmentation for an architecture, as a training step launches them."""
    from excb.pretrain.data import augmentation_kernels
    from excb.pretrain.recipes import RECIPES

    views = RECIPES["rn50_400ep"]().views
    crops = torch.empty(ROWS, views.global_size, views.global_size, 3, dtype=torch.uint8, device="meta")
    with _recorded(augmentation_kernels, architecture) as compiled:
        augment_fused(crops, torch.zeros(ROWS, PARAMETERS), views)
    for resources in compiled.values():
        yield dataclasses.replace(resources, type="u8")


@contextlib.contextmanager
def _recorded(module: ModuleType, architecture: int) -> Iterator[dict[str, Compiled]]:
    """The compiled kernels of a module, filled as they are launched in this block."""
    compiled: dict[str, Compiled] = {}
    with contextlib.ExitStack() as stack:
        for name, kernel in kernels_of(module).items():
            stack.enter_context(mock.patch.object(module, name, _Recorder(kernel, architecture, compiled)))
        yield compiled


def kernels_of(module: ModuleType) -> dict[str, Any]:
    """The kernels that a module defines, by name; those with an underscore are parts of others."""
    from triton import KernelInterface

    kernels = {name: value for name, value in vars(module).items() if isinstance(value, KernelInterface)}
    return {name: kernel for name, kernel in kernels.items() if not name.startswith("_")}


def _launches(dtype: torch.dtype, *, extras: bool) -> dict[str, Callable[[], Any]]:
    """Functions that launch the kernels, by name, on tensors without values."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    rows, centroids, values = (empty(n, WIDTH, dtype=dtype) for n in (ROWS, CLUSTERS, CLUSTERS))
    student = Scores(rows, centroids, 0.1)
    balanced = Scores(rows, centroids, 0.04, balance=(empty(CLUSTERS), empty(CLUSTERS)))
    replaced = empty(ROWS, dtype=torch.int64), empty(ROWS)
    teacher = dataclasses.replace(balanced, bounds=(-2.0, 0.0), replaced=replaced) if extras else balanced
    of_student = CentroidGradient(student, empty(ROWS), empty(ROWS), rows)
    of_teacher = CentroidGradient(teacher, empty(ROWS), empty(ROWS), empty(ROWS, WIDTH))
    of_all: dict[str, Callable[[], Any]] = {
        "teacher": lambda: objective_triton.average(teacher, values, winners=True),
        "gradient": lambda: objective_triton.centroid_gradient(of_student, of_teacher),
    }
    if extras:
        extra = {f"{name}, extra terms": launch for name, launch in of_all.items()}
        return {"winners": lambda: objective_triton.average(balanced, None, winners=True), **extra}
    return {"student": lambda: objective_triton.average(student, centroids, winners=False), **of_all}


@dataclass(frozen=True)
class _Recorder:
    """A Triton kernel that is compiled when it is launched, and not run."""

    kernel: Any
    architecture: int
    compiled: dict[str, Compiled]

    def __getitem__(self, _grid: tuple[int, ...]) -> Callable[..., None]:
        return self.compile

    def compile(self, *arguments: Any, **named: Any) -> None:
        """Compile for these arguments as Triton would: with what is None or named as a constant built in."""
        import triton
        from triton import knobs
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        parameters = self.kernel.params
        given = dict(zip(self.kernel.arg_names, arguments, strict=False))
        given |= {name: named.pop(name) for name in self.kernel.arg_names if name in named}
        signature, constants, aligned = {}, {}, {}
        for number, parameter in enumerate(parameters):
            value = given[parameter.name]
            if parameter.is_constexpr or value is None:
                signature[parameter.name], constants[number,] = "constexpr", value
                continue
            signature[parameter.name] = _type_of(value)
            if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
                aligned[number,] = [["tt.divisibility", 16]]
        source = ASTSource(fn=self.kernel, signature=signature, constexprs=constants, attrs=aligned)
        output = io.StringIO()
        with tempfile.TemporaryDirectory() as cache, knobs.cache.scope(), knobs.nvidia.scope():
            knobs.cache.dir, knobs.nvidia.dump_ptxas_log = cache, True  # nothing is there yet, so ptxas runs
            with contextlib.redirect_stdout(output):
                result = triton.compile(source, target=GPUTarget("cuda", self.architecture, 32), options=named)
        registers = re.search(r"Used (\d+) registers", output.getvalue())
        if registers is None:
            raise UserError(f"ptxas reported no registers: {output.getvalue().strip()[:300]!r}")
        self.compiled[self.kernel.__name__] = Compiled(
            self.kernel.__name__,
            self.architecture,
            "",
            int(registers[1]),
            sum(map(int, re.findall(r"(\d+) bytes spill", output.getvalue()))),
            result.metadata.shared,
            next((name for name, pattern in _INSTRUCTIONS.items() if re.search(pattern, result.asm["ptx"])), ""),
        )


def _type_of(value: Any) -> str:
    """The type of a kernel's argument, as Triton writes it."""
    if not isinstance(value, Tensor):
        return "fp32" if isinstance(value, float) else "i32"
    return f"*{_TRITON_TYPES[value.dtype]}"


def main() -> int:
    """Print the table, and write it as JSON where asked to."""
    parser = argparse.ArgumentParser(description="compile our kernels for GPUs that need not be here")
    parser.add_argument("--architecture", type=int, nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    parser.add_argument("--type", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--all", action="store_true", help="also the kernels of the authors' extra terms")
    parser.add_argument("--json", type=Path, help="also write the table here")
    options = parser.parse_args()
    try:
        import triton
    except ImportError:
        raise UserError("Triton is not installed: pip install triton (it comes with torch for CUDA)") from None

    print(f"Triton {triton.__version__}, compiled, not run on a GPU\n")
    print("| sm | type | kernel | registers | spills | shared memory | of | instruction |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    table, faults = [], []
    for architecture in options.architecture:
        of_the_loss = (
            compile_kernels(architecture, type_, extras=extras)
            for type_ in options.type
            for extras in (False, True)[: 1 + options.all]
        )
        for each in itertools.chain(*of_the_loss, compile_augmentation(architecture)):
            cells = [architecture, each.type, each.kernel, each.registers, each.spills, f"{each.shared:,}"]
            cells += [f"{ARCHITECTURES[architecture].shared:,}", each.instruction or "–"]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            table.append(dataclasses.asdict(each))
            if fault := each.fault():
                faults.append(f"sm_{architecture} {each.type} {each.kernel}: {fault}")
    if options.json:
        write_text(json.dumps({"triton": triton.__version__, "kernels": table}, indent=2) + "\n", options.json)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(run_program("kernels", main))
