"""A Sphinx extension: reference pages that come from the code, equations as MathML, links to files outside `docs/`.

A page says what it wants, such as `{from-code} command excb-eval`. It gets Markdown that is made when the site is
built, so that pages and code cannot differ.
"""

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from excb.cli import Parser
from excb.hub.catalogue import Checkpoint, checkpoints
from excb.pretrain.__main__ import program as excb_pretrain
from excb.pretrain.recipe import Recipe
from excb.pretrain.recipes import RECIPES, about
from excb.pretrain.show import recipe_rows, value_text
from excb.transfer.cli import program as excb_eval
from excb.zoo.__main__ import program as excb_zoo

PROGRAMS = {"excb-pretrain": excb_pretrain, "excb-eval": excb_eval, "excb-zoo": excb_zoo}

SEVERAL = 5  # commands from which on an option stands in the table of shared ones

# Documents of the repository that have a page here, under another name.
PAGES = {
    "../CONTRIBUTING.md": "contributing.md",
    "../excb/bundled/conv4_photos/README.md": "reference/catalogue.md",
}


def command(program: str) -> list[str]:
    """The help of a program and of each of its commands; options of several commands stand in one table."""
    parser = PROGRAMS[program]()
    lines = ["## All commands", "", *_text(parser.format_help())]
    for action in parser._actions:  # argparse has no public way
        if isinstance(action, argparse._SubParsersAction):
            shared = _shared(action.choices.values())
            if shared:
                lines += ["## Options of several commands", "", *_table(["option", "what it does"], shared.values())]
            for name, each in action.choices.items():
                own = [one for one in each.listed() if _key(one) not in shared]
                lines += [f"## {program} {name}", "", *_text(each.help_of(own))]
                if others := [f"`{one.option_strings[-1]}`" for one in each.listed() if _key(one) in shared]:
                    lines += [f"[Options of several commands](#options-of-several-commands): {', '.join(others)}.", ""]
    return lines


def _shared(parsers: Iterable[Parser]) -> dict[tuple[str, str], list[str]]:
    """Rows of options that at least `SEVERAL` commands have with the same help, by their key."""
    actions = [action for parser in parsers for action in parser.listed() if action.option_strings]
    times = Counter(_key(action) for action in actions)
    return {
        key: [f"`{key[0]} {action.metavar or ''}`".replace(" `", "`"), key[1]]
        for action in actions
        if times[key := _key(action)] >= SEVERAL
    }


def _key(action: argparse.Action) -> tuple[str, str]:
    return (action.option_strings or [action.dest])[-1], str(action.help)


def recipes() -> list[str]:
    """The purpose of each recipe, and the values in which it differs from the defaults."""
    rows = [[f"[{name}](#{name})", about(name).purpose, about(name).images] for name in RECIPES]
    lines = ["## All recipes", "", *_table(["recipe", "for", "images"], rows)]
    for name, make in RECIPES.items():
        own = [row for row in recipe_rows(make(), []) if not row["from"].startswith("default")]
        changed = [[f"`{row['field']}`", _code(value_text(row["value"])), row["paper"]] for row in own]
        lines += [f"## {name}", "", (make.__doc__ or about(name).purpose).strip().partition("\n")[0], ""]
        lines += _table(["value", "here", "in the paper"], changed) if changed else ["The defaults.", ""]
    return lines


def options() -> list[str]:
    """Every value of a recipe: default, source, the paper's value, and what it is."""
    lines, section = [], ""
    for row in recipe_rows(Recipe(name="defaults"), [])[1:]:
        name, _, field = row["field"].partition(".")
        if name != section:
            section = name
            about_section = type(getattr(Recipe(name="defaults"), section)).__doc__ or ""
            lines += ["", f"## {section}", "", about_section.partition("\n")[0], ""]
            lines += _table(["value", "default", "from", "in the paper", "what it is"], [])[:-1]
        source = re.sub(r"^default \((.*)\)$", r"\1", row["from"])
        source += f": {row['where'].removeprefix(f'{source}: ')}" if row["where"] else ""
        lines += _rows([[f"`{field}`", _code(value_text(row["value"])), source, row["paper"], row["doc"]]])
    return [*lines, ""]


def catalogue() -> list[str]:
    """Every checkpoint that comes with the package or is known to it, by method."""
    with tempfile.TemporaryDirectory() as nobodys:  # what the person who builds the site has imported is not of it
        entries = checkpoints(Path(nobodys))
    lines = []
    for method in dict.fromkeys(entry.method for entry in entries):
        lines += [f"## {method}", ""]
        lines += _table(
            ["name", "architecture", "epochs", "licence", "linear", "k-NN", "about"],
            [_entry(entry) for entry in entries if entry.method == method],
        )
    return lines


def _entry(entry: Checkpoint) -> list[str]:
    published = [figure for figure in entry.figures if not figure.source.startswith("measured")]
    linear, knn = (
        next((f"{figure.value:.1f}" for figure in published if figure.name == name), "–")
        for name in ("linear_top1", "knn_top1")
    )
    licence = entry.licence or "not stated"
    name, architecture = _code(entry.name), _code(entry.architecture.name)
    return [name, architecture, str(entry.epochs or "–"), licence, linear, knn, entry.note]


def _text(text: str) -> list[str]:
    return ["```text", *text.splitlines(), "```", ""]


def _code(text: str) -> str:
    return f"`{text}`" if text else "(empty)"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [*_rows([head, ["---"] * len(head)]), *_rows(rows), ""]


def _rows(rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]


PAGES_FROM_CODE: dict[str, Callable[..., list[str]]] = {
    "command": command,
    "recipes": recipes,
    "options": options,
    "catalogue": catalogue,
}


class FromCode(SphinxDirective):
    """`{from-code} NAME [ARGUMENT]`: Markdown made by a function of `PAGES_FROM_CODE`, headings included."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The page's nodes."""
        name, *arguments = self.arguments
        return self.parse_text_to_nodes("\n".join(PAGES_FROM_CODE[name](*arguments)), allow_section_headings=True)


def links_of_the_repository(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Make links that work in the repository work on the site: `source` holds the page's text."""
    for file, target in PAGES.items():
        source[0] = source[0].replace(f"]({file})", f"]({target})")


def visit_inline_math(self: HTML5Translator, node: nodes.math) -> None:
    """Write an equation within a line."""
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_block_math(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write an equation on lines of its own."""
    self.body.append(convert(node.astext(), display="block"))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register all of it with Sphinx."""
    app.add_directive("from-code", FromCode)
    app.connect("source-read", links_of_the_repository)
    app.add_html_math_renderer("mathml", (visit_inline_math, None), (visit_block_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
