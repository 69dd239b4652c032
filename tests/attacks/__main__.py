"""Attacks whole commands: hostile files of every format, then signals at random moments; counts what held.

Run: python -m tests.attacks [--inputs 1000] [--kills 100] [--only PATTERN] [--json FILE]. Linux only.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_XET": "1", "MPLBACKEND": "Agg"}
IMPORTED = (
    *("torch.distributed.elastic.multiprocessing", "transformers.modeling_utils", "transformers.models.vit"),
    *("tests.faults.deeds", "faiss", "pyarrow.parquet", "sklearn.linear_model", "sklearn.manifold", "scipy.stats"),
)


class Row(NamedTuple):
    """A line of the table."""

    kind: str
    tried: int
    held: int
    more: str
    faults: list[str]


def main() -> int:
    """Attack, and print a line for each kind; 1 if anything did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1000, help="hostile files")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--only", default="", help="kinds and commands whose name has this pattern")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of kills")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--work", type=Path, help="folder that keeps what did not hold")
    args = parser.parse_args()
    work = args.work or Path(tempfile.mkdtemp(prefix="excb-attacks-"))
    work.mkdir(parents=True, exist_ok=True)
    os.environ.update(ENVIRONMENT)
    with hub(work) as url:
        os.environ.update(HF_ENDPOINT=url, HF_TOKEN="hf_of_the_tester", HF_HOME=str(work / "hf"), NO_PROXY="127.0.0.1")
        rows = []
        for row in attack(work.resolve(), args):
            print(f"{row.kind:24} tried {row.tried:4}  held {row.held:4}  {row.more}", flush=True)
            for fault in row.faults:
                print(f"    {fault}", flush=True)
            rows.append(row._asdict())
    tried, held = (sum(row[name] for row in rows) for name in ("tried", "held"))
    print(f"{'all':24} tried {tried:4}  held {held:4}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return int(held < tried)


@contextmanager
def hub(work: Path) -> Iterator[str]:
    """The address of a model hub in a process of its own."""
    from tests.hub_server import Hub

    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        with Hub(Path(tempfile.mkdtemp(prefix="hub-", dir=work))) as served:
            os.write(writing, served.url.encode())
            os.close(writing)
            threading.Event().wait()
    os.close(writing)
    try:
        yield os.read(reading, 100).decode()
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def attack(work: Path, args: Any) -> Iterator[Row]:
    """Everything, kind by kind."""
    from tests.attacks import hostile_files, kills, sound
    from tests.attacks.forks import fork
    from tests.fuzz.guard import import_all

    import_all()
    for module in IMPORTED:
        importlib.import_module(module)
    place = work / "sound"
    if not place.exists():
        os.environ.update(EXCB_HOME=str(place / "home"), EXCB_CACHE=str(place / "cache"))
        made = fork(partial(sound.make, place), work / "sound.log", patience=300)
        assert made.code == 0, made.log
    for name, one in hostile_files.run(place, args.inputs, work, args.only) if args.inputs else ():
        wrong = one.faults.total()
        more = f"refused {one.refused:4}  {one.most / 1e6:5,.0f} MB  {one.slowest:4.1f} s  {dict(one.faults) or ''}"
        yield Row(name, one.tried, one.tried - wrong, more, one.examples)
    for name, each in kills.run(place, args.kills, work, args.only, args.seed) if args.kills else ():
        more = f"{each.seconds:4.1f} s  values {each.compared:6,}  not compared {each.volatile:4,}"
        yield Row(name, each.tried, each.tried - len(each.faults), more, each.faults)


if __name__ == "__main__":
    sys.exit(main())
