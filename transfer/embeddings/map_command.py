"""`excb-eval map`: its options, and its work in each process."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from excb.console import plural
from excb.errors import UserError, is_rank0, require
from excb.option_parser import require_use
from excb.options import option

from ..options import CKPT
from ..shell import Shell, shell_command
from .options import AnyImagesOptions

if TYPE_CHECKING:
    import torch

    from ..map.sprites import OpenPicture
    from .embeddings import Embeddings
    from .replacing import Source
    from .table.vectors import Vectors


@dataclass(frozen=True, kw_only=True)
class MapOptions(AnyImagesOptions):
    """The vectors, the layout and its colours."""

    ckpt: Any = option(None, CKPT, metavar="PATH", group="checkpoint and images")
    embeddings: Path | None = option(
        None, "a file of `excb-eval embed` instead of --ckpt; --data then says where its images are", metavar="FILE"
    )
    labels: tuple[Path, ...] = option(
        (),
        "CSV or Parquet with a column path and others, such as label, cluster or prediction: each can colour the map "
        "(default: class folders)",
        metavar="TABLE",
    )
    colour_by: str | None = option(None, "the column that colours the map at first (default: label)", metavar="COLUMN")
    method: Literal["auto", "umap", "tsne"] = option("auto", "default: umap where it is installed, else tsne")
    seed: int = option(0, "of the layout (default: 0)", metavar="N")
    pictures_mb: float = option(32.0, "megabytes of pictures at most (default: 32)", metavar="MB")

    def check(self) -> None:
        """Raise UserError where options are missing or exclude each other."""
        one = (self.ckpt is None) != (self.embeddings is None)
        require(one, "name the network with --ckpt, or vectors with --embeddings")
        require(self.pictures_mb >= 0, "--pictures-mb cannot be negative")
        of_passes = ("network", "resize", "crop", "channels", "range", "feature_precision")
        require_use(
            self, *of_passes, used=self.embeddings is None, why=f"has no effect on vectors of {self.embeddings}"
        )


def _map(given: list[Any], shell: Shell, device: "torch.device") -> int:
    from excb.distributed.collectives import all_succeed, run_on_rank0
    from excb.pages.origin import refuse_other_page
    from excb.results.beside import refuse_folders

    from ..map.page import require_bokeh
    from ..map.projection import NAMES, require_method
    from .cli import embeddings_of, forget_unfinished
    from .replacing import Source

    options: MapOptions = given[0]
    all_succeed(options.check)
    if shell.out is None and not shell.dry_run:
        raise UserError.on_all_ranks("name the page to write with --out map.html")
    if shell.out is not None and shell.out.suffix not in (".html", ".htm"):
        raise UserError.on_all_ranks(f"--out {shell.out}: the map is written to a file that ends in .html")
    if shell.out is not None:
        all_succeed(partial(refuse_folders, [shell.out]))
    all_succeed(require_bokeh)
    umap = all_succeed(partial(require_method, options.method)) and options.method != "tsne"
    then, file = [f"a layout of these vectors by {NAMES['umap' if umap else 'tsne']}"], options.embeddings

    def refuse(source: Source) -> None:
        if shell.out is not None:
            refuse_other_page(shell.out, source.page("map"))

    made = (
        embeddings_of(options, shell, device, refuse, then) if file is None else _loaded(file, options, shell, refuse)
    )
    if made is not None and (out := shell.out) is not None:
        run_on_rank0(lambda: _write(options, shell, made, out))
        forget_unfinished(options, shell)
    return 0


def _loaded(file: Path, options: MapOptions, shell: Shell, refuse: "Callable[[Source], object]") -> "Embeddings | None":
    """The embeddings of a file, with their images where `--data` says; None after `--dry-run`."""
    from excb.distributed.collectives import all_succeed, run_on_rank0

    from .embeddings import Embeddings
    from .replacing import Source

    made = all_succeed(lambda: Embeddings.load(file))
    if options.data is not None:
        made = replace(made, root=options.data)
    if not shell.overwrite:
        run_on_rank0(lambda: refuse(Source.of(made)))
    if shell.dry_run:
        if is_rank0():
            line = f"{plural(len(made), 'vector')} of {file} to lay out"
            shell.reporter.answer(json.dumps({"can_run": True, "then": [line]}, indent=2) if shell.json else line)
        return None
    return made


def _write(options: MapOptions, shell: Shell, made: "Embeddings", out: Path) -> None:
    from .maps import draw_map

    result = draw_map(
        made,
        out,
        tables=options.labels,
        colour_by=options.colour_by,
        method=options.method,
        seed=options.seed,
        pictures_mb=options.pictures_mb,
        open_picture=_opener(options, made),
        reporter=shell.reporter,
    )
    if shell.json:
        shell.reporter.answer(json.dumps(result.to_dict(), indent=2))
    else:
        method = result.projection.method
        shell.reporter.answer(f"{plural(len(made), 'image')} by {method} in {out}: open it in a browser")


def _opener(options: MapOptions, made: "Vectors") -> "OpenPicture | None":
    """Opens images of shards and named sets by their rows; None of files below the root."""
    from excb.images.picture import visible_rgb

    from .sources import any_images

    if options.data is None or Path(made.root).is_dir():
        return None
    images = any_images(
        options.data, options.listed, every=options.every, data_root=options.data_root, note=lambda _line: None
    )
    numbers = {path: number for number, path in enumerate(images.paths)}
    return lambda row, _side: visible_rgb(images.open(numbers[made.paths[row]]))


MAP = shell_command(
    "map",
    "images in the plane, as one page with pictures, colours, search and selection",
    (MapOptions,),
    _map,
    metavar="MAP.html",
    overwrite=True,
    group="features",
    examples=(
        "map --ckpt rn50_400ep --data photos --out map.html",
        "map --embeddings photos.npz --labels labels.csv --colour-by label --out map.html",
    ),
)
