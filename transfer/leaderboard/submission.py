"""Whether a result file may stand in the leaderboard: its schema, hashes and protocol, and its figures recounted."""

import math
import re
from pathlib import Path

from excb.console import plural
from excb.errors import UserError, require
from excb.files.atomic import write_text
from excb.files.foreign import read_text
from excb.inference import statistics
from excb.inference.basis import BOOTSTRAP
from excb.results.result import ResultRecord

from .. import protocols
from ..protocol import Protocol
from ..protocols import PROTOCOLS, kind_of
from ..reporting.report import scored_beside
from . import comparable

_SHA256 = re.compile(r"[0-9a-f]{64}")
_CLOSE = 1e-4  # a unit of the last digit that results hold


def check_result(file: Path, result: ResultRecord) -> list[str]:
    """Check one result file; its predictions are recounted where they lie beside it.

    Args:
        file: FILE.json.
        result: that it holds.

    Returns:
        What was checked, for a person.

    Raises:
        UserError: it may not stand in a leaderboard, and why.
    """
    done = [f"schema {result.schema}", f"protocol {result.protocol} {result.protocol_hash}"]
    try:
        _figures(result)  # first: a result of another kind, such as of clusters, has none of the rest
        _hashes(result)
        _protocol(result)
        if result.predictions and file.with_name(str(result.predictions.get("file"))).is_file():
            done.append(_recount(file, result))
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file} has a field of another form ({type(error).__name__}: {error}): measure again"
        ) from None
    return done


def is_shown(result: ResultRecord) -> bool:
    """Whether a result has a figure that a board shows."""
    return any(map(kind_of, result.figures))


def check_shown(file: Path, result: ResultRecord) -> None:
    """Raise UserError unless a board can show a result: whose and of what it is, and figures that can be."""
    require(is_shown(result), f"{file} holds no figure that a leaderboard shows: leave it out")
    said = (result.checkpoint.get("weights_sha256"), comparable.test_part(result).get("fingerprint"))
    require(all(said), f"{file} does not say which weights and which test images it is of: measure again with --out")
    for name in filter(kind_of, result.figures):
        try:
            _figure(result, name)
        except (TypeError, ValueError) as error:
            raise UserError(f"{file}: {name} has another form ({error}): measure again") from None
        except UserError as error:
            raise UserError(f"{file}: {error}: measure again") from None


def submit(result: ResultRecord, folder: Path) -> Path:
    """Write a result that `check_result` has passed into a leaderboard's folder, without the paths of this machine.

    Returns:
        The new file, named after checkpoint and protocol.

    Raises:
        UserError: another result has its name, or it cannot be written.
    """
    result = result.without_paths()
    name = result.checkpoint.get("name") or result.checkpoint.get("source")
    label = f"{name}-{_protocol_of(result).label(result)}"
    place = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', label).strip('.-_')}.json"
    text = result.to_json() + "\n"
    if place.exists() and read_text(place) != text:
        raise UserError(f"{place} is another result: rename one of them")
    write_text(text, place)
    return place


def _hashes(result: ResultRecord) -> None:
    hashes = {
        "checkpoint.weights_sha256": result.checkpoint.get("weights_sha256"),
        "data.train.fingerprint": result.data["train"].get("fingerprint"),
        "data.test.fingerprint": result.data["test"].get("fingerprint"),
        "predictions.sha256": result.predictions.get("sha256"),
    }
    for name, value in hashes.items():
        if not isinstance(value, str) or _SHA256.fullmatch(value) is None:
            raise UserError(f"{name} is not a sha256: measure again with `excb-eval` and --out")


def _figures(result: ResultRecord) -> None:
    if not is_shown(result):
        raise UserError("it holds no figure that a leaderboard shows")
    for name in result.figures:
        _figure(result, name)


def _figure(result: ResultRecord, name: str) -> None:
    value, kind = result.figures[name], kind_of(name)
    if not math.isfinite(value) or ((kind is None or kind.unit == "percent") and not 0 <= value <= 100):
        raise UserError(f"{name} is {value}: a figure lies between 0 and 100 percent")
    low, high = result.intervals.get(name, (value, value))
    if not low <= value <= high:
        raise UserError(f"{name} is {value}, outside its interval {low} to {high}")


def _protocol(result: ResultRecord) -> None:
    if objection := _protocol_of(result).objection(result):
        raise UserError(objection)
    for name in result.figures:
        if (kind := kind_of(name)) is not None:
            comparable.fields_of_result(result, kind)


def _protocol_of(result: ResultRecord) -> Protocol:
    if (protocol := protocols.protocol_of_result(result.protocol)) is None:
        names = ", ".join(PROTOCOLS)
        raise UserError(f"protocol '{result.protocol}' is none of this version: it knows {names}")
    return protocol


def _recount(file: Path, result: ResultRecord) -> str:
    if not str(result.predictions["file"]).endswith(".npz"):
        return "predictions are there"
    scored = scored_beside(result, file)
    counted, intervals = scored.scores(), scored.intervals()
    seeds = result.settings.get("seeds") or [0]
    for name, scores in counted.items():
        value = round(statistics.percent(scores), 4)
        if name in result.figures and abs(result.figures[name] - value) > _CLOSE:
            raise UserError(f"{name} is {result.figures[name]}, and its predictions give {value}")
        if len(seeds) > 1 and f"{name}_seed{seeds[0]}" in result.figures:
            continue  # a mean over seeds, whose interval earlier versions drew in another way
        if (interval := intervals.get(name)) is None:
            continue
        stated = result.intervals.get(name, interval)
        close = tolerance(interval, scored.bases()[name].method, result.inference.get(name, {}).get("method"))
        if stated[0] == stated[1]:  # by earlier versions, where all scores were equal
            continue
        if name in result.figures and any(abs(a - b) > close for a, b in zip(stated, interval, strict=True)):
            raise UserError(f"{name} has the interval {stated}, and its predictions give {interval}")
    return f"{plural(len(counted), 'figure')} recounted from {plural(len(scored.targets), 'prediction')}"


def tolerance(interval: tuple[float, float], method: str, stated: str | None) -> float:
    """How far the ends of a stated interval may be from those of its predictions.

    Args:
        interval: of the predictions.
        method: its method.
        stated: the method of the stated one. Earlier versions state none or drew resamples, whose ends differ a little;
            of scores that are mostly 0 or 1 they differ more.
    """
    resampled = stated == BOOTSTRAP.method != method
    return _CLOSE + (interval[1] - interval[0]) * (1 if resampled else 0.25)
