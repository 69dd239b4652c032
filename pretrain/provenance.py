"""Where the values of recipes are from: `provenance.toml`, by field. Importing it needs no torch."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from excb.files import toml

FILE = Path(__file__).with_name("provenance.toml")


OF_RECIPES = "recipes"  # the section of whole recipes
OURS = "ours"  # begins the source of a value that is neither the paper's nor the authors' nor another method's


@dataclass(frozen=True)
class Provenance:
    """The places that a field's value, or those of a recipe, are from; see the head of `provenance.toml`."""

    paper: str = ""
    quote: str = ""
    code: str = ""
    vit: str = ""
    study: str = ""
    unmeasured: str = ""

    def where(self, source: str) -> str:
        """The place of a value.

        Args:
            source: of the value: "paper", "authors' code", "vit" for what a recipe of a ViT has instead of the default,
                "ours" with anything behind it, or any other, of which no place is known here.
        """
        if source.startswith(OURS):
            return f"docs/{self.study}" if self.study else f"not measured: {self.unmeasured}" if self.unmeasured else ""
        code = f"authors' code: {self.code}" if self.code else ""
        return {"paper": self.paper, "authors' code": code, "vit": self.vit}.get(source, "")


@cache
def provenance() -> dict[str, Provenance]:
    """The provenance of each field of which a place is known, as "section.field"; and of recipes, as "recipes.NAME"."""
    sections = toml.read_toml(FILE)
    return {
        f"{section}.{name}": Provenance(**places)
        for section, fields in sections.items()
        for name, places in fields.items()
    }
