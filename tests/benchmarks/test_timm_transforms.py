"""One of each kind of timm's pretrained configurations: the same bits as timm's own transform, or a true refusal."""

import pytest
from timm.models import list_pretrained

from benchmarks import timm_transforms
from excb.checkpoint.timm_format import preprocessing_of
from excb.errors import UserError
from excb.images.photographs import photograph


def test_each_kind_is_equal_or_refused() -> None:
    names = timm_transforms.one_of_each_kind(list_pretrained())
    judged = timm_transforms.verdicts(names, [photograph("cat")])
    modes = {timm_transforms.configuration(name)["crop_mode"] for name in names}
    assert {"center", "squash", "border"} == modes
    for name, (verdict, why) in judged.items():
        _, height, width = timm_transforms.configuration(name)["input_size"]
        assert verdict == ("equal" if height == width else "refused"), f"{name}: {why}"


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    squashed = timm_transforms.configuration("convnext_tiny.fb_in22k_ft_in1k_384")
    centred = preprocessing_of("as before", squashed | {"crop_mode": "center"})
    monkeypatch.setattr(timm_transforms, "preprocessing_of", lambda *_: centred)
    judged = timm_transforms.verdicts(["convnext_tiny.fb_in22k_ft_in1k_384"], [photograph("cat")])
    assert [verdict for verdict, _ in judged.values()] == ["wrong"]


@pytest.mark.parametrize(("field", "value"), [("interpolation", "random"), ("crop_mode", "random")])
def test_what_timm_draws_at_random_is_refused(field: str, value: str) -> None:
    data = timm_transforms.configuration("resnet18.a1_in1k") | {field: value}
    with pytest.raises(UserError, match=f"timm:x has the {field} 'random': evaluation needs "):
        preprocessing_of("timm:x", data)
