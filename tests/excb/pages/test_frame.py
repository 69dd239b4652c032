"""Tests of pages: whatever text holds, it is text in them, and they use nothing but their own."""

import re
from html.parser import HTMLParser

import pytest

from excb.pages.frame import render_page
from excb.pages.gallery import GallerySection, Picture, PictureGroup, render_gallery
from tests.transfer.result_files import HOSTILE


class _Reader(HTMLParser):
    """The elements and texts that a parser finds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags = list[str]()
        self.titles, self.text = list[str | None](), ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.titles += [value for name, value in attrs if name in ("title", "aria-label", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def page(text: str) -> str:
    terms = [(text, text, text)]
    return render_page(
        "standings",
        title=text,
        style="base report",
        subtitles=[text],
        figures=[(text, text, text)],
        footer=text,
        tables=(),
        picture=None,
        lists=[(text, terms)],
        notes=[text],
    )


@pytest.mark.parametrize("text", [HOSTILE, "a & b", "\"quoted\" 'too'", "<b>", "&amp;", "{{ 7 * 7 }}", "{% raw %}"])
def test_text_stays_text(text: str) -> None:
    found, harmless = _Reader(page(text)), _Reader(page("words"))
    visible = text.replace("\u202e", "\ufffd")
    assert found.tags == harmless.tags
    assert found.text == harmless.text.replace("words", visible)
    assert visible in found.titles


def test_nothing_is_written_for_none() -> None:
    assert "None" not in page("x").replace("'none'", "")


def test_a_page_may_use_nothing_but_its_own() -> None:
    text = page("x")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; img-src data:;")
    assert policy[1].count("sha256-") == 1
    assert not re.search(r"""(src|href)=["']?https?:|@import|url\(""", text)
    assert "<script" not in text


def gallery(*groups: PictureGroup) -> str:
    sections = [GallerySection("section", groups, ["why these"])]
    return render_gallery("title", sections, heading="heading", subtitles=[], footer="footer")


def test_captions_break_after_separators_and_stay_text() -> None:
    path = f"holidays/a_b-{HOSTILE}.jpg"
    found = _Reader(gallery(PictureGroup([Picture(path, None, "Fruit.Apple", path)])))
    assert "holidays/<wbr>a_b-" in gallery(PictureGroup([Picture(path, None, "", path)]))
    assert found.text.count(path.replace("\u202e", "\ufffd")) == 1
    assert "Fruit.Apple" in found.text
    assert "<b>Fruit.<wbr>Apple</b> 1.jpg<" in gallery(PictureGroup([Picture("a", None, "Fruit.Apple", "1.jpg")]))


def test_titles_and_notes_stand_before_the_pictures_they_explain() -> None:
    text = gallery(PictureGroup([Picture("a.jpg", None, "", "a.jpg")], title="one of them"))
    places = [text.index(part) for part in ("section</h2>", "why these", "one of them", "a.jpg is not there")]
    assert places == sorted(places)


def test_small_groups_stand_beside_each_other() -> None:
    picture = Picture("a.jpg", None, "", "a.jpg")
    text = gallery(*(PictureGroup([picture] * size) for size in (2, 3, 4)), PictureGroup([picture], picture))
    assert re.findall(r'<div class="([a-z ]*group)"', text) == ["narrow group", "narrow group", "group", "query group"]
