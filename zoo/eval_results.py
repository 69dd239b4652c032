"""The hub's `.eval_results`: measured figures as its benchmarks collect them, beside the card's `model-index`."""

import re

from excb.files.markdown import line
from excb.results.result import ResultRecord

_ON_THE_HUB = re.compile(r"hf:([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)")


def eval_results(result: ResultRecord, *, repo: str | None = None) -> str | None:
    """The YAML file of a result's figures, one entry each; None of images that are not a data set of the hub.

    The hub shows an entry on the model's page, and in the leaderboard of its data set if that is a benchmark with a
    task of the figure's name. Values are in percent.

    Args:
        result: measured on the weights that are published.
        repo: "user/name" of the repository that will hold them, which then is the entries' source.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    from huggingface_hub.utils import yaml_dump  # type: ignore[attr-defined]  # it is, but not by name

    images = result.data.get("test")
    root = str(images.get("root", "")) if isinstance(images, dict) else ""
    if (match := _ON_THE_HUB.match(root)) is None:
        return None
    source = {} if repo is None else {"source_url": f"https://huggingface.co/{repo}", "source_name": "Model card"}
    entries = [
        EvalResultEntry(
            dataset_id=match[1],
            task_id=line(figure),
            value=value,
            date=line(result.created),
            notes=f"{line(result.protocol)} {result.protocol_hash} on {line(root)}",
            **source,
        )
        for figure, value in result.figures.items()
    ]
    text: str = yaml_dump(eval_result_entries_to_yaml(entries))
    return text
