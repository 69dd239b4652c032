"""`python -m excb`: the three programs by one name, such as `python -m excb eval knn ...`; `--report` for bugs."""

import json
import sys
from collections.abc import Sequence
from importlib import import_module

from excb.errors import USER_ERROR, nearest_name

# The word, the program and its `main`, which is resolved on use: a facade, as excb/__init__.py.
PROGRAMS = {
    "pretrain": ("excb-pretrain", "excb.pretrain.__main__", "pretrain on images without labels"),
    "eval": ("excb-eval", "excb.transfer.cli", "evaluate a checkpoint on downstream tasks"),
    "zoo": ("excb-zoo", "excb.zoo.__main__", "list, fetch, import, check, export and publish checkpoints"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the programs, or say which there are; return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] in ("-h", "--help"):
        print("Self-supervised image encoders: pretrain, evaluate, share.\n")
        for word, (program, _, text) in PROGRAMS.items():
            print(f"  python -m excb {word:<8}  or {program:<13}  {text}")
        print("\n  python -m excb --report   versions and hardware, for a bug report (--json: as JSON)")
        print('\nIn Python: `import excb; excb.load("conv4_photos")`.')
        return 0
    if words in (["--report"], ["--report", "--json"], ["--json", "--report"]):
        facts = import_module("excb.report").environment_report()
        print(json.dumps(facts, indent=2) if "--json" in words else "\n".join(f"{k}: {v}" for k, v in facts.items()))
        return 0
    if words[0] not in PROGRAMS:
        close = nearest_name(words[0], PROGRAMS)
        print(f"excb: error: no program is called {words[0]!r}{close} (see `python -m excb`)", file=sys.stderr)
        return USER_ERROR
    code: int = import_module(PROGRAMS[words[0]][1]).main(words[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
