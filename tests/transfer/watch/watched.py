"""Runs to watch, without training: checkpoints of tiny networks with metrics, and the command that watches them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from excb.transfer.cli import main
from tests.run_files import tiny_recipe, write_run

PROTOCOL = "knn --k 5 --backend torch"
MACHINE = ("--device", "cpu", "--workers", "0")
TIMES = ("seconds", "created")  # what differs between two measurements of one checkpoint


def grow(run: Path, *steps: int, keep: int | None = None) -> Path:
    """Write checkpoints as a run does, ten steps an epoch, each with its epoch's metrics; the oldest are removed."""
    run.mkdir(exist_ok=True)
    recipe = tiny_recipe(eval_resize=36, eval_crop=32)
    (run / "recipe.json").write_text(json.dumps({"recipe": recipe.to_dict(), "data": {}}), encoding="utf-8")
    for step in steps:
        line = {"kind": "epoch", "step": step, "epoch": step // 10, "loss": 5 - step / 100, "knn_top1": 30.0 + step}
        with (run / "metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line | {"score": line["knn_top1"]}) + "\n")
        write_run(run, step, recipe=recipe)
        files = sorted((run / "checkpoints").glob("step-*.pt"), key=lambda file: int(file.stem[5:]))
        for old in files[: -keep if keep else 0]:
            old.unlink()
    return run


def finish(run: Path, step: int) -> None:
    """Write the report of a run that is complete."""
    (run / "report.json").write_text(json.dumps({"checkpoint": f"checkpoints/step-{step}.pt"}), encoding="utf-8")


def watch(run: Path | str, data: Path, *words: str, protocol: str = PROTOCOL) -> int:
    """`excb-eval watch` in this process."""
    return int(main(["watch", str(run), "--data", str(data), "--protocol", protocol, *MACHINE, *words]))


def lines(out: Path) -> list[dict[str, Any]]:
    """The log, without times."""
    parsed = map(json.loads, (out / "watch.jsonl").read_text(encoding="utf-8").splitlines())
    return [{name: value for name, value in line.items() if name not in TIMES} for line in parsed]


def figures(measured: Iterable[dict[str, Any]]) -> dict[int, tuple[Any, Any, Any]]:
    """Figures, intervals and protocol hash by step."""
    return {line["step"]: (line["figures"], line["intervals"], line["protocol_hash"]) for line in measured}


def by_hand(checkpoint: Path | str, data: Path, out: Path, protocol: str = PROTOCOL) -> tuple[Any, Any, Any]:
    """The same of one checkpoint by the protocol's own command."""
    file = out / "by-hand.json"
    words = [*protocol.split(), "--ckpt", str(checkpoint), "--data", str(data), *MACHINE, "--quiet", "--json"]
    assert main([*words, "--no-cache", "--out", str(file), "--overwrite"]) == 0
    result = json.loads(file.read_text(encoding="utf-8"))
    return result["figures"], result["intervals"], result["protocol_hash"]
