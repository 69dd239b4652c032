"""Slurm jobs, through submitit: a job saves before its time limit, queues again and resumes.

Every task of the job starts one process of the run, as torchrun would. Task 0 keeps the store at which they meet.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from excb.console import Reporter, plural
from excb.distributed.launcher import CORES
from excb.distributed.slurm_request import SlurmRequest, minutes, parse_request
from excb.errors import UserError, print_error, require

HELP = "run it as a Slurm job, such as partition=gpu,nodes=2,gpus=8,time=24:00:00 (docs/running.md)"
POLL = 0.1  # seconds between checks of the process
AFTER_FAILURE = 5.0  # seconds that task 0 keeps the store open once its process has failed


def submit_command(
    module: str,
    arguments: Sequence[str],
    text: str | None,
    folder: Path,
    reporter: Reporter,
    *,
    gpus: int | None,
    dry_run: bool = False,
) -> int | None:
    """Submit a command line as a job, if `--slurm` is given and this is not the job already.

    Args:
        module: a command line program, such as "excb.pretrain".
        arguments: its command line. `--slurm` in it has no effect within the job.
        text: the value of `--slurm`, or None.
        folder: for submitit's files and output. All nodes must see it.
        reporter: prints how to follow and to stop the job.
        gpus: the value of `--gpus`, which cannot be combined with `--slurm`.
        dry_run: print the script that sbatch would be given, and submit nothing.

    Returns:
        The exit code, or None where this process does the work.

    Raises:
        UserError: the request cannot be understood or met, or submitit is missing.
    """
    if text is None or "RANK" in os.environ:
        return None
    require(gpus is None, "--gpus is for this machine: write gpus= in --slurm instead")
    request = parse_request(text)
    if dry_run:
        reporter.answer(script(module, arguments, request, folder))
        return 0
    job = submit_job(module, arguments, request, folder)
    stop = f"scancel {job.job_id}" if request.cluster == "slurm" else f"kill {job.job_id}"
    nodes, processes = request.nodes, request.processes
    size = f"{plural(nodes, 'node')} x {plural(processes, 'process', 'processes')}"
    reporter.answer(f"job {job.job_id}: {size}; at its limit of {request.time} it saves, queues again and resumes")
    reporter.answer(f"follow: tail -F {job.paths.stderr}    results: {job.paths.stdout}    stop: {stop}")
    return 0


def submit_job(module: str, arguments: Sequence[str], request: SlurmRequest, folder: Path) -> Any:
    """Submit `python -m MODULE ARGUMENTS`: submitit's job. Raises UserError if it or Slurm is missing or refuses."""
    try:
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError
    except ImportError:
        raise UserError("--slurm needs submitit: pip install 'excb[slurm]'") from None
    try:
        executor = submitit.AutoExecutor(
            folder=folder.absolute(),
            cluster=request.cluster,
            slurm_max_num_timeout=request.requeues,
            local_max_num_timeout=request.requeues,
        )
    except RuntimeError as error:  # no srun
        raise UserError(f"there is no Slurm here ({error}): submit from its login node") from None
    executor.update_parameters(**_parameters(module, request))
    try:
        return executor.submit(SlurmTask(_command(module, arguments)))
    except (FailedJobError, FailedSubmissionError) as error:
        raise UserError(f"Slurm refuses the job: {' '.join(str(error).split())}") from None


def script(module: str, arguments: Sequence[str], request: SlurmRequest, folder: Path) -> str:
    """The script that sbatch would be given, on any machine. Raises UserError if submitit is missing."""
    if request.cluster == "local":
        return f"# cluster=local has no script; {request.processes} x {shlex.join(_command(module, arguments))}"
    try:
        from submitit.slurm.slurm import SlurmExecutor
    except ImportError:
        raise UserError("--slurm needs submitit: pip install 'excb[slurm]'") from None

    class Anywhere(SlurmExecutor):
        """Writes scripts where there is no Slurm."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    executor = Anywhere(folder.absolute())
    parameters = {name.removeprefix("slurm_"): value for name, value in _parameters(module, request).items()}
    executor.update_parameters(**executor._convert_parameters(parameters))
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "dry-run")
    return f"{text.rstrip()}\n# each task runs: {shlex.join(_command(module, arguments))}"


def _command(module: str, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", module, *(word for word in arguments if word != "--dry-run")]


def _parameters(module: str, request: SlurmRequest) -> dict[str, Any]:
    """The parameters for submitit."""
    # srun does not take over the cores of the job since Slurm 22.05. Processes would wait for one that failed.
    cores = [] if request.cpus is None else [f"--cpus-per-task={request.cpus}"]
    parameters = {
        "name": module.replace(".", "-"),
        "timeout_min": minutes(request.time),
        "nodes": request.nodes,
        "tasks_per_node": request.processes,
        "gpus_per_node": request.gpus or None,
        "cpus_per_task": request.cpus,
        "mem_gb": request.mem,
        "slurm_partition": request.partition,
        "slurm_account": request.account,
        "slurm_qos": request.qos,
        "slurm_constraint": request.constraint,
        "slurm_signal_delay_s": request.grace,
        "slurm_srun_args": ["--kill-on-bad-exit=1", *cores],
    }
    return {name: value for name, value in parameters.items() if value is not None}


class SlurmTask:
    """The work of one task of a job: run one process, and let it save before the job's time limit.

    submitit calls the instance in every task, and `checkpoint` in task 0 when Slurm announces the limit or preemption.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False

    def __call__(self) -> int:
        """Run the process to its end and return its exit code. A failure ends the task itself with that code."""
        from submitit.helpers import TorchDistributedEnvironment

        from excb.distributed.launch import open_store, process_environment
        from excb.distributed.signals import STOPPED

        place = TorchDistributedEnvironment()
        alone = place.world_size == place.local_world_size
        address = "127.0.0.1" if alone else place.master_addr
        store = None
        if place.rank == 0:
            try:
                store = open_store(address, place.master_port, advice="submit again")
            except UserError as error:
                sys.exit(print_error("slurm", error))
        sizes, threads = (place.world_size, place.local_world_size), os.environ.get("SLURM_CPUS_PER_TASK")
        environment = process_environment(address, place.master_port, *sizes, threads)
        environment |= {"RANK": str(place.rank), "LOCAL_RANK": str(place.local_rank)}
        environment |= {} if threads is None else {CORES: threads}
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._forwarding(signal.getsignal(number)))
        # In its own session, since Slurm's signals to the task's process group would end it before it has saved.
        self._process = subprocess.Popen(self.command, env=environment, start_new_session=True)
        if self._asked:  # while it was starting
            self._process.send_signal(signal.SIGTERM)
        try:
            while self._process.poll() is None:
                time.sleep(POLL)
        finally:
            self._process.kill()
        code = self._process.wait()
        if code in (0, *STOPPED) or self._asked:
            return code
        if store is not None and place.world_size > 1:
            time.sleep(AFTER_FAILURE)
        sys.exit(code if code > 0 else 128 - code)

    def checkpoint(self) -> Any:
        """Wait until the process has saved, and return the work of the requeued job."""
        from submitit.helpers import DelayedSubmission

        self._ask()
        if self._process is not None:
            with suppress(ChildProcessError):  # already ended; `wait` would need the lock of the interrupted call
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(SlurmTask(self.command))

    def _ask(self) -> None:
        """Ask the process to save and stop, only once: a second signal would kill it."""
        if not self._asked:
            self._asked = True
            if self._process is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGTERM)

    def _forwarding(self, before: Any) -> Callable[[int, FrameType | None], None]:
        """A signal handler that asks the process to stop, then calls submitit's handler."""

        def handle(number: int, frame: FrameType | None) -> None:
            self._ask()
            if callable(before):
                before(number, frame)

        return handle
