"""`excb-eval detection --repair DIR`: clean copies of annotation files, and what was changed."""

from pathlib import Path

from excb.console import plural
from excb.distributed.collectives import run_on_rank0
from excb.errors import is_rank0, require

from ..coco.reading import find_split
from ..coco.repair import Repair, repaired, write_repaired
from ..shell import Shell
from .options import DetectionOptions


def repair(options: DetectionOptions, out: Path, shell: Shell) -> int:
    """Write the clean copies, or with --dry-run only say what they would change; all ranks call this. The exit code.

    Raises:
        UserError: a file is missing, or cannot be read or repaired, or a copy exists.
    """
    require(shell.out is None and not shell.json, "--out and --json are for results, and --repair evaluates nothing")
    run_on_rank0(lambda: _repair(options, out, shell))
    return 0


def _repair(options: DetectionOptions, out: Path, shell: Shell) -> None:
    places = _places(options)
    masks = options.settings().masks if "masks" in options.overrides else None
    made = repaired(places, out, masks=masks)
    if not any(each.faults for _, each in made):
        shell.reporter.answer("no fault: there is nothing to repair, and nothing was written")
        return
    if not shell.dry_run:
        write_repaired(made)
    for _, each in made:
        _show(each, shell)
    if not shell.dry_run and is_rank0():
        named = " ".join(
            f"--{split}-json {each.target} --{split}-images {places[split][1]}"
            for split, (_, each) in zip(places, made, strict=True)
        )
        shell.reporter.answer(f"\nevaluate with: excb-eval detection --ckpt CKPT {named}")


def _show(repair: Repair, shell: Shell) -> None:
    title = f"{repair.source}: the clean copy has {repair.kept:,} of {plural(repair.before, 'object')}"
    if not repair.faults:
        shell.reporter.answer(f"{title}: no fault")
    else:
        shell.reporter.table(title, ["fault", "number", "in the copy", "such as"], repair.rows)
    shell.reporter.note(f"{'would write' if shell.dry_run else 'wrote'} {repair.target}")


def _places(options: DetectionOptions) -> dict[str, tuple[Path, Path]]:
    """The annotation file and the folder of images of every split that options name."""
    given = {"train": (options.train_json, options.train_images), "val": (options.val_json, options.val_images)}
    if options.data is None:  # one file alone can be repaired
        given = {split: named for split, named in given.items() if named != (None, None)} or given
    return {split: find_split(options.data, split, *named) for split, named in given.items()}
