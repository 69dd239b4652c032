"""Figures: equal ones are equal bytes, any name can be drawn, classes are told apart."""

import io
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from excb.charts.style import (
    check_formats,
    distinct_styles,
    drawable,
    figure_bytes,
    new_figure,
    save_figure,
    shortened,
    style_axes,
)
from excb.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def line(title: str = "A line") -> "Figure":
    figure = new_figure(4, 3)
    axes = figure.subplots()
    axes.plot([0, 1], [1, 0])
    style_axes(axes, title, x="x", y="y")
    return figure


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_equal_figures_are_equal_bytes(suffix: str) -> None:
    assert figure_bytes(line(), suffix) == figure_bytes(line(), suffix)
    assert figure_bytes(line(), suffix) != figure_bytes(line("Another"), suffix)


def test_a_png_has_the_size_asked_for_and_something_on_it() -> None:
    with Image.open(io.BytesIO(figure_bytes(line(), dpi=100))) as picture:
        assert picture.size == (400, 300)
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 20


def test_the_suffix_decides_the_format_whatever_its_case(tmp_path: Path) -> None:
    save_figure(line(), tmp_path / "a.PNG")
    save_figure(line(), tmp_path / "a.svg")
    with Image.open(tmp_path / "a.PNG") as picture:
        assert picture.format == "PNG"
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("}svg")


@pytest.mark.parametrize("name", ["a.pdf", "a", "png"])
def test_other_formats_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end in \.png or \.svg"):
        check_formats([tmp_path / "a.png", tmp_path / name])
    with pytest.raises(UserError, match=r"must end in \.png or \.svg"):
        save_figure(line(), tmp_path / name)


def test_any_name_can_be_drawn() -> None:
    """Scripts that the font lacks, and the bytes of a file name that is not UTF-8."""
    assert drawable("日本\udcff") == "日本?"
    assert figure_bytes(line(drawable("日本\udcff"))).startswith(b"\x89PNG")


def test_long_names_are_cut() -> None:
    assert shortened("abcd", 4) == "abcd"
    assert shortened("abcde", 4) == "abc…"


def test_fifty_classes_look_different() -> None:
    assert len(set(distinct_styles(50))) == 50
    assert len(list(distinct_styles(60))) == 60
