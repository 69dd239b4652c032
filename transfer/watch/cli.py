"""`excb-eval watch`: its options, and the command."""

import argparse
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Command, Parser, local_path
from excb.console import Reporter
from excb.errors import is_rank0
from excb.files.run_files import WATCH_FOLDER

from ..options import add_data_options
from ..parallel import in_parallel
from .setup import asked, watchable

if TYPE_CHECKING:
    import torch

    from .log import Log
    from .runs import Run

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
UNFINISHED = "unfinished"  # in the watch's folder, while a checkpoint is being measured

DESCRIPTION = """\
Evaluate each new checkpoint of a run on other labelled images, during the run or afterwards. This works beside the run,
or on another machine that reads the run's folder or URL. The run itself is only read. The watch ends when the run has
finished and all its checkpoints are measured. If it is stopped, the same command continues it.

--out gets watch.jsonl (a line of figures for each checkpoint), best.json, watch.html (which reloads itself) and
TensorBoard files."""


def seconds(text: str) -> float:
    """A time such as 30s, 10m or 1.5h: an argument's type for argparse.

    Raises:
        argparse.ArgumentTypeError: it is none, or is zero.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text, re.ASCII)
    if match is None or not (value := float(match[1]) * _UNITS[match[2]]):
        raise argparse.ArgumentTypeError(f"takes a time such as 30s, 10m or 2h, not {text!r}")
    return value


def _add_options(parser: Parser) -> None:
    add, names = parser.add_argument, [protocol.name for protocol in watchable()]
    add("run", metavar="RUN", help="run folder, or its URL such as s3://bucket/run")
    add(
        "--protocol",
        default=names[0],
        metavar="WORDS",
        help=f"of {', '.join(names)} (default: {names[0]}); with options of its own in quotes, as in the examples",
    )
    add(
        "--every",
        type=seconds,
        default=600.0,
        metavar="TIME",
        help="time between checks for new checkpoints, in s, m or h (default: 10m)",
    )
    add("--once", action="store_true", help="measure the existing checkpoints, and exit")
    add(
        "--out",
        type=local_path,
        metavar="DIR",
        help="folder for figures and page (default: RUN/watch; for a URL runs/NAME-watch)",
    )
    add_data_options(parser)


def _run(args: argparse.Namespace) -> int:
    from excb.remote.byte_ranges import is_remote

    if args.out is None:
        args.out = _beside(args.run, remote=is_remote(args.run))
    return in_parallel(_work, out="folder")(args)


def _beside(run: str, *, remote: bool) -> Path:
    """Where figures are written if no --out says it: in the run folder, or on this machine if that is not possible."""
    if not remote and Path(run).is_dir() and os.access(run, os.W_OK):
        return Path(run) / WATCH_FOLDER
    name = run.rstrip("/").rpartition("/")[2] if remote else Path(run).resolve().name
    return Path("runs") / f"{name}-{WATCH_FOLDER}"


def _work(args: argparse.Namespace, device: "torch.device") -> int:
    from contextlib import ExitStack

    from excb.distributed.collectives import rank, run_on_rank0

    from ..task_command import images_of
    from .display import Display
    from .log import Log, writing
    from .measuring import Measuring, SaidOnce
    from .watching import Watch, watch

    reporter, scratch = SaidOnce(quiet=args.quiet or not is_rank0()), args.out / UNFINISHED
    wanted, run = asked(args), _opened(args.run, scratch)
    run_on_rank0(run.look)  # refuses a wrong place before images are listed, of which there may be a million
    train, test = images_of(args, reporter, results=args.out)
    setup = run_on_rank0(lambda: wanted.on(train, test, _place(args.run, args.out)))
    if args.dry_run:
        run_on_rank0(lambda: _show(run, Log(args.out, setup), reporter, as_json=args.json))
        return 0
    with ExitStack() as stack:
        log = run_on_rank0(lambda: stack.enter_context(writing(args.out, setup)))
        display = Display(args.out, reporter, as_json=args.json, every=args.every)
        stack.callback(display.close)
        watching = Watch(run, log, display, reporter, scratch=scratch, every=args.every, once=args.once)
        measure = Measuring(wanted, train, test, device, scratch, reporter)
        try:
            watch(watching, measure, every=args.every)
        except KeyboardInterrupt:
            if rank() == 0:
                watching.interrupt()
                count = len(log.measured)
                reporter.note(f"{count} checkpoint{'s' * (count != 1)} measured: the same command continues")
            raise
        run_on_rank0(lambda: display.end(watching.state()))
    return 0


def _opened(place: str, scratch: Path) -> "Run":
    """The run at a place.

    Raises:
        UserError: there is no such store.
    """
    from excb.remote.byte_ranges import is_remote

    from .runs import LocalRun, StoredRun

    return StoredRun(place, scratch) if is_remote(place) else LocalRun(Path(place))


def _place(run: str, out: Path) -> str:
    """What a log calls the run: its URL, or its folder as seen from the log's, so that both may be moved together."""
    from excb.remote.byte_ranges import is_remote

    return run.rstrip("/") if is_remote(run) else os.path.relpath(Path(run).resolve(), out.resolve())


def _show(run: "Run", log: "Log", reporter: Reporter, *, as_json: bool) -> None:
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


WATCH = Command(
    "watch",
    "every new checkpoint of a run on other labelled images, with a curve and a page",
    _add_options,
    _run,
    group="everything, and against others",
    description=DESCRIPTION,
    examples=(
        "watch runs/a --data photos",
        "watch s3://bucket/run --data photos --protocol 'linear --protocol logreg' --every 30m --device cpu",
    ),
)
