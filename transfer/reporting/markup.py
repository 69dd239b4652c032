"""HTML pages that hold all they need: elements that escape by construction, and a page with its own strict policy."""

import base64
import hashlib
import html
from importlib import resources
from typing import Any

_VOID = frozenset({"img", "input", "br"})


class Html(str):
    """Text that is markup already; any other text is escaped where it becomes part of an element."""

    __slots__ = ()


def element(name: str, *children: Any, **attributes: Any) -> Html:
    """An element with its children: Html as it stands, None left out, all else as escaped text.

    Args:
        name: of the element.
        children: its contents, in order.
        attributes: `class_` is class, `aria_sort` is aria-sort; None and False are left out, True has no value.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        words.append(label if value is True else f'{label}="{html.escape(_visible(str(value)))}"')
    start = f"<{' '.join(words)}>"
    return Html(start) if name in _VOID else Html(f"{start}{join(*children)}</{name}>")


def join(*parts: Any) -> Html:
    """Several parts one after the other, each as `element` takes them."""
    return Html("".join(part if isinstance(part, Html) else html.escape(_visible(str(part)), quote=False)
                        for part in parts if part is not None))  # fmt: skip


def _visible(text: str) -> str:
    """Text without characters that no page shows, and those that would turn the direction of the text around them."""
    return "".join(each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in text)


def page(title: str, body: Html, *, style: str, script: str | None = None, refresh: int | None = None) -> str:
    """A whole page, whose policy lets it use its own style and script, show pictures that it holds, and nothing else.

    Args:
        title: of the window.
        body: all that is seen.
        style: names of this package's `pages/*.css`, separated by spaces, after `base`.
        script: name of `pages/*.js`; None for a page without.
        refresh: seconds after which a browser loads it again; None of a page that stays as it is.
    """
    css = "".join(_asset(f"{name}.css") for name in ["base", *style.split()])
    code = None if script is None else _asset(f"{script}.js")
    policy = f"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; style-src '{_digest(css)}'"
    policy += "" if code is None else f"; script-src '{_digest(code)}'"
    head = element(
        "head",
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        None if refresh is None else Html(f'<meta http-equiv="refresh" content="{refresh}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        element("title", title),
        Html('<link rel="icon" href="data:,">'),
        Html(f"<style>{css}</style>"),
    )
    parts = [body] if code is None else [body, Html(f"<script>{code}</script>")]
    return f'<!doctype html>\n<html lang="en">\n{head}\n{element("body", *parts)}\n</html>\n'


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("..", "pages", "templates", name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
