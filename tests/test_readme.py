"""The script in the README runs as it is printed; only the run is made small."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import excb
from tests.clone import ROOT
from tests.pretrain.small_runs import VALUES, write_images

pytestmark = pytest.mark.usefixtures("one_thread")

train = excb.train


def script() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- python-script -->\n```python\n(.*?)```", text, flags=re.DOTALL)
    assert found is not None
    return found[1]


def test_the_script_has_twelve_lines() -> None:
    assert sum(bool(line.strip()) for line in script().splitlines()) == 12


def test_the_script_trains_evaluates_embeds_searches_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "photos" / "train")
    write_images(tmp_path / "photos" / "test", each=5)
    query = tmp_path / "photos" / "test" / "class1" / "0.png"
    (tmp_path / "query.jpg").write_bytes(query.read_bytes())

    def small(recipe: str, *, optim: Mapping[str, Any], **options: Any) -> excb.Run:
        assert (recipe, optim) == ("photos_small", {"epochs": 50})
        run: excb.Run = train("quickstart", **VALUES, **options)
        return run

    monkeypatch.setattr(excb, "train", small)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(script(), names)
    assert names["run"].finished
    assert names["features"].shape == (1, names["backbone"].width)
    found = names["embeddings"].search("query.jpg", k=1)[0]
    assert (found.path.split("/")[-1], round(found.cosine, 6)) == ("0.png", 1.0)
    with np.load("photos.npz") as arrays:
        assert arrays["vectors"].shape == (42, names["backbone"].width)
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].startswith(f"{names['result'].figures['knn_top1_k20']} (")
    assert f"{found.cosine:.3f} {found.path}" in printed
