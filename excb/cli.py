"""What the three command lines share: one-line errors, and the clean hand-over to `excb.errors.run`."""

import argparse
from typing import NoReturn

from excb.errors import UserError


class Parser(argparse.ArgumentParser):
    """argparse whose errors are `UserError`s: one line that ends in where to find help."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError instead of printing the whole usage."""
        raise UserError(f"{message} (see `{self.prog} --help`)")
