"""A result's file is replaced by a result of the same: the same weights, protocol and images, whatever its settings."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from excb.errors import UserError
from excb.results.result import ResultRecord

ADVICE = "name another file with --out, or replace it with --overwrite"
FOLDER_ADVICE = "name another folder with --out, or replace it with --overwrite"
PYTHON_ADVICE = "name another file, or replace it with overwrite=True"
PYTHON_FOLDER_ADVICE = "name another folder, or replace it with overwrite=True"


def has_content(file: Path) -> bool:
    """Whether something would be lost if a file were replaced: there is one, and it is not empty."""
    return file.is_file() and file.stat().st_size > 0


def result_at(file: Path, *, advice: str = ADVICE) -> ResultRecord | None:
    """The result that a new one would replace; None where there is no file, or an empty one.

    Args:
        file: that would be replaced.
        advice: what to do, as the end of a sentence.

    Raises:
        UserError: the file is not a result.
    """
    if not has_content(file):
        return None
    try:
        return ResultRecord.read(file)
    except UserError:
        raise UserError(f"{file} is there, and is not a result of this version: {advice}") from None


def refuse_other_result(
    before: ResultRecord,
    file: Path,
    *,
    is_protocol: Callable[[str], bool],
    weights: str | None,
    images: Mapping[str, str],
    advice: str = ADVICE,
) -> None:
    """Refuse to replace a result of something else, which would be lost.

    Args:
        before: the result in the file.
        file: that would be replaced.
        is_protocol: whether a result's `protocol` is that of the new one.
        weights: SHA-256 of the new one's; None where they say nothing, as of raw pixels.
        images: fingerprints of its sets, by their names in `data`; those that only one of both has are not compared.
        advice: what to do, as the end of a sentence.

    Raises:
        UserError: it is of other weights, of another protocol or of other images.
    """
    name, then = before.checkpoint.get("name") or before.checkpoint.get("source"), fingerprints(before.data)
    other = next((part for part in images if then.get(part, images[part]) != images[part]), None)
    if not is_protocol(before.protocol):
        what = f"a result of {before.protocol}"
    elif weights is not None and before.checkpoint.get("weights_sha256", weights) != weights:
        what = f"the result of other weights, {name}"
    elif other is not None:
        what = "a result of other images" if other == "images" else f"a result of other images ({other})"
    else:
        return
    raise UserError(f"{file} has {what}: {advice}")


def fingerprints(data: Mapping[str, Any]) -> dict[str, str]:
    """The fingerprints of the sets in a result's `data`, by their names there."""
    return {name: facts["fingerprint"] for name, facts in data.items()
            if isinstance(facts, Mapping) and "fingerprint" in facts}  # fmt: skip
