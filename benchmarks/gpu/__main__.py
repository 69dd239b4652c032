"""`python -m benchmarks.gpu --out DIR`: run what waits for a GPU, part by part, into `DIR/gpu.json` and `DIR/table.md`.

On a machine with a GPU, from the clone's root: python -m benchmarks.gpu --out DIR [--minutes 9] [--data IMAGES]
To try it without one: python -m benchmarks.gpu --out DIR --device cpu --tiny

The same command continues until nothing is left: finished parts are not repeated. Each part is a process of its own.
One that fails is recorded with the end of its log, and the others still run; `--again NAME` runs it once more. The
network is not used.

Exit code: 0 when all is done, 1 when nothing is left but a part failed, 3 when parts are left for another call.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.calls import Call, run_call
from benchmarks.gpu.parts import PARTS, Part, Places
from benchmarks.gpu.record import FAILED
from excb.cli import Parser, local_path
from excb.errors import nearest_name, require, run_program

PROGRAM = "python -m benchmarks.gpu"


def main(argv: Sequence[str] | None = None, parts: Sequence[Part] = PARTS) -> int:
    """Run the command and return its exit code."""
    return run_program(PROGRAM, lambda: _main(sys.argv[1:] if argv is None else argv, parts))


def _main(argv: Sequence[str], parts: Sequence[Part]) -> int:
    parser = Parser(PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=local_path, required=True, metavar="DIR", help="figures, logs and images; the same in every call")
    add("--minutes", type=float, default=9.0, help="how long this call may take (default: 9)")
    add("--data", type=Path, metavar="DIR", help="images in a sub-folder for each class (default: made on the spot)")
    add("--only", nargs="+", default=[], metavar="NAME", help="run these parts, and leave the others for later calls")
    add("--again", nargs="+", default=[], metavar="NAME", help="parts to run once more; `failed` is all that failed")
    add("--commit", default="", help="of the code, where git does not know it")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    add("--tiny", action="store_true", help="tiny sizes, to try the command; its figures mean nothing")
    add("--patience", type=float, default=3.0, help="a part is ended after so many times its guessed time (default: 3)")
    options = parser.parse_args(argv)
    require(options.minutes > 0 and options.patience > 0, "--minutes and --patience must be above 0")
    require(options.device == "cuda" or options.tiny, "--device cpu is for trying the command: add --tiny")
    _check_data(options.data)
    names = [part.name for part in parts]
    for name in (*options.only, *options.again):
        known = f"the parts are {', '.join(names)}"
        right = name in names or (name == FAILED and name in options.again)
        require(right, f"no part is called {name!r}{nearest_name(name, names)}; {known}")
    places = Places(options.out.absolute(), options.data and options.data.absolute(), options.device)
    call = Call(
        parts,
        places,
        tiny=options.tiny,
        minutes=options.minutes,
        patience=options.patience,
        again=frozenset(options.again),
        only=frozenset(options.only),
        commit=options.commit,
    )
    return run_call(call, f"{PROGRAM} {shlex.join(_repeated(argv))}")


def _check_data(data: Path | None) -> None:
    """Refuse images that not all parts can read."""
    if data is not None:
        require(
            any(data.glob("*/*")), f"{data} must hold a sub-folder of images for each class, as ImageNet's train/ does"
        )


def _repeated(argv: Sequence[str]) -> list[str]:
    """The words to call again with: all but `--again`, `--only` and their names."""
    words, dropping = [], False
    for word in argv:
        dropping = word in ("--again", "--only") or (dropping and not word.startswith("-"))
        if not dropping:
            words.append(word)
    return words


if __name__ == "__main__":
    sys.exit(main())
