"""The frame of every page: a template that escapes whatever it is given, around its own style and script.

A page holds all it needs, and its policy lets it use nothing else.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from excb.console import duration
from excb.pages.origin import PageOrigin
from excb.results.result import interval_text

Figure = tuple[str, str, str | None]


def render_page(
    template: str,
    *,
    title: str,
    style: str,
    script: str = "",
    library: str = "",
    heading: str = "",
    subtitles: Sequence[str] = (),
    figures: Sequence[Figure] = (),
    footer: str = "",
    refresh: int | None = None,
    origin: PageOrigin | None = None,
    **values: Any,
) -> str:
    """A page as HTML.

    Args:
        template: name of `templates/*.html`, which extends `page.html`.
        title: of the window.
        style: names of `templates/*.css`, separated by spaces.
        script: name of `templates/*.js`; empty of a page without.
        library: script of another package, before the page's own. The policy lets it make styles.
        heading: of the page; the title where it is empty.
        subtitles: below it.
        figures: that are seen first: a name, a value, and what stands beside it.
        footer: a sentence.
        refresh: seconds after which a browser loads it again; None of a page that stays as it is.
        origin: what the page is of, so that a page of something else is not replaced by it; None of a page that is
            written with a result.
        values: of the template. Text in them is escaped wherever it stands.
    """
    css = "".join(_asset(f"{name}.css") for name in style.split())
    code = _asset(f"{script}.js") if script else ""
    scripts = [each for each in (library.replace("</script", "<\\/script"), code) if each]
    policy = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; style-src "
    policy += "'unsafe-inline'" if library else _quoted_digest(css)
    policy += f"; script-src {' '.join(map(_quoted_digest, scripts))}" if scripts else ""
    return (
        _environment()
        .get_template(f"{template}.html")
        .render(
            title=title,
            heading=heading,
            subtitles=subtitles,
            figures=figures,
            footer=footer,
            refresh=refresh,
            origin=None if origin is None else origin.to_text(),
            policy=Markup(policy),  # noqa: S704  # these are ours, or of a package
            css=Markup(css),  # noqa: S704
            scripts=[Markup(each) for each in scripts],  # noqa: S704
            **values,
        )
    )


def render_fragment(template: str, **values: Any) -> str:
    """HTML without a page around it, from `templates/*.html`, as a notebook shows it."""
    return _environment().get_template(f"{template}.html").render(**values)


def data_address(content: bytes, kind: str = "image/png") -> str:
    """A file as an address that a page holds, such as the source of a picture."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "two": lambda value: f"{value:.2f}",
        "count": lambda value: f"{value:,}",
        "interval": interval_text,
        "duration": duration,
        "breakable": _breakable,
    }
    environment.filters |= filters
    return environment


def _visible(value: Any) -> Any:
    """A value of a template; None is empty.

    Characters that no page shows, and those that would turn the direction of the text around them, are replaced.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in value)


def _breakable(text: str) -> Markup:
    """A path or a name of a class, which a narrow column may break after / and ., but not before a file's suffix."""
    return Markup("<wbr>").join(re.split(r"(?<=/)(?=.)|(?<=\.)(?=\w{5})", _visible(text)))


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text("utf-8")


def _quoted_digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
