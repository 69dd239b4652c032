"""Tests of overrides on the command line: every type read back, every mistake one line with the nearest valid name."""

import dataclasses
import json
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excb.errors import UserError
from excb.files import json_text
from excb.pretrain.overrides import apply, checked_value, field_names, find_recipe, value_of_text
from excb.pretrain.recipe import Recipe
from excb.pretrain.recipes import RECIPES

examples = settings(max_examples=60, deadline=None, database=None)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def recipe() -> Recipe:
    return RECIPES["quickstart"]()


def parse(text: str, annotation: Any, name: str) -> Any:
    return checked_value(value_of_text(text, annotation), annotation, name)


def value_of(recipe: Recipe, name: str) -> Any:
    section, _, field = name.rpartition(".")
    return getattr(getattr(recipe, section) if section else recipe, field)


def message_of(override: str) -> str:
    with pytest.raises(UserError) as caught:
        apply(recipe(), [override])
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---------------------------------------------------------------------------------------------------------------------
# Values of every type
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("optim.epochs=7", 7),
        ("run.seed= 12 ", 12),
        ("optim.base_lr=0.3", 0.3),
        ("optim.base_lr=1e-3", 0.001),
        ("optim.warmup_epochs=2", 2.0),
        ("method.clamp=true", True),
        ("method.clamp=Yes", True),
        ("method.clamp=1", True),
        ("method.predictor=False", False),
        ("method.predictor=no", False),
        ("method.predictor=0", False),
        ("model.backbone=vit_small", "vit_small"),
        ("efficiency.device=cuda:1", "cuda:1"),
        ("optim.optimizer=adamw", "adamw"),
        ("optim.clip=3", 3.0),
        ("optim.clip=none", None),
        ("optim.clip=None", None),
        ("optim.clip=", None),
        ("run.save_steps=500", 500),
        ("run.save_steps=none", None),
        ("views.scale_end=0.14", 0.14),
        ("views.global_scale=0.3,0.9", (0.3, 0.9)),
        ("views.global_scale=(0.3, 0.9)", (0.3, 0.9)),
        ("views.global_scale=[0.3,0.9]", (0.3, 0.9)),
        ("views.mean=0.1,0.2,0.3", (0.1, 0.2, 0.3)),
        ("distil.teachers=none", ()),
        ("distil.teachers=", ()),
        ('model.options={"channels": [8, 16], "act_layer": "silu", "a": {"b": null}}', None),
        ("model.options={}", {}),
    ],
)
def test_value_is_read_in_the_fields_type(override: str, value: Any) -> None:
    name, _, text = override.partition("=")
    found = value_of(apply(recipe(), [override]), name)
    expected = json.loads(text) if value is None and text.startswith("{") else value
    assert found == expected
    assert type(found) is type(expected)


def test_numbers_in_a_tuple_are_floats() -> None:
    assert all(type(item) is float for item in apply(recipe(), ["views.global_scale=1,1"]).views.global_scale)


def text_of(value: Any) -> str:
    """A value as a user types it."""
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return ",".join(value) or "none"
    return json.dumps(value) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_field_takes_its_own_value_as_text(name: str) -> None:
    wanted = RECIPES[name]()
    if name == "distil":
        wanted = wanted.change(distil={"teachers": ("mobilenetv2", "timm:vit_tiny_patch16_224")})
    values = {field: value_of(wanted, field) for field in field_names(wanted)}
    texts = {field: text_of(value) for field, value in values.items()}
    found = apply(recipe(), [f"{field}={text}" for field, text in texts.items()])
    assert found == dataclasses.replace(wanted, name="quickstart")
    assert {field: type(value_of(found, field)) for field in values} == {f: type(v) for f, v in values.items()}


def test_field_names_are_all_fields_but_the_name() -> None:
    names = field_names(recipe())
    sections = [field.name for field in dataclasses.fields(Recipe) if field.name not in ("name", "init", "adopts")]
    expected = {f"{s}.{field.name}" for s in sections for field in dataclasses.fields(getattr(recipe(), s))}
    assert set(names) == expected | {"init"}
    assert len(names) == len(set(names))


def test_overrides_change_nothing_else_and_the_last_one_of_a_field_counts() -> None:
    changed = apply(recipe(), ["optim.epochs=3", "run.seed=4", "optim.batch=16", "optim.epochs=5"])
    assert changed == recipe().change(optim={"epochs": 5, "batch": 16}, run={"seed": 4})
    assert apply(recipe(), []) == recipe()


def test_values_that_fit_only_together_are_judged_together() -> None:
    changed = apply(recipe(), ["views.eval_crop=512", "views.eval_resize=600"])
    assert (changed.views.eval_crop, changed.views.eval_resize) == (512, 600)
    with pytest.raises(UserError, match=r"views\.eval_crop"):
        apply(recipe(), ["views.eval_crop=512"])


def test_init_names_a_path() -> None:
    assert apply(recipe(), ["init=runs/a=b"]).init == "runs/a=b"
    for nothing in ("init=none", "init=None"):
        assert apply(dataclasses.replace(recipe(), init="runs/old"), [nothing]).init is None
    with pytest.raises(
        UserError, match="is a shell variable unset"
    ):  # else it would train from scratch, and not say so
        apply(recipe(), ["init="])


# ---------------------------------------------------------------------------------------------------------------------
# str(value) -> value
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "values"),
    [
        ((int, int | None), st.integers()),
        ((float, float | None), NUMBERS | st.sampled_from([-0.0, 5e-324])),
        ((bool,), st.booleans()),
        ((tuple[float, float],), st.tuples(NUMBERS, NUMBERS)),
        ((tuple[float, float, float],), st.tuples(NUMBERS, NUMBERS, NUMBERS)),
    ],
)
@examples
@given(data=st.data())
def test_values_round_trip(kinds: tuple[Any, ...], values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    value = data.draw(values)
    for kind in kinds:
        held = parse(str(value), kind, "x")
        assert (held, str(held)) == (value, str(value))


@examples
@given(
    value=st.dictionaries(
        st.text(max_size=5),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(json_text.LEAST, json_text.MOST),
            NUMBERS,
            st.lists(st.text(max_size=3)),
        ),
    )
)
def test_json_objects_round_trip(value: dict[str, Any]) -> None:
    assert parse(json.dumps(value), dict[str, Any], "x") == value


@examples
@given(text=st.text(max_size=12))
def test_any_text_is_a_value_or_one_clear_line(text: str) -> None:
    kinds: list[Any] = [int, float, bool, float | None, tuple[float, float], dict[str, Any], Literal["sgd", "adamw"]]
    for kind in kinds:
        message = "section.field is fine"
        try:
            parse(text, kind, "section.field")
        except UserError as error:
            message = str(error)
        assert message.startswith("section.field ")
        assert len(message.splitlines()) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("optim.epoch=3", "optim.epochs"),
        ("optim.ephocs=3", "optim.epochs"),
        ("epochs=3", "optim.epochs"),
        ("run.epochs=3", "optim.epochs"),
        ("clusters=3", "method.clusters"),
        ("metod.clusters=3", "method.clusters"),
        ("view.blur=0,0", "views.blur"),
        ("inti=runs/x", "init"),
    ],
)
def test_unknown_field_is_refused_with_the_nearest_one(override: str, nearest: str) -> None:
    message = message_of(override)
    assert f"'{override.partition('=')[0]}'" in message
    assert f"did you mean '{nearest}'?" in message
    assert "excb-pretrain show quickstart" in message


@pytest.mark.parametrize("override", ["name=mine", "model=resnet18", "optim.=3", "=3", "qqqqqqqqqq=3"])
def test_what_is_no_field_is_refused(override: str) -> None:
    assert "no field is called" in message_of(override)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optim.epochs", "section.field=value"),
        ("", "section.field=value"),
        ("optim.epochs=ten", "optim.epochs takes a whole number, not 'ten'"),
        ("optim.epochs=1.5", "optim.epochs takes a whole number, not '1.5'"),
        ("optim.epochs=", "optim.epochs takes a whole number, not ''"),
        ("optim.base_lr=fast", "optim.base_lr takes a number, not 'fast'"),
        ("optim.base_lr=nan", "optim.base_lr takes a finite number, not nan"),
        ("optim.base_lr=inf", "optim.base_lr takes a finite number, not inf"),
        ("optim.clip=-inf", "optim.clip takes a finite number, not -inf"),
        ("method.clamp=maybe", "method.clamp is true or false, not 'maybe'"),
        ("method.clamp=", "method.clamp is true or false, not ''"),
        ("optim.optimizer=adam", "optim.optimizer must be one of sgd, adamw, not 'adam'; did you mean 'adamw'?"),
        ("views.interpolation=bilnear", "did you mean 'bilinear'?"),
        ("views.global_scale=0.5", "views.global_scale takes 2 values, not '0.5'"),
        ("views.global_scale=0.1,0.2,0.3", "views.global_scale takes 2 values"),
        ("views.mean=0.5,0.5", "views.mean has 2 numbers for images of 3 channels"),
        ("views.global_scale=0.1,x", "views.global_scale takes a number, not 'x'"),
        ("views.global_scale=0.1,", "views.global_scale takes a number, not ''"),
        ("model.options=[1]", "model.options takes a JSON object"),
        ("model.options={'a': 1}", "model.options takes a JSON object"),
        ('model.options={"a": NaN}', "model.options takes a JSON object"),
        ("model.options=", "model.options takes a JSON object"),
        ("optim.epochs=0", "optim.epochs must be at least 1"),
        ("run.seed=-1", "run.seed must lie between"),
        ("optim.epochs=a\nb", "optim.epochs takes a whole number"),
        ("optim.base_lr=a\nb", "optim.base_lr takes a number"),
        ("method.clamp=a\rb", "method.clamp is true or false"),
        ("optim.optimizer=a\nb", "optim.optimizer must be one of"),
        ("views.global_scale=a\nb", "views.global_scale takes 2 values"),
        ('model.options={"a":\n', "model.options takes a JSON object"),
        ("a\nb=3", "no field is called"),
        ("a\nb", "section.field=value"),
    ],
)
def test_wrong_value_is_refused_in_one_line(override: str, words: str) -> None:
    assert words in message_of(override)


def test_recipe_by_name() -> None:
    assert find_recipe("rn18_small") == RECIPES["rn18_small"]()


@pytest.mark.parametrize(
    ("name", "nearest"), [("rn18_smal", "rn18_small"), ("rn50_100", "rn50_100ep"), ("quick", "quickstart")]
)
def test_unknown_recipe_is_refused_with_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(UserError, match=f"no recipe is called '{name}'; did you mean '{nearest}'") as caught:
        find_recipe(name)
    assert "excb-pretrain list" in str(caught.value)


def test_recipe_name_with_a_line_break_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="no recipe is called") as caught:
        find_recipe("quick\nstart")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "overrides", "options"),
    [
        ("rn18_small", ["model.backbone=timm:convnext_atto"], {}),
        ("rn18_small", ["model.backbone=vit_tiny"], {}),
        ("rn18_small", ["model.backbone=resnet34"], {"zero_init_residual": False}),
        ("photos_small", ["model.backbone=resnet18"], {}),
        ("photos_small", ["model.backbone=conv4"], {"widths": [32, 64, 128, 512]}),
        ("photos_small", ["model.backbone=resnet18", 'model.options={"widths": [1]}'], {"widths": [1]}),
        ("photos_small", ['model.options={"widths": [8, 8, 8, 8]}'], {"widths": [8, 8, 8, 8]}),
    ],
)
def test_another_backbone_keeps_the_options_that_it_takes(
    recipe: str, overrides: list[str], options: dict[str, Any]
) -> None:
    assert apply(find_recipe(recipe), overrides).model.options == options
