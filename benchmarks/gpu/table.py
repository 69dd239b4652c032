"""`table.md`: what was measured, in the form of the tables of benchmarks/README.md."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.parts import Part
from benchmarks.gpu.record import FAILED, Outcome, Record
from excb.files.atomic import write_text
from excb.files.markdown import cell

FILE = "table.md"
HEAD = "| what | command | result | hardware, versions, date |\n| --- | --- | --- | --- |"
TINY = "Tiny sizes, to try `python -m benchmarks.gpu`: these figures mean nothing."


def write_table(folder: Path, parts: Sequence[Part], record: Record) -> None:
    """Replace the file. Raises UserError if it cannot be written."""
    rows = [_row(part, record) for part in parts]
    done = [(part, outcome) for part in parts if (outcome := record.of(part.name)).state == "done"]
    tables = [part.table(outcome.figures) for part, outcome in done if part.table is not None]
    notes = [TINY] if record.settings["tiny"] else []
    write_text("\n\n".join([*notes, "\n".join([HEAD, *rows]), *tables]) + "\n", folder / FILE)


def _row(part: Part, record: Record) -> str:
    outcome = record.of(part.name)
    columns = [part.what, f"`{part.shown}`", _result(outcome), _where(outcome, record)]
    return "| " + " | ".join(columns) + " |"


def _result(outcome: Outcome) -> str:
    result = outcome.result.replace("|", "\\|")
    if outcome.state == "done":
        return result
    if outcome.state == FAILED:
        return f"failed: {result and f'{result}; '}{cell(' / '.join(outcome.error[-2:]))}"
    if outcome.state == "skipped":
        return f"skipped: {cell(outcome.error[0])}"
    return "not run yet" if outcome.state == "waiting" else "not finished yet"


def _where(outcome: Outcome, record: Record) -> str:
    if outcome.machine is None:
        return ""
    here = record.machines[outcome.machine]
    parts = [here["device"], f"torch {here['torch']}", f"commit {here['commit']}", outcome.date.partition("T")[0]]
    return cell(", ".join(parts))
