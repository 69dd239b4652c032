"""`excb-eval watch`: its options, and the command."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.console import Reporter, plural
from excb.errors import is_rank0
from excb.files.run_files import WATCH_FOLDER

from ..runner import refuse_results_among
from ..shell import Shell, shell_command
from .options import WatchOptions
from .setup import asked

if TYPE_CHECKING:
    import torch

    from .log import Log
    from .runs import WatchedRun

# In the watch's folder while a checkpoint is being measured. It is removed, so it is hidden: nobody's own is called so.
UNFINISHED = ".unfinished"

DESCRIPTION = """\
Evaluate each new checkpoint of a run on other labelled images, during the run or afterwards. This works beside the run,
or on another machine that reads the run's folder or URL. The run itself is only read. The watch ends when the run has
finished and all its checkpoints are measured. If it is stopped, the same command continues it.

--out gets watch.jsonl (a line of figures for each checkpoint), best.json, watch.html (which reloads itself) and
TensorBoard files."""


def _beside(options: WatchOptions) -> Path:
    """Where figures are written if no --out says it: in the run folder, or on this machine if that is not possible."""
    from excb.remote.byte_ranges import is_remote

    run, remote = options.run, is_remote(options.run)
    if not remote and Path(run).is_dir() and os.access(run, os.W_OK):
        return Path(run) / WATCH_FOLDER
    name = run.rstrip("/").rpartition("/")[2] if remote else Path(run).resolve().name
    return Path("runs") / f"{name}-{WATCH_FOLDER}"


def _work(given: list[Any], shell: Shell, device: "torch.device") -> int:
    from contextlib import ExitStack

    from excb.distributed.collectives import all_succeed, rank, run_on_rank0

    from ..opening import labelled_images
    from .display import Display, refuse_other_watch
    from .log import Log, writing
    from .measuring import Measuring, SaidOnce
    from .watching import Watch, watch

    options: WatchOptions = given[0]
    assert shell.out is not None  # `_run` names one
    out, reporter = shell.out, SaidOnce(quiet=shell.quiet or not is_rank0())
    scratch = out / UNFINISHED
    all_succeed(options.check)
    wanted, run = asked(options), _opened(options.run, scratch)
    run_on_rank0(run.look)  # refuses a wrong place before images are listed, of which there may be a million
    train, test = labelled_images(options, reporter)
    refuse_results_among((train, test), out)
    if not shell.overwrite:
        run_on_rank0(lambda: refuse_other_watch(out))
    setup = run_on_rank0(lambda: wanted.on(train, test, _place(options.run, out)))
    if shell.dry_run:
        run_on_rank0(lambda: _show(run, Log(out, setup, overwrite=shell.overwrite), reporter, as_json=shell.json))
        return 0
    with ExitStack() as stack:
        log = run_on_rank0(lambda: stack.enter_context(writing(out, setup, overwrite=shell.overwrite)))
        display = Display(out, reporter, as_json=shell.json, every=options.every)
        stack.callback(display.close)
        watching = Watch(run, log, display, reporter, scratch=scratch, every=options.every, once=options.once)
        measure = Measuring(wanted, train, test, device, scratch, reporter)
        try:
            watch(watching, measure, every=options.every)
        except KeyboardInterrupt:
            if rank() == 0:
                watching.interrupt()
                count = len(log.measured)
                reporter.note(f"{plural(count, 'checkpoint')} measured: the same command continues")
            raise
        run_on_rank0(lambda: display.end(watching.state()))
    return 0


def _opened(place: str, scratch: Path) -> "WatchedRun":
    """The run at a place.

    Raises:
        UserError: there is no such store.
    """
    from excb.remote.byte_ranges import is_remote

    from .runs import LocalRun, StoredRun

    return StoredRun(place, scratch) if is_remote(place) else LocalRun(Path(place))


def _place(run: str, out: Path) -> str:
    """The run's name in a log: its URL, or its folder as seen from the log's, so that both may be moved together."""
    from excb.remote.byte_ranges import is_remote

    return run.rstrip("/") if is_remote(run) else os.path.relpath(Path(run).resolve(), out.resolve())


def _show(run: "WatchedRun", log: "Log", reporter: Reporter, *, as_json: bool) -> None:
    """Answer --dry-run: which checkpoints would be measured."""
    snapshot = run.look()
    steps = sorted({*snapshot.checkpoints, *snapshot.saved(), *log.measured})
    states = {
        step: "measured" if step in log.measured else "to measure" if step in snapshot.checkpoints else "gone"
        for step in steps
    }
    if as_json:
        rows = [{"step": step, "state": state} for step, state in states.items()]
        reporter.answer(json.dumps({"checkpoints": rows, "finished": snapshot.finished}))
        return
    ended = "finished" if snapshot.finished else "not finished"
    reporter.table(
        f"{run.place}, {ended}", ["step", "checkpoint"], [[str(step), state] for step, state in states.items()]
    )


WATCH = shell_command(
    "watch",
    "every new checkpoint of a run on other labelled images, with a curve and a page",
    (WatchOptions,),
    _work,
    out="folder",
    metavar="DIR",
    default_out=_beside,
    overwrite=True,
    group="everything, and against others",
    description=DESCRIPTION,
    examples=(
        "watch runs/a --data photos",
        "watch s3://bucket/run --data photos --protocol 'linear --protocol logreg' --every 30m --device cpu",
    ),
)
