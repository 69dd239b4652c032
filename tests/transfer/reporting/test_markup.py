"""Tests of pages: whatever text holds, it is text in them."""

import re
from html.parser import HTMLParser

import pytest

from excb.transfer.reporting.markup import Html, element, join, page
from tests.transfer.result_files import HOSTILE


class _Reader(HTMLParser):
    """The elements and texts that a parser finds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags = "", list[tuple[str, dict[str, str | None]]]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", [HOSTILE, "a & b", "\"quoted\" 'too'", "<b>", "&amp;"])
def test_text_stays_text(text: str) -> None:
    found = _Reader(element("p", text, title=text))
    visible = text.replace("\u202e", "\ufffd")
    assert found.tags == [("p", {"title": visible})]
    assert found.text == visible


def test_markup_is_kept_and_nothing_is_left_out() -> None:
    inner = element("b", 1, None, hidden=True, id=None, aria_sort="none", class_="x")
    assert inner == '<b hidden aria-sort="none" class="x">1</b>'
    assert join(inner, "<", Html("<i></i>")) == f"{inner}&lt;<i></i>"
    assert element("img", src="a") == '<img src="a">'


def test_a_page_may_use_nothing_but_its_own() -> None:
    text = page("<title>", element("p", "x"), style="leaderboard", script="leaderboard")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; img-src data:;")
    assert policy[1].count("sha256-") == 2
    assert "<title>&lt;title&gt;</title>" in text
    assert not re.search(r"""(src|href)=["']?https?:|@import|url\(""", text)
