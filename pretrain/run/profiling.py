"""Where a step's time goes: a trace of a few steps by torch's profiler, and a summary of it."""

import time
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

SKIPPED, RECORDED = 3, 5  # steps: the first ones warm up memory, workers and kernels
ROWS = 8  # operations named in the summary


class StepProfile:
    """Records some of the first steps of this rank; the trace opens in chrome://tracing or ui.perfetto.dev."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "profile" / "trace.json"
        activities = [kind for kind in (ProfilerActivity.CPU, ProfilerActivity.CUDA) if kind in supported_activities()]
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=SKIPPED - 1, warmup=1, active=RECORDED, repeat=1),
            acc_events=True,  # without it, some versions of torch warn of lost cycles, although there is only one
        )
        self._profiler.start()
        self._step, self._clock = 0, time.monotonic()
        self._waiting = self._working = 0.0

    def batch_ready(self) -> None:
        """Note that the batch is there: the time since the last step was spent waiting."""
        self._waiting += self._lap()

    def step_done(self) -> str:
        """Note that a step is done; return the summary after the last recorded step, otherwise an empty string."""
        if self._step > SKIPPED + RECORDED:
            return ""
        self._working += self._lap()
        self._step += 1
        self._profiler.step()
        if self._step == SKIPPED:
            self._waiting = self._working = 0.0
        if self._step != SKIPPED + RECORDED:
            return ""
        self._profiler.stop()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(self.file))
        self._step += 1
        return self._summary()

    def close(self) -> str:
        """Return a message if the run had too few steps, otherwise an empty string."""
        if self._step > SKIPPED + RECORDED:
            return ""
        self._profiler.stop()
        return f"no profile: it takes {SKIPPED + RECORDED} steps, and there were {self._step}"

    def _lap(self) -> float:
        now = time.monotonic()
        lap, self._clock = now - self._clock, now
        return lap

    def _summary(self) -> str:
        events = [event for event in self._profiler.key_averages() if not event.is_user_annotation]
        # Kernels only: the operations that launch them carry the same time again.
        kernels = [event for event in events if event.device_type.name == "CUDA"]
        times = {e.key: e.self_device_time_total for e in kernels} or {e.key: e.self_cpu_time_total for e in events}
        total = sum(times.values()) or 1.0
        lines = [
            f"profile of {RECORDED} steps ({'GPU' if kernels else 'CPU'} time by operation; the trace: {self.file})",
            f"  a step takes {1000 * self._working / RECORDED:.1f} ms and waits "
            f"{1000 * self._waiting / RECORDED:.1f} ms for images",
        ]
        for name, microseconds in sorted(times.items(), key=lambda item: -item[1])[:ROWS]:
            lines.append(f"  {100 * microseconds / total:5.1f} %  {name}")
        return "\n".join(lines)
