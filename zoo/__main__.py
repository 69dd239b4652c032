"""`excb-zoo`: list, fetch, import, check, export and publish checkpoints."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.cli import Parser
from excb.console import Reporter
from excb.errors import UserError, run
from excb.version import __version__

if TYPE_CHECKING:
    from excb.hub.catalogue import Checkpoint

DESCRIPTION = """\
Checkpoints by name: ours, yours, and those of other authors.

  excb-zoo list                                         every name, what it is, what it scored
  excb-zoo pull rn50_400ep                              fetch, verify and convert now; excb.load does it on first use
  excb-zoo import FILE --name mine                      any known layout, recognised by itself; then excb.load("mine")
  excb-zoo verify mine                                  hashes, coverage, and the load self-test
  excb-zoo export runs/rn18_small --out DIR             for excb, timm, torchvision, Detectron2 or ONNX
  excb-zoo push runs/rn18_small --repo you/name --licence apache-2.0   publish on the Hugging Face Hub"""


SOURCE = "a name, run folder, checkpoint file or exported folder"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `excb-zoo` and return its exit code."""
    return run("excb-zoo", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    chosen = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace, Reporter], None] = chosen.run
    command(chosen, Reporter())
    return 0


# ---------------------------------------------------------------------------------------------------------------------
# Command line
# ---------------------------------------------------------------------------------------------------------------------


def _parser() -> Parser:
    parser = Parser(prog="excb-zoo", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"excb {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace, Reporter], None], text: str) -> Callable[..., Any]:
        added = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        added.set_defaults(run=run)
        return added.add_argument

    add = command("list", _list, "all names")
    add("--method", metavar="M", help="of one method only, such as ExCB")
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--markdown", action="store_true", help="print the table as Markdown, as in docs/zoo.md")

    add = command("show", _show, "what a checkpoint is")
    add("source", metavar="NAME", help=SOURCE)
    _add_network(add)
    add("--json", action="store_true", help="print JSON instead of a table")

    add = command("pull", _pull, "fetch, verify and convert checkpoints")
    add("names", metavar="NAME", nargs="*", help="names, hf-hub:user/repo[@revision] or https://... addresses")
    _add_network(add)
    add("--from-bundle", type=Path, metavar="FILE", help="take them from an archive that `excb-zoo bundle` wrote")

    add = command("import", _import, "convert a foreign checkpoint file")
    add("file", type=Path, metavar="FILE")
    add("--name", required=True, metavar="N", help="what excb.load shall call it")
    add("--layout", metavar="L", help="of the file, if it is not recognised")
    add("--arch", metavar="A", help="backbone: resnet50, vit_small, timm:NAME or torchvision:NAME, if it is not told")
    add("--arch-option", action="append", default=[], metavar="K=V", help="of the backbone, such as num_heads=12")
    _add_network(add)
    add("--allow-global", action="append", default=[], metavar="NAME", help="of a fixed short list; errors name it")

    add = command("verify", _verify, "hashes, coverage, load self-test, and whether it was ever trained")
    add("names", metavar="NAME", nargs="*", help=SOURCE)
    add("--all", action="store_true", help="everything that is on this machine")
    add("--json", action="store_true", help="print JSON instead of a table")

    add = command("export", _export, "write a backbone for other programs")
    add("source", metavar="NAME", help=SOURCE)
    add("--out", type=Path, required=True, metavar="PATH", help="the folder or file to write")
    add("--format", default="excb", metavar="F", help="excb (default), timm, torchvision, detectron2 or onnx")
    _add_network(add)

    _add_publishing(command)
    return parser


def _add_publishing(command: Callable[..., Callable[..., Any]]) -> None:
    """Commands that tell others of a checkpoint."""
    add = command("card", _card, "the model card of a checkpoint")
    add("source", metavar="NAME", help=SOURCE)
    add("--results", type=Path, nargs="+", default=[], metavar="FILE.json", help="what excb-eval --out wrote")

    add = command("package", _package, "all that push would upload, in a folder: look at it first")
    add("source", metavar="NAME", help=SOURCE)
    add("--out", type=Path, required=True, metavar="DIR", help="the folder; its name is the checkpoint's")
    add("--licence", required=True, metavar="L", help="of the weights, such as apache-2.0")
    add("--results", type=Path, nargs="+", default=[], metavar="FILE.json", help="what excb-eval --out wrote")

    add = command("push", _push, "publish on the Hugging Face Hub")
    add("source", metavar="NAME", help=SOURCE)
    add("--repo", required=True, metavar="USER/NAME")
    add("--licence", required=True, metavar="L", help="of the weights, such as apache-2.0")
    add("--results", type=Path, nargs="+", default=[], metavar="FILE.json", help="what excb-eval --out wrote")
    add("--tag", metavar="T", help="of the revision; made of version and step by default")
    add("--private", action="store_true", help="a repository that only you can read")

    add = command("bundle", _bundle, "one archive of checkpoints for machines without a network")
    add("names", metavar="NAME", nargs="+", help=SOURCE)
    add("--out", type=Path, required=True, metavar="FILE.tar")


def _add_network(add: Callable[..., Any]) -> None:
    add("--network", choices=("teacher", "student"), default="teacher", help="of two; default: teacher")


# ---------------------------------------------------------------------------------------------------------------------
# Work
# ---------------------------------------------------------------------------------------------------------------------


def _list(chosen: argparse.Namespace, reporter: Reporter) -> None:
    from excb.hub.catalogue import checkpoints, damaged
    from excb.hub.resolve import local_folder

    for line in damaged():
        reporter.warn(line)
    rows = [row for row in checkpoints() if chosen.method is None or row.method.lower() == chosen.method.lower()]
    if chosen.json:
        print(json.dumps([row.to_dict() for row in rows], indent=2))
        return
    if not rows:
        known = ", ".join(sorted({row.method for row in checkpoints()}))
        raise UserError(f"no checkpoint is of a method called '{chosen.method}' (known: {known})")
    if chosen.markdown:
        print(_markdown(rows))
        return
    table = []
    for row in rows:
        state = "here" if local_folder(row) else "to fetch" if row.locations else row.source
        table.append([*_cells(row), state])
    title = "Checkpoints (figures as the first source states them; `excb-zoo show NAME` has all)"
    reporter.table(title, [*HEADER, "weights"], table)


HEADER = ("name", "method", "network", "epochs", "batch", "linear %", "k-NN %", "licence")


def _cells(row: "Checkpoint") -> list[str]:
    """A row of the list: each figure as the first source states it."""
    figures = {figure.name: f"{figure.value:g}" for figure in reversed(row.figures)}
    scores = [figures.get("linear_top1", ""), figures.get("knn_top1") or figures.get("knn_top1_k20", "")]
    network = row.architecture.name.removeprefix("timm:")
    return [row.name, row.method, network, _text(row.epochs), _text(row.batch), *scores, row.licence or "none stated"]


def _markdown(rows: "Sequence[Checkpoint]") -> str:
    """The rows whose weights can be loaded, as a Markdown table."""
    cells = [_cells(row) for row in rows if row.locations or row.source == "bundled"]
    lines = [list(HEADER), ["---"] * len(HEADER), *([f"`{name}`", *rest] for name, *rest in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _show(chosen: argparse.Namespace, reporter: Reporter) -> None:
    from excb.hub.catalogue import find
    from excb.hub.resolve import local_folder

    row = find(chosen.source)
    if row is not None and local_folder(row) is None:
        facts = {name: value for name, value in row.to_dict().items() if name != "figures"}
    else:
        facts = _facts(chosen)
        row = row or facts.pop("checkpoint")
        facts.pop("checkpoint", None)
        if row is not None:
            facts |= {"method": row.method, "licence": row.licence, "note": row.note}
    figures = [] if row is None else row.figures
    if chosen.json:
        print(json.dumps(facts | {"figures": [vars(figure) for figure in figures]}, indent=2))
        return
    reporter.table(str(chosen.source), ["", "value"], [[name, _text(value)] for name, value in facts.items()])
    if figures:
        lines = [[figure.name, f"{figure.value:g}", figure.source] for figure in figures]
        reporter.table("Figures", ["figure", "%", "source"], lines)


def _facts(chosen: argparse.Namespace) -> dict[str, Any]:
    """What is known of a checkpoint that lies here."""
    from excb.hub.loading import load

    backbone = load(chosen.source, network=chosen.network)
    entry = backbone.entry
    return {
        "source": entry.source,
        "architecture": entry.architecture.name,
        "options": entry.architecture.options,
        "network": entry.network,
        "parameters": sum(parameter.numel() for parameter in backbone.parameters()),
        "width": backbone.width,
        "preprocessing": backbone.transform.to_dict(),
        "layout": entry.layout,
        "recipe": entry.recipe.get("name"),
        "step": entry.step,
        "epoch": entry.epoch,
        "checkpoint": entry.checkpoint,
    }


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _pull(chosen: argparse.Namespace, reporter: Reporter) -> None:
    if chosen.from_bundle is not None:
        from .bundle import unbundle

        for name in unbundle(chosen.from_bundle, reporter):
            reporter.note(f'{name} is here: load it with excb.load("{name}")')
    elif not chosen.names:
        raise UserError("name a checkpoint (`excb-zoo list` shows all), or an archive with --from-bundle")
    from excb.hub.loading import obtain

    for name in chosen.names:
        folder = obtain(name, network=chosen.network)
        reporter.note(f'{name} is in {folder}: load it with excb.load("{name}")')


def _import(chosen: argparse.Namespace, reporter: Reporter) -> None:
    from excb.checkpoint.coverage import CoverageError
    from excb.hub.catalogue import find
    from excb.hub.importing import import_file
    from excb.networks.architecture import Architecture

    if wrong := [option for option in chosen.arch_option if "=" not in option]:
        raise UserError(f"--arch-option {wrong[0]}: write NAME=VALUE, such as num_heads=12")
    if chosen.arch_option and chosen.arch is None:
        raise UserError("--arch-option belongs to --arch: name the backbone as well")
    row = find(chosen.name)
    if row is not None and row.source not in ("imported", "own run"):
        raise UserError(
            f"{chosen.name} is the name of a checkpoint in the catalogue: choose another --name, or fetch it with "
            f"`excb-zoo pull {chosen.name}`"
        )
    options = {name: _value(text) for name, _, text in (option.partition("=") for option in chosen.arch_option)}
    try:
        imported = import_file(
            chosen.file,
            chosen.name,
            layout=chosen.layout,
            architecture=None if chosen.arch is None else Architecture(chosen.arch, options),
            network=chosen.network,
            allow=chosen.allow_global,
            reporter=reporter,
        )
    except CoverageError as error:
        reporter.table(
            f"What does not fit in {chosen.file.name}",
            ["", "tensor", "in the file", "in the network"],
            error.coverage.rows,
        )
        raise
    reporter.note(f'wrote {imported.folder}: load it with excb.load("{chosen.name}")')


def _value(text: str) -> Any:
    """A number, true, false or a list as in JSON; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _verify(chosen: argparse.Namespace, reporter: Reporter) -> None:
    from .verify import verify

    names = chosen.names
    if chosen.all:
        from excb.hub.catalogue import checkpoints
        from excb.hub.resolve import local_folder

        names = [row.name for row in checkpoints() if local_folder(row)]
    if not names:
        raise UserError("name a checkpoint to verify, or everything on this machine with --all")
    found = {name: verify(name, reporter) for name in names}
    rows = [[name, *row] for name, verification in found.items() for row in verification.rows]
    if chosen.json:
        keys = ("checkpoint", "check", "state", "what")
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
    else:
        reporter.table("Verification", ["checkpoint", "check", "state", "what was found"], rows)
    if failed := [name for name, verification in found.items() if not verification.passed]:
        raise UserError(f"{', '.join(failed)} did not pass: see the table; fetch or export anew")


def _export(chosen: argparse.Namespace, reporter: Reporter) -> None:
    from .export import export

    written = export(chosen.source, chosen.out, network=chosen.network, format=chosen.format)
    which = "" if chosen.network == "teacher" else f', network="{chosen.network}"'
    how = f': load it with excb.load("{written}"{which})' if chosen.format == "excb" else ""
    reporter.note(f"wrote {written}{how}")


def _results(files: Sequence[Path]) -> list[Any]:
    from excb.results.result import Result

    found = []
    for file in files:
        try:
            found.append(Result.from_json(file.read_text(encoding="utf-8"), source=str(file)))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the result {file}: {error}") from None
    return found


def _card(chosen: argparse.Namespace, reporter: Reporter) -> None:
    from excb.hub.catalogue import find
    from excb.hub.resolve import local_folder

    from .card import card

    row = find(chosen.source)
    source = Path(chosen.source) if row is None else local_folder(row) or row
    reporter.answer(card(source, _results(chosen.results)))


def _package(chosen: argparse.Namespace, reporter: Reporter) -> None:
    from .push import package

    package(chosen.source, chosen.out, results=chosen.results, licence=chosen.licence)
    reporter.note(f"wrote {chosen.out}: self-test passed; its card is README.md")


def _push(chosen: argparse.Namespace, reporter: Reporter) -> None:
    from .push import push

    push(
        chosen.source,
        chosen.repo,
        results=chosen.results,
        tag=chosen.tag,
        private=chosen.private,
        licence=chosen.licence,
        reporter=reporter,
    )


def _bundle(chosen: argparse.Namespace, reporter: Reporter) -> None:
    from .bundle import bundle

    bundle(chosen.names, chosen.out, reporter)
    reporter.note(f"wrote {chosen.out}: on the other machine, `excb-zoo pull --from-bundle {chosen.out.name}`")


if __name__ == "__main__":
    sys.exit(main())
