"""Seconds by the clock to embed images on a CPU, by reading processes and threads of the network.

Run: python -m benchmarks.threads FOLDER [--networks conv4_photos mobilenetv2] [--cells 0,1 2,2] [--turns 3] [--spin]
FOLDER holds images. A cell is the number of processes that read and of torch's threads; "default" is what a command
takes where neither is set. Each cell is a process of its own, which embeds once to warm up, and once on the clock. With
--spin threads spin while they wait, as torch's do where no command line made them sleep. Times by the clock need an
idle machine.
"""

import argparse
import os
import statistics
import subprocess
import sys

CODE = """
import time, excb, torch
workers, threads = {workers}, {threads}
if threads is not None:
    torch.set_num_threads(threads)
backbone = excb.load({network!r})
for turn in range(2):
    start = time.perf_counter()
    excb.embed(backbone, {folder!r}, quiet=True, no_cache=True, **({{}} if workers is None else {{"workers": workers}}))
print(time.perf_counter() - start)
"""
DEFAULT = "default"


def main() -> None:
    """Time every cell in turns, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--networks", nargs="+", default=["conv4_photos", "mobilenetv2"])
    parser.add_argument("--cells", nargs="+", default=[DEFAULT, "0,1", "0,2", "1,1", "1,2", "2,1", "2,2"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--spin", action="store_true", help="threads spin while they wait")
    args = parser.parse_args()
    for network in args.networks:
        seconds: dict[str, list[float]] = {cell: [] for cell in args.cells}
        for _turn in range(args.turns):
            for cell, measured in seconds.items():
                measured.append(timed(network, args.folder, cell, spin=args.spin))
        print(network)
        for cell, measured in seconds.items():
            print(
                f"  {cell:8s} {statistics.median(measured):6.2f} s ({min(measured):.2f} to {max(measured):.2f})",
                flush=True,
            )


def timed(network: str, folder: str, cell: str, *, spin: bool) -> float:
    """Seconds of one embedding in a new process, since torch reads how threads wait when it starts."""
    workers, _, threads = (DEFAULT, "", DEFAULT) if cell == DEFAULT else cell.partition(",")
    values = (None if each == DEFAULT else int(each) for each in (workers, threads))
    code = CODE.format(network=network, folder=folder, **dict(zip(("workers", "threads"), values, strict=True)))
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment["OMP_WAIT_POLICY"] = "ACTIVE" if spin else "PASSIVE"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    main()
