"""Files for the hub's `.eval_results`: read back by the hub's own client, and none of what is not the hub's."""

from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from huggingface_hub import EvalResultEntry, parse_eval_result_entries

from excb.results.result import ResultRecord
from excb.zoo.eval_results import eval_results


def result(root: str, **changes: Any) -> ResultRecord:
    values: dict[str, Any] = {
        "protocol": "knn",
        "figures": {"knn_top1_k20": 57.3125, "knn_top5_k20": 81.0},
        "settings": {"k": [20]},
        "checkpoint": {},
        "data": {part: {"root": root, "images": 3} for part in ("train", "test")},
        "seconds": 36.0,
        "created": "2026-11-21T10:00:00+00:00",
    }
    return ResultRecord(**values | changes)


def entries(text: str | None) -> list[EvalResultEntry]:
    assert text is not None
    return list(parse_eval_result_entries(yaml.safe_load(text)))


def test_every_figure_is_an_entry_that_the_hubs_client_reads() -> None:
    measured = result("hf:ethz/food101")
    found = entries(eval_results(measured, repo="tester/tiny"))
    assert {entry.task_id: entry.value for entry in found} == measured.figures
    assert {entry.dataset_id for entry in found} == {"ethz/food101"}
    assert {entry.date for entry in found} == {"2026-11-21T10:00:00+00:00"}
    assert {entry.source_url for entry in found} == {"https://huggingface.co/tester/tiny"}
    assert all(f"knn {measured.protocol_hash} on hf:ethz/food101" in (entry.notes or "") for entry in found)


def test_without_a_repository_there_is_no_source() -> None:
    assert [entry.source_url for entry in entries(eval_results(result("hf:a/b")))] == [None, None]


@pytest.mark.parametrize("root", ["/home/someone/food/test", "torchvision:CIFAR10", "hf:mnist", "", "hf:../up/x"])
def test_images_that_are_no_set_of_the_hub_by_name_have_none(root: str) -> None:
    assert eval_results(result(root)) is None


def test_results_on_one_set_without_a_test_part_have_none() -> None:
    assert eval_results(result("hf:a/b", data={"images": {"root": "hf:a/b"}})) is None


def test_text_of_a_result_cannot_leave_its_field() -> None:
    hostile = result("hf:a/b\nvalue: 100", figures={"knn: 1\n- dataset: x": 1.0}, protocol="k\n- nn")
    (entry,) = entries(eval_results(hostile, repo="tester/tiny"))
    assert (entry.dataset_id, entry.value) == ("a/b", 1.0)
    assert "\n" not in f"{entry.task_id}{entry.notes}"
