"""`python -m excb.transfer`: the same as `excb-eval`."""

import sys

from .cli import main

sys.exit(main())
