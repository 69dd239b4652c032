"""`excb-zoo`: list, fetch, import, check, export and publish checkpoints; the commands are in `commands/`."""

import sys
from collections.abc import Sequence

from excb.cli import Parser, command_parser, complete
from excb.errors import run_program

from .commands.card import CARD
from .commands.export import EXPORT
from .commands.import_file import IMPORT
from .commands.list import LIST
from .commands.package import PACKAGE
from .commands.pull import PULL
from .commands.push import PUSH
from .commands.show import SHOW
from .commands.verify import VERIFY

COMMANDS = (LIST, SHOW, PULL, IMPORT, VERIFY, EXPORT, CARD, PACKAGE, PUSH)
DESCRIPTION = """\
Checkpoints by name: ours, yours, and those of other authors.

  excb-zoo list                                         every name, what it is, what it scored
  excb-zoo pull rn50_400ep                              fetch, verify and convert now; excb.load does it on first use
  excb-zoo import FILE --name mine                      any known layout, recognised; then excb.load("mine")
  excb-zoo verify mine                                  hashes, coverage, and the load self-test
  excb-zoo export runs/rn18_small --out DIR             for excb, timm, torchvision, Detectron2 or ONNX
  excb-zoo push runs/rn18_small --repo you/name --licence apache-2.0   publish on the Hugging Face Hub"""


def program() -> Parser:
    """The parser of the whole command line."""
    return command_parser("excb-zoo", DESCRIPTION, COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `excb-zoo` and return its exit code."""
    return run_program("excb-zoo", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = program()
    complete(parser)
    options = parser.parse_args(argv)
    exit_code: int = options.command.run(options)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
