"""Where the values of recipes are from: `provenance.toml`, by field. Importing it needs no torch."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("provenance.toml")


@dataclass(frozen=True)
class Provenance:
    """The places that a field's value is from; see the head of `provenance.toml`."""

    paper: str = ""
    quote: str = ""
    code: str = ""
    vit: str = ""

    def where(self, source: str) -> str:
        """The place of a value.

        Args:
            source: of the value: "paper", "authors' code", "vit" for what a recipe of a ViT has instead of the default,
                or any other, of which no place is known here.
        """
        code = f"authors' code: {self.code}" if self.code else ""
        return {"paper": self.paper, "authors' code": code, "vit": self.vit}.get(source, "")


@cache
def provenance() -> dict[str, Provenance]:
    """The provenance of each field that the paper or the authors' code has, as "section.field"."""
    sections = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {
        f"{section}.{name}": Provenance(**places)
        for section, fields in sections.items()
        for name, places in fields.items()
    }
