"""Results that are published with a checkpoint: read, and checked to be of its weights."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from excb.errors import UserError
from excb.networks.backbone import weights_hash
from excb.results.result import ResultRecord


def results_by_file(tensors: Mapping[str, Tensor], files: Sequence[Path]) -> dict[str, ResultRecord]:
    """Results by the name of their file, without the machine's paths.

    Raises:
        UserError: one cannot be read, or was measured on other weights.
    """
    results, ours = dict[str, ResultRecord](), weights_hash(tensors)
    for file in files:
        result = ResultRecord.read(file)
        theirs = result.checkpoint.get("weights_sha256")
        if theirs != ours:
            raise UserError(
                f"{file} was measured on other weights ({str(theirs)[:16]}, not {ours[:16]}): evaluate again"
            )
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip(".-_") or "result"
        if name in results:
            raise UserError(f"two results would be called {name}.json: rename {file}")
        results[name] = result.without_paths()
    return results
